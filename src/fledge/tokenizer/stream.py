"""Text that does not fit in memory, or is not there yet: encoded block by block, with the ids of the whole.

Blocks end where cutting can't change the ids; the native core knows such places for each of its patterns.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.errors import FledgeError
from fledge.files import atomic_write, require_space
from fledge.tokenizer.base import FileReport, Ids, Special
from fledge.tokenizer.bpe import PATTERNS

if TYPE_CHECKING:
    from fledge.tokenizer.bpe import BPETokenizer

PIECE = 1 << 16  # bytes of a stream that are gathered before they are encoded
BLOCK = 1 << 23  # bytes of a file that are encoded at once


def encode_blocks(tokenizer: BPETokenizer, pieces: Iterable[bytes], special: Special) -> Iterator[Ids]:
    """Arrays that, joined, are the ids of the joined pieces. What is held back is a few words, or one long pre-token.

    A regular expression of the user's own may look at any distance, so its text is gathered whole.
    """
    native = tokenizer.pattern in PATTERNS
    held = bytearray()
    start, wanted = 0, PIECE
    for piece in pieces:
        held += piece
        if not native or len(held) < wanted:
            continue
        end = tokenizer._encoder.last_cut(held, "text" if special == "text" else "recognise")
        wanted = PIECE if end else 2 * len(held)  # a long pre-token: look again when there is twice as much
        if end:
            yield tokenizer._encode_part(bytes(held[:end]), special, None, start)
            del held[:end]
            start += end
    if held:
        yield tokenizer._encode_part(bytes(held), special, None, start)


def encode_file(
    tokenizer: BPETokenizer,
    path: str | PathLike[str],
    sink: str | PathLike[str],
    special: Special,
    threads: int | None,
) -> FileReport:
    """Blocks of a mapped file, each encoded on all threads and written before the next."""
    from fledge._core import count_invalid

    source = Path(path)
    if not source.is_file():
        raise FledgeError(f"{source} is not a file that can be read.")
    size = source.stat().st_size
    # English has about a quarter as many ids as bytes; for text that has more, the writing itself reports a full disk.
    require_space(Path(sink).parent, size // 4 * tokenizer.token_dtype.itemsize, "the file of ids")
    tokens = invalid = 0
    with open(source, "rb") as file, atomic_write(Path(sink)) as out:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        start, wanted = 0, BLOCK
        while start < size:
            # Beyond the end of a file that has become shorter its map can't be touched: that would end the process.
            if os.fstat(file.fileno()).st_size < size:
                raise FledgeError(f"{source} became shorter while it was read. Encode it again when it is complete.")
            end = min(size, start + wanted)
            block = view[start:end]
            if end < size and tokenizer.pattern in PATTERNS:
                length = tokenizer._encoder.last_cut(block, "text" if special == "text" else "recognise")
                if not length:
                    wanted *= 2
                    continue
                block = block[:length]
            elif end < size:
                wanted = size
                continue
            ids = tokenizer._encode_part(block, special, threads, start)
            invalid += count_invalid(block)
            out.write((ids if sys.byteorder == "little" else ids.byteswap()).data)
            tokens += len(ids)
            start, wanted = start + len(block), BLOCK
    return FileReport(tokens, size, invalid)
