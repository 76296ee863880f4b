"""Batches made by background threads a little before they are needed, into pinned memory for a GPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

from fledge.errors import FledgeError
from fledge.tokens.batch import Batch
from fledge.tokens.windows import Windows

DEPTH = 4  # batches made ahead
THREADS = min(2, os.cpu_count() or 1)  # the work is reading and widening, mostly outside Python


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
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="loader")
        under_way: deque[tuple[int, Future[Batch]]] = deque()
        firsts: Iterable[int] = count(self.start, self.batch_size)
        if self.stop is not None:
            firsts = range(self.start, self.stop, self.batch_size)
        try:
            for first in firsts:
                under_way.append((first, pool.submit(self._make, first)))
                if len(under_way) > self.depth:
                    done, batch = under_way.popleft()
                    yield done, batch.result()
            for done, batch in under_way:
                yield done, batch.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _make(self, first: int) -> Batch:
        batch = self.windows.batch(self.share(first))
        return batch.pin() if self.pin else batch
