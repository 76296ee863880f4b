"""The journal of an unfinished store: one line per commit, each with its own checksum, so that a torn line is seen.

The first line says what is being written; each later one, how far it is. A line is appended only after the data it
speaks of has been flushed to the disk.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

from fledge.system import BINARY, sync_folder

CUT_SHORT = re.compile(rb"[0-9a-f]{0,7}|[0-9a-f]{8}( (\{.*)?)?")  # a line of a journal without its end


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write everything: the system may take less at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


class Journal:
    """An append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, whole = read_journal(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o644)
        os.ftruncate(self._file, whole)
        os.lseek(self._file, 0, os.SEEK_END)
        sync_folder(path.parent)

    def append(self, record: dict[str, Any]) -> None:
        """Add a record and wait until it is on the disk."""
        line = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
        write_all(self._file, b"%08x %s\n" % (zlib.crc32(line), line))
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        """The store is whole: nothing is left to remember."""
        self.close()
        os.unlink(self.path)
        sync_folder(self.path.parent)


def begins_journal(head: bytes) -> bool:
    """Whether a file that begins like this is a journal: nothing yet, a first line cut short, or a sound one.

    >>> begins_journal(b"0a1b"), begins_journal(b'{"text": "not ours"}')
    (True, False)
    """
    line, ended, _ = head.partition(b"\n")
    return _sound(line) if ended else bool(CUT_SHORT.fullmatch(line))


def _sound(line: bytes) -> bool:
    check, _, text = line.partition(b" ")
    return check == b"%08x" % zlib.crc32(text)


def read_journal(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The sound records from the start, and the bytes they take."""
    records: list[dict[str, Any]] = []
    whole = 0
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n") or not _sound(line.rstrip(b"\n")):
                break
            records.append(json.loads(line.partition(b" ")[2]))
            whole += len(line)
    return records, whole
