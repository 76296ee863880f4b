"""`fledge start`: from a person's own text to their own model in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.settings import Set
from fledge.errors import command


def start(
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", help="Files, folders, globs, JSONL, Parquet, or akjv.", show_default=False),
    ],
    time: Annotated[str, typer.Option(help="Total time, such as 10m or 2h.")] = "10m",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run's folder; default: runs/ and the name of the text.")
    ] = None,
    set_: Set = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="Choose and write the recipe without training. The command without --plan then trains it."
        ),
    ] = False,
) -> None:
    """Train a model on your own text: analyse the text and this machine, choose a recipe, train and report.

    After Ctrl-C or a crash, the same command resumes.
    """
    from rich.console import Console
    from rich.markup import escape

    from fledge.reports.quality import FINAL
    from fledge.start.start import Start
    from fledge.training import parse_duration

    console = Console(highlight=False, soft_wrap=True)
    begun = Start(
        texts,
        parse_duration(time),
        time,
        out,
        lambda word, fact: console.print(f"[bold]{word:<10}[/bold] {escape(fact)}"),
        set_ or [],
    )
    run = begun.run()
    again = command("start", *texts, "--time", time, *(["--out", out] if out else []))
    if plan:
        console.print(f"\nNothing is trained yet. To train it: {again}", markup=False)
        return
    result = begun.train(run)
    if result.stopped and result.stopped != "the time limit":
        console.print(f"\nStopped at step {result.step:,} of {result.steps:,}. To go on: {again}", markup=False)
        raise typer.Exit(130)
    if result.stopped:
        console.print(
            f"The time was over at step {result.step:,} of {result.steps:,}: the machine was slower than when it was "
            "measured. The same command goes on to the end.",
            markup=False,
        )
    report = begun.report(run, result)
    bits = f", {report.evaluation.bits_per_byte:.3f} bits per byte" if report.evaluation.bits_per_byte else ""
    best = min(report.baselines, key=lambda name: report.baselines[name])
    console.print(
        f"[bold]{'result':<10}[/bold] {report.evaluation.loss:.3f} nats per token{bits} on {FINAL[run.tokens.final]}; "
        f"the best n-gram baseline ({best}) reaches {report.baselines[best]:.3f}"
    )
    console.print(f"[bold]{'report':<10}[/bold] {escape(str(report.path))}\n")
    for prompt, text in report.samples:
        console.print(f"[bold]{escape(prompt)}[/bold]{escape(text)}\n")
    longer = ["--set", f"training.steps={2 * result.steps}", "--out", f"{run.folder}-longer"]
    console.print(
        f"Worth trying next:\n  {command('generate', run.folder, '--interactive')}\n"
        f"  {command('train', run.folder / 'recipe.toml', *longer)}",
        markup=False,
    )
