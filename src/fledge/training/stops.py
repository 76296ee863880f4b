"""Reasons to stop before the last step: Ctrl-C, a signal, or a time limit. The step in hand is always finished."""

from __future__ import annotations

import re
import signal
import threading
import time
from types import FrameType
from typing import Any

from fledge.errors import FledgeError

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
        raise FledgeError(f"The time limit {text!r} is not a duration such as 8h50m, 45m or 90s.")
    return float(sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([dhms])", whole)))


class Stops:
    """Turns SIGINT and SIGTERM into a wish to stop; a second Ctrl-C stops at once."""

    def __init__(self, time_limit: float | None = None) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit
        self.signal: str | None = None
        self.reserve = 0.0
        "Seconds that saving took last time, kept free before the deadline."
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stops:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name

    def wanted(self, step_seconds: float) -> str | None:
        """Why to stop now, if there is a reason: the next step and the last checkpoint must still fit the limit."""
        if self.signal is not None:
            return self.signal
        if self.deadline is not None and time.monotonic() + 2 * step_seconds + 1.5 * self.reserve > self.deadline:
            return "the time limit"
        return None
