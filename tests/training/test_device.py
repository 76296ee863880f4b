"""The device, the precision and the micro-batch that are chosen, and the sentences where a choice is impossible."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from fledge.devices import synchronize
from fledge.errors import FledgeError
from fledge.training import bench, read_metrics
from fledge.training.device import choose_device, choose_precision, largest_micro_batch, reseed

from .support import run, settings
from .test_loop import poison

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("capability", "chosen"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_gpus_get_the_precision_that_is_fast_on_them(
    monkeypatch: Any, capability: tuple[int, int], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    found = choose_precision("auto", CUDA)
    assert found.name == chosen
    assert "a GPU" in found.reason
    if capability[0] < 8:
        with pytest.raises(FledgeError, match="bf16 is emulated"):
            choose_precision("bf16", CUDA)


def test_cpu_and_apple_gpus_stay_exact() -> None:
    assert choose_precision("auto", CPU).dtype is torch.float32
    assert choose_precision("auto", torch.device("mps")).dtype is torch.float32
    with pytest.raises(FledgeError, match="fp16 needs a CUDA device"):
        choose_precision("fp16", CPU)


def test_devices_that_are_not_there_are_refused() -> None:
    assert choose_device("cpu") == CPU
    for name in ("gpu", "meta", "tpu"):
        with pytest.raises(FledgeError, match="is not a device"):
            choose_device(name)
    if not torch.cuda.is_available():
        with pytest.raises(FledgeError, match="torch sees no CUDA device"):
            choose_device("cuda:3")


def test_the_micro_batch_fits_the_memory_and_divides_the_share_evenly(monkeypatch: Any) -> None:
    config = settings(training={"batch_size": 100})
    assert largest_micro_batch(config, 264, 100, CPU, "fp32") == 100
    import fledge.training.device as module

    monkeypatch.setattr(module, "CPU_ACTIVATIONS", 40 * memory_of_a_window(config))
    assert largest_micro_batch(config, 264, 100, CPU, "fp32") == 34
    monkeypatch.setattr(module, "CPU_ACTIVATIONS", 1)
    assert largest_micro_batch(config, 264, 100, CPU, "fp32") == 1
    set_by_hand = settings(training={"batch_size": 100, "micro_batch": 7})
    assert largest_micro_batch(set_by_hand, 264, 100, CPU, "fp32") == 7


def test_sharded_weights_leave_room_for_more_windows(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2_000_000_000, 2_000_000_000))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    config = settings(model={"layers": 8, "width": 1024, "heads": 8})
    whole, sharded = (largest_micro_batch(config, 264, 1 << 20, CUDA, "bf16", shards) for shards in (1, 8))
    assert sharded > 2 * whole


def test_weights_that_are_on_the_gpu_already_are_counted_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    config = settings(model={"layers": 8, "width": 1024, "heads": 8})
    found = []
    for held in (0, 1_000_000_000):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, held=held: (4_000_000_000 - held, 4_000_000_000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device, held=held: held)
        found.append(largest_micro_batch(config, 264, 1 << 20, CUDA, "bf16"))
    assert found[0] == found[1] > 1


def memory_of_a_window(config: Any) -> float:
    from fledge.accounting import Account

    return Account(config.model, 264, config.tokens.context_length, precision="fp32").memory.slope


def test_randomness_follows_from_its_purpose_alone() -> None:
    def drawn(*numbers: int) -> float:
        torch.rand(3)
        reseed(0, "dropout", *numbers)
        return float(torch.rand(()))

    assert drawn(1, 2, 0) == drawn(1, 2, 0)
    assert len({drawn(step, part, rank) for step in range(3) for part in range(3) for rank in range(3)}) == 27


def test_a_tracker_that_is_not_installed_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    import fledge.training.records as module

    monkeypatch.setattr(module, "is_installed", lambda package: False)
    with pytest.raises(FledgeError, match="asks for wandb, which is not installed here"):
        run(settings(training={"trackers": "wandb"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_does_not_start_says_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    import fledge.training.records as module

    def refuse(**_: Any) -> None:
        raise RuntimeError("api_key not configured (no-tty).\n  call wandb.login(key=...)")

    monkeypatch.setattr(module, "is_installed", lambda package: True)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse))  # type: ignore[arg-type]
    sentence = r"wandb, .* did not start \(api_key not configured \(no-tty\)\. call .*\)\. Log in with: wandb login"
    with pytest.raises(FledgeError, match=sentence):
        run(settings(training={"trackers": ["wandb"]}), tmp_path / "run")


def test_trackers_go_back_with_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    """After a divergence TensorBoard hides the points that come again, and W&B refuses none of them."""
    import fledge.training.records as module

    class Writer:
        opened: ClassVar[list[int]] = []

        def __init__(self, folder: str, purge_step: int) -> None:
            self.opened.append(purge_step)

        def add_scalar(self, name: str, value: float, step: int) -> None: ...

        def close(self) -> None: ...

    logged: list[float] = []
    monkeypatch.setattr(module, "is_installed", lambda package: True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))  # type: ignore[arg-type]
    hosted = SimpleNamespace(
        init=lambda **_: None,
        define_metric=lambda name, step_metric: None,
        log=lambda values: logged.append(values["step"]),  # as W&B counts by itself, no step is refused
        finish=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "wandb", hosted)  # type: ignore[arg-type]
    poison(monkeypatch, math.nan, 70)
    trackers = {"trackers": ["tensorboard", "wandb"], "on_divergence": "skip", "log_every": 1}
    run(settings(training={**trackers, "save_every": 5, "steps": 10, "evaluate_every": 0}), tmp_path / "run")
    assert Writer.opened == [1, 6]
    rows = [int(row["step"]) for row in read_metrics(tmp_path / "run" / "metrics.csv") if row["loss"]]
    assert rows == list(range(1, 11))
    losses = [step for step in logged if step]
    assert sorted(set(losses)) == rows
    assert len(losses) > len(rows), "steps after the checkpoint were logged twice"


def test_trackers_get_what_the_file_gets(tmp_path: Path, monkeypatch: Any) -> None:
    import fledge.training.records as module

    calls: list[Any] = []
    library = SimpleNamespace(
        init=lambda **options: calls.append(options["project"]),
        log=lambda values, step: calls.append((step, sorted(values))),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setattr(module, "is_installed", lambda package: True)
    monkeypatch.setitem(sys.modules, "trackio", library)  # type: ignore[arg-type]
    run(settings(training={"trackers": ["trackio"]}), tmp_path / "run")
    assert calls[0] == "fledge"
    assert calls[-1] == "finished"
    assert [step for step, _ in calls[1:-1]] == [3, 4, 6, 8, 9, 12, 12]
    assert "validation_loss" in calls[2][1]


def test_the_benchmark_waits_for_what_was_queued_on_any_gpu(monkeypatch: Any) -> None:
    waits: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waits.append(str(device)))
    for device in (CPU, CUDA, torch.device("mps")):
        synchronize(device)
    assert waits == ["cuda:0", "mps"]
    monkeypatch.setattr(bench, "synchronize", lambda device: waits.append("bench"))
    assert bench.measure(settings(tokenizer={"vocabulary_size": 264}), 2, "cpu", seconds=0).tokens_per_second
    assert waits[2:] == ["bench", "bench"], "before the clock starts, and before it stops"


def test_the_benchmark_names_the_device_that_was_chosen() -> None:
    found = bench.measure(settings(tokenizer={"vocabulary_size": 264}), 2, "auto", seconds=0)
    assert found.device == str(choose_device("auto"))


QUIET_PROFILE = """
import torch
from pathlib import Path
from fledge.training.profiling import LAST, StepProfile
watch = StepProfile(torch.device("cpu"))
for _ in range(LAST):
    torch.ones(3) + 1
    watch.step(Path("."))
"""


def test_a_profile_prints_nothing_of_torchs_own(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", QUIET_PROFILE], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")])
def test_the_benchmark_leaves_a_gap_where_a_batch_does_not_fit(monkeypatch: Any, error: Exception) -> None:
    def scarce(*_: Any) -> float:
        raise error

    monkeypatch.setattr(bench, "_step_seconds", scarce)
    assert bench.measure(settings(), 2, "cpu").tokens_per_second is None
