"""`fledge distill`: several models into one, which learns their averaged prediction beside the text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.places import At, trained
from fledge.cli.root import Quiet
from fledge.cli.settings import Set


def distill(
    teachers: Annotated[
        list[Path],
        typer.Argument(metavar="TEACHER...", help="Runs or bundles that share one tokenizer.", callback=trained),
    ],
    into: Annotated[str, typer.Option("--into", metavar="RECIPE", help="The student: a recipe's name or file.")],
    at: At = None,
    share: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="The teachers' share of the loss; default: the recipe's.")
    ] = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The student's run; default: runs/NAME.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Save and stop within this time, such as 8h50m.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train one model on the averaged predictions of several. After Ctrl-C or a crash, the same command resumes.

    The student uses the tokenizer, the text and the held-out parts of the first teacher.
    """
    from fledge.cli.train import summarise
    from fledge.run import Run
    from fledge.runs.folder import named_by
    from fledge.start.distill import distillation
    from fledge.training import parse_duration

    limit = parse_duration(time_limit) if time_limit is not None else None
    overrides = [*(set_ or []), *named_by(out, set_ or [])]
    run = Run(distillation(teachers, into, overrides, share, at), out, quiet=quiet)
    run.begun()
    summarise(run.train(time_limit=limit, leave=True))
