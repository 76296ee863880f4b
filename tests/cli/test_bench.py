"""`fledge bench device` prints a row per device and batch size."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fledge.cli import build
from fledge.errors import FledgeError
from fledge.training import bench
from fledge.training.device import choose_device
from fledge.training.view import clock_time

SETTINGS = ["model.layers=1", "model.width=32", "tokens.context_length=16", "training.threads=1"]


def test_the_table_has_a_row_for_each_batch_size() -> None:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    command = ["bench", "device", *changes, "--device", "cpu", "--batch", "2", "--batch", "4", "--seconds", "0.05"]
    outcome = CliRunner().invoke(build(), command, catch_exceptions=False, env={"COLUMNS": "120"})
    assert outcome.exit_code == 0
    rows = [line for line in outcome.output.splitlines() if "cpu" in line]
    assert [row.split()[3] for row in rows] == ["2", "4"]
    assert "tokens/s" in outcome.output


def test_times_are_at_equal_samples_and_at_equal_steps() -> None:
    """Of two batch sizes at the same speed, the larger takes as long for the same samples, and longer for its steps."""
    changes = [part for setting in [*SETTINGS, "training.steps=1000"] for part in ("--set", setting)]
    command = ["bench", "device", *changes, "--device", "cpu", "--batch", "2", "--batch", "64", "--seconds", "0.05"]
    outcome = CliRunner().invoke(build(), [*command, "--samples", "250000"], env={"COLUMNS": "140"})
    assert "the time for 250,000 windows, equal steps that for 1,000 steps" in outcome.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in outcome.output.splitlines() if "│ cpu" in line]
    assert all(int(row[4].removesuffix("%")) > 0 for row in rows), "how busy a CPU is can always be read"
    for row in rows:
        windows = float(row[2].replace(",", "")) / 16
        wanted = [250_000 / windows, 1000 * int(row[1]) / windows]
        near = [{clock_time(seconds * factor) for factor in np.linspace(0.99, 1.01, 201)} for seconds in wanted]
        assert all(cell in texts for cell, texts in zip(row[-2:], near, strict=True))


def test_a_gpu_is_asked_for_what_it_does_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '80, 300.5'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(bench, "PAUSE", 0.01)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1-2"))
    with bench.Meter(torch.device("cuda:0")) as read:
        time.sleep(0.2)
    assert (read.busy, read.watts) == (0.8, 300.5)


def test_the_power_of_a_processor_is_that_of_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, joules in (("intel-rapl:0", 3_000_000), ("intel-rapl:1", 4_000_000), ("intel-rapl:0:0", 9_000_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{joules}\n")
    monkeypatch.setattr(bench, "POWERCAP", tmp_path)
    assert bench.energy() == 7.0
    monkeypatch.setattr(bench, "POWERCAP", tmp_path / "none")
    assert bench.energy() is None


def test_the_table_names_the_device_that_auto_chose() -> None:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    command = ["bench", "device", *changes, "--device", "auto", "--batch", "2", "--seconds", "0.05"]
    outcome = CliRunner().invoke(build(), command, catch_exceptions=False, env={"COLUMNS": "120"})
    assert "auto" not in outcome.output
    assert f"│ {choose_device('auto')} " in outcome.output


@pytest.mark.parametrize("seconds", ["1e18", "nan", "0", "-1"])
def test_a_time_that_never_ends_or_never_begins_is_refused(seconds: str) -> None:
    command = ["bench", "device", "--device", "cpu", "--batch", "2", "--seconds", seconds]
    with pytest.raises(FledgeError, match="is not allowed: give more than 0"):
        CliRunner().invoke(build(), command, catch_exceptions=False)
