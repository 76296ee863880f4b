"""A trial of an experiment as it lies on disk: how far it is, what came of it, and its curve."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.experiments.space import label
from fledge.experiments.trials import Measure
from fledge.experiments.watch import OUTCOME
from fledge.runs.layout import CONFIG, METRICS
from fledge.runs.metrics import evaluations, finite
from fledge.system import is_locked
from fledge.web.library import readable_file
from fledge.web.runs import LIVE_SECONDS, flatten, read_object, read_settings
from fledge.web.schemas import Answer

ENDED = ("complete", "diverged", "pruned")
TrialState = Literal["complete", "diverged", "pruned", "running", "stopped", "waiting"]


class TrialEntry(Answer):
    arm: str
    seed: int
    state: TrialState
    run: str | None = None
    "Its run by name, once it has begun."
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    "What the experiment compares by, at its end; before, its last validation loss."
    why: str = ""
    "Why it was not run to its end."
    ended: float | None = None
    curve: list[tuple[int, float]]
    "Steps with their validation losses."


def trial_of(
    name: str, folder: Path, planned: tuple[str, int] | None, axes: list[str], measure: Measure, taken: bool | None
) -> tuple[TrialEntry, float]:
    """One trial that has begun, and its last sign of life."""
    settings = read_settings(folder)
    steps, arm, seed = told_by(folder, tuple(axes)) if settings else (None, folder.name, 0)
    arm, seed = planned or (arm, seed)
    metrics, outcome = readable_file(folder, METRICS), readable_file(folder, OUTCOME)
    signs = [folder.stat().st_mtime, *(path.stat().st_mtime for path in (metrics, outcome) if path)]
    curve: tuple[tuple[int, float], ...] = ()
    if metrics:
        status = metrics.stat()
        curve = curve_of(folder, status.st_mtime_ns, status.st_size)
    entry = TrialEntry(arm=arm, seed=seed, run=name, steps=steps, curve=list(curve), state="stopped")
    if curve:
        entry.step, entry.loss = curve[-1]
    if outcome is None:
        if taken is None:  # no locks on this file system
            taken = time.time() - max(signs) < LIVE_SECONDS
        entry.state = "running" if taken and is_locked(folder) is not False else "waiting" if taken else "stopped"
        return entry, max(signs)
    said = read_object(outcome)
    status_said, step = said.get("status"), said.get("step")
    if status_said not in ENDED:
        raise FledgeError(f"{folder.name}/{OUTCOME} is damaged: it is not the outcome of a trial.")
    entry.state, entry.why, entry.ended = status_said, str(said.get("why") or "")[:500], outcome.stat().st_mtime
    entry.loss = finite(said.get(measure.metric)) if status_said == "complete" else finite(said.get("reached"))
    entry.step = step if isinstance(step, int) else entry.step
    return entry, max(signs)


def told_by(folder: Path, axes: tuple[str, ...]) -> tuple[int | None, str, int]:
    """A trial's steps, its point on the axes of a sweep, and its seed, as its settings have them."""
    path = readable_file(folder, CONFIG)
    if path is None:
        return None, folder.name, 0
    status = path.stat()
    return _told_by(folder, axes, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4096)
def _told_by(folder: Path, axes: tuple[str, ...], modified: int, size: int) -> tuple[int | None, str, int]:
    settings = read_settings(folder)
    config, flat = parse(RunConfig, settings), flatten(settings)
    point = label({key: flat[key] for key in axes if key in flat})
    return config.steps, point or folder.name, config.training.seed


@lru_cache(maxsize=4096)
def curve_of(folder: Path, modified: int, size: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(evaluations(folder).items()))
