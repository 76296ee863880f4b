"""Long work shows how far it is: a bar with rate and ETA on a terminal or in a notebook's cell, plain lines elsewhere.

Text that is written as it comes is shown here too, so that a notice does not land in the middle of a line of it.
"""

from __future__ import annotations

import html
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from fledge.errors import is_quiet
from fledge.notebook import FONT, SMALL, Cell, element, running_cell

LINE_EVERY = 5.0  # seconds between plain lines where there is no terminal


def amount(count: float, scale: float) -> str:
    """So many units of `scale`: tokens, windows and the like, which are counted one by one, are whole.

    >>> amount(40_352, scale=1), amount(40_352, scale=1000)
    ('40,352', '40.4')
    """
    return f"{count:,.0f}" if scale == 1 else f"{count / scale:,.1f}"


def readable_rate(rate: float, scale: float) -> str:
    """
    >>> readable_rate(1234.5, scale=1), readable_rate(0.5, scale=1)
    ('1,234', '0.5')
    """
    return f"{rate:,.0f}" if scale == 1 and rate >= 10 else f"{rate / scale:,.1f}"


def readable_time(seconds: float) -> str:
    """
    >>> readable_time(95), readable_time(3 * 86400), readable_time(6000 * 86400)
    ('1.6 minutes', '3.0 days', '6,000.0 days (16.4 years)')
    """
    day, year = 86_400.0, 365.25 * 86_400
    for unit, size in (("days", day), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            years = f" ({seconds / year:,.1f} years)" if seconds >= 2 * year else ""
            return f"{seconds / size:,.1f} {unit}{years}"
    return f"{seconds:.1f} seconds" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


class Bar:
    """Counts what is done, in units such as MB or steps; `advance` is cheap enough to call per block."""

    def __init__(self, title: str, total: float | None, unit: str, scale: float) -> None:
        self.title, self.total, self.unit, self.scale = title, total, unit, scale
        self.done = 0.0
        self.started = self._printed = time.monotonic()

    def advance(self, amount: float) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self._printed >= LINE_EVERY:
            self._printed = now
            print(self.line(now), file=sys.stderr, flush=True)

    def line(self, now: float) -> str:
        rate = self.done / max(now - self.started, 1e-9)
        share = f" of {amount(self.total, self.scale)} ({self.done / self.total:.0%})" if self.total else ""
        left = f", {(self.total - self.done) / rate:,.0f} s left" if self.total and rate else ""
        done, speed = amount(self.done, self.scale), readable_rate(rate, self.scale)
        return f"{self.title}: {done}{share} {self.unit}, {speed} {self.unit}/s{left}"


class _TerminalBar(Bar):
    def __init__(self, title: str, total: float | None, unit: str, scale: float, progress: Progress) -> None:
        super().__init__(title, total, unit, scale)
        self._progress = progress
        self._task = progress.add_task(title, total=total)

    def advance(self, amount: float) -> None:
        self.done += amount
        self._progress.advance(self._task, amount)


class _CellBar(Bar):
    """One line in a notebook's cell, at most once a second; the last one stays."""

    def __init__(self, title: str, total: float | None, unit: str, scale: float, cell: Cell) -> None:
        super().__init__(title, total, unit, scale)
        self._cell = cell

    def advance(self, amount: float) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self._printed >= 1.0:
            self.show(now)

    def show(self, now: float) -> None:
        self._printed, line = now, self.line(now)
        known = {"value": f"{self.done:.0f}", "max": f"{max(self.total, 1):.0f}"} if self.total else {}
        bar = element("progress", "", "width:100%;max-width:56em", **known)
        self._cell.show(element("div", bar + element("div", html.escape(line), SMALL), FONT), line)


class _Rate(ProgressColumn):
    def __init__(self, unit: str, scale: float) -> None:
        super().__init__()
        self.unit, self.scale = unit, scale

    def render(self, task: Task) -> Text:
        total = f"/{amount(task.total, self.scale)}" if task.total else ""
        rate = f", {readable_rate(task.speed, self.scale)} {self.unit}/s" if task.speed else ""
        return Text(f"{amount(task.completed, self.scale)}{total} {self.unit}{rate}")


@contextmanager
def progress_bar(
    title: str, total: float | None, unit: str = "MB", scale: float = 1e6, shown: bool = True
) -> Iterator[Bar]:
    """A bar over `total` (bytes by default; `unit` and `scale` say how they are printed), on standard error."""
    console = Console(stderr=True)
    if not shown or is_quiet():
        bar = Bar(title, total, unit, scale)
        bar._printed = float("inf")
        yield bar
    elif console.is_terminal and not console.is_dumb_terminal:
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), _Rate(unit, scale), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield _TerminalBar(title, total, unit, scale, progress)
    elif (cell := running_cell()) is not None:
        shown_bar = _CellBar(title, total, unit, scale, cell)
        yield shown_bar
        if shown_bar._printed > shown_bar.started:  # work of less than a second shows nothing
            shown_bar.show(time.monotonic())
    else:
        yield Bar(title, total, unit, scale)


@contextmanager
def streaming() -> Iterator[Callable[[str], None]]:
    """A function that prints text at once. A note meanwhile starts on a line of its own, where both are read on a
    terminal; elsewhere the text stays as it is.
    """
    log, within_line = logging.getLogger("fledge"), False

    def show(text: str) -> None:
        nonlocal within_line
        sys.stdout.write(text)
        sys.stdout.flush()
        within_line = not text.endswith("\n") if text else within_line

    def end_line(_: logging.LogRecord) -> bool:
        if within_line and sys.stdout.isatty() and sys.stderr.isatty():
            show("\n")
        return True

    log.addFilter(end_line)
    try:
        yield show
    finally:
        log.removeFilter(end_line)
