"""`fledge sweep`: a setting, or several, over a range, to the edge where training diverges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fledge.cli.experiment import Budget, Changes, EngineName, Parallel
from fledge.cli.places import recipes


def sweep(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe, or a TOML file.", autocompletion=recipes)],
    over: Annotated[
        list[str],
        typer.Option(
            help="What to vary: key=A,B,C, or key=LOW..HIGH with :log, :STEPS or both behind it. May be given more "
            "than once. The batch size max is what this machine takes."
        ),
    ],
    set_: Changes = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The experiment's folder; runs/RECIPE-sweep by default.")
    ] = None,
    method: Annotated[
        Literal["grid", "random", "tpe"],
        typer.Option(help="Every point, random ones, or those that Optuna's TPE chooses."),
    ] = "grid",
    trials: Annotated[int | None, typer.Option(help="Points to try with random and tpe.", min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per point.", min=1)] = 1,
    budget: Budget = None,
    equal_samples: Annotated[
        bool,
        typer.Option(
            help="Larger batches take fewer steps (10 at least), so that every point sees equally many windows."
        ),
    ] = False,
    prune: Annotated[
        bool, typer.Option(help="Stop trials that half of the earlier ones were ahead of at the same point.")
    ] = True,
    engine: EngineName = "local",
    parallel: Parallel = 1,
) -> None:
    """Vary settings and report which values are best and where training diverges. Killed, it goes on where it was."""
    from fledge.cli.experiment import command_line, finish, seconds_of
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
        Engine(engine, parallel),
        prune,
        FEWEST_STEPS,
    )
    finish(report)
