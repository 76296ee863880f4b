"""The generation queue: one thread that gives every running text one piece in turn, so that none waits for
the end of another. A text whose reader has gone is dropped at its next piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

from fledge.errors import FledgeError

RUNNING = 8
WAITING = 120
STOPPING = "The server is stopping."


class Busy(FledgeError):
    """The queue is full, or takes no more."""


@dataclass
class GenerationJob:
    """A text in the making: `pieces` does the work in the queue's thread, `events` gives it out in the server's."""

    pieces: Iterator[Any]
    loop: asyncio.AbstractEventLoop
    ahead: int = 0
    "Texts that were running or waiting when this one came."
    cancelled: bool = False
    _events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def events(self) -> AsyncIterator[Any]:
        """Pieces as they come; an error of the work is raised here. Leaving early cancels the work."""
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.cancelled = True

    def tell(self, event: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the server's loop has closed
            self.cancelled = True


class Worker:
    """Holds the queue and its thread; `start` and `stop` belong to the server's life."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._limits = running, waiting
        self._condition = Condition()
        self._waiting: deque[GenerationJob] = deque()
        self._running: list[GenerationJob] = []
        self._stopping = False
        self._thread: Thread | None = None

    def start(self) -> None:
        self._stopping = False
        self._thread = Thread(target=self._work, name="generation", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let every text end at its next piece, and take no new ones; does not wait."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def stop(self) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def submit(self, start: Callable[[], Iterator[Any]]) -> GenerationJob:
        """Queue the work that `start` returns; refused where too many wait already."""
        job = GenerationJob(start(), asyncio.get_running_loop())
        with self._condition:
            if self._stopping:
                raise Busy(STOPPING)
            self._waiting = deque(other for other in self._waiting if not other.cancelled)
            if len(self._waiting) >= self._limits[1]:
                raise Busy(f"{len(self._waiting)} texts wait to be generated already. Try again in a moment.")
            job.ahead = len(self._waiting) + len(self._running)
            self._waiting.append(job)
            self._condition.notify()
        return job

    def _work(self) -> None:
        while self._admit():
            for job in list(self._running):
                if not self._advance(job):
                    self._running.remove(job)
        for job in [*self._running, *self._waiting]:
            job.tell(Busy(STOPPING))

    def _admit(self) -> bool:
        """Fill free places from the queue, waiting where there is nothing to do; False when the server stops."""
        with self._condition:
            while not self._stopping and not self._running and not self._waiting:
                self._condition.wait()
            while self._waiting and len(self._running) < self._limits[0]:
                self._running.append(self._waiting.popleft())
            return not self._stopping

    def _advance(self, job: GenerationJob) -> bool:
        """One piece of one job; False when it has ended, failed or lost its reader."""
        if job.cancelled:
            close = getattr(job.pieces, "close", None)
            if close is not None:
                close()
            return False
        try:
            job.tell(next(job.pieces))
            return True
        except StopIteration:
            job.tell(None)
        except Exception as error:
            job.tell(error)
        return False
