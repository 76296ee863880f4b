"""`fledge diagram`: a flow chart of a configured model, or of fledge's own rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.account import Context, Vocabulary
from fledge.cli.settings import Set


def diagram(
    target: Annotated[
        str | None, typer.Argument(help="A recipe, a TOML file, a bundle, or a shape: small, medium, large, xl.")
    ] = None,
    settings: Set = None,
    context: Context = None,
    vocabulary: Vocabulary = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write, .svg or .mmd (Mermaid); default: NAME.svg.")
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Mermaid text instead of SVG.")] = False,
    house: Annotated[bool, typer.Option("--house", help="Draw fledge's own modules and their imports.")] = False,
) -> None:
    """Draw a flow chart of a model with its dimensions, as SVG.

    Start with: fledge diagram tinystories -o model.svg
    """
    from fledge.accounting.diagram import draw_chart, draw_house, house_mermaid, model_chart, write_mermaid
    from fledge.cli.account import MERMAID, SVG, bare_name, check_drawing, save_drawing
    from fledge.errors import FledgeError
    from fledge.runs.target import find_target

    if house == (target is not None):
        raise FledgeError("Name one thing to draw: a recipe, a bundle or a shape, or --house for fledge itself.")
    given = {"--set": settings, "--context": context, "--vocabulary": vocabulary}
    if house and (useless := [name for name, value in given.items() if value]):
        raise FledgeError(f"{', '.join(useless)} changes a model, and --house draws fledge itself. Leave it out.")
    if out is not None:
        check_drawing(out, MERMAID if mermaid else SVG + MERMAID)
        mermaid = out.suffix.lower() in MERMAID
    if house:
        text, name = house_mermaid() if mermaid else draw_house(), "house"
    else:
        assert target is not None
        found, name = find_target(target, settings or (), vocabulary), bare_name(target)
        length = context or max(found.config.tokens.context_length, found.positions or 1)
        chart = model_chart(found.config.model, found.vocabulary_size, length, name)
        text = write_mermaid(chart) if mermaid else draw_chart(chart)
    out = out or Path(f"{name}{(MERMAID if mermaid else SVG)[0]}")
    save_drawing(out, text)
    print(f"Drawn in {out}")
