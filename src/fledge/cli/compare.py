"""`fledge compare`: models on one corpus at matched parameters, tokens, FLOPs or time, tuned alike, over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fledge.cli.experiment import Budget, EngineName, Parallel
from fledge.cli.settings import Set


def compare(
    arms: Annotated[list[str], typer.Argument(help="Architectures (transformer, gpt2, bdh, lstm…) or recipes.")],
    recipe: Annotated[
        str, typer.Option(help="The recipe that sets corpus, tokenizer and training length.")
    ] = "akjv-demo",
    match: Annotated[
        Literal["parameters", "tokens", "flops", "time"], typer.Option(help="What is equal for all arms.")
    ] = "parameters",
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The experiment's folder; default: runs/RECIPE-compare.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per arm.", min=1)] = 3,
    budget: Budget = None,
    prompt: Annotated[str, typer.Option(help="The prompt that every arm continues.")] = "",
    engine: EngineName = "local",
    parallel: Parallel = "1",
) -> None:
    """Compare models fairly, each tuned over the same learning rates, and say whether the difference is real."""
    from fledge.cli.experiment import at_once, command_line, finish, seconds_of
    from fledge.config import load_recipe
    from fledge.experiments.compare import compare as run_comparison
    from fledge.experiments.engines import Engine

    config = load_recipe(recipe, set_ or [])
    _, _, report = run_comparison(
        arms,
        config,
        out or Path("runs") / f"{config.name}-compare",
        match,
        seeds,
        seconds_of(budget),
        command_line(),
        budget or "",
        prompt,
        Engine(engine, at_once(parallel)),
    )
    finish(report)
