"""Where to compute and in which precision: right by default, said in one line, and never a silent fallback."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch

from fledge import devices, memory
from fledge._core import keep_freed_memory
from fledge.accounting import Account, peak_flops
from fledge.accounting.devices import gpu
from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.files import cache_folder

CPU_ACTIVATIONS = (
    2 << 30
)  # bytes of activations at once on a CPU: a constant, so that the bits never depend on free memory
GPU_SHARE = 0.85  # of the memory that is given to a step; the rest is for fragments and kernels' work space
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """The type of the activations, and why it was chosen."""

    name: str
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.name]

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.dtype)


def choose_device(name: str, local_rank: int = 0, named: str = "training.device") -> torch.device:
    """`auto` is a GPU where there is one, then Apple's, then the CPU. `named` is the setting or option it came from."""
    if name == "auto":
        return devices.fastest(local_rank)
    device: torch.device | None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", *devices.GPUS):
        raise FledgeError(
            f"{named} = {name!r} is not a device that fledge supports. Use auto, cpu, cuda, cuda:N, xpu or mps."
        )
    if devices.is_gpu(device) and not devices.count(device.type):
        what = {"cuda": "torch sees no CUDA device", "mps": "there is no Apple GPU", "xpu": "there is no Intel GPU"}
        raise FledgeError(f"{named} = {name}, and {what[device.type]} here. Use {named}=auto.")
    if device.type in ("cuda", "xpu"):
        device = torch.device(device.type, device.index if device.index is not None else local_rank)
        if device.index >= (count := devices.count(device.type)):
            raise FledgeError(f"{named} = {device}, and there are {count} {device.type.upper()} devices.")
    return device


def choose_precision(name: str, device: torch.device) -> Precision:
    """`auto`: bf16 from Ampere on, fp16 with loss scaling on older GPUs, fp32 elsewhere."""
    if device.type != "cuda":
        if name in ("tf32", "fp16"):
            raise FledgeError(
                f"training.precision = {name} needs a CUDA device. On {device.type} use fp32, bf16 or auto."
            )
        if name == "auto":
            return Precision("fp32", f"exact, and the fastest that is safe on {device.type}")
        return Precision(name, "as set")
    major = torch.cuda.get_device_capability(device)[0]
    if name == "bf16" and major < 8:
        raise FledgeError(
            f"training.precision = bf16 is emulated, and slow, on {torch.cuda.get_device_name(device)}. "
            "Use fp16, or auto, which takes it with loss scaling."
        )
    if name != "auto":
        return Precision(name, "as set")
    if major >= 8:
        return Precision("bf16", f"native on {torch.cuda.get_device_name(device)}; weights stay fp32")
    return Precision("fp16", f"with loss scaling: {torch.cuda.get_device_name(device)} has no bf16; weights stay fp32")


_threads_before: list[int] = []
"As many as there were before a run set a number of its own, while there is such a run's."


def machine_threads() -> int:
    """As many as a run has that sets none, whatever another run in this process has set."""
    return _threads_before[0] if _threads_before else torch.get_num_threads()


def set_threads(threads: int | None) -> None:
    """As many as a run sets, or as there were before another one in this process did."""
    if threads is not None:
        _threads_before[:] = _threads_before or [torch.get_num_threads()]
        torch.set_num_threads(threads)
    elif _threads_before:
        torch.set_num_threads(_threads_before.pop())


def keep_compiled_code() -> None:
    """Let torch.compile keep its code where a reboot does not remove it, unless it was told where."""
    folder = cache_folder() / "compiled" / f"torch-{torch.__version__}"
    with suppress(OSError):  # a home that can't be written to: torch takes a temporary folder
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def set_up_device(device: torch.device, precision: Precision, threads: int | None) -> None:
    """The process-wide switches that follow from the choices."""
    set_threads(threads)
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        keep_compiled_code()
        # In a lower precision the weights of a recurrent layer are copies, in pieces; torch says so for every model.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("highest" if precision.name == "fp32" else "high")


def peak_of(device: torch.device, precision: Precision) -> float | None:
    """FLOP/s that MFU is reckoned against; None where no table knows the device."""
    return peak_flops(torch.cuda.get_device_name(device), precision.name) if device.type == "cuda" else None


def largest_micro_batch(
    config: RunConfig, vocabulary_size: int, share: int, device: torch.device, precision: str, shards: int = 1
) -> int:
    """Windows at once, so that a step fits the memory: the share of this process, cut into equal parts.

    `shards` is the number of processes that weights, gradients and state are spread over.
    """
    if config.training.micro_batch is not None:
        return min(config.training.micro_batch, share)
    free, row = 0, None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device)  # weights and state that lie there already are part of the account
        row = gpu(torch.cuda.get_device_name(device), total)
    try:
        memory = Account(
            config.model,
            vocabulary_size,
            config.tokens.context_length,
            precision=precision,
            optimizer=config.optimizer.name,
            average=config.training.average > 0,
            recompute=config.training.recompute,
            device=row,
            shards=shards,
        ).memory
    except KeyError:  # an architecture of the user's own: the first step finds out what fits
        return share
    if device.type == "cuda":
        fits = memory.largest_batch(free * GPU_SHARE)
    else:
        fits = int(CPU_ACTIVATIONS // memory.slope)
    parts = -(-share // max(1, fits))
    return -(-share // parts)


def reseed(seed: int, purpose: str, *numbers: int) -> int:
    """Seed torch's global generators from what the randomness is for, so that nothing depends on what ran before."""
    text = " ".join(map(str, (seed, purpose, *numbers))).encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
    torch.manual_seed(number)
    return number


def used_memory(device: torch.device) -> int:
    """Bytes at the fullest moment so far: of the GPU, or of the process."""
    taken = devices.peak_memory(device)
    return memory.peak_memory() if taken is None else taken
