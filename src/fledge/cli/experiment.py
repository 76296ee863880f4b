"""What the verbs that run experiments share: the command as typed, a budget in seconds, the last lines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def command_line() -> str:
    return "fledge " + shlex.join(sys.argv[1:])


def seconds_of(budget: str | None) -> float | None:
    from fledge.training import parse_duration

    return parse_duration(budget) if budget is not None else None


def finish(report: Path) -> None:
    """The answer, and where the evidence lies."""
    answer = (report.with_suffix(".md")).read_text().split("\n\n")[1]
    print(f"\n{answer}\n\nThe report: {report}")
