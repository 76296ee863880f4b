"""`fledge compare`: models on one corpus at matched parameters, tokens, FLOPs or time, tuned alike, over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    arms: Annotated[list[str], typer.Argument(help="Architectures (transformer, gpt2, bdh, lstm…) or recipes.")],
    recipe: Annotated[str, typer.Option(help="The recipe that gives corpus, tokenizer and length.")] = "akjv-demo",
    match: Annotated[str, typer.Option(help="parameters, tokens, flops or time.")] = "parameters",
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting.")] = None,
    out: Annotated[Path | None, typer.Option(help="The experiment's folder; runs/RECIPE-compare by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per arm.", min=1)] = 3,
    budget: Annotated[str | None, typer.Option(help="Time for all of it, such as 15m; turned into steps once.")] = None,
    prompt: Annotated[str, typer.Option(help="The prompt that every arm goes on from.")] = "",
) -> None:
    """Compare models fairly, each tuned over the same learning rates, and say whether there is a conclusion."""
    from fledge.cli.experiment import command_line, finish, seconds_of
    from fledge.config import load_recipe
    from fledge.errors import FledgeError, nearest
    from fledge.experiments.compare import compare as run_comparison

    kinds = ("parameters", "tokens", "flops", "time")
    if match not in kinds:
        raise FledgeError(f"--match {match} is unknown. {nearest(match, kinds)}")
    config = load_recipe(recipe, set_ or [])
    folder = out or Path("runs") / f"{config.name}-compare"
    _, _, report = run_comparison(
        arms,
        config,
        folder,
        match,  # type: ignore[arg-type]
        seeds,
        seconds_of(budget),
        command_line(),
        budget or "",
        prompt,
    )
    finish(report)
