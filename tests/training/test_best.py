"""The model of a run is its checkpoint with the lowest held-out loss; training goes on from its last."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fledge.bundle import load_bundle
from fledge.errors import FledgeError
from fledge.files import read_json
from fledge.runs.branches import settings_file
from fledge.runs.checkpoints import checkpoint_steps, find_bundle
from fledge.runs.metrics import course
from fledge.training import TrainingResult, find_checkpoint, load_checkpoint, read_metrics
from fledge.training.chores import Chores

from .support import run, settings

OFTEN = {"steps": 12, "evaluate_every": 2, "save_every": 5, "keep_last": 1, "log_every": 1}


def judged(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    """Evaluations find these losses, by step."""
    monkeypatch.setattr(Chores, "_validation_loss", lambda chores, _: losses[chores.progress.step])


@pytest.fixture
def overfitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> TrainingResult:
    """A run whose held-out loss is lowest at step 4, where no checkpoint was due."""
    judged(monkeypatch, {2: 3.0, 4: 2.0, 6: 2.1, 8: 2.2, 10: 2.3, 12: 2.4, 13: 2.5})
    return run(settings(training=OFTEN), tmp_path / "run", quiet=False)


def test_a_run_named_as_a_model_is_its_best_checkpoint(
    overfitted: TrainingResult, capsys: pytest.CaptureFixture[str]
) -> None:
    """It exists though no checkpoint was due there, it outlives pruning, and the others go by name."""
    folder = overfitted.folder
    assert list(checkpoint_steps(folder)) == [4, 12]
    assert find_bundle(folder) == overfitted.best == folder / "checkpoints" / "step-00000004"
    assert find_bundle(folder, "best") == find_bundle(folder, 4) == find_bundle(folder, "4") == overfitted.best
    assert find_bundle(folder, "last") == find_bundle(folder, 12) == overfitted.checkpoint
    assert load_bundle(find_bundle(folder)).metrics["step"] == 4
    assert load_bundle(find_bundle(folder, "last")).metrics["step"] == 12
    said = capsys.readouterr().err
    assert said.count("rising since step 4: it was 2.0000 there and is 2.3000 now") == 1


def test_training_goes_on_from_the_last_and_from_the_best_where_asked(overfitted: TrainingResult) -> None:
    folder = overfitted.folder
    assert find_checkpoint(folder) == find_checkpoint(folder, "last") == overfitted.checkpoint
    assert find_checkpoint(folder, "best") == overfitted.best
    with pytest.raises(FledgeError, match=r"no checkpoint of step 7\. Saved steps: 4, 12"):
        find_bundle(folder, 7)
    with pytest.raises(FledgeError, match="--at newest is no checkpoint: give best, last, or a step"):
        find_bundle(folder, "newest")
    with pytest.raises(FledgeError, match="is one checkpoint: --at goes with the folder of a run"):
        find_bundle(overfitted.best, "last")


def test_runs_of_the_first_versions_have_a_best_checkpoint_too(overfitted: TrainingResult) -> None:
    """Their manifests do not say what an evaluation found; the rows do. Without either it is the last."""
    for path in checkpoint_steps(overfitted.folder).values():
        values = read_json(path / "bundle.json")
        del values["metrics"]["validation_loss"]
        (path / "bundle.json").write_text(json.dumps(values))
    assert find_bundle(overfitted.folder) == overfitted.best
    (overfitted.folder / "metrics.csv").unlink()
    assert find_bundle(overfitted.folder) == overfitted.checkpoint


def test_the_better_of_branch_and_main_line_is_the_model(
    overfitted: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = overfitted.folder
    judged(monkeypatch, {6: 1.5, 8: 1.6})
    run(settings(training={**OFTEN, "steps": 8}), folder, resume=True, at=4)
    assert find_bundle(folder) == folder / "branch" / "checkpoints" / "step-00000006"


def test_patience_ends_training_and_can_be_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(monkeypatch, {2: 3.0, 4: 2.0, 6: 2.1, 8: 2.2, 10: 1.9, 12: 1.8})
    patient = settings(training={**OFTEN, "patience": 2})
    result = run(patient, tmp_path / "run", quiet=False)
    assert (result.step, result.stopped, result.best.name) == (8, None, "step-00000004")
    assert "Training ends at step 8 of 12: the 2 evaluations since step 4 found no lower" in capsys.readouterr().err
    assert run(patient, tmp_path / "run", resume=True).step == 8
    result = run(settings(training=OFTEN), tmp_path / "run", resume=True)
    assert (result.step, result.best.name) == (12, "step-00000012")


def test_without_keep_best_nothing_is_saved_for_its_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, {2: 3.0, 4: 2.0, 6: 2.1, 8: 2.2, 10: 2.3, 12: 2.4})
    result = run(settings(training={**OFTEN, "keep_best": False}), tmp_path / "run")
    assert list(checkpoint_steps(result.folder)) == [12]


def test_a_loss_that_is_no_number_is_not_the_lowest() -> None:
    found = course({1: float("nan"), 2: 2.0, 3: 2.5})
    assert found is not None
    assert (found.best_step, found.since, found.risen) == (2, 1, True)


def test_a_damaged_byte_in_the_metrics_blocks_nothing(overfitted: TrainingResult) -> None:
    """One that is no UTF-8, and one in a number: the row counts for nothing, and the run goes on."""
    path = overfitted.folder / "metrics.csv"
    data = path.read_bytes()
    rows = len(read_metrics(path))
    for bad in (b"\xff", b"x"):
        place = data.index(b"\n7,") + 6
        path.write_bytes(data[:place] + bad + data[place + 1 :])
        assert len(read_metrics(path)) == rows - 1
        load_checkpoint(overfitted.folder)
    again = settings(training={**OFTEN, "steps": 13, "evaluate_every": 0})
    assert run(again, overfitted.folder, resume=True).step == 13


@pytest.mark.parametrize("note", ["[4]", '{"from": "4"}', "{}", "7"])
def test_a_damaged_note_of_a_branch_is_a_sentence(overfitted: TrainingResult, note: str) -> None:
    branch = overfitted.folder / "branch"
    branch.mkdir()
    (branch / "branch.json").write_text(note)
    with pytest.raises(FledgeError, match=r"branch\.json is damaged.*the main line is whole"):
        find_checkpoint(overfitted.folder)


def test_a_branch_has_its_settings_from_its_first_moment(overfitted: TrainingResult) -> None:
    """Killed before the first step, it does not go on at the main line's rate."""
    folder = overfitted.folder
    (folder / "config.json").write_text(json.dumps(settings(training=OFTEN).model_dump(mode="json")))

    def killed(place: Path) -> Any:
        raise KeyboardInterrupt

    slower = settings(training=OFTEN, optimizer={"learning_rate": 1e-5})
    with pytest.raises(KeyboardInterrupt):
        run(slower, folder, resume=True, at=4, on_start=killed)
    assert read_json(settings_file(folder))["optimizer"]["learning_rate"] == 1e-5
    assert read_json(settings_file(folder, "last"))["optimizer"]["learning_rate"] == 1e-5
    assert read_json(settings_file(folder, 12))["optimizer"]["learning_rate"] == 3e-3
    shutil.rmtree(folder / "branch")
    assert read_json(settings_file(folder))["optimizer"]["learning_rate"] == 3e-3
