"""Reasons to stop before the last step: Ctrl-C, a signal, or a time limit. The step in hand is finished first, unless
Ctrl-C comes twice: then training stops at once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from fledge.errors import FledgeError
from fledge.system import INTERRUPTS, STOPS

PATIENCE = 1.0  # seconds that a second Ctrl-C gives the step to end in an orderly way
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Seconds in a duration such as `8h50m`, `90s` or `45` (minutes are not guessed: a bare number is seconds).

    >>> parse_duration("8h50m")
    31800.0
    """
    whole = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", whole):
        return float(whole)
    if not re.fullmatch(r"(\d+(\.\d+)?[dhms])+", whole):
        raise FledgeError(f"{text!r} is not a duration such as 8h50m, 45m or 90s.")
    return float(sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([dhms])", whole)))


class Stops:
    """Turns SIGINT and SIGTERM into a wish to stop; a second Ctrl-C stops at once.

    The interpreter notices a signal between two operations, and on a CPU the backward pass of a large model is one
    operation of minutes. So a thread listens besides: it answers the first signal at once, and with `leave`, which is
    for programs that have nothing else to do, ends the process when the second is not heeded.
    """

    last_signal = -1.0
    "When one came, by the monotonic clock: a training that was about to end anyway has ended without a word of it."

    def __init__(self, time_limit: float | None = None, leave: bool = False) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit
        self.signal: str | None = None
        self.answer: Callable[[], None] = lambda: None
        "Called, by another thread, when the first signal comes."
        self.parting: Callable[[], str] = lambda: ""
        "What to say when the second stops everything."
        self._leave = leave
        self._before: dict[int, Any] = {}
        self._again = self._heeded = False
        self._ear: int | None = None

    def __enter__(self) -> Stops:
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                self._before[number] = signal.signal(number, self._asked)
            self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._heeded = True
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._ear is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._ear)
            self._listener.join()  # at the end of the process it must not be the last to hold, and free, the model

    def _asked(self, number: int, _: FrameType | None) -> None:
        if self._again or (self.signal is not None and number in INTERRUPTS):
            self._heeded = True
            raise KeyboardInterrupt(self.parting())
        self.signal = signal.Signals(number).name
        Stops.last_signal = time.monotonic()

    def _listen(self) -> None:
        read, self._ear = os.pipe()
        if sys.platform != "win32":  # it does not ask for it
            os.set_blocking(self._ear, False)
        former = signal.set_wakeup_fd(self._ear, warn_on_full_buffer=False)
        if former != -1:  # someone else listens, such as an event loop, and is not disturbed
            signal.set_wakeup_fd(former)
            os.close(self._ear)
            os.close(read)
            self._ear = None
            return
        self._listener = threading.Thread(target=self._hear, args=(read,), daemon=True, name="fledge-signals")
        self._listener.start()

    def _hear(self, read: int) -> None:
        """Every signal as it comes, by its number, until the other end is closed."""
        first = True
        with open(read, "rb", buffering=0) as signals:
            while heard := signals.read(1):
                if heard[0] not in STOPS:
                    continue
                if first:
                    first = False
                    self.answer()
                elif heard[0] in INTERRUPTS:
                    self._again = True
                    self._hurry()

    def _hurry(self) -> None:
        patience = time.monotonic() + PATIENCE
        while self._leave and not self._heeded:
            if time.monotonic() > patience:
                print(f"fledge: {self.parting()}", file=sys.stderr, flush=True)
                os._exit(130)  # what is on the disk is whole, and nothing else is worth minutes of waiting
            time.sleep(0.02)

    def wanted(self, step_seconds: float, ending_seconds: float) -> str | None:
        """Why to stop now, if there is a reason: the next step and what ends the training must still fit the limit."""
        if self.signal is not None:
            return self.signal
        if self.deadline is not None and time.monotonic() + 2 * step_seconds + ending_seconds > self.deadline:
            return "the time limit"
        return None
