"""Memory that is used again: a fresh megabyte costs more in page faults than filling it with tokens does."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

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
