"""What the verbs that run experiments share: options, the command as typed, a budget in seconds, the last lines."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fledge.errors import FledgeError, short

Budget = Annotated[str | None, typer.Option(help="Total time, such as 15m; converted to steps once, at the start.")]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--engine", help="Processes on this machine, or tasks on a Ray cluster (RAY_ADDRESS, or a local one)."
    ),
]


Parallel = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        help="Trials to run at once; they share the threads, and results do not change. auto: on a GPU as many as fit "
        "its memory and are faster together, by measuring; on a CPU the cores divided by training.threads.",
    ),
]


def at_once(parallel: str) -> int | Literal["auto"]:
    if parallel == "auto":
        return "auto"
    if parallel.isascii() and parallel.isdecimal() and (found := int(parallel)) > 0:
        return found
    raise FledgeError(f"--parallel {short(parallel)} is not allowed: it is auto, or a whole number above 0.")


def command_line() -> str:
    return "fledge " + shlex.join(sys.argv[1:])


def seconds_of(budget: str | None) -> float | None:
    from fledge.training import parse_duration

    return parse_duration(budget) if budget is not None else None


def finish(report: Path) -> None:
    """The answer, and where the evidence lies."""
    answer = report.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")[1]
    print(f"\n{answer}\n\nThe report: {report}")
