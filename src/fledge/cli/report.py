"""`fledge report`: the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.places import At, trained


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", callback=trained)],
    at: At = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference",
            help="Also train a small fixed recipe on the run's tokens, to compare with: some minutes on a CPU.",
        ),
    ] = False,
) -> None:
    """Write RUN/report.html, an offline page with samples, explained numbers, baselines, curves and costs."""
    from fledge.reports.run import report_folder

    print(report_folder(run, at, train_reference=reference).path)
