"""`fledge bench`: what this machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

from fledge.cli.settings import Set
from fledge.cli.values import Json, print_json

LONGEST = 3600
"Seconds for one row of the table, at most."

app = typer.Typer(help="Measure what this machine can do.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure what this machine can do."""


@app.command()
def device(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe's name, or a TOML file.")] = "akjv-demo",
    set_: Set = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="A batch size; can be repeated. Default: 8, 50, 128 and 500.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="A device; can be repeated. Default: every device of this machine.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to measure each row of the table.")] = 3.0,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Number of windows to estimate the time for; default: the recipe's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure batch sizes on each device: tokens/s, memory, utilisation, power, time at equal samples and steps."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.config import load_recipe
    from fledge.errors import FledgeError
    from fledge.files import readable_bytes
    from fledge.training.bench import devices, measure
    from fledge.training.view import clock_time

    if not 0 < seconds <= LONGEST:
        raise FledgeError(f"--seconds {seconds:g} is not allowed: give more than 0 and at most {LONGEST}.")
    config = load_recipe(recipe, set_ or [])
    total = config.training.tokens or config.steps * config.training.batch_size * config.tokens.context_length
    samples = samples or max(1, total // config.tokens.context_length)
    measured = [
        measure(config, size, name, seconds)
        for name in device or devices()
        for size in sorted(set(batch or (8, 50, 128, 500)))
    ]
    if as_json:
        return print_json(
            {"recipe": config.name, "equal_samples": samples, "equal_steps": config.steps, "rows": measured}
        )
    known = any(found.watts is not None for found in measured)
    columns = ["device", "batch", "tokens/s", "memory", "busy", *["power"] * known, "equal samples", "equal steps"]
    title = f"{escape(config.name)}: windows of {config.tokens.context_length} tokens"
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "device" else "right")
    for found in measured:
        if found.tokens_per_second is None or found.windows_per_second is None or found.memory is None:
            table.add_row(found.device, str(found.batch_size), "out of memory")
            continue
        power = "–" if found.watts is None else f"{found.watts:,.0f} W"
        table.add_row(
            found.device,
            str(found.batch_size),
            f"{found.tokens_per_second:,.0f}",
            readable_bytes(found.memory),
            "–" if found.busy is None else f"{found.busy:.0%}",
            *[power] * known,
            clock_time(samples / found.windows_per_second),
            clock_time(config.steps * found.batch_size / found.windows_per_second),
        )
    Console().print(table)
    print(f"Equal samples is the time for {samples:,} windows, equal steps that for {config.steps:,} steps.")
