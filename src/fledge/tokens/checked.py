"""A file of raw numbers with a checksum for every megabyte, compared when that megabyte is first read."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.corpus.native import crc32, native
from fledge.errors import FledgeError, changed
from fledge.system import BINARY, give_back, read_at

BLOCK_BYTES = 1 << 20
KEPT_MAPPED = 64 << 20  # bytes of a file that may stay mapped; pages beyond are given back as reading goes on
AGAIN = "Make the store again: fledge tokenize SOURCE --tokenizer TOKENIZER --out STORE --restart"

Ids = npt.NDArray[Any]


class Checked:
    """`array` is the file, memory-mapped; `check` makes sure of a part of it before it is used."""

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        count: int,
        checksums: list[str],
        limit: int | None = None,
        ascending: bool = False,
    ) -> None:
        """`limit`: every number in the file must be below it; `ascending`: they are places, each after the last."""
        self.path, self.dtype, self.checksums, self.limit, self.ascending = path, dtype, checksums, limit, ascending
        expected = count * dtype.itemsize
        found = path.stat().st_size if path.exists() else -1
        if found != expected:
            state = "is missing" if found < 0 else f"has {found:,} bytes instead of {expected:,}"
            raise FledgeError(f"{path} {state}: the store was cut or changed. {AGAIN}")
        if len(checksums) != -(-expected // BLOCK_BYTES):
            raise FledgeError(f"The manifest does not list a checksum for every block of {path}. {AGAIN}")
        self.descriptor = os.open(path, os.O_RDONLY | BINARY)
        weakref.finalize(self, os.close, self.descriptor)
        self._array: Ids = np.memmap(path, dtype, "r") if count else np.empty(0, dtype)
        self._mapping = getattr(self._array, "_mmap", None)
        watch = native("watch_mapping")  # without it, a file that becomes shorter ends the process by a signal
        if watch is not None and self._mapping is not None:
            weakref.finalize(self._mapping, native("forget_mapping"), watch(self._array, os.fsencode(path)))
        self._fresh = np.ones(len(checksums), np.bool_)
        self._left = len(checksums)
        self._lock = threading.Lock()

    @property
    def array(self) -> Ids:
        """The numbers, while the file has them: what became shorter would read as zeros from its second reading on."""
        self.require_whole()
        return self._array

    def require_whole(self) -> None:
        """Refuse a file that became shorter since it was opened."""
        if os.fstat(self.descriptor).st_size < self._array.nbytes:
            raise changed(self.path, "became shorter")

    def check(self, first: Ids | int, last: Ids | int) -> None:
        """Make sure of the blocks from number `first` to number `last` (or from each to each of two arrays)."""
        if not self._left:
            return
        size, end = BLOCK_BYTES // self.dtype.itemsize, len(self.checksums) - 1
        low = np.clip(np.atleast_1d(first) // size, 0, end)
        high = np.clip(np.atleast_1d(last) // size, 0, end)
        for step in range(int((high - low).max(initial=-1)) + 1):
            touched = np.minimum(low + step, high)
            for block in np.unique(touched[self._fresh[touched]]).tolist():
                self._check_block(block)

    def check_all(self) -> None:
        """Make sure of the whole file."""
        for block in np.flatnonzero(self._fresh).tolist():
            self._check_block(block)

    def _check_block(self, block: int) -> None:
        start = block * BLOCK_BYTES
        data = read_at(self.descriptor, BLOCK_BYTES, start)  # not through the mapping, which would stay in memory
        if f"{crc32(data):08x}" != self.checksums[block]:
            raise FledgeError(
                f"{self.path}: bytes {start:,} to {start + len(data):,} do not match their checksum: "
                f"the file was changed or damaged after it was written. {AGAIN}"
            )
        if self.limit is not None:
            numbers: Ids = np.frombuffer(data, self.dtype)
            if self.ascending:
                if numbers.size and (int(numbers.max()) >= self.limit or (numbers[1:] < numbers[:-1]).any()):
                    raise FledgeError(
                        f"{self.path}: documents begin beyond the tokens, or before those in front of them: the store "
                        f"was changed. {AGAIN}"
                    )
            elif numbers.size and int(numbers.max()) >= self.limit:
                place = start // self.dtype.itemsize + int(numbers.argmax())
                raise FledgeError(
                    f"{self.path}: id {int(numbers.max())} at token {place:,} is outside the vocabulary of "
                    f"{self.limit:,}. The store was made with another tokenizer."
                )
        with self._lock:
            self._left -= int(self._fresh[block])
            self._fresh[block] = False

    def release(self) -> None:
        """Give mapped pages back, so that memory does not grow with the file; the system still caches it."""
        if self._mapping is not None and self._array.nbytes > KEPT_MAPPED:
            give_back(self._mapping)
