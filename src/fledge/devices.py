"""The devices of this machine, in one place: what there is, what it is called, what memory it has, and waiting for it.

torch calls NVIDIA's GPUs and AMD's (ROCm) `cuda`, Intel's `xpu` and Apple's `mps`; each has a module of its own with
functions of the same names, some of which are missing. torch is imported when something is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GPUS = ("cuda", "xpu", "mps")
"Kinds of GPUs by torch's names, the fastest first."


def kinds() -> list[str]:
    """The kinds of GPUs that this machine has, the fastest first."""
    return [kind for kind in GPUS if count(kind)]


def count(kind: str) -> int:
    """How many GPUs of a kind there are."""
    import torch

    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return int(module.device_count()) if module is not None and module.is_available() else 0


def names() -> list[str]:
    """Every device that training can be given: `cpu`, and all GPUs."""
    found = ["cpu"]
    for kind in reversed(GPUS):
        found += ["mps"] * count(kind) if kind == "mps" else [f"{kind}:{number}" for number in range(count(kind))]
    return found


def fastest(number: int = 0) -> torch.device:
    """The best kind of GPU, the one of that number, or the CPU."""
    import torch

    kind = next(iter(kinds()), "cpu")
    return torch.device(kind, number) if kind in ("cuda", "xpu") else torch.device(kind)


def is_gpu(device: torch.device) -> bool:
    """Whether work is queued there, and done while the processor goes on."""
    return device.type in GPUS


def title(device: torch.device) -> str:
    """What its driver calls it.

    >>> import torch
    >>> title(torch.device("cpu"))
    'CPU'
    """
    if device.type == "mps":
        return "Apple GPU"
    properties = _properties(device)
    return device.type.upper() if properties is None else str(properties.name)


def total_memory(device: torch.device) -> int | None:
    """Bytes of memory that a GPU has; None where nobody says."""
    properties = _properties(device)
    if properties is not None:
        return int(properties.total_memory)
    said = _call(device, "recommended_max_memory") if device.type == "mps" else None
    return None if said is None else int(said)


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU's memory that nothing takes; None where nobody says."""
    found = _call(device, "mem_get_info", device) if device.type in ("cuda", "xpu") else None
    return None if found is None else int(found[0])


def synchronize(device: torch.device) -> None:
    """Wait for what was queued on a GPU; a CPU has done it already."""
    if device.type == "mps":
        _call(device, "synchronize")
    elif is_gpu(device):
        _call(device, "synchronize", device)


def give_back(device: torch.device) -> None:
    """Give the memory of a GPU that torch holds and does not use back to its driver."""
    if is_gpu(device):
        _call(device, "empty_cache")


def peak_memory(device: torch.device) -> int | None:
    """Bytes that were taken of a GPU's memory at its fullest; None where nobody counts."""
    found = _call(device, "max_memory_allocated", device) if device.type in ("cuda", "xpu") else None
    return None if found is None else int(found)


def forget_peak_memory() -> None:
    """Give unused memory of all GPUs back, and measure their fullest moment from now on."""
    import torch

    for kind in kinds():
        give_back(torch.device(kind))
        _call(torch.device(kind), "reset_peak_memory_stats")


def _properties(device: torch.device) -> Any:
    return _call(device, "get_device_properties", device) if device.type in ("cuda", "xpu") else None


def _call(device: torch.device, name: str, *arguments: Any) -> Any:
    """A function of the device's module in torch; None where it has none of that name."""
    import torch

    function = getattr(getattr(torch, device.type, None), name, None)
    return None if function is None else function(*arguments)
