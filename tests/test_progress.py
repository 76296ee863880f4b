"""A bar says how far the work is, in units that a person counts in."""

from __future__ import annotations

import logging
from io import StringIO

import pytest

from fledge.errors import note
from fledge.progress import Bar, streaming


@pytest.mark.parametrize(
    ("unit", "scale", "line"),
    [
        ("tokens", 1.0, "evaluating: 40,352 of 134,051 (30%) tokens, 20,176 tokens/s, 5 s left"),
        ("MB", 1e3, "evaluating: 40.4 of 134.1 (30%) MB, 20.2 MB/s, 5 s left"),
    ],
)
def test_what_is_counted_one_by_one_is_whole(unit: str, scale: float, line: str) -> None:
    bar = Bar("evaluating", 134_051, unit, scale)
    bar.done = 40_352.0
    assert bar.line(bar.started + 2) == line


class Screen(StringIO):
    """A terminal on which both streams are read; or a file."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (True, "In the\nnotice: full\n beginning\nnotice: again\nGod"),
        (False, "In thenotice: full\n beginning\nnotice: again\nGod"),
    ],
)
def test_a_notice_starts_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)

    class Notice(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            screen.write(f"notice: {record.getMessage()}\n")

    log = logging.getLogger("fledge")
    monkeypatch.setattr(log, "handlers", [Notice()])
    filters = list(log.filters)
    with streaming() as show:
        show("In the")
        note("full")
        show(" beginning\n")
        show("")
        note("again")
        show("God")
    assert log.filters == filters
    assert screen.getvalue() == shown
