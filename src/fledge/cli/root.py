"""The options that stand before any verb."""

from __future__ import annotations

from typing import Annotated

import typer

from fledge import __version__


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"fledge {__version__}")
        raise typer.Exit()


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback when something goes wrong.")] = False,
) -> None:
    """The options of every verb; `main` acts on --debug, so that it may stand anywhere on the line."""
