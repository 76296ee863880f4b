"""A run that was cut short continues to the same bits; going back loses nothing; samples keep their order."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.errors import FledgeError
from fledge.runs.checkpoints import clear_remains, find_bundle
from fledge.runs.metrics import TIME_COLUMNS
from fledge.training import find_checkpoint, load_checkpoint, read_metrics
from fledge.training.continuity import notable_changes
from fledge.training.stepper import Stepper

from .support import TextWindows, run, settings


def untimed(path: Path) -> list[dict[str, str]]:
    """The rows without the columns that no two runs share."""
    return [{name: value for name, value in row.items() if name not in TIME_COLUMNS} for row in read_metrics(path)]


def assert_same(first: Path, second: Path) -> None:
    one, two = load_checkpoint(first), load_checkpoint(second)
    assert one.path.name == two.path.name
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, two.model.state_dict()[name]), name
    assert one.training is not None
    assert two.training is not None
    for name, tensor in one.training.tensors.items():
        assert torch.equal(tensor, two.training.tensors[name]), name
    assert untimed(first / "metrics.csv") == untimed(second / "metrics.csv")
    assert (first / "samples.txt").read_text() == (second / "samples.txt").read_text()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with dropout, whose logging, saving and evaluation fall on different steps."""
    folder = tmp_path_factory.mktemp("unbroken")
    run(settings(model={"dropout": 0.1}), folder)
    return folder


def cut_back(source: Path, folder: Path, step: int) -> None:
    """The folder as a kill right after saving `step` would leave it, with later rows already logged."""
    shutil.copytree(source, folder)
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name[5:]) > step:
            shutil.rmtree(path)


@pytest.mark.parametrize("step", [4, 8])
def test_a_cut_run_ends_with_the_same_bits(unbroken: Path, tmp_path: Path, step: int) -> None:
    """Weights, optimizer state, metrics and samples, although rows beyond the checkpoint had been logged."""
    cut_back(unbroken, tmp_path / "run", step)
    run(settings(model={"dropout": 0.1}), tmp_path / "run", resume=True)
    assert_same(unbroken, tmp_path / "run")


def test_what_was_due_at_the_checkpoint_is_made_up(unbroken: Path, tmp_path: Path) -> None:
    """A kill between saving and evaluation loses neither the row nor the sample."""
    folder = tmp_path / "run"
    cut_back(unbroken, folder, 8)
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.split(",")[0].isdigit() or int(line.split(",")[0]) < 8]
    (folder / "metrics.csv").write_text("".join(kept) + "8,64,10")
    run(settings(model={"dropout": 0.1}), folder, resume=True)
    assert_same(unbroken, folder)


def test_going_back_truncates_nothing_until_the_branch_overtakes(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    before = untimed(folder / "metrics.csv")
    changed = settings(model={"dropout": 0.1}, optimizer={"learning_rate": 1e-3})
    with stopped_at(10):
        result = run(changed, folder, resume=True, at=4)
    assert result.stopped == "SIGTERM"
    assert result.step == 10
    assert untimed(folder / "metrics.csv") == before
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-00000004",
        "step-00000008",
        "step-00000012",
    ]
    assert find_checkpoint(folder).parent.parent == folder / "branch"
    run(changed, folder, resume=True)
    after = untimed(folder / "metrics.csv")
    assert not (folder / "branch").exists()
    assert [row["step"] for row in after] == [row["step"] for row in before]
    assert after[:2] == before[:2]
    assert after[-1] != before[-1]
    assert find_checkpoint(folder).name == "step-00000012"


def test_a_stop_right_after_going_back_names_the_checkpoint_gone_back_to(unbroken: Path, tmp_path: Path) -> None:
    """The new branch has none of its own yet."""
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    result = run(settings(model={"dropout": 0.1}), folder, resume=True, at=4, time_limit=0.0)
    assert (result.stopped, result.step) == ("the time limit", 4)
    assert result.checkpoint == folder / "checkpoints" / "step-00000004"
    assert find_checkpoint(folder) == result.checkpoint


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """The process gets a SIGTERM when this step is done."""
    original = Stepper.step

    def watched(self: Stepper, *arguments: Any) -> Any:
        outcome = original(self, *arguments)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "step", watched)
        yield


def test_a_takeover_that_was_killed_is_finished(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any of its moves, the next start ends it the same way."""
    from fledge.runs import branches

    for stop_after in range(9):
        folder = tmp_path / f"run{stop_after}"
        shutil.copytree(unbroken, folder)
        place = branches.open_place(folder, folder / "checkpoints" / "step-00000004", 4)
        shutil.copytree(folder / "checkpoints" / "step-00000012", place / "checkpoints" / "step-00000016")
        branches.write_json(place / branches.NOTE, {"from": 4, "takes_over": True})
        branches.write_json(place / branches.SETTINGS, {"name": "tried"})
        moves = count(1)

        def counted(move, *arguments, moves=moves, limit=stop_after, **options):  # type: ignore[no-untyped-def]
            if next(moves) > limit:
                raise KeyboardInterrupt
            return move(*arguments, **options)

        with monkeypatch.context() as patch:
            for module, name in (
                (branches.os, "rename"),
                (branches.os, "replace"),
                (branches.shutil, "rmtree"),
            ):
                patch.setattr(module, name, partial(counted, getattr(module, name)))
            with contextlib.suppress(KeyboardInterrupt):
                branches.finish_takeover(folder)
        assert find_bundle(folder).name in ("step-00000012", "step-00000016")  # at no moment there is none to use
        assert find_checkpoint(folder).name == "step-00000016"
        assert sorted(branches.checkpoint_steps(folder)) == [4, 16]
        assert (folder / "config.json").read_text() == '{\n  "name": "tried"\n}\n'
        assert not list(folder.glob("branch*"))


def test_going_back_inside_a_branch_puts_it_aside(unbroken: Path, tmp_path: Path) -> None:
    """What it had after that step is kept, and is not gone on with."""
    from fledge.runs import branches

    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    changed = settings(model={"dropout": 0.1}, training={"save_every": 2}, optimizer={"learning_rate": 1e-3})
    with stopped_at(9):
        run(changed, folder, resume=True, at=4)
    saved, rows = branches.checkpoint_steps(folder / "branch"), untimed(folder / "branch" / "metrics.csv")
    assert max(saved) > 6
    with stopped_at(7):
        assert run(changed, folder, resume=True, at=6).stopped
    assert set(branches.checkpoint_steps(folder / "branch-1")) == set(saved)
    assert untimed(folder / "branch-1" / "metrics.csv") == rows
    assert find_checkpoint(folder).parent.parent == folder / "branch"
    assert max(branches.checkpoint_steps(folder / "branch")) < max(saved)
    run(changed, folder, resume=True)
    assert not (folder / "branch").exists()
    steps = [int(row["step"]) for row in read_metrics(folder / "metrics.csv") if row["validation_loss"]]
    assert steps == [int(row["step"]) for row in read_metrics(unbroken / "metrics.csv") if row["validation_loss"]]


def test_going_on_with_the_main_line_leaves_the_branch(unbroken: Path, tmp_path: Path) -> None:
    """Later resumes go on with what was trained last, and the branch is kept aside."""
    from fledge.runs import branches

    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    kept = settings(model={"dropout": 0.1}, training={"save_every": 2})
    with stopped_at(8):
        run(kept, folder, resume=True, at=4)
    branched = set(branches.checkpoint_steps(folder / "branch"))
    assert branched
    run(settings(model={"dropout": 0.1}, training={"steps": 14}), folder, resume=True, at=12)
    assert find_checkpoint(folder) == folder / "checkpoints" / "step-00000014"
    assert set(branches.checkpoint_steps(folder / "branch-1")) == branched
    assert run(settings(model={"dropout": 0.1}, training={"steps": 15}), folder, resume=True).step == 15


def test_a_branch_killed_before_it_took_over_does_so_at_the_next_start(
    unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.runs import branches

    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    changed = settings(model={"dropout": 0.1}, optimizer={"learning_rate": 1e-3})
    with monkeypatch.context() as patch:
        patch.setattr(branches, "take_over", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
        with contextlib.suppress(KeyboardInterrupt):
            run(changed, folder, resume=True, at=8)
    assert max(branches.checkpoint_steps(folder / "branch")) == 12
    (folder / "branch" / "tensorboard").mkdir()
    (folder / "branch" / "tensorboard" / "events.1").write_text("points")
    ours = load_checkpoint(folder).model.state_dict()
    run(changed, folder, resume=True)
    assert not (folder / "branch").exists()
    assert (folder / "tensorboard" / "events.1").read_text() == "points"
    for name, tensor in load_checkpoint(folder).model.state_dict().items():
        assert torch.equal(tensor, ours[name])


def test_another_batch_size_goes_on_with_the_same_samples(tmp_path: Path) -> None:
    run(settings(training={"steps": 4}), tmp_path / "run")
    seen = TextWindows(16)
    run(settings(training={"steps": 8, "batch_size": 4}), tmp_path / "run", resume=True, windows=seen)
    assert sorted(seen.asked)[:16] == list(range(32, 48))  # asked for by two threads


def test_a_changed_architecture_is_refused_by_name(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises(FledgeError, match=r"model.layers is 2 there and 3 now; model.width is 32 there and 64 now"):
        run(settings(model={"layers": 3, "width": 64, "dropout": 0.1}), folder, resume=True)
    assert sorted(folder.rglob("*")) == before


def test_fewer_steps_than_done_are_refused(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "run")
    with pytest.raises(FledgeError, match="has already done 12 steps, and 5 were requested"):
        run(settings(model={"dropout": 0.1}, training={"steps": 5}), tmp_path / "run", resume=True)


def test_a_flipped_byte_is_refused_with_the_last_whole_checkpoint(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    damaged = folder / "checkpoints" / "step-00000012" / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(FledgeError, match=r"checksum.*--resume .*run --at 8"):
        load_checkpoint(folder)


def test_an_unknown_step_names_the_saved_ones(unbroken: Path) -> None:
    with pytest.raises(FledgeError, match=r"no checkpoint of step 7\. Saved steps: 4, 8, 12"):
        find_checkpoint(unbroken, at=7)


def test_a_run_killed_before_its_first_checkpoint_starts_over(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    shutil.rmtree(folder / "checkpoints")
    run(settings(model={"dropout": 0.1}), folder)
    assert_same(unbroken, folder)


def test_a_run_without_a_checkpoint_is_not_begun_again_to_diverge_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    again = r"Start it again: fledge train .*config\.json --out .* \(if it diverged, .*--set optimizer\.learning_rate="
    with pytest.raises(FledgeError, match=again):
        find_checkpoint(tmp_path)


def test_a_folder_with_a_run_is_not_overwritten(unbroken: Path) -> None:
    with pytest.raises(FledgeError, match="already holds a run"):
        run(settings(model={"dropout": 0.1}), unbroken)


KILLS = 20
STEPS = 1500
CHILD = """
import sys
from pathlib import Path
from typing import Any
from tests.training.support import run, settings
folder = Path(sys.argv[1])
resume = any((folder / "checkpoints").glob("step-*/bundle.json"))
often = {"steps": int(sys.argv[2]), "save_every": 7, "evaluate_every": 14, "sample_every": 30, "keep_last": 2}
run(settings(model={"dropout": 0.1}, training=often), folder, resume=resume)
"""


def child(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(STEPS)], cwd=root, env=environment)


def wait_for_rows(process: subprocess.Popen[bytes], metrics: Path, before: str) -> bool:
    """Until the child trains, or is done; whether it is still running."""
    while process.poll() is None:
        if metrics.is_file() and metrics.read_text() != before:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_the_run_ends_the_same(tmp_path: Path) -> None:
    """kill -9 wherever it falls: in a step, while saving, pruning, evaluating, writing a row or a sample."""
    assert child(tmp_path / "unbroken").wait() == 0
    folder, kills = tmp_path / "killed", 0
    generator = torch.Generator().manual_seed(0)
    while True:
        metrics = folder / "metrics.csv"
        before = metrics.read_text() if metrics.is_file() else ""
        process = child(folder)
        if kills < KILLS and wait_for_rows(process, metrics, before):
            time.sleep(0.4 * float(torch.rand((), generator=generator)))
            process.kill()
            process.wait()
            kills += 1
            continue
        assert process.wait() == 0
        break
    assert kills == KILLS
    assert_same(tmp_path / "unbroken", folder)


def test_a_persons_own_folder_is_not_taken_for_a_branch(unbroken: Path, tmp_path: Path) -> None:
    mine = tmp_path / "project" / "branch" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(FledgeError, match="has no checkpoint yet"):
        find_checkpoint(tmp_path / "project")
    assert mine.read_text() == "mine"
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    shutil.copytree(mine.parent, folder / "branch")
    with pytest.raises(FledgeError, match="is no branch of this run"):
        run(settings(model={"dropout": 0.1}), folder, resume=True, at=4)
    assert (folder / "branch" / "notes.txt").read_text() == "mine"


def test_a_trace_outlives_its_branch(unbroken: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    run(settings(model={"dropout": 0.1}, training={"steps": 16}), folder, resume=True, at=4, profile=True)
    assert not (folder / "branch").exists()
    assert (folder / "trace.json").stat().st_size > 0
    run(settings(model={"dropout": 0.1}, training={"steps": 4}), tmp_path / "short", profile=True)
    assert "--profile watches steps 4 to 8, and there were 4 here: no trace is written." in capsys.readouterr().err


def test_a_checkpoint_under_another_name_is_gone_on_with(unbroken: Path, tmp_path: Path) -> None:
    """Its training state says its step: at the run's end it goes on, before that it branches."""
    for step, branches in ((4, True), (12, False)):
        folder = tmp_path / f"run-{step}"
        shutil.copytree(unbroken, folder)
        best = folder / "checkpoints" / "best"
        os.rename(folder / "checkpoints" / f"step-{step:08}", best)
        longer = settings(model={"dropout": 0.1}, training={"steps": 14})
        with stopped_at(step + 1):
            result = run(longer, folder, resume=best)
        assert (result.step, (folder / "branch").exists()) == (step + 1, branches)


def test_settings_that_came_after_a_step_are_told_with_its_name(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "checkpoints" / "step-00000004", tmp_path / "best")
    shutil.copytree(tmp_path / "best", tmp_path / "step-00000000")
    changed = settings(model={"dropout": 0.1}, optimizer={"learning_rate": 1e-4})
    for name, told in (("best", str(tmp_path / "best")), ("step-00000000", "Step 0")):
        sentences = notable_changes(changed, load_checkpoint(tmp_path / name), [], back=True)
        assert sentences == [f"{told} was trained with optimizer.learning_rate = 0.003 (now 0.0001)."]


def test_a_checkpoint_that_a_kill_left_beside_its_name_gets_it_back(unbroken: Path, tmp_path: Path) -> None:
    """Where a file system can't let two folders change names at once, a kill may come between."""
    folder = shutil.copytree(unbroken, tmp_path / "run") / "checkpoints"
    whole = sorted(folder.iterdir())[-1]
    whole.rename(folder / f"{whole.name}.partial")
    shutil.copytree(sorted(folder.iterdir())[0], folder / f"{whole.name}.old.partial")
    clear_remains(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (unbroken / "checkpoints").iterdir()
    )
    assert_same(unbroken, tmp_path / "run")
