"""Memory of arrays: in a nameless file, which vanishes with the process, even a killed one; and used again."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.corpus.native import native
from fledge.system import give_back
from fledge.tokens.checked import KEPT_MAPPED

SMALL = 1 << 20  # bytes that may as well stay in memory
RUNG = 64
CHUNK = 1 << 18  # entries computed at a time


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """0..count in pieces that fit in a cache."""
    for start in range(0, count, CHUNK):
        yield start, min(count, start + CHUNK)


def scratch_array(parts: Iterable[npt.NDArray[np.int64]], count: int, folder: Path) -> npt.NDArray[np.int64]:
    """The parts joined: `count` entries, in memory when they are few, else mapped from a nameless file.

    The file lies beside the store where that can be written to, for a temporary folder is often in memory too.
    """
    if count * 8 <= SMALL:
        return np.concatenate([np.empty(0, np.int64), *parts])
    place = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=place) as file:
        for part in parts:
            file.write(np.ascontiguousarray(part, np.int64).data.cast("B"))
        file.flush()
        return np.memmap(file, np.int64, "r", shape=(count,))


def release(array: npt.NDArray[Any]) -> None:
    """Give the pages of a mapped array back; they are read again when needed."""
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and array.nbytes > KEPT_MAPPED:
        give_back(mapping)


class Ascending:
    """A long ascending array in which places are found with few misses of the cache.

    Every 64th number is kept in memory: binary search looks there first, and then only among the 64 that follow.
    """

    def __init__(self, array: npt.NDArray[np.int64]) -> None:
        self.array = array
        self._rungs = np.ascontiguousarray(array[::RUNG])

    def find(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each value, the last place whose number is not greater.

        >>> Ascending(np.array([0, 3, 3, 9])).find(np.array([0, 2, 3, 8])).tolist()
        [0, 0, 2, 2]
        """
        find = native("find_places")
        if find is None:
            return np.searchsorted(self.array, values, "right") - 1
        places = np.empty(len(values), np.int64)
        find(self.array, self._rungs, RUNG, np.ascontiguousarray(values), places)
        return places


KEPT = 16  # buffers
ROUNDED = 1 << 16  # bytes: sizes that differ a little share a buffer


def references(buffers: list[npt.NDArray[np.uint8]], place: int) -> int:
    """How many hold a buffer of the list: the list, whoever uses it, and the call where this Python counts that."""
    return sys.getrefcount(buffers[place])


class Pool:
    """Gives out arrays whose memory comes back by itself when the last reference to it goes."""

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._unused = [np.empty(0, np.uint8)]  # nobody ever holds it: the others are compared with it
        self._lock = threading.Lock()

    def take(self, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of `count` numbers that hold anything."""
        size = max(1, -(-count * np.dtype(dtype).itemsize // ROUNDED)) * ROUNDED
        with self._lock:
            unused = references(self._unused, 0)
            for place in range(len(self._buffers)):
                if len(self._buffers[place]) == size and references(self._buffers, place) <= unused:
                    return self._buffers[place].view(dtype)[:count]
            fresh = np.empty(size, np.uint8)
            if len(self._buffers) >= KEPT:
                self._buffers.pop(0)  # its size may be out of use; whoever holds it keeps it
            self._buffers.append(fresh)
            return fresh.view(dtype)[:count]
