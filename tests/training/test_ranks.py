"""Two processes train like one: the same losses, the same files, each layout going on from the other's checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fledge.bundle import load_bundle
from fledge.training import load_checkpoint, read_metrics
from tests.small import SMALL

from .ranks_script import CURVE, LEVEL, TAKEN
from .support import TextWindows, run, settings


def losses(folder: Path, column: str = "loss") -> list[float]:
    return [float(row[column]) for row in read_metrics(folder / "metrics.csv") if row[column]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs: alone here, and by two processes under torchrun."""
    folder = tmp_path_factory.mktemp("ranks")
    windows = TextWindows(16, padded=True)
    run(settings(training=CURVE), folder / "one", windows=windows)
    run(
        settings(optimizer={"name": "muon"}, training={**CURVE, "steps": 4}),
        folder / "muon-one",
        windows=windows,
    )
    run(settings(schedule=LEVEL, training={**CURVE, "steps": 12}), folder / "handed-one", windows=windows)
    run(settings(schedule=LEVEL, training={**CURVE, "steps": 4}), folder / "handed", windows=windows)
    run(settings(training=TAKEN), folder / "taken")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", "-m", "tests.training.ranks_script", str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    run(
        settings(schedule=LEVEL, training={**CURVE, "steps": 12}),
        folder / "handed",
        resume=True,
        windows=windows,
    )
    return folder


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_loss_curve_of_two_processes_is_that_of_one(runs: Path, parallel: str) -> None:
    """With unequal padding in the two shares, and gradients accumulated over micro-batches."""
    one, two = losses(runs / "one"), losses(runs / parallel)
    assert len(one) == len(two) == 50
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-5
    judged = zip(losses(runs / "one", "validation_loss"), losses(runs / parallel, "validation_loss"), strict=True)
    assert max(abs(a - b) for a, b in judged) < 1e-5
    averages = zip(losses(runs / "one", "average_loss"), losses(runs / parallel, "average_loss"), strict=True)
    assert max(abs(a - b) for a, b in averages) < 1e-5
    first, second = (load_checkpoint(runs / name).training for name in ("one", parallel))
    assert first is not None
    assert second is not None
    assert first.tensors.keys() == second.tensors.keys()
    other = [name for name in first.tensors if name.startswith(("average/", "plain/"))]
    assert other
    for name in other:
        torch.testing.assert_close(first.tensors[name], second.tensors[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_norms_of_two_processes_are_those_of_one(runs: Path, parallel: str) -> None:
    """Sharded, too, where each process holds a part of every weight."""
    rows = list(zip(*(read_metrics(runs / name / "metrics.csv") for name in ("one", parallel)), strict=True))
    names = [name for name in rows[0][0] if "_norm." in name]
    assert "weight_norm.layers.1" in names
    assert "activation_norm.layers.1" in names
    for one, two in rows:
        for name in names if one["loss"] else ():
            assert float(two[name]) == pytest.approx(float(one[name]), abs=1e-3)


def test_muon_orthogonalises_whole_matrices_of_sharded_parameters(runs: Path) -> None:
    assert losses(runs / "muon") == pytest.approx(losses(runs / "muon-one"), abs=2e-3)


def test_sharded_checkpoints_are_safetensors_with_an_index_and_load_as_a_plain_bundle(runs: Path) -> None:
    checkpoint = load_checkpoint(runs / "fsdp").path
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) >= 2
    assert all(path.suffix in (".json", ".safetensors", ".md") for path in checkpoint.rglob("*") if path.is_file())
    sharded, plain = load_bundle(checkpoint).model, load_bundle(load_checkpoint(runs / "ddp").path).model
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(sharded.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)


def test_one_then_two_then_one_process_equal_one_throughout(runs: Path) -> None:
    """Samples go on in the same order, and the optimizer's state passes through the sharded layout."""
    assert losses(runs / "handed") == pytest.approx(losses(runs / "handed-one"), abs=1e-5)


def test_sharded_processes_agree_on_the_windows_that_fit_all_of_them(runs: Path) -> None:
    training = load_checkpoint(runs / "uneven").training
    assert training is not None
    assert training.values["micro_batch"] == 3


def test_after_a_takeover_all_processes_go_back_to_the_same_step(runs: Path) -> None:
    training = load_checkpoint(runs / "taken").training
    assert training is not None
    assert training.values["skipped"] == [[104, 112]]
    assert [int(row["step"]) for row in read_metrics(runs / "taken" / "metrics.csv") if row["loss"]] == [*range(1, 17)]


def test_the_handbooks_command_trains_and_says_so(tmp_path: Path) -> None:
    """Nothing is left out for being quiet: what is printed needs all processes too."""
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(f"A bird that flew on day {n}." for n in range(300)))
    changes = [*SMALL, f"corpus.source={tmp_path / 'text.txt'}", "training.device=cpu", "training.threads=1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fledge"]
    command += ["train", "akjv-demo", *(part for text in changes for part in ("--set", text)), "--out", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "on 2 processes, cpu" in done.stderr + done.stdout
    assert load_checkpoint(tmp_path / "run").path.name == "step-00000006"


LEAVE_AT_ONCE = """
from pathlib import Path
import torch, torch.distributed as dist
from fledge.training import join_ranks

with join_ranks("cpu") as ranks:
    import torch.distributed.fsdp
    for _ in range(50):
        ranks.reduce([torch.zeros(1000)])
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in threads), threads
"""


def test_processes_leave_without_an_abort(tmp_path: Path) -> None:
    """Gloo's threads are joined first: one that lets go of a tensor while Python ends takes the process with it."""
    script = tmp_path / "leave.py"
    script.write_text(LEAVE_AT_ONCE)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
