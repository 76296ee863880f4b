"""Where a run's first weights came from, kept beside its settings: the bundle of `--from`, and its checksums."""

from __future__ import annotations

from pathlib import Path

from fledge.bundle.card import TUNED, imported_from
from fledge.bundle.load import Bundle
from fledge.config import Settings, parse
from fledge.corpus.hub import address_of
from fledge.errors import command
from fledge.files import read_json, write_json
from fledge.runs.checkpoints import step_of
from fledge.runs.layout import ORIGIN


class Origin(Settings):
    """A bundle, and the SHA-256 of each of its files of weights: the same weights may lie elsewhere later."""

    path: str
    weights: dict[str, str]
    name: str = ""
    "What its card calls it, and how far it was trained."


def keep_origin(run: Path, bundle: Bundle | None) -> None:
    """Note what a run begins from, or that it is fresh weights.

    This comes before the run has settings: a kill between the two leaves no run that has forgotten it.
    """
    if bundle is None:
        (run / ORIGIN).unlink(missing_ok=True)
    else:
        write_json(run / ORIGIN, _origin_of(bundle).model_dump())


def read_origin(run: Path) -> Origin | None:
    """What the run in a folder began from; None for fresh weights."""
    kept = run / ORIGIN
    return parse(Origin, read_json(kept), where=str(kept)) if kept.is_file() else None


def other_origin(run: Path, bundle: Bundle | None) -> list[str]:
    """In a few words, that the run in a folder began from other weights than these; nothing where it did not."""
    there, here = read_origin(run), _origin_of(bundle) if bundle is not None else None
    if (there and there.weights) == (here and here.weights):
        return []
    first, second = (f"--from {origin.path}" if origin else "fresh weights" for origin in (there, here))
    return [f"{first} there, {'other weights' if first == second else second} here"]


def _origin_of(bundle: Bundle) -> Origin:
    path, metrics = bundle.source.absolute(), bundle.metrics
    told = [address_of(path) or (path.parents[1].name if step_of(path) is not None else path.name)]
    if imported_from(bundle.manifest) is not None:
        told.append("imported")
    elif "step" in metrics:
        told.append(f"step {metrics['step']}")
    if TUNED in metrics:
        told.append(f"which began from {metrics[TUNED]}")
    return Origin(path=str(path), weights=bundle.manifest.weights, name=", ".join(told)[:400])


def begin_again(run: Path, recipe: Path | str) -> str:
    """The command that begins the run in a folder as it was begun, for one that has no checkpoint to go on from."""
    origin = read_origin(run)
    return command("train", recipe, *(("--from", Path(origin.path)) if origin else ()), "--out", run)
