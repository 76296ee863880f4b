"""The state of a store being written: files that grow with their checksums, and commits to the journal.

Data is flushed before the journal names it, beside the work, so that the encoder never waits for the disk.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fledge.corpus import Cursor, DocumentBatch
from fledge.corpus.corpus import add_content
from fledge.corpus.native import crc32
from fledge.errors import FledgeError
from fledge.system import BINARY, sync_folder
from fledge.tokenizer.base import Ids
from fledge.tokens.checked import BLOCK_BYTES
from fledge.tokens.encoding import Encoded

COMMIT_SECONDS = 2.0  # work that a kill may cost
FLUSH_BYTES = 16 << 20  # that may wait to be flushed, so that a commit, and the end of all, has little left to wait for


class GrowingFile:
    """An append-only file that keeps a checksum for every megabyte."""

    def __init__(self, path: Path, state: dict[str, Any] | None) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | BINARY, 0o644)
        self.size: int = state["size"] if state else 0
        self.partial: int = state["partial"] if state else 0
        self.checksums: list[str] = []  # whole blocks, of which the first `journaled` are in the journal
        self.journaled = 0
        if os.fstat(self.descriptor).st_size < self.size:
            raise FledgeError(
                f"{path} is shorter than its journal says, so it was changed. Start again with --restart."
            )
        os.ftruncate(self.descriptor, self.size)
        os.lseek(self.descriptor, 0, os.SEEK_END)

    def append(self, values: Ids) -> None:
        data = values.data.cast("B")
        write_all(self.descriptor, data)
        while data:
            room = BLOCK_BYTES - self.size % BLOCK_BYTES
            part, data = data[:room], data[room:]
            self.partial = crc32(part, self.partial)
            self.size += len(part)
            if self.size % BLOCK_BYTES == 0:
                self.checksums.append(format(self.partial, "08x"))
                self.partial = 0

    def state(self) -> dict[str, Any]:
        """What the journal needs to go on from here; the checksums since the last call."""
        fresh = self.checksums[self.journaled :]
        self.journaled = len(self.checksums)
        return {"size": self.size, "partial": self.partial, "checksums": fresh}

    def all_checksums(self) -> list[str]:
        return [*self.checksums, format(self.partial, "08x")] if self.size % BLOCK_BYTES else self.checksums


@dataclass
class SplitFiles:
    """What has been written of one split."""

    tokens: GrowingFile
    documents: GrowingFile
    source_bytes: int = 0

    def append(self, part: Encoded) -> None:
        """Add some documents."""
        first = self.tokens.size // part.ids.itemsize
        self.documents.append((part.starts + np.uint64(first)).astype("<u8"))
        self.tokens.append(part.ids)
        self.source_bytes += part.source_bytes

    def close(self) -> None:
        os.close(self.tokens.descriptor)
        os.close(self.documents.descriptor)

    def facts(self, width: int) -> dict[str, Any]:
        """What the manifest says of the split."""
        return {
            "tokens": self.tokens.size // width,
            "documents": self.documents.size // 8,
            "source_bytes": self.source_bytes,
            "checksums": {"tokens": self.tokens.all_checksums(), "documents": self.documents.all_checksums()},
        }


@dataclass
class Work:
    """The state of the whole: where the corpus has been read to, and what has been written."""

    splits: dict[str, SplitFiles]
    cursor: Cursor = field(default_factory=Cursor)
    consumed: int = 0
    skipped: int = 0
    content: int | None = 0  # the checksum of the documents so far; None where a journal began without one

    @classmethod
    def resume(cls, folder: Path, records: list[dict[str, Any]], names: Sequence[str]) -> Work:
        last = records[-1] if records else None
        splits = {}
        for name in names:
            state = last["splits"][name] if last else None
            files = {
                kind: GrowingFile(folder / file, state[kind] if state else None)
                for kind, file in (("tokens", f"{name}.bin"), ("documents", f"{name}.documents.bin"))
            }
            for kind, file in files.items():
                file.checksums = [check for record in records for check in record["splits"][name][kind]["checksums"]]
                file.journaled = len(file.checksums)
            splits[name] = SplitFiles(files["tokens"], files["documents"], state["source_bytes"] if state else 0)
        if last is None:
            return cls(splits)
        cursor = Cursor(last["cursor"][0], tuple(last["cursor"][1]))
        return cls(splits, cursor, last["consumed"], last["skipped"], last.get("content"))

    def advance(self, batch: DocumentBatch, encoded: dict[str, Encoded]) -> None:
        """Write the ids of a batch, and remember how far the corpus has been read."""
        for name, part in encoded.items():
            self.splits[name].append(part)
        self.cursor, self.consumed = batch.cursor, batch.consumed
        self.skipped += batch.skipped
        if self.content is not None:
            self.content = add_content(self.content, batch.checksums)

    def record(self) -> dict[str, Any]:
        splits = {
            name: {
                "tokens": split.tokens.state(),
                "documents": split.documents.state(),
                "source_bytes": split.source_bytes,
            }
            for name, split in self.splits.items()
        }
        cursor = [self.cursor.source, list(self.cursor.position)]
        counts = {"consumed": self.consumed, "skipped": self.skipped, "content": self.content}
        return {"splits": splits, "cursor": cursor, **counts}

    @property
    def size(self) -> int:
        """Bytes of ids."""
        return sum(split.tokens.size for split in self.splits.values())

    def descriptors(self) -> list[int]:
        return [file.descriptor for split in self.splits.values() for file in (split.tokens, split.documents)]

    def close(self) -> None:
        for split in self.splits.values():
            split.close()


class Committer:
    """Flushes what has been written and journals it, beside the work: the encoder never waits for the disk."""

    def __init__(self, journal: Journal, work: Work) -> None:
        self._journal, self._work = journal, work
        self._due = time.monotonic() + COMMIT_SECONDS
        self._flushed = work.size
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def offer(self) -> None:
        """Called after each block: begin a commit, or a flush, if the last one is done and it is time."""
        if self._thread and self._thread.is_alive():
            return
        due, size = time.monotonic() >= self._due, self._work.size
        if due or size - self._flushed >= FLUSH_BYTES:
            self.wait()
            self._flushed = size
            record = self._work.record() if due else None
            self._thread = threading.Thread(target=self._commit, args=(record,), daemon=True)
            self._thread.start()

    def _commit(self, record: dict[str, Any] | None) -> None:
        """Flush the files; then, if there is a record, journal what is now safe."""
        try:
            for descriptor in self._work.descriptors():
                os.fsync(descriptor)
            if record is not None:
                self._journal.append(record)
                self._due = time.monotonic() + COMMIT_SECONDS
        except BaseException as error:
            self._failure = error

    def settle(self) -> None:
        """Let a commit under way come to its end, so that no file is closed under it."""
        if self._thread:
            self._thread.join()

    def wait(self) -> None:
        self.settle()
        if self._failure:
            raise self._failure

    def finish(self) -> None:
        self.wait()
        self._commit(self._work.record())
        self.wait()


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
