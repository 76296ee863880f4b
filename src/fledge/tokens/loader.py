"""Batches made in the background a little before they are needed, into pinned memory for a GPU."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from fledge.errors import FledgeError
from fledge.tokens.batch import Batch
from fledge.tokens.windows import Windows

DEPTH = 4  # batches made ahead
TOGETHER = 1 << 18  # tokens that are worth waking a thread for: small batches are made several at a time
PLANNED = 1024  # rows whose places are found at a time
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
        if batch_size < 1 or ranks < 1 or depth < 1:
            raise FledgeError(f"batch_size={batch_size}, ranks={ranks}, depth={depth}: each must be at least 1.")
        if not 0 <= rank < ranks:
            raise FledgeError(f"rank={rank} is none of {ranks} processes, which are numbered from 0.")
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
        rows = max(1, self.batch_size // self.ranks)
        together = max(1, min(self.depth, TOGETHER // (rows * self.windows.context_length)))
        planned = max(together, PLANNED // rows // together * together)
        end = sys.maxsize if self.stop is None else self.stop
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="loader")
        under_way: deque[Future[list[tuple[int, Batch]]]] = deque()
        try:
            for first in range(self.start, end, self.batch_size * planned):
                firsts = range(first, min(end, first + self.batch_size * planned), self.batch_size)
                found = pool.submit(self._look_ahead, firsts)
                for at in range(0, len(firsts), together):
                    under_way.append(pool.submit(self._make, found, firsts[at : at + together]))
                    if len(under_way) * together > self.depth:
                        yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _look_ahead(self, firsts: range) -> None:
        ahead = getattr(self.windows, "ahead", None)  # what stands in for windows may know only `batch`
        if ahead is not None:
            ahead([self.share(first) for first in firsts])

    def _make(self, found: Future[None], firsts: range) -> list[tuple[int, Batch]]:
        found.result()
        batches = [(first, self.windows.batch(self.share(first))) for first in firsts]
        return [(first, batch.pin()) for first, batch in batches] if self.pin else batches
