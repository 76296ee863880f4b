"""A bar says how far the work is, in units that a person counts in."""

from __future__ import annotations

import pytest

from fledge.progress import Bar


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
