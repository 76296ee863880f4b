"""Batches made in the background a little before they are needed, into pinned memory for a GPU.

One thread makes them. A consumer that is faster than it does not wait but makes the next ones itself: so two
cores are busy from the first batch on, and a consumer with work of its own shares them with one thread only.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from fledge.errors import FledgeError
from fledge.tokens.batch import Batch
from fledge.tokens.windows import Windows

DEPTH = 4  # pieces of work ahead of the consumer: a batch each, or several small ones
PIECE = 1 << 17  # tokens that are worth a piece of work of their own
SMALL = 16  # batches in a piece at most
PLANNED = 2048  # rows whose places are found at a time,
AT_LEAST = 4  # or those of so many pieces

Numbered = list[tuple[int, Batch]]
Made = TypeVar("Made")


class Task(Generic[Made]):
    """Work for a thread in the background, which whoever waits for it may take over."""

    def __init__(self, pool: Executor, work: Callable[[], Made]) -> None:
        self._work = work
        self._future = pool.submit(work)

    def take_over(self) -> None:
        """Do it in this thread, unless it was begun."""
        if not self._future.cancel():
            return
        self._future = Future()
        try:
            self._future.set_result(self._work())
        except Exception as error:  # raised when its turn comes
            self._future.set_exception(error)

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Made:
        return self._future.result()


class Loader:
    """Iterates `(first_sample, batch)` without end (or up to sample `stop`): rank's share of each global batch.

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
        fits = min(SMALL, PIECE // (rows * self.windows.context_length))
        together = max(1, fits)
        planned = together * max(AT_LEAST, PLANNED // (rows * together))
        step = self.batch_size * planned
        pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
        under_way: deque[Task[Numbered]] = deque()
        try:
            coming = pool.submit(self._look_ahead, self._firsts(self.start, planned))
            for first in range(self.start, self._end, step):
                firsts, found = self._firsts(first, planned), coming
                for at in range(0, len(firsts), together):
                    under_way.append(Task(pool, partial(self._make, found, firsts[at : at + together])))
                    if at == 0:  # the next are found while these are made
                        coming = pool.submit(self._look_ahead, self._firsts(first + step, planned))
                    if len(under_way) > self.depth:
                        yield from _oldest(under_way)
            while under_way:
                yield from _oldest(under_way)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    @property
    def _end(self) -> int:
        return sys.maxsize if self.stop is None else self.stop

    def _firsts(self, first: int, count: int) -> range:
        """The first samples of `count` batches, or of those that are left."""
        return range(first, min(self._end, first + self.batch_size * count), self.batch_size)

    def _look_ahead(self, firsts: range) -> None:
        self.windows.ahead([self.share(first) for first in firsts])

    def _make(self, found: Future[None], firsts: range) -> Numbered:
        found.result()
        batches = self.windows.batches([self.share(first) for first in firsts])
        return [(first, batch.pin() if self.pin else batch) for first, batch in zip(firsts, batches, strict=True)]


def _oldest(under_way: deque[Task[Made]]) -> Made:
    """The result of the oldest task. Rather than wait for it, this thread does another that was not begun."""
    oldest = under_way.popleft()
    for task in (oldest, *under_way):
        if oldest.done():
            break
        task.take_over()
    return oldest.result()
