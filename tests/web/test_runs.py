"""Facts about runs read while they are written: torn lines, replaced files, broken folders."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fledge.files import read_json
from fledge.runs.metrics import Metrics
from fledge.web import runs
from fledge.web.runs import flatten, metrics_since, read_settings, summarise
from tests.web.world import write_metrics


def test_the_list_has_every_run_and_a_broken_one_breaks_nothing(client: TestClient) -> None:
    runs = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert runs["alpha"]["state"] == "finished"
    assert runs["alpha"]["parameters"] > 0
    assert runs["alpha"]["best_validation_loss"] <= runs["alpha"]["validation_loss"]
    assert runs["beta"]["state"] == "training"  # its file is fresh, and its last step not reached
    assert runs["broken"]["state"] == "broken"
    assert "not valid JSON" in runs["broken"]["problem"]


def test_the_list_names_the_checkpoint_that_stands_for_the_run(world: Path, tmp_path: Path) -> None:
    """Of two checkpoints the one with the lower validation loss, though it is not the last."""
    run = tmp_path / "run"
    shutil.copytree(world / "runs" / "alpha", run)
    for step, loss in ((100, 2.0), (200, 3.0)):
        path = run / "checkpoints" / f"step-{step:08d}" / "bundle.json"
        path.write_text(json.dumps({**read_json(path), "metrics": {"validation_loss": loss}}))
    assert summarise("run", run).best == "step-00000100"
    shutil.rmtree(run / "checkpoints")
    assert summarise("run", run).best is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "metrics.csv").write_bytes(b"\xff\xfe\0" * 3000),
        lambda run: (run / "metrics.csv").write_bytes(b""),
        lambda run: (run / "metrics.csv").write_bytes(b"step,loss\n1,2\n" + b'"unclosed\n' * 50),
        lambda run: (run / "metrics.csv").write_bytes(b"s" * 140_000 + b",loss\n1,2\n"),
        lambda run: (run / "config.json").write_bytes(b"[]"),
        lambda run: (run / "config.json").write_text('{"model": 3}'),
        lambda run: (run / "checkpoints").write_text("a file where a folder belongs"),
        lambda run: ((run / "checkpoints" / "step-1").mkdir(parents=True), (run /
        "checkpoints/step-1/bundle.json").mkdir()),
        lambda run: (run / "samples.txt").mkdir(),
    ],
)  # fmt: skip
def test_no_damage_to_a_run_is_an_error_of_the_list(tmp_path: Path, damage: object) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_metrics(run, range(10), seed=1)
    (run / "config.json").write_text("{}")
    damage(run)  # type: ignore[operator]
    assert summarise("run", run).name == "run"
    assert metrics_since("run", run).run == "run"


def test_curves_grow_by_what_is_new(tmp_path: Path) -> None:
    """Following a run with the cursor gives exactly the rows of the file, none twice, none torn."""
    metrics = Metrics(tmp_path / "metrics.csv")
    steps: list[float | None] = []
    cursor = ""
    for step in range(30):
        metrics.add(step=step, loss=5.0 - step / 10)
        with open(tmp_path / "metrics.csv", "ab") as torn:
            torn.write(b"99,12,1")  # as if a writer were in the middle of a line
        answer = metrics_since("run", tmp_path, cursor)
        steps += answer.columns["step"]
        cursor = answer.cursor
        size = (tmp_path / "metrics.csv").stat().st_size
        with open(tmp_path / "metrics.csv", "r+b") as file:
            file.truncate(size - 7)
    assert steps == list(range(30))


def test_a_file_that_was_replaced_is_read_from_the_beginning(tmp_path: Path) -> None:
    write_metrics(tmp_path, range(50), seed=1)
    cursor = metrics_since("run", tmp_path).cursor
    assert metrics_since("run", tmp_path, cursor).columns["step"] == []
    write_metrics(tmp_path, range(20), seed=2)  # a run that went back to an earlier step
    again = metrics_since("run", tmp_path, cursor)
    assert again.reset
    assert again.columns["step"] == list(range(20))


@pytest.mark.parametrize("cursor", ["", "x", "5", "-", "99999999999999999999999-0", "10-zzzz", "٣-00000000"])
def test_a_cursor_that_is_none_means_the_beginning(tmp_path: Path, cursor: str) -> None:
    write_metrics(tmp_path, range(5), seed=1)
    answer = metrics_since("run", tmp_path, cursor)
    assert answer.reset
    assert len(answer.columns["step"]) == 5


def test_what_is_not_a_number_is_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n1,nan\n2,inf\n3\n4,2.5\n")
    answer = metrics_since("run", tmp_path)
    assert answer.columns == {"step": [1, 2, 4], "loss": [None, None, 2.5]}
    assert answer.unreadable == 1


def test_a_field_or_a_line_without_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"step,loss\n1,2\n2,{'9' * 140_000}\n3,4\n")
    answer = metrics_since("run", tmp_path)
    assert answer.columns == {"step": [1, 3], "loss": [2, 4]}
    assert answer.unreadable == 1
    with open(tmp_path / "metrics.csv", "ab") as file:
        file.write(b"5" * (9 << 20))
    assert not metrics_since("run", tmp_path, answer.cursor).more  # asking again would give the same, for ever


def test_the_best_validation_loss_is_that_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.web.metrics.TAIL", 500)
    monkeypatch.setattr("fledge.web.metrics.CHUNK", 1000)
    metrics = Metrics(tmp_path / "metrics.csv")
    for step in range(100):
        metrics.add(step=step, validation_loss=3.0 - (step == 1))
    assert summarise("run", tmp_path).best_validation_loss == 2
    metrics.add(step=100, validation_loss=1.5)
    assert summarise("run", tmp_path).best_validation_loss == 1.5
    write_metrics(tmp_path, range(3), seed=1)  # another file: the best of the one before is forgotten
    assert summarise("run", tmp_path).best_validation_loss > 5


def test_a_sample_that_comes_after_the_last_row_is_a_sign_of_life(tmp_path: Path) -> None:
    write_metrics(tmp_path, range(3), seed=1)
    before = summarise("run", tmp_path).updated
    (tmp_path / "samples.txt").write_text("And the egg said.")
    os.utime(tmp_path / "samples.txt", (before + 5, before + 5))
    assert summarise("run", tmp_path).updated == before + 5


@pytest.mark.parametrize(("gap", "state"), [(1, "stopped"), (100, "training")])
def test_a_run_is_given_the_time_that_its_rows_take(tmp_path: Path, gap: float, state: str) -> None:
    """An evaluation's row comes soon after a step's: the longest of the last gaps counts."""
    metrics = Metrics(tmp_path / "metrics.csv")
    for step in range(4):
        metrics.add(step=step, loss=3.0, seconds=step * gap)
        metrics.add(step=step, validation_loss=3.0, seconds=step * gap + 0.5)
    ago = time.time() - 250
    os.utime(tmp_path / "metrics.csv", (ago, ago))
    assert summarise("run", tmp_path).state == state


def test_flops_follow_from_the_settings(client: TestClient) -> None:
    answer = client.get("/api/runs/metrics", params={"run": "alpha"}).json()
    assert answer["flops_per_token"] > 6 * 20_000
    assert len(answer["columns"]["loss"]) == 41


def test_a_model_beyond_all_numbers_has_curves_without_flops(world: Path, tmp_path: Path) -> None:
    run = shutil.copytree(world / "runs" / "alpha", tmp_path / "run")
    (run / "config.json").write_text(json.dumps({"model": {"width": 2 * 10**400, "heads": 1}}))
    answer = metrics_since("run", run)
    assert answer.flops_per_token is None
    assert len(answer.columns["loss"]) == 41


def test_settings_are_flat_and_samples_are_text(client: TestClient) -> None:
    settings = client.get("/api/runs/settings", params={"run": "alpha"}).json()["settings"]
    assert settings["model.layers"] == 2
    assert flatten({"a": {"b": {"c": 1}}}) == {"a.b.c": 1}
    assert "step 50" in client.get("/api/runs/samples", params={"run": "alpha"}).json()["text"]


def test_settings_beyond_all_reason_are_not_read_and_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page looks at every run every two seconds."""
    reads: list[str] = []
    monkeypatch.setattr(runs, "read_json", lambda path: (reads.append(Path(path).name), read_json(path))[1])
    write_metrics(tmp_path, range(10), seed=1)
    (tmp_path / "config.json").write_text('{"name": "small"}')
    for _ in range(3):
        assert summarise("run", tmp_path).problem is None
    assert reads == ["config.json"]
    with open(tmp_path / "config.json", "ab") as file:
        file.truncate(40 << 20)
    summary = summarise("run", tmp_path)
    assert "config.json has 40 MB" in (summary.problem or "")
    assert summary.step == 9
    assert metrics_since("run", tmp_path).columns["step"] == list(range(10))
    assert reads == ["config.json"]


def test_checkpoints_that_are_a_link_to_elsewhere_are_not_read(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_metrics(run, range(10), seed=1)
    (run / "checkpoints").symlink_to(world / "runs" / "alpha" / "checkpoints")
    summary = summarise("run", run)
    assert summary.checkpoints == []
    assert summary.parameters is None
    assert read_settings(run) == {}
