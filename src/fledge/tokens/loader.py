"""Batches made by a background thread a little before they are needed, into pinned memory for a GPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from fledge.errors import FledgeError
from fledge.tokens.batch import Batch
from fledge.tokens.windows import Windows

DEPTH = 4  # batches made ahead


class Loader:
    """Iterates `(first_sample, batch)` without end (or up to sample `stop`): rank's share of each global
    batch.

    The same samples come in the same order for any number of ranks, and from any `start` on.
    """

    def __init__(
        self,
        windows: Windows,
        batch_size: int,
        start: int = 0,
        stop: int | None = None,
        rank: int = 0,
        ranks: int = 1,
        pin: bool = False,
        depth: int = DEPTH,
    ) -> None:
        if batch_size % ranks:
            raise FledgeError(f"A batch of {batch_size} windows can't be shared evenly by {ranks} processes.")
        self.windows, self.batch_size, self.start, self.stop = windows, batch_size, start, stop
        self.rank, self.ranks, self.pin, self.depth = rank, ranks, pin, depth

    def share(self, first: int) -> range:
        """The samples of this rank in the global batch that begins at sample `first`."""
        size = self.batch_size // self.ranks
        last = first + self.batch_size if self.stop is None else min(first + self.batch_size, self.stop)
        begin = min(first + self.rank * size, last)
        return range(begin, min(begin + size, last))

    def __iter__(self) -> Iterator[tuple[int, Batch]]:
        ready: queue.Queue[tuple[int, Batch | None, BaseException | None]] = queue.Queue(self.depth)
        stopped = threading.Event()
        thread = threading.Thread(target=self._produce, args=(ready, stopped), daemon=True)
        thread.start()
        try:
            while True:
                first, batch, error = ready.get()
                if error is not None:
                    raise error
                if batch is None:
                    return
                yield first, batch
        finally:
            stopped.set()
            thread.join()

    def _produce(self, ready: queue.Queue[Any], stopped: threading.Event) -> None:
        try:
            first = self.start
            while not stopped.is_set() and (self.stop is None or first < self.stop):
                batch = self.windows.batch(self.share(first))
                _put(ready, (first, batch.pin() if self.pin else batch, None), stopped)
                first += self.batch_size
            _put(ready, (first, None, None), stopped)
        except BaseException as error:
            _put(ready, (0, None, error), stopped)


def _put(ready: queue.Queue[Any], item: Any, stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            return ready.put(item, timeout=0.1)
        except queue.Full:
            continue
