"""`fledge bench`: what this machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Measure what this machine can do.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure what this machine can do."""


@app.command()
def device(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe's name, or a TOML file.")] = "akjv-demo",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a setting, such as model.layers=6.")
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="A batch size; give it several times. 8, 50, 128 and 500 where none is given."),
    ] = None,
    device: Annotated[list[str] | None, typer.Option(help="A device; all of this machine where none is given.")] = None,
    seconds: Annotated[float, typer.Option(help="Time to measure for each cell of the table.")] = 3.0,
) -> None:
    """Batch sizes against devices: tokens/s, memory, and the time the recipe would take."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.config import load_recipe
    from fledge.files import readable_bytes
    from fledge.training.bench import devices, measure
    from fledge.training.view import clock_time

    config = load_recipe(recipe, set_ or [])
    table = Table(
        title=f"{escape(config.name)}: windows of {config.tokens.context_length} tokens", title_justify="left"
    )
    for column in ("device", "batch", "tokens/s", "windows/s", "memory", "the recipe would take"):
        table.add_column(column, justify="left" if column == "device" else "right")
    for name in device or devices():
        for size in sorted(set(batch or (8, 50, 128, 500))):
            found = measure(config, size, name, seconds)
            if found.tokens_per_second is None or found.windows_per_second is None or found.memory is None:
                table.add_row(found.device, str(size), "out of memory")
                continue
            table.add_row(
                found.device,
                str(size),
                f"{found.tokens_per_second:,.0f}",
                f"{found.windows_per_second:,.1f}",
                readable_bytes(found.memory),
                clock_time(found.projected_seconds or 0),
            )
    Console().print(table)
