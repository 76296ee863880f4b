"""`fledge kaggle`: pack a recipe, its text and fledge itself for a notebook that trains it on Kaggle or Colab."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fledge.cli.settings import Set


def kaggle(
    recipe: Annotated[str, typer.Argument(help="A packaged recipe's name, or a TOML file.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The folder to write; default: kaggle/RECIPE.")
    ] = None,
    time: Annotated[str, typer.Option(help="The notebook saves and stops within this time.")] = "8h50m",
    set_: Set = None,
    user: Annotated[str, typer.Option(help="Your Kaggle user name, for the addresses in the metadata.")] = "",
) -> None:
    """Write a dataset and a notebook to upload. The notebook installs fledge without a network, trains, and resumes."""
    from fledge.config import load_recipe
    from fledge.files import readable_bytes
    from fledge.kaggle.pack import pack_for_kaggle

    config = load_recipe(recipe, set_ or [])
    packed = pack_for_kaggle(config, out or Path("kaggle") / config.name, time, user)
    size = sum(path.stat().st_size for path in packed.folder.rglob("*") if path.is_file())
    forms = " and as ".join([*(["a wheel"] if packed.wheel else []), *(["source"] if packed.source else [])])
    print(f"{packed.folder}: {readable_bytes(size)}; fledge as {forms}, and {len(packed.wheels)} wheels that it needs")
    for name in packed.files:
        print(f"  dataset/{name}")
    for note in packed.notes:
        print(f"Note: {note}")
    upload = shlex.join(["kaggle", "datasets", "create", "-p", f"{packed.folder}/dataset", "--dir-mode", "zip"])
    print(f"Next: read {packed.folder / 'README.md'}, or: {upload}")
