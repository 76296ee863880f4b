"""`fledge sweep`: a setting, or several, over a range, to the edge where training diverges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fledge.cli.experiment import Budget, EngineName, Parallel
from fledge.cli.places import recipes
from fledge.cli.settings import Set


def sweep(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe's name, or a TOML file.", autocompletion=recipes)],
    over: Annotated[
        list[str],
        typer.Option(
            help="What to vary: key=A,B,C, or key=LOW..HIGH followed by :log, :STEPS or both. Can be repeated. "
            "The batch size max is the largest that fits on this machine."
        ),
    ],
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The experiment's folder; default: runs/RECIPE-sweep.")
    ] = None,
    method: Annotated[
        Literal["grid", "random", "tpe"],
        typer.Option(help="Try every point, random points, or points that Optuna's TPE chooses."),
    ] = "grid",
    trials: Annotated[int | None, typer.Option(help="Number of points for random and tpe.", min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per point.", min=1)] = 1,
    budget: Budget = None,
    equal_samples: Annotated[
        bool,
        typer.Option(
            help="Larger batches take fewer steps (at least 10), so that every point sees the same number of windows."
        ),
    ] = False,
    prune: Annotated[
        bool, typer.Option(help="Stop trials that are worse than the median of earlier trials at the same step.")
    ] = True,
    engine: EngineName = "local",
    parallel: Parallel = "auto",
) -> None:
    """Vary settings, and report the best values and where training diverges. The same command resumes after a stop."""
    from fledge.cli.experiment import at_once, command_line, finish, seconds_of
    from fledge.config import load_recipe
    from fledge.experiments.engines import Engine
    from fledge.experiments.largest import FEWEST_STEPS
    from fledge.experiments.space import parse_axis
    from fledge.experiments.sweep import sweep as run_sweep

    config = load_recipe(recipe, set_ or [])
    _, _, report = run_sweep(
        config,
        out or Path("runs") / f"{config.name}-sweep",
        [parse_axis(text) for text in over],
        method,
        trials,
        seeds,
        seconds_of(budget),
        equal_samples,
        command_line(),
        budget or "",
        Engine(engine, at_once(parallel)),
        prune,
        FEWEST_STEPS,
    )
    finish(report)
