"""A run's folder that is moved or deleted while it trains: nothing is made at the old place, and the run says so."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fledge.errors import FledgeError
from fledge.training import load_checkpoint
from fledge.training.saver import Saver
from fledge.training.stepper import Stepper

from .support import run, settings

GONE = (
    r"is not this run's folder any more: its config\.json is gone.*nothing more is written there.*start the run again"
)


@contextlib.contextmanager
def after_step(step: int, act: Callable[[], object]) -> Iterator[None]:
    """Do something to the folder when this step is done."""
    original = Stepper.step

    def watched(self: Stepper, *arguments: Any) -> Any:
        outcome = original(self, *arguments)
        if self.progress.step == step:
            act()
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "step", watched)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder as the command line leaves it before the first step."""
    place = tmp_path / "runs" / "two"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    return place


@pytest.mark.parametrize("step", [5, 7])
def test_a_run_whose_folder_was_deleted_stops_and_makes_no_other(folder: Path, step: int) -> None:
    """Noticed at the next sample (step 6) and at the next checkpoint (step 8)."""
    with after_step(step, lambda: shutil.rmtree(folder)), pytest.raises(FledgeError, match=GONE):
        run(settings(), folder)
    assert not folder.exists()


def test_a_run_whose_folder_was_moved_goes_on_where_it_is_now(folder: Path) -> None:
    moved = folder.with_name("moved")
    with after_step(6, lambda: os.rename(folder, moved)), pytest.raises(FledgeError, match=GONE):
        run(settings(training={"sample_every": 0}), folder)
    assert not folder.exists()
    assert load_checkpoint(moved).path.name == "step-00000004"
    assert run(settings(), moved, resume=True).step == 12


@pytest.mark.parametrize("save_every", [0, 4])
def test_a_stop_does_not_say_that_all_is_saved_where_the_folder_is_gone(
    folder: Path, capsys: pytest.CaptureFixture[str], save_every: int
) -> None:
    """Neither in the middle, nor right after a checkpoint, which went with the folder."""

    def delete_and_stop(*_: Any) -> None:
        shutil.rmtree(folder)
        os.kill(os.getpid(), signal.SIGTERM)

    config = settings(training={"save_every": save_every, "sample_every": 0})
    with pytest.raises(FledgeError, match=GONE):
        run(config, folder, quiet=False, on_evaluation=delete_and_stop)
    assert "everything is saved" not in capsys.readouterr().err
    assert not folder.exists()


def test_a_folder_that_goes_while_a_checkpoint_is_written_beside_is_named(folder: Path, monkeypatch: Any) -> None:
    import fledge.training.saver as saver_module

    original = Saver.__init__
    monkeypatch.setattr(Saver, "__init__", lambda self, *arguments: original(self, *arguments[:-1], True))

    def deleted(path: Path, *_: Any, **__: Any) -> Path:
        shutil.rmtree(folder.rename(folder.with_name("going")))  # at once: training writes there meanwhile
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    monkeypatch.setattr(saver_module, "save_bundle", deleted)
    with pytest.raises(FledgeError, match=GONE):
        run(settings(), folder)
    assert not folder.exists()


def test_a_program_of_ones_own_without_settings_there_notices_too(tmp_path: Path) -> None:
    with (
        after_step(5, lambda: shutil.rmtree(tmp_path / "run")),
        pytest.raises(FledgeError, match="metrics.csv is gone"),
    ):
        run(settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_going_back_after_a_divergence_makes_no_folder(folder: Path, monkeypatch: Any) -> None:
    original = Stepper._accumulate

    def poisoned(self: Stepper, *arguments: Any) -> Any:
        if self.progress.step == 5:
            (folder / "config.json").unlink()
            return original(self, *arguments) * float("nan")
        return original(self, *arguments)

    monkeypatch.setattr(Stepper, "_accumulate", poisoned)
    with pytest.raises(FledgeError, match=GONE):
        run(settings(training={"on_divergence": "skip"}), folder)


SCRIPT = """
import shutil, sys
from pathlib import Path
from fledge.errors import FledgeError
from fledge.training import join_ranks
from tests.training.support import run, settings
from tests.training.test_home import after_step

folder = Path(sys.argv[1])
with join_ranks("cpu") as ranks:
    with after_step(5, lambda: shutil.rmtree(folder) if ranks.main else None):
        try:
            run(settings(training={"sample_every": 0}), folder)
        except FledgeError as error:
            (folder.parent.parent / f"rank-{ranks.rank}").write_text(str(error))
"""


def test_all_processes_end_when_the_folder_is_gone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(tmp_path / "script.py"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert all("config.json is gone" in (tmp_path / f"rank-{rank}").read_text() for rank in (0, 1))
    assert not folder.exists()
