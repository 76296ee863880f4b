"""`fledge ablate`: take one thing away, change nothing else, and see what it was worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.experiment import Budget, EngineName, Parallel
from fledge.cli.places import recipes
from fledge.cli.settings import Set


def ablate(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe's name, or a TOML file.", autocompletion=recipes)],
    group: Annotated[
        list[str] | None, typer.Option(help="architecture, windows, vocabulary, fit or tied; can be repeated.")
    ] = None,
    arm: Annotated[list[str] | None, typer.Option(help="An arm of your own: 'name: a.b=c d.e=f'.")] = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The experiment's folder; default: runs/RECIPE-ablate.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per arm; a single seed gives no uncertainty.", min=1)] = 3,
    budget: Budget = None,
    engine: EngineName = "local",
    parallel: Parallel = "1",
) -> None:
    """Change one part of a recipe at a time, with the same data and seeds, and report the differences."""
    from fledge.cli.experiment import at_once, command_line, finish, seconds_of
    from fledge.config import load_recipe
    from fledge.experiments.ablate import ablate as run_ablation
    from fledge.experiments.ablate import parse_arm
    from fledge.experiments.engines import Engine

    config = load_recipe(recipe, set_ or [])
    arms = [parse_arm(text) for text in arm or []]
    groups = group or ([] if arms else ["architecture"])
    _, _, report = run_ablation(
        config,
        out or Path("runs") / f"{config.name}-ablate",
        groups,
        arms,
        seeds,
        seconds_of(budget),
        command_line(),
        budget or "",
        Engine(engine, at_once(parallel)),
    )
    finish(report)
