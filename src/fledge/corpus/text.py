"""Documents as places in one buffer: nothing is copied between the file and the tokenizer."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fledge.corpus.native import native

Places = npt.NDArray[np.int64]
BLANKS = np.isin(np.arange(256), list(b" \t\n\r\x0b\x0c"))


@dataclass(frozen=True)
class JoinedText:
    """Document i is `buffer[starts[i]:ends[i]]`; between documents there may be separators."""

    buffer: bytes | memoryview
    starts: Places
    ends: Places

    @classmethod
    def of(cls, documents: Sequence[bytes | memoryview]) -> JoinedText:
        """Documents joined, one beside the other; those of nothing but white space are left out."""
        kept = [text for text in documents if len(text) and (text[0] > 32 or bytes(text).strip())]
        ends = np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)))
        return cls(b"".join(kept), np.concatenate((np.zeros(1, np.int64), ends[:-1])) if kept else ends, ends)

    @classmethod
    def between(cls, data: bytes | memoryview, mark: bytes, strip_returns: bool = False) -> JoinedText:
        """What lies between the marks; documents of nothing but white space are left out.

        >>> JoinedText.between(b"one|two| |three", b"|").documents()
        [b'one', b'two', b'three']
        """
        if not len(data):
            return cls.of([])
        array = np.frombuffer(data, np.uint8)
        found = find_marks(data, mark)
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

    @cached_property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """A CRC-32 of each document."""
        each = native("checksums")
        if each is None:
            return np.fromiter(map(zlib.crc32, self.views()), np.uint32, len(self))
        sums = np.empty(len(self), np.int64)
        each(self.buffer, self.starts, self.ends, sums)
        return sums.astype(np.uint32)

    def joined(self) -> JoinedText:
        """The same documents with nothing between them."""
        return JoinedText.of(list(self.views()))


def find_marks(data: bytes | memoryview, mark: bytes) -> Places:
    """Where a mark begins, from left to right without overlap."""
    find = native("find_marks")
    if find is None:
        return np.fromiter((match.start() for match in re.finditer(re.escape(mark), data)), np.int64)
    found: Places = find(data, mark)
    return found
