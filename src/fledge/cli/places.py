"""What several verbs take: a model to use, a device to use it on, a place to write to; and options given in vain."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fledge.errors import FledgeError


def _named(at: str | None) -> str | None:
    """As it is, unless it names no checkpoint, which is said before anything is loaded."""
    from fledge.runs.checkpoints import named

    named(at)
    return at


At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="best|last|STEP",
        help="The checkpoint of a run: best (lowest validation loss, the default), last, or the number of a step.",
        callback=_named,
    ),
]


def recipes(start: str) -> list[str]:
    """The packaged recipes whose names begin so, for completion in a shell."""
    from fledge.config import recipe_names

    return [name for name in recipe_names() if name.startswith(start)]


def trained(place: Path | list[Path] | None) -> Path | list[Path] | None:
    """As it is, unless it is a run that has no checkpoint yet, which is said before anything is loaded.

    A model on the hub is fetched, and its place on this machine goes on in its stead.
    """
    from fledge.bundle.hub import place_of
    from fledge.runs.folder import require_checkpoint

    def ready(path: Path) -> Path:
        found = place_of(path)
        require_checkpoint(found)
        return found

    if isinstance(place, list):
        return [ready(path) for path in place]
    return None if place is None else ready(place)


def destination(target: Path | None, out: Path | None, command: str) -> Path:
    """Where to write: named in its place, or with --out as on every other verb."""
    chosen = target or out
    if chosen is None or (target and out):
        raise FledgeError(f"{command} writes to one place: name it last, or with --out.")
    return chosen


def device_named(name: str | None) -> str:
    """The device of --device; the fastest there is, unless one is given."""
    from fledge.training.device import choose_device

    return str(choose_device(name or "auto", named="--device"))


def writable(file: Path | None) -> Path | None:
    """As it is, unless nothing can be written there, which is said before the work and not after it."""
    if file is not None:
        above = next(parent for parent in file.absolute().parents if parent.exists())
        if file.is_dir() or not above.is_dir():
            raise FledgeError(f"{file} can't be written: {file if file.is_dir() else above} is in its place.")
    return file


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse what was given in vain, rather than leave it out without a word."""
    for name, value in options.items():
        if value:
            raise FledgeError(f"{name} {why}.")
