"""Ctrl-C, kills and the same command again: nothing is lost, and a person is always told how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.errors import FledgeError
from tests.small import SMALL

SETTINGS = [*SMALL, "training.save_every=2", "sampling.max_tokens=4"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

# Step 4 becomes one operation of minutes, during which the interpreter does not look at signals: the backward pass of a
# large model on a CPU.
LONG_STEP = """
import hashlib, sys
from fledge import cli
from fledge.training.stepper import Stepper
usual = Stepper._accumulate
def slow(self, batch, count):
    if self.progress.step == 3:
        print("the long step", file=sys.stderr, flush=True)
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)
    return usual(self, batch, count)
Stepper._accumulate = slow
cli.main()
"""
# The command line imports for as long as a person needs to press Ctrl-C.
LONG_IMPORT = """
import sys, time
import fledge.cli
build = fledge.cli.build
def slow():
    print("importing", file=sys.stderr, flush=True)
    time.sleep(60)
fledge.cli.build = slow
fledge.cli.main()
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "stories.txt"
    stories = [f"There was a little bird number {n}, and it learned to fly on day {n * n}." for n in range(300)]
    path.write_text("<|endoftext|>".join(stories))
    return path


def arguments(corpus: Path, out: Path, *more: str) -> list[str]:
    changes = [f"--set={setting}" for setting in (f"corpus.source={corpus}", *SETTINGS, *more)]
    return ["train", "akjv-demo", *changes, "-o", str(out)]


def start(program: str, *given: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *given]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fledge(*given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fledge", *given]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    """The line of standard error with these words in it, and nothing read beyond."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if words in line:
            return line
        said.append(line)
    raise AssertionError(f"{words!r} was never said, but: {''.join(said)}")


def test_a_second_ctrl_c_stops_a_long_step_at_once_and_the_same_command_goes_on(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(LONG_STEP, *arguments(corpus, run))
    wait_for(process, "the long step")
    process.send_signal(signal.SIGINT)
    assert "Ctrl-C again to stop at once" in wait_for(process, "Finishing the step (about")
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, error = process.communicate(timeout=30)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130
    assert f"The last checkpoint is {run / 'checkpoints' / 'step-00000002'}" in error
    assert f"fledge train --resume {run}" in error
    assert "Traceback" not in error

    other = fledge(*arguments(corpus, run, "model.layers=2"))
    assert other.returncode == 2
    assert "model.layers = 1 there, 2 here" in other.stderr
    assert f"fledge train --resume {run}" in other.stderr
    assert "--out" in other.stderr

    again = fledge(*arguments(corpus, run))
    assert again.returncode == 0, again.stderr
    assert "resuming from step 2 of 6" in again.stderr
    assert "step 6 of 6" in again.stdout
    whole = fledge(*arguments(corpus, tmp_path / "undisturbed"))
    assert whole.returncode == 0
    bits = [
        (place / "checkpoints" / "step-00000006" / "model.safetensors") for place in (run, tmp_path / "undisturbed")
    ]
    assert bits[0].read_bytes() == bits[1].read_bytes()

    complete = fledge(*arguments(corpus, run))
    assert complete.returncode == 0
    assert f"is complete already. To train it further: fledge train --resume {run}" in complete.stderr
    assert "Training " not in complete.stderr, "no step is left to say anything of"


def test_ctrl_c_in_the_first_moments_is_one_sentence() -> None:
    process = start(LONG_IMPORT, "doctor")
    wait_for(process, "importing")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error.startswith("fledge: stopped.")
    assert error.count("\n") == 1


def test_a_run_killed_before_its_first_checkpoint_says_so(corpus: Path, tmp_path: Path) -> None:
    """And the command that is named begins it, and needs nothing else."""
    run = tmp_path / "run"
    process = start(LONG_STEP, *arguments(corpus, run, "training.save_every=0"))
    wait_for(process, "the long step")
    process.kill()
    process.communicate()
    for verb in (["generate"], ["evaluate"], ["bundle", "show"], ["train", "--from"]):
        refused = CliRunner().invoke(build(), [*verb, str(run)])
        assert isinstance(refused.exception, FledgeError)
        assert f"{run} is a run that has no checkpoint yet" in str(refused.exception)
    command = str(refused.exception).rpartition(": fledge ")[2]
    assert fledge(*command.split()).returncode == 0
    assert (run / "checkpoints" / "step-00000006" / "bundle.json").is_file()
