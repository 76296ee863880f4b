"""`fledge workbook`: every question of a first course on language models, answered by running it on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.settings import Set


def workbook(
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="A text or the name of a corpus; can be repeated. Models train on the first. Default: akjv."),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Total time, such as 5m or 1h; converted to steps once, at the start.")
    ] = "5m",
    out: Annotated[Path, typer.Option("-o", "--out", help="The workbook's folder.")] = Path("runs/workbook"),
    recipe: Annotated[str, typer.Option(help="The recipe that every training starts from.")] = "akjv-demo",
    set_: Set = None,
) -> None:
    """Work through Unicode, BPE, accounting, sweeps, ablations and a model, with your text, on one page.

    After Ctrl-C or a crash, the same command resumes.
    """
    from fledge.cli.experiment import command_line, finish
    from fledge.workbook import write_workbook

    command = command_line()
    try:
        report = write_workbook(corpus or ["akjv"], out, budget, recipe, set_ or [], command)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped. Finished work is kept in {out}; to resume: {command}") from None
    finish(report)
