"""Documents as places in one buffer: nothing is copied between the file and the tokenizer."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
SAMPLE = 1 << 16  # bytes in which the bytes of a mark are counted
RARE = 64  # a byte is rare if at most one in so many is it
BLANKS = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))


@dataclass(frozen=True)
class Text:
    """Document i is `buffer[starts[i]:ends[i]]`; between documents there may be separators."""

    buffer: bytes | memoryview
    starts: Places
    ends: Places

    @classmethod
    def of(cls, documents: Sequence[bytes | memoryview]) -> Text:
        """Documents joined, one beside the other; those of nothing but white space are left out."""
        kept = [text for text in documents if len(text) and (text[0] > 32 or bytes(text).strip())]
        ends = np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)))
        return cls(b"".join(kept), np.concatenate((np.zeros(1, np.int64), ends[:-1])) if kept else ends, ends)

    @classmethod
    def between(cls, data: bytes | memoryview, mark: bytes, strip_returns: bool = False) -> Text:
        """What lies between the marks; documents of nothing but white space are left out.

        >>> Text.between(b"one|two| |three", b"|").documents()
        [b'one', b'two', b'three']
        """
        if not len(data):
            return cls.of([])
        array = np.frombuffer(data, np.uint8)
        found = find_marks(data, array, mark)
        starts = np.concatenate((np.zeros(1, np.int64), found + len(mark)))
        ends = np.append(found, len(data))
        if strip_returns:
            ends -= (ends > starts) & (array[np.maximum(ends - 1, 0)] == ord("\r"))
        kept = ends > starts
        for i in np.flatnonzero(kept & BLANKS[array[np.minimum(starts, len(data) - 1)]]).tolist():
            kept[i] = not bytes(data[starts[i] : ends[i]]).isspace()
        return cls(data, starts[kept], ends[kept])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        """Bytes of all documents."""
        return int((self.ends - self.starts).sum())

    @property
    def longest(self) -> int:
        return int((self.ends - self.starts).max(initial=0))

    def views(self) -> Iterable[memoryview]:
        """The documents without a copy."""
        view = memoryview(self.buffer)
        return [view[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def documents(self) -> list[bytes]:
        """The documents, each on its own."""
        return [bytes(view) for view in self.views()]

    def checksums(self) -> npt.NDArray[np.uint64]:
        """A CRC-32 of each document."""
        native = _native()
        if native is None:
            return np.fromiter(map(zlib.crc32, self.views()), np.uint64, len(self))
        sums = np.empty(len(self), np.int64)
        native(self.buffer, self.starts, self.ends, sums)
        return sums.astype(np.uint64)

    def joined(self) -> Text:
        """The same documents with nothing between them."""
        return Text.of(list(self.views()))


@cache
def _native() -> Any:
    """The core's checksums of many documents at once; None where the core is not built."""
    try:
        from fledge import _core
    except ImportError:
        return None
    return getattr(_core, "checksums", None)


def find_marks(data: bytes | memoryview, array: npt.NDArray[np.uint8], mark: bytes) -> Places:
    """Where a mark begins, from left to right without overlap.

    Looking for the mark's rarest byte with numpy, and at the mark only there, is twice as fast as a search for it all.
    """
    counts = np.bincount(array[:SAMPLE], minlength=256)
    rarest = min(range(len(mark)), key=lambda at: int(counts[mark[at]]))
    found: Places = np.flatnonzero(array == mark[rarest]) - rarest
    if len(mark) > 1 and len(found) * RARE < len(array):
        found = found[(found >= 0) & (found + len(mark) <= len(array))]
        for at in range(len(mark)):
            found = found[array[found + at] == mark[at]]
        if not (np.diff(found) < len(mark)).any():
            return found
    if len(mark) == 1:
        return found
    return np.fromiter((match.start() for match in re.finditer(re.escape(mark), data)), np.int64)
