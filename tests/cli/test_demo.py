"""The demo walks the whole way, scaled down; a second call and an interrupted one go on where it stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import ENVIRONMENT, interrupt

pytest.importorskip("pythonbible_akjv")

SMALL = [
    "--set=model.layers=1",
    "--set=model.width=32",
    "--set=model.heads=2",
    "--set=tokens.context_length=32",
    "--set=training.batch_size=4",
    "--set=training.evaluate_windows=8",
    "--set=sampling.max_tokens=12",
    "--set=tokenizer.vocabulary_size=512",
]


def demo(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fledge", "demo", *SMALL, *more]


def shell(command: list[str] | str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        shell=isinstance(command, str),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )


def result(output: str) -> str:
    """The line that says how well the model did."""
    return next(line for line in output.splitlines() if "nats per held-out token" in line)


def test_the_walk_ends_with_a_report_and_three_commands_that_work(tmp_path: Path) -> None:
    done = shell(demo(tmp_path, "--set=training.steps=8"), tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "akjv-demo"
    report = (run / "report.html").read_text()
    for word in ("unigram", "bigram", "trigram", "this model", "parameters in all", "<svg", "fledge train"):
        assert word in report
    assert "31,102 verses" in done.stdout
    commands = re.findall(r"^  (fledge .+)$", done.stdout, re.M)
    assert len(commands) == 3
    for command in commands:
        if command == "fledge train akjv":  # forty minutes: shown to start, not run to its end
            command += " --out runs/longer --set training.steps=1 --set training.batch_size=1"
            command += " --set training.evaluate_windows=1"
        assert (tried := shell(command, tmp_path)).returncode == 0, tried.stderr
    again = shell(demo(tmp_path, "--set=training.steps=8"), tmp_path)
    assert again.returncode == 0, again.stderr
    assert "Worth trying next" in again.stdout
    assert result(again.stdout) == result(done.stdout)


@pytest.mark.slow
def test_an_interrupted_demo_leaves_a_usable_bundle_and_goes_on(tmp_path: Path) -> None:
    command = demo(tmp_path, "--set=training.steps=150", "--set=training.log_every=1")
    output = interrupt(command, tmp_path, tmp_path / "runs" / "akjv-demo" / "metrics.csv")
    assert "To go on where it stopped: fledge demo --set=model.layers=1" in output
    used = shell("fledge generate runs/akjv-demo --prompt 'And God' --max-tokens 4", tmp_path)
    assert used.returncode == 0, used.stderr
    finished = shell([*command[:-2], "--set=training.steps=150", "--set=training.log_every=1"], tmp_path)
    assert finished.returncode == 0, finished.stderr
    alone = shell([*command, "--out", "alone"], tmp_path)
    assert result(finished.stdout) == result(alone.stdout)


def test_a_demo_with_nothing_held_out_is_refused_before_it_trains(tmp_path: Path) -> None:
    refused = shell(demo(tmp_path, "--set=corpus.validation_fraction=0"), tmp_path)
    assert refused.returncode == 2
    assert "corpus.validation_fraction above 0" in refused.stderr
    assert not (tmp_path / "runs" / "akjv-demo" / "checkpoints").exists()
