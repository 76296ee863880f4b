"""`fledge workbook`: every question of a first course on language models, answered by running it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def workbook(
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="A text or the name of a corpus; akjv by default. The first is trained on; give several."),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time for all of it, such as 5m or 1h; turned into steps once.")] = "5m",
    out: Annotated[Path, typer.Option("-o", "--out", help="The workbook's folder.")] = Path("runs/workbook"),
    recipe: Annotated[str, typer.Option(help="The recipe that the trainings start from.")] = "akjv-demo",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting.")] = None,
) -> None:
    """Unicode, BPE, accounting, sweeps, ablations and a model, on your text, with this machine's numbers on one page.

    Interrupted with Ctrl-C or killed, the same command goes on where it stopped.
    """
    from fledge.cli.experiment import command_line, finish
    from fledge.workbook import write_workbook

    command = command_line()
    try:
        report = write_workbook(corpus or ["akjv"], out, budget, recipe, set_ or [], command)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped. What is done is kept in {out}; to go on: {command}") from None
    finish(report)
