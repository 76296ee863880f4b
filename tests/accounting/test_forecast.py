"""What training expects before it starts and how far off it was: on a CPU, in several processes, everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fledge.accounting import SHAPES, Account, account, forecast, usual_speed
from fledge.accounting.budget import readable_share
from fledge.accounting.devices import find_device, training_device
from fledge.accounting.launches import GPU_MFU
from fledge.config import ModelConfig, load_recipe, override_config
from fledge.training import Setup, train
from fledge.training.device import GPU_SHARE, largest_micro_batch
from tests.training.support import TextWindows, fresh_model, settings, tokenizer

SMALL = SHAPES["small"].model


def test_a_forecast_is_held_against_what_came() -> None:
    h200 = find_device("h200")
    found = forecast(Account(SMALL, 50_257, 1_024, batch=32, device=h200, step_batch=512))
    assert found.step_flops == 512 * 1_024 * account(SMALL, 50_257, 1_024).flops_per_token
    assert "TFLOP a step" in found.sentence()
    assert "tokens/s at 40% of the device's peak" in found.sentence()
    said = found.held_against(1.1 * found.memory, 0.9 * found.tokens_per_second)
    assert "10% more than expected" in said
    assert "10% less than expected: 36% of the device's peak" in said
    assert "stayed below" in found.held_against(None, found.tokens_per_second)


def test_a_speed_is_compared_where_it_matters_and_with_the_likely_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = training_device(torch.device("cpu"), "fp32")
    found = forecast(Account(SMALL, 50_257, 64, precision="fp32", device=cpu))
    slow = 0.27 * found.tokens_per_second
    assert "expected" not in found.held_against(None, slow, seconds=20)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 6.0, 6.0))
    assert "27% of what was expected" in found.held_against(None, slow, seconds=200)
    assert found.held_against(None, slow, seconds=200).endswith("cores, which is the likely reason.")
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 2.0, 2.0))
    assert "small model or batch" in found.held_against(None, slow, seconds=200)
    assert "likely" not in found.held_against(None, 0.8 * found.tokens_per_second, seconds=200)


def test_a_process_is_not_held_against_less_than_its_libraries_take() -> None:
    """A tiny model on a CPU: that the process grew by a hundred times the model says nothing of the account."""
    cpu = training_device(torch.device("cpu"), "fp32")
    tiny = forecast(Account(ModelConfig(layers=1, width=16, heads=2), 300, 32, precision="fp32", device=cpu))
    assert tiny.memory < 100e6
    said = tiny.held_against(119 * tiny.memory, tiny.tokens_per_second)
    assert said.startswith("Speed was ")
    assert "memory" not in said.lower()
    larger = forecast(Account(SMALL, 50_257, 64, precision="fp32", device=cpu))
    assert "The process grew by" in larger.held_against(larger.memory, larger.tokens_per_second)


def test_the_share_of_the_peak_is_of_the_products_also_where_memory_bounds_the_speed() -> None:
    """The same rule as in `fledge account RUN`: the time of the products at the full peak, over the time taken."""
    whole = Account(SHAPES["xl"].model, 50_257, 8, device=find_device("h200"))
    assert whole.bound().name == "memory"
    found = forecast(whole)
    seconds = 8 / 1000  # for the tokens of a step, at 1,000 a second
    share = whole.bound().product_seconds / seconds
    assert found.held_against(None, 1000.0).endswith(f"expected: {readable_share(share)} of the device's peak.")


def test_a_runs_usual_speed_is_its_median() -> None:
    rows = [{"tokens_per_second": text} for text in ("", "100", "90", "5", "95")]
    assert usual_speed(rows) == 92.5
    assert usual_speed(rows[:1]) is None


def test_several_devices_are_faster_together_and_hold_as_much_each() -> None:
    whole = Account(SMALL, 50_257, 1_024, batch=32, device=find_device("h200"), step_batch=512)
    one, four = forecast(whole), forecast(whole, processes=4)
    assert four.tokens_per_second == pytest.approx(4 * one.tokens_per_second, rel=0.01)
    assert (four.step_flops, four.memory) == (one.step_flops, one.memory)
    assert "in each process" in four.sentence()
    assert "the peak of 4 devices" in four.sentence()
    sharded = forecast(replace(whole, shards=4), processes=4)
    assert sharded.memory < one.memory


def test_what_is_measured_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no data sheet: a few products are timed, and no random number is drawn for it."""
    before = torch.get_rng_state()
    device = training_device(torch.device("cpu"), "fp32")
    assert torch.equal(before, torch.get_rng_state())
    assert device.measured
    assert 1e8 < (device.peak("fp32") or 0) < 1e14
    said = forecast(Account(SMALL, 50_257, 64, precision="fp32", device=device)).sentence()
    assert "FLOP/s that matrix products reached here before training" in said
    unknown = SimpleNamespace(name="NVIDIA Toaster", total_memory=16_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: unknown)
    monkeypatch.setattr("fledge.accounting.devices.measured_peak", lambda *_: 3e12)
    gpu = training_device(torch.device("cuda"), "bf16")
    assert (gpu.title, gpu.memory, gpu.peak("bf16"), gpu.measured) == ("NVIDIA Toaster", 16e9, 3e12, True)


def test_training_on_a_cpu_says_what_it_expects_and_how_far_off_it_was(tmp_path: Path, capsys: Any) -> None:
    config = settings(training={"steps": 4})
    train(Setup(config, fresh_model(config), tokenizer(), TextWindows(), None, tmp_path / "run"))  # type: ignore[arg-type]
    check_said(capsys.readouterr().err)


def check_said(printed: str) -> None:
    expected = re.search(r"Expected: \S+ .FLOP a step, \S+ .B of memory.*, [\d,]+ tokens/s at 40% of the", printed)
    assert expected, printed
    came = re.search(
        r"(The process grew by .*; speed|Memory stayed .*; speed|Speed) was [\d,]+ tokens/s: \S+% of the",
        printed,
    )
    assert came, printed
    assert expected.start() < came.start()


def test_several_processes_say_it_too(tmp_path: Path) -> None:
    """Replicated and sharded; once, by the main process."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", "-m", "tests.accounting.forecast_script", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("Expected: ") == done.stderr.lower().count("speed was ") == 2
    assert done.stderr.count("of memory in each process") == 2
    check_said(done.stderr)


def test_the_micro_batch_is_found_for_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small GPU cuts the logits into smaller chunks than a large one: what fits is reckoned with its own memory."""
    total = 16e9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total, total))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Toaster")
    config = settings(tokens={"context_length": 256}, model={"layers": 2, "width": 64, "heads": 2})
    found = largest_micro_batch(config, 50_257, 1 << 20, torch.device("cuda"), "bf16")
    own, other = (
        account(config.model, 50_257, 256, device=replace(find_device("h200"), memory=memory)).memory
        for memory in (total, 141e9)
    )
    assert own.largest_batch(total * GPU_SHARE) != other.largest_batch(total * GPU_SHARE)
    parts = -(-(1 << 20) // own.largest_batch(total * GPU_SHARE))
    assert found == -(-(1 << 20) // parts)


# Tokens a second of recorded steps on an H200, of the whole loop (docs/gpu-speed.md).
MEASURED = {
    "tinystories, 16 windows": ("tinystories", 10_000, ["training.batch_size=16"], 2.26e6),
    "tinystories, 64 windows": ("tinystories", 10_000, ["training.batch_size=64"], 3.19e6),
    "tinystories, 512 windows": ("tinystories", 10_000, [], 3.72e6),
    "akjv-demo": ("akjv-demo", 1_024, [], 2.96e6),
    "lstm": ("lstm", 1_024, [], 1.37e6),
    "bdh": ("bdh", 257, [], 246e3),
    "gpt2, 64 windows": ("gpt2-small", 50_257, ["training.batch_size=64"], 584e3),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_expected_of_a_gpu_is_within_a_fifth_of_what_came(name: str) -> None:
    recipe, vocabulary, changes, speed = MEASURED[name]
    config = override_config(load_recipe(recipe), changes)
    length, size = config.tokens.context_length, config.training.batch_size
    found = account(config.model, vocabulary, length, batch=size, device="h200", optimizer=config.optimizer.name)
    expected = forecast(found, mfu=GPU_MFU, recorded=True)
    assert speed == pytest.approx(expected.tokens_per_second, rel=0.2)
    assert f"at {readable_share(expected.mfu)} of the device's peak" in expected.sentence()
    assert forecast(found, mfu=GPU_MFU, recorded=False).tokens_per_second <= expected.tokens_per_second
