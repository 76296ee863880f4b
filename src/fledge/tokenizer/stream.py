"""Text that does not fit in memory, or is not there yet: encoded block by block, with the ids of the whole.

Blocks end where cutting can't change the ids; the native core knows such places for each of its patterns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fledge.errors import FledgeError, changed
from fledge.files import atomic_write, documents_format, require_space
from fledge.tokenizer.checks import check_stretch

LastCut = Callable[[bytes | bytearray], int]
"Finds the last place in a text where a cut changes no id; 0 where there is none."
PIECE = 1 << 16  # bytes of a stream that are gathered before they are encoded
BLOCK = 1 << 23  # bytes of a file that are encoded at once


class FileReport(NamedTuple):
    """What `encode_file` did: ids written, bytes of text (decompressed), and how many of these are not valid UTF-8."""

    tokens: int
    source_bytes: int
    invalid_bytes: int


class EncodedPart(NamedTuple):
    """Some ids of a longer text, the bytes of text that they stand for, and how many of these are not valid UTF-8."""

    ids: npt.NDArray[Any]
    source_bytes: int
    invalid_bytes: int


def write_parts(parts: Iterable[EncodedPart], source: Path, target: Path, dtype: np.dtype[Any]) -> FileReport:
    """The ids of a file, each part encoded and written before the next."""
    width = dtype.newbyteorder("<")
    # English has about a quarter as many ids as bytes; for text that has more, the writing itself reports a full disk.
    require_space(target.parent, source.stat().st_size // 4 * width.itemsize, "the file of ids")
    tokens = source_bytes = invalid_bytes = 0
    with atomic_write(target) as out:
        for part in parts:
            out.write(part.ids.astype(width, copy=False).data)
            _write_back(out, tokens * width.itemsize, len(part.ids) * width.itemsize)
            tokens += len(part.ids)
            source_bytes += part.source_bytes
            invalid_bytes += part.invalid_bytes
    return FileReport(tokens, source_bytes, invalid_bytes)


def _write_back(file: IO[bytes], start: int, length: int) -> None:
    """Let the system begin to write what is new to the disk, so that the end need not wait for all of it."""
    if sys.platform == "linux":  # of pages just written this drops none: it begins to write them
        os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


def check_places(source: Path, target: Path) -> None:
    """Before anything is opened: a text to read, and a place to write that is not that very text."""
    if source.is_dir() or not os.access(source, os.R_OK):
        raise FledgeError(f"{source} is not a file that can be read.")
    if documents_format(source.name) == "parquet":
        raise FledgeError(
            f"{source} is a Parquet file, which holds documents and not one text. fledge tokenize makes ids of them."
        )
    if target.is_dir():
        raise FledgeError(f"{target} is a folder. Name the file that is to hold the ids.")
    if target.exists() and not target.is_file():
        raise FledgeError(f"{target} is a pipe or a device, and ids are written to a plain file. Name one.")
    if target.exists() and target.samefile(source):
        raise FledgeError(f"{target} is {source} itself: its text would be lost. Name another file for the ids.")


def settled_blocks(pieces: Iterable[bytes], last_cut: LastCut | None) -> Iterator[bytes]:
    """The joined pieces cut anew, where a cut changes no id. What is held back is a few words, or one long pre-token.

    Without `last_cut` the text is gathered whole.
    """
    held = bytearray()
    wanted = PIECE
    for piece in pieces:
        held += piece
        if last_cut is None or len(held) < wanted:
            continue
        end = last_cut(held)
        check_stretch(0 if end else len(held))
        wanted = PIECE if end else 2 * len(held)  # a long pre-token: look again when there is twice as much
        if end:
            yield bytes(held[:end])
            del held[:end]
    if held:
        yield bytes(held)


def file_blocks(source: Path, last_cut: LastCut | None) -> Iterator[memoryview]:
    """The same of a file, each block read from its start: what stands behind its last cut is read again."""
    from fledge.corpus.streams import read_at

    with open(source, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        size = before.st_size
        start, wanted = 0, BLOCK if last_cut is not None else size
        while start < size:
            data = read_at(file.fileno(), start, min(size - start, wanted), source)
            length = len(data)
            if last_cut is not None and start + length < size:
                length = last_cut(data)
                if not length:
                    wanted *= 2
                    continue
            yield memoryview(data)[:length]
            start, wanted = start + length, BLOCK
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (size, before.st_mtime_ns):
            raise changed(source)
