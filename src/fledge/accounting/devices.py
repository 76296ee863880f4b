"""What the devices can do: dense matrix peaks by precision, memory, bandwidth, and where each is printed.

Peaks are without sparsity and, on consumer cards, with fp32 accumulation, since that is what training uses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from fledge import devices
from fledge.errors import FledgeError, nearest
from fledge.memory import total

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CPU_PRODUCT = 512  # rows and columns of the products that are timed

_SHEET = "NVIDIA {} data sheet (dense: half of a figure printed with sparsity)"
_AMPERE = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_AMPERE_GAMING = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"
_ADA = "NVIDIA Ada GPU Architecture whitepaper, appendix A"
_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A"
_AMD = "AMD Instinct MI300X data sheet"
_APPLE = "Apple, technical specifications and announcement of the chip"


@dataclass(frozen=True)
class Device:
    """Peaks in FLOP/s by precision, memory in bytes, bandwidth in bytes/s, and the source of all three."""

    name: str
    title: str
    peaks: dict[str, float] = field(hash=False)
    memory: float
    bandwidth: float
    source: str
    measured: bool = False
    "Whether the peaks are what products reached here, not what a data sheet promises."

    def peak(self, precision: str) -> float | None:
        """FLOP/s of matrix products in a precision; tf32 is fp32 where there is no tensor unit for it."""
        if precision == "tf32" and "tf32" not in self.peaks:
            precision = "fp32"
        return self.peaks.get(precision)


def _device(
    name: str,
    title: str,
    memory: float,
    bandwidth: float,
    source: str,
    fp32: float,
    tf32: float | None = None,
    fp16: float | None = None,
    half: float | None = None,
) -> Device:
    """A row of the table in the units of data sheets: GB, GB/s, TFLOP/s; `half` is bf16 and fp16 alike."""
    rates = {"fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half or fp16}
    peaks = {precision: rate * 1e12 for precision, rate in rates.items() if rate is not None}
    return Device(name, title, peaks, memory * 1e9, bandwidth * 1e9, source)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("b200", "NVIDIA B200", 180, 8000, _SHEET.format("DGX B200"), 75, tf32=1125, half=2250),
        _device("h200", "NVIDIA H200 SXM", 141, 4800, _SHEET.format("H200"), 67, tf32=494.5, half=989.5),
        _device("h100", "NVIDIA H100 SXM", 80, 3350, _SHEET.format("H100"), 67, tf32=494.5, half=989.5),
        _device("h100-pcie", "NVIDIA H100 PCIe", 80, 2000, _SHEET.format("H100"), 51, tf32=378, half=756.5),
        _device("a100", "NVIDIA A100 SXM 80 GB", 80, 2039, _SHEET.format("A100"), 19.5, tf32=156, half=312),
        _device("a100-pcie", "NVIDIA A100 PCIe 80 GB", 80, 1935, _SHEET.format("A100"), 19.5, tf32=156, half=312),
        _device("a100-40gb", "NVIDIA A100 40 GB", 40, 1555, _AMPERE, 19.5, tf32=156, half=312),
        _device("a6000", "NVIDIA RTX A6000", 48, 768, _AMPERE_GAMING, 38.7, tf32=77.4, half=154.8),
        _device("a10", "NVIDIA A10", 24, 600, _SHEET.format("A10"), 31.2, tf32=62.5, half=125),
        _device("a10g", "NVIDIA A10G", 24, 600, _SHEET.format("A10G"), 35, tf32=35, half=70),
        _device("l40s", "NVIDIA L40S", 48, 864, _SHEET.format("L40S"), 91.6, tf32=183, half=362),
        _device("l4", "NVIDIA L4", 24, 300, _SHEET.format("L4"), 30.3, tf32=60, half=121),
        _device("t4", "NVIDIA T4", 16, 320, _SHEET.format("T4"), 8.1, fp16=65),
        _device("v100", "NVIDIA V100 SXM2", 16, 900, _SHEET.format("V100"), 15.7, fp16=125),
        _device("v100-pcie", "NVIDIA V100 PCIe", 16, 900, _SHEET.format("V100"), 14, fp16=112),
        _device("p100", "NVIDIA P100 PCIe", 16, 732, _SHEET.format("Tesla P100"), 9.3, fp16=18.7),
        _device("rtx-5090", "NVIDIA GeForce RTX 5090", 32, 1792, _BLACKWELL, 104.8, tf32=104.8, half=209.5),
        _device("rtx-4090", "NVIDIA GeForce RTX 4090", 24, 1008, _ADA, 82.6, tf32=82.6, half=165.2),
        _device("rtx-4080", "NVIDIA GeForce RTX 4080", 16, 716.8, _ADA, 48.7, tf32=48.7, half=97.5),
        _device("rtx-3090", "NVIDIA GeForce RTX 3090", 24, 936, _AMPERE_GAMING, 35.6, tf32=35.6, half=71),
        _device("rtx-3080", "NVIDIA GeForce RTX 3080", 10, 760, _AMPERE_GAMING, 29.8, tf32=29.8, half=59.5),
        _device("mi300x", "AMD Instinct MI300X", 192, 5300, _AMD, 163.4, tf32=653.7, half=1307.4),
        _device("m1", "Apple M1", 16, 68.25, _APPLE, 2.6, half=2.6),
        _device("m2-max", "Apple M2 Max", 96, 400, _APPLE, 13.6, half=13.6),
    )
}

_MAKERS = {"nvidia", "tesla", "geforce", "amd", "instinct", "apple"}
# What drivers say besides of the same device. Any other word (laptop, super, nvl, a MIG slice) makes it another one.
_BESIDES = {
    "h200": "sxm 141gb hbm3e",
    "h100": "sxm sxm5 80gb hbm3",
    "h100-pcie": "80gb",
    "a100": "sxm sxm4 80gb",
    "a100-pcie": "80gb",
    "a100-40gb": "sxm sxm4 pcie",
    "a6000": "rtx",
    "v100": "sxm2 16gb 32gb",
    "v100-pcie": "16gb 32gb",
    "p100": "pcie 16gb",
    "mi300x": "oam vf",
}


def find_device(name: str) -> Device:
    """A device by its short name, by the driver's name for it, or `auto` or `cpu` for that of this machine.

    >>> find_device("h200").bandwidth
    4800000000000.0
    """
    if name.lower() in ("auto", "cpu"):
        return this_device() if name.lower() == "auto" else measured_cpu()
    if (device := match(name)) is None:
        known = nearest(name.lower(), [*DEVICES, "auto", "cpu"])
        raise FledgeError(f"The table has no device {name!r}. {known}")
    return device


def match(name: str) -> Device | None:
    """The row for a short name or a driver's name such as `NVIDIA H200`, if the table has it."""
    words = set(re.findall("[a-z0-9]+", name.lower())) - _MAKERS
    for short, device in DEVICES.items():
        needed = set(short.split("-"))
        if needed <= words <= needed.union(_BESIDES.get(short, "").split()):
            return device
    return None


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak FLOP/s of matrix products on a device; None where the table has none, so that no MFU is invented.

    >>> peak_flops("NVIDIA H200", "bf16") / 1e12
    989.5
    """
    device = match(device_name)
    return device.peak(precision) if device else None


def best_precision(device: Device | None) -> str:
    """What training takes where `training.precision` is auto: bf16 where it is fast, else fp16, else fp32."""
    if device is None:
        return "bf16"
    full = device.peaks["fp32"]
    return next((kind for kind in ("bf16", "fp16") if device.peaks.get(kind, 0) > full), "fp32")


def this_device() -> Device:
    """The GPU of this machine, from the table; without one, the CPU, measured now."""

    place = devices.fastest()
    if devices.is_gpu(place):
        name = devices.title(place)
        if (device := match(name)) is None:
            raise FledgeError(
                f"The GPU of this machine, {name}, is not in the table of devices. Name a similar one with "
                f"--device: {', '.join(DEVICES)}."
            )
        return replace(device, memory=float(devices.total_memory(place) or device.memory))
    return measured_cpu()


def measured_cpu() -> Device:
    """This CPU, measured for about a second: the best of several fp32 products and 64 MB copies.

    The products are those that training times before it starts, so that both reckon with the same peak.
    """
    import torch

    source, target = torch.ones(1 << 24), torch.empty(1 << 24)
    copy = _best(lambda: target.copy_(source), 0.4)
    return Device(
        "cpu",
        _cpu_title(),
        {"fp32": measured_peak(torch.device("cpu"), "fp32", CPU_PRODUCT, 0.4)},
        float(total() or inf),
        2 * source.numel() * source.element_size() / copy,
        f"measured now: a {CPU_PRODUCT}³ matrix product and a 64 MB copy",
        measured=True,
    )


def training_device(place: torch.device, precision: str) -> Device:
    """What training runs on: a GPU's row of the table, with the memory it has; for all else, some measured products.

    The measurement takes some tens of milliseconds and draws no random numbers; no bandwidth is known then.
    """
    if (memory := devices.total_memory(place)) is not None and place.type != "mps":
        device, size = gpu(devices.title(place), float(memory)), 4096
        if device.peak(precision) is not None:
            return device
    else:
        title = _cpu_title() if place.type == "cpu" else place.type
        device, size = Device(place.type, title, {}, float(total() or inf), inf, ""), CPU_PRODUCT
    rate = measured_peak(place, precision, size, 0.05)
    return replace(device, peaks={precision: rate}, source=f"measured now: a {size}³ matrix product", measured=True)


def gpu(name: str, memory: float) -> Device:
    """A GPU as its driver names it, with the memory it has; one that is not in the table has no known peaks."""
    known = match(name)
    return replace(known, memory=memory) if known else Device(name.lower(), name, {}, memory, inf, "its driver")


def measured_peak(place: torch.device, precision: str, size: int, seconds: float) -> float:
    """FLOP/s of the best of several products of two square matrices on a device of this machine."""
    import torch

    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    matrix = torch.full((size, size), 0.5, dtype=kinds.get(precision, torch.float32), device=place)

    def multiply() -> None:
        torch.mm(matrix, matrix)
        devices.synchronize(place)

    return 2 * size**3 / _best(multiply, seconds)


def _cpu_title() -> str:
    import torch

    threads = torch.get_num_threads()
    return f"this CPU ({threads} thread{'s' * (threads > 1)})"


def _best(work: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call, after two to warm up."""
    work()
    work()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
