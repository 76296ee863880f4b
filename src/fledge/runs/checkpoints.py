"""Which checkpoint of a run is which: that of a step, the last, and the best by held-out loss; and which ones stay."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fledge.bundle.archive import is_archive
from fledge.bundle.hub import place_of
from fledge.bundle.manifest import LARGEST_MANIFEST, MANIFEST
from fledge.config import TrainingConfig
from fledge.errors import FledgeError
from fledge.files import PARTIAL, read_json, require_space
from fledge.runs.layout import BRANCH, CHECKPOINTS
from fledge.runs.metrics import evaluations, finite

BEST, LAST = "best", "last"
At = int | str | None
"A checkpoint of a run: `best` (also None), `last`, or a step."


def checkpoint_name(step: int) -> str:
    """
    >>> checkpoint_name(500)
    'step-00000500'
    """
    return f"step-{step:08}"


def step_of(path: Path) -> int | None:
    """The step that a checkpoint's folder is named for; None where it has another name.

    >>> step_of(Path("runs/akjv/checkpoints/step-00000500"))
    500
    """
    found = re.fullmatch("step-([0-9]+)", path.name)
    return int(found[1]) if found else None


def checkpoint_steps(place: Path) -> dict[int, Path]:
    """The whole checkpoints of a run, or of a branch, by step, oldest first."""
    folder = place / CHECKPOINTS
    if not folder.is_dir():
        folder = place / BRANCH / CHECKPOINTS  # a kill came while a branch took their place
    if not folder.is_dir():
        return {}
    named = {step: path for path in folder.iterdir() if (step := step_of(path)) is not None}
    return {step: path for step, path in sorted(named.items()) if (path / MANIFEST).is_file()}


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return list(checkpoint_steps(run).values())


def find_bundle(path: Path | str, at: At = None) -> Path:
    """The folder that holds the manifest: `path` itself, or the checkpoint `at` of the run there, unless told the best.

    A run that has no checkpoint is given back as it is.
    """
    path = place_of(path)
    if path.name == MANIFEST and path.is_file():
        path = path.parent
    if is_archive(path) or (path / MANIFEST).is_file():
        if named(at) not in (None, step_of(path)):
            raise FledgeError(f"{path} is one checkpoint: --at goes with the folder of a run.")
        return path
    main, branch = checkpoint_steps(path), checkpoint_steps(path / BRANCH)
    at = named(at)
    if at is None or at == BEST:
        return best_of([*main.values(), *branch.values()]) or path
    if at == LAST:
        return next(reversed((branch or main).values()), path)
    if (main or branch) and at not in branch and at not in main:
        known = ", ".join(map(str, sorted({*main, *branch})))
        raise FledgeError(f"{path} holds no checkpoint of step {at}. Saved steps: {known}.")
    return branch.get(int(at)) or main.get(int(at)) or path


def named(at: At) -> At:
    """What was asked for, a step as a number; anything else is refused.

    >>> named("400"), named("best"), named(None)
    (400, 'best', None)
    """
    if at in (None, BEST, LAST) or (isinstance(at, int) and not isinstance(at, bool) and at >= 0):
        return at
    if isinstance(at, str) and re.fullmatch("[0-9]{1,18}", at):
        return int(at)
    raise FledgeError(f"--at {str(at)[:40]} is no checkpoint: give best, last, or a step such as 400.")


def best_of(checkpoints: Iterable[Path]) -> Path | None:
    """The one with the lowest held-out loss, of equal ones the last; the last where none was ever evaluated."""
    found = list(checkpoints)
    if len(found) < 2:
        return found[0] if found else None
    losses = held_out_losses(found)
    return min(losses, key=lambda path: (losses[path], -(step_of(path) or 0))) if losses else found[-1]


def held_out_losses(checkpoints: Iterable[Path]) -> dict[Path, float]:
    """The held-out loss in nats per token of each checkpoint that was evaluated.

    The manifest has it; where it does not, as in runs of the first versions, the row of its step in metrics.csv does.
    """
    found: dict[Path, float] = {}
    for path in checkpoints:
        loss = finite(metrics_of(path).get("validation_loss"))
        if loss is None:
            loss = evaluations(path.parents[1]).get(step_of(path) or 0)
        if loss is not None:
            found[path] = loss
    return found


def metrics_of(checkpoint: Path) -> dict[str, Any]:
    """What was measured of a checkpoint, by its manifest: for choosing among several, of which one is then read with
    every check. What can't be read says nothing."""
    path = checkpoint / MANIFEST
    try:
        facts = path.stat()
        return _metrics(path, facts.st_mtime_ns) if facts.st_size <= LARGEST_MANIFEST else {}
    except (FledgeError, OSError):
        return {}


@lru_cache(maxsize=4096)
def _metrics(path: Path, _changed: int) -> dict[str, Any]:
    values = read_json(path)
    metrics = values.get("metrics") if isinstance(values, dict) else None
    return metrics if isinstance(metrics, dict) else {}


def require_room(place: Path, config: TrainingConfig, steps: int, size: int) -> None:
    """Refuse to begin `steps` steps whose checkpoints, of `size` bytes each, would fill the disk before they end.

    A new checkpoint is whole before the oldest goes, so there is one more for a while than the rules keep.
    """
    regular = steps // config.keep_every if config.keep_every else 0
    kept = config.keep_last + config.keep_best + regular
    planned = 1 + (steps - 1) // config.save_every if config.save_every else 1
    if config.keep_best and config.evaluate_every % (config.save_every or config.evaluate_every + 1):
        planned += (steps - 1) // config.evaluate_every
    count = max(1, min(planned, kept + 1 - len(checkpoint_steps(place))))
    if steps > 0:
        rules = [f"training.keep_every={config.keep_every}"] if regular else []
        rules += [f"training.keep_last={config.keep_last}"] if config.keep_last >= regular else []
        several = f"Training keeps {count} checkpoints at a time ({', '.join(rules)}), and"
        require_space(place, count * (size + 1_000_000), several if count > 1 else "A checkpoint")


def prune(place: Path, config: TrainingConfig) -> None:
    """Remove the checkpoints that no rule keeps. The manifest goes first, so that none half removed looks whole."""
    saved = checkpoint_steps(place)
    kept = set(sorted(saved)[-config.keep_last :])
    if config.keep_every:
        kept |= {step for step in saved if step % config.keep_every == 0}
    best = best_of(saved.values()) if config.keep_best else None
    for step, path in saved.items():
        if step not in kept and path != best:
            remove(path)


def remove(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def clear_remains(place: Path) -> None:
    """Clear what a killed process left half written, half replaced or half removed."""
    folder = place / CHECKPOINTS
    for path in folder.glob(f"step-*{PARTIAL}"):
        home = path.with_suffix("")
        if step_of(home) is not None and not home.exists() and (path / MANIFEST).is_file():
            os.rename(path, home)  # it was about to take the place of an older one
    for path in folder.glob("step-*"):
        if path.suffix == PARTIAL or not (path / MANIFEST).is_file():
            shutil.rmtree(path, ignore_errors=True)
