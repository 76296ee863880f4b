"""`fledge diagram`: a flow chart of a configured model, or of fledge's own rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.account import Context, Set, Vocabulary


def diagram(
    target: Annotated[
        str | None,
        typer.Argument(help="A recipe, a TOML file, a bundle, or a shape: small, medium, large, xl."),
    ] = None,
    settings: Set = None,
    context: Context = None,
    vocabulary: Vocabulary = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; NAME.svg (or .mmd) unless given.")
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Mermaid text instead of SVG.")] = False,
    house: Annotated[bool, typer.Option("--house", help="Draw fledge's rooms and their imports.")] = False,
) -> None:
    """A flow chart of a model with its dimensions, as SVG.

    Start with: fledge diagram tinystories -o model.svg
    """
    from fledge.accounting.diagram import draw_chart, draw_house, model_chart, write_mermaid
    from fledge.cli.account import open_target
    from fledge.errors import FledgeError
    from fledge.files import atomic_write

    if house == (target is not None):
        raise FledgeError("Name one thing to draw: a recipe, a bundle or a shape, or --house for fledge itself.")
    if house:
        text, name = draw_house(), "house"
    else:
        assert target is not None
        run, size = open_target(target, settings or (), vocabulary)
        name = Path(target).stem if Path(target).exists() else target
        chart = model_chart(run.model, size, context or run.tokens.context_length, name)
        text = write_mermaid(chart) if mermaid else draw_chart(chart)
    output = output or Path(f"{name}.{'mmd' if mermaid and not house else 'svg'}")
    with atomic_write(output) as file:
        file.write(text.encode())
    print(f"Drawn in {output}")
