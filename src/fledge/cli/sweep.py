"""`fledge sweep`: a setting, or several, over a range, to the edge where training diverges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sweep(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe, or a TOML file.")],
    over: Annotated[
        list[str],
        typer.Option(help="What to vary: key=LOW..HIGH[:log][:STEPS] or key=A,B,C. May be given more than once."),
    ],
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting.")] = None,
    out: Annotated[Path | None, typer.Option(help="The experiment's folder; runs/RECIPE-sweep by default.")] = None,
    method: Annotated[str, typer.Option(help="grid, random or tpe.")] = "grid",
    trials: Annotated[int | None, typer.Option(help="Points to try with random and tpe.", min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per point.", min=1)] = 1,
    budget: Annotated[str | None, typer.Option(help="Time for all of it, such as 15m; turned into steps once.")] = None,
    equal_samples: Annotated[
        bool, typer.Option(help="A larger batch takes fewer steps, so that every point sees the same windows.")
    ] = False,
) -> None:
    """Vary settings and report which values are best and where training diverges. Killed, it goes on where it was."""
    from fledge.cli.experiment import command_line, finish, seconds_of
    from fledge.config import load_recipe
    from fledge.errors import FledgeError, nearest
    from fledge.experiments.space import parse_axis
    from fledge.experiments.sweep import sweep as run_sweep

    if method not in ("grid", "random", "tpe"):
        raise FledgeError(f"--method {method} is unknown. {nearest(method, ('grid', 'random', 'tpe'))}")
    config = load_recipe(recipe, set_ or [])
    _, _, report = run_sweep(
        config,
        out or Path("runs") / f"{config.name}-sweep",
        [parse_axis(text) for text in over],
        method,  # type: ignore[arg-type]
        trials,
        seeds,
        seconds_of(budget),
        equal_samples,
        command_line(),
        budget or "",
    )
    finish(report)
