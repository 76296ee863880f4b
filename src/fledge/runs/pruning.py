"""Which checkpoints of a run stay: the rules of the settings, room on the disk, and what a kill left half done."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fledge.bundle.manifest import MANIFEST
from fledge.config import TrainingConfig
from fledge.files import PARTIAL, require_space
from fledge.runs.checkpoints import best_of, checkpoint_steps, step_of
from fledge.runs.layout import CHECKPOINTS


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


def sweep(place: Path) -> None:
    """Clear what a killed process left half written, half replaced or half removed."""
    folder = place / CHECKPOINTS
    for path in folder.glob(f"step-*{PARTIAL}"):
        home = path.with_suffix("")
        if step_of(home) is not None and not home.exists() and (path / MANIFEST).is_file():
            os.rename(path, home)  # it was about to take the place of an older one
    for path in folder.glob("step-*"):
        if path.suffix == PARTIAL or not (path / MANIFEST).is_file():
            shutil.rmtree(path, ignore_errors=True)
