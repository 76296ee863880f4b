"""Devices: names as drivers give them, peaks by precision, nothing invented for what is not in the table."""

from __future__ import annotations

import pytest

from fledge.accounting.devices import (
    DEVICES,
    PRECISIONS,
    best_precision,
    find_device,
    match,
    measured_cpu,
    peak_flops,
)
from fledge.errors import FledgeError


@pytest.mark.parametrize(
    ("driver", "short"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M2 Max", "m2-max"),
    ],
)
def test_drivers_names_are_found(driver: str, short: str) -> None:
    device = match(driver)
    assert device is not None
    assert device.name == short


def test_an_unknown_device_has_no_peak() -> None:
    assert peak_flops("NVIDIA GeForce GT 710", "fp16") is None
    assert peak_flops("Tesla T4", "bf16") is None
    with pytest.raises(FledgeError, match="h200"):
        find_device("h20")


@pytest.mark.parametrize(
    "driver",
    [
        "NVIDIA L40",
        "NVIDIA T400 4GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 3080 Ti",
        "NVIDIA H100 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100X",
        "Tesla P100-SXM2-16GB",
        "Apple M1 Pro",
    ],
)
def test_a_device_that_only_sounds_like_one_of_the_table_has_no_peak(driver: str) -> None:
    """One word more is another device: a laptop's, a slice, the next of its kind."""
    assert match(driver) is None
    assert peak_flops(driver, "fp32") is None


def test_every_row_is_whole() -> None:
    for name, device in DEVICES.items():
        assert name == device.name
        assert device.source
        assert set(device.peaks) <= set(PRECISIONS)
        assert device.peaks["fp32"] <= max(device.peaks.values())
        assert 1e9 < device.bandwidth < 1e13
        assert 8e9 <= device.memory < 3e11
        assert device.peak("tf32") is not None


def test_the_precision_that_training_takes() -> None:
    assert [best_precision(find_device(name)) for name in ("h200", "t4", "m1")] == ["bf16", "fp16", "fp32"]


def test_a_cpu_is_measured() -> None:
    device = measured_cpu()
    assert device.peak("fp32") == pytest.approx(1e12, rel=0.999)
    assert device.peak("bf16") is None
    assert "measured" in device.source
