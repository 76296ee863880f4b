"""Going back to an older step, and the checkpoint to go on from.

Training on from an older step writes into `branch/`, which has checkpoints, metrics and settings of its own. When it
has a checkpoint at or past all that the main line saved and logged, its files take the place of the main line's later
ones. A branch that is left, by going on from the main line or by going back again, is put aside as `branch-1` and on.
Every move is a rename, and a takeover is noted in `branch.json` first: the next start finishes what a kill cut short.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fledge.bundle import Bundle, load_bundle
from fledge.bundle.manifest import MANIFEST
from fledge.errors import FledgeError, command
from fledge.files import PARTIAL, read_json, write_json
from fledge.runs.checkpoints import LAST, At, checkpoint_steps, find_bundle, named, step_of
from fledge.runs.layout import BRANCH, CHECKPOINTS, CONFIG, EVENTS, METRICS, SAMPLES
from fledge.runs.metrics import read_metrics
from fledge.runs.origin import begin_again

LEFT = f"{BRANCH}-left{PARTIAL}"  # a branch that is being removed
NOTE = "branch.json"
SETTINGS = "settings.json"  # of a branch: it is no run of its own, which a config.json would make of it


def find_checkpoint(folder: Path | str, at: At = None) -> Path:
    """The checkpoint to go on from: the last (of the branch, if one is under way), or the one that `at` names."""
    folder = Path(folder)
    if not folder.exists():
        raise FledgeError(f"There is no run at {folder}. Give the folder of a run, such as runs/akjv-demo.")
    finish_takeover(folder)
    path = find_bundle(folder, LAST if at is None and not (folder / MANIFEST).is_file() else at)
    if path == folder and not (path / MANIFEST).is_file():
        recipe = folder / CONFIG
        again = begin_again(folder, recipe if recipe.is_file() else "RECIPE")
        raise FledgeError(
            f"{folder} has no checkpoint yet. Start it again: {again} (if it diverged, change the cause, such "
            "as with a smaller --set optimizer.learning_rate=...)"
        )
    note = read_note(folder) if at is None or at == LAST else {}
    if note and path.parents[1] == folder:  # the branch under way has no checkpoint of its own yet
        return checkpoint_steps(folder).get(note["from"], path)
    return path


def read_note(folder: Path) -> dict[str, Any]:
    """Where the branch under way left the main line, and whether it is taking over; empty without a branch."""
    path = folder / BRANCH / NOTE
    if not path.is_file():
        return {}
    note = read_json(path)
    if not isinstance(note, dict) or type(note.get("from")) is not int:
        raise FledgeError(
            f"{path} is damaged: it does not say from which step the branch began. To leave the branch, move "
            f"{folder / BRANCH} to another place; the main line is whole."
        )
    return note


def settings_file(folder: Path, at: At = None) -> Path:
    """The settings that a run goes on with: the branch's while that is gone on with, else the main line's."""
    finish_takeover(folder)
    place = folder / BRANCH
    on_branch = (place / SETTINGS).is_file() and bool(read_note(folder))
    if on_branch and named(at) not in (None, LAST):
        on_branch = find_checkpoint(folder, at).parents[1] == place
    return place / SETTINGS if on_branch else folder / CONFIG


def load_checkpoint(folder: Path | str, at: At = None) -> Bundle:
    """The checkpoint to go on from, verified; a damaged one is refused with the newest whole one before it."""
    path = find_checkpoint(folder, at)
    try:
        bundle = load_bundle(path)
        if bundle.training is None:
            raise FledgeError(
                f"{path} holds no training state. It can be used, and trained further with --from, but not resumed."
            )
    except FledgeError as error:
        raise FledgeError(f"{error} {_earlier(Path(folder), path)}".strip()) from None
    return bundle


def _earlier(folder: Path, damaged: Path) -> str:
    broken = step_of(damaged) or 0
    for step, path in sorted(checkpoint_steps(damaged.parent.parent).items(), reverse=True):
        if step < broken:
            try:
                load_bundle(path)
            except FledgeError:
                continue
            again = command("train", "--resume", folder, "--at", step)
            return f"The newest whole checkpoint before it is {path.name}: {again}"
    return ""


def open_place(folder: Path, origin: Path | None, step: int = 0, settings: Mapping[str, Any] | None = None) -> Path:
    """Where a run writes: its folder, or `branch/` when it goes on from an older step than the main line's last.

    `origin` is the checkpoint, of `step`, that training goes on from; None for a fresh run. A new branch has its
    `settings` from the beginning, so that no kill lets it go on with those of the main line.
    """
    if origin is None:
        if checkpoint_steps(folder):  # rows of a run that was killed before its first checkpoint are worth nothing
            raise FledgeError(
                f"{folder} already holds a run. Resume it: {command('train', '--resume', folder)}; or choose "
                "another folder with --out."
            )
        return folder
    home, place = origin.parent.parent, folder / BRANCH
    if home not in (folder, place):
        return folder
    if step >= max(checkpoint_steps(home), default=0):
        if home == folder:  # who goes on with the main line has left the branch
            put_aside(folder)
        return home
    # A new branch, from the main line or from a branch, which is put aside with all it has.
    fresh = folder / f"{BRANCH}{PARTIAL}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    write_json(fresh / NOTE, {"from": step} if home == folder else read_note(folder))
    if settings is not None and (folder / CONFIG).is_file():
        write_json(fresh / SETTINGS, settings)
    for name in (METRICS, SAMPLES):
        if (home / name).is_file():
            shutil.copyfile(home / name, fresh / name)
    if home == place:
        for saved, path in checkpoint_steps(place).items():
            if saved <= step:
                shutil.copytree(path, fresh / CHECKPOINTS / path.name)
    put_aside(folder)
    os.rename(fresh, place)
    return place


def put_aside(folder: Path) -> None:
    """Give a branch that was left a name of its own, `branch-1` and on; one without a checkpoint holds nothing."""
    place = folder / BRANCH
    if not place.exists():
        return
    if not (place / NOTE).is_file():
        raise FledgeError(f"{place} is no branch of this run, and one needs its name. Move it to another place first.")
    if not checkpoint_steps(place):
        remove_branch(folder)
        return
    number = 1
    while (aside := folder / f"{BRANCH}-{number}").exists():
        number += 1
    os.rename(place, aside)


def remove_branch(folder: Path) -> None:
    """All of it at once: what a kill leaves of it is no branch."""
    shutil.rmtree(folder / LEFT, ignore_errors=True)
    os.rename(folder / BRANCH, folder / LEFT)
    shutil.rmtree(folder / LEFT)


def overtaken(folder: Path, step: int) -> bool:
    """Whether a branch at `step` is past all that the main line has saved and logged."""
    logged = max((int(row["step"]) for row in read_metrics(folder / METRICS)), default=0)
    return step >= max([logged, *checkpoint_steps(folder)])


def take_over(folder: Path) -> None:
    """Make the branch the main line."""
    write_json(folder / BRANCH / NOTE, {**read_note(folder), "takes_over": True})
    finish_takeover(folder)


def finish_takeover(folder: Path) -> None:
    """Finish, in order, what a kill may have cut short. Without a takeover or a removal under way this does nothing."""
    shutil.rmtree(folder / LEFT, ignore_errors=True)
    place = folder / BRANCH
    note = read_note(folder)
    if not note.get("takes_over"):
        return
    main, mine, former = folder / CHECKPOINTS, place / CHECKPOINTS, place / "former"
    if mine.is_dir():
        if main.is_dir():
            for step, path in checkpoint_steps(folder).items():
                if step <= note["from"]:
                    os.rename(path, mine / path.name)
            os.rename(main, former)
        os.rename(mine, main)
    for name, taken in ((METRICS, METRICS), (SAMPLES, SAMPLES), (SETTINGS, CONFIG)):
        if (place / name).is_file():
            os.replace(place / name, folder / taken)
    for events in sorted((place / EVENTS).glob("*")):  # each says from which step on it replaces those before it
        (folder / EVENTS).mkdir(exist_ok=True)
        os.replace(events, folder / EVENTS / events.name)
    remove_branch(folder)
