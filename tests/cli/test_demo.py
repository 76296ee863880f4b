"""The demo walks the whole way, scaled down; a second call and an interrupted one go on where it stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}


def demo(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fledge", "demo", *SMALL, *more]


def shell(command: list[str] | str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command,
        cwd=folder,
        shell=isinstance(command, str),
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


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


def test_an_interrupted_demo_leaves_a_usable_bundle_and_goes_on(tmp_path: Path) -> None:
    command = demo(tmp_path, "--set=training.steps=150", "--set=training.log_every=1")
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = tmp_path / "runs" / "akjv-demo" / "metrics.csv"
    for _ in range(1200):
        if metrics.is_file() and len(metrics.read_text().splitlines()) > 3:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "To go on where it stopped: fledge demo --set=model.layers=1" in output
    used = shell("fledge generate runs/akjv-demo --prompt 'And God' --max-tokens 4", tmp_path)
    assert used.returncode == 0, used.stderr
    finished = shell([*command[:-2], "--set=training.steps=150", "--set=training.log_every=1"], tmp_path)
    assert finished.returncode == 0, finished.stderr
