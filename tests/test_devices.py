"""One place knows devices: what a machine has is asked there, and Intel's and AMD's GPUs are found like NVIDIA's."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fledge import devices
from fledge.accounting.devices import training_device
from fledge.bundle.load import usable
from fledge.errors import FledgeError
from fledge.training.device import choose_device, used_memory

SOURCE = Path(devices.__file__).parent
MACHINERY = {"training/device.py", "training/saver.py", "training/bench.py", "model/base.py", "kaggle/notebook.py"}
"What drives CUDA itself (its precisions, streams and meters), and the notebook that runs elsewhere."


def found(monkeypatch: pytest.MonkeyPatch, kind: str, count: int = 2) -> list[object]:
    """A machine with GPUs of one kind; the calls that reach its module in torch."""
    calls: list[object] = []
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: count,
        get_device_properties=lambda device: SimpleNamespace(name="Arc B580", total_memory=12 << 30),
        mem_get_info=lambda device: (3 << 30, 12 << 30),
        synchronize=calls.append,
        empty_cache=lambda: calls.append("empty"),
        reset_peak_memory_stats=lambda: calls.append("reset"),
        max_memory_allocated=lambda device: 5 << 30,
    )
    monkeypatch.setattr(torch, kind, module)
    return calls


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda kind: 0)
    assert devices.names() == ["cpu"]
    assert devices.fastest() == torch.device("cpu")
    assert devices.total_memory(torch.device("cpu")) is None
    assert devices.free_memory(torch.device("cpu")) is None
    devices.synchronize(torch.device("cpu"))
    devices.forget_peak_memory()


@pytest.mark.parametrize("kind", ["xpu", "cuda"])
def test_a_gpu_is_found_whoever_made_it(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    calls = found(monkeypatch, kind)
    assert kind in devices.kinds()
    assert {f"{kind}:0", f"{kind}:1"} <= set(devices.names())
    place = torch.device(kind, 1)
    assert devices.fastest(1) == place
    assert choose_device("auto", 1) == place
    assert choose_device(f"{kind}:1") == place
    assert choose_device(kind) == torch.device(kind, 0)
    assert devices.title(place) == "Arc B580"
    assert devices.total_memory(place) == 12 << 30
    assert devices.free_memory(place) == 3 << 30
    assert used_memory(place) == devices.peak_memory(place) == 5 << 30
    devices.synchronize(place)
    devices.forget_peak_memory()
    assert calls == [place, "empty", "reset"]
    with pytest.raises(FledgeError, match=f"{kind}:7, and there are 2 {kind.upper()} devices"):
        choose_device(f"{kind}:7")


def test_a_gpu_that_no_table_knows_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, "xpu")
    monkeypatch.setattr("fledge.accounting.devices.measured_peak", lambda *_: 1e13)
    row = training_device(torch.device("xpu", 0), "fp32")
    assert (row.title, row.memory, row.peaks) == ("Arc B580", float(12 << 30), {"fp32": 1e13})


def test_what_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda kind: 0)
    for name, words in (("xpu", "no Intel GPU"), ("cuda", "no CUDA device"), ("mps", "no Apple GPU")):
        with pytest.raises(FledgeError, match=words):
            choose_device(name)
    with pytest.raises(FledgeError, match="Use auto, cpu, cuda, cuda:N, xpu or mps"):
        choose_device("tpu")
    with pytest.raises(FledgeError, match="Use cpu"):
        usable("xpu:3")


def test_nobody_else_asks_for_a_maker_by_name() -> None:
    """Code that is not CUDA's own machinery asks `fledge.devices`."""
    asking = re.compile(
        r"torch\.(cuda|mps|xpu|backends\.mps)\.(is_available|device_count|get_device_|mem_get_info|sync|"
        r"empty_cache|reset_peak|max_memory)"
    )
    guilty = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if asking.search(path.read_text())]
    assert set(guilty) == {"devices.py", *MACHINERY}
