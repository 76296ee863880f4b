"""How fast a recipe trains on each device at each batch size: the real step on random tokens, and the time it means."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fledge.config import RunConfig, override_config
from fledge.devices import forget_peak_memory, names, synchronize
from fledge.errors import FledgeError, out_of_memory
from fledge.model import build_model
from fledge.tokens import Batch
from fledge.training.device import choose_device, reseed, used_memory
from fledge.training.ranks import Ranks
from fledge.training.replay import WARM_UPS
from fledge.training.stepper import Stepper

POWERCAP = Path("/sys/class/powercap")
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits")
PAUSE = 0.2  # seconds between two looks at a GPU


@dataclass(frozen=True)
class StepMeasurement:
    """One cell of the table; `tokens_per_second` is None where the batch does not fit the memory."""

    device: str
    "The one that was chosen, where `auto` was asked for."
    batch_size: int
    tokens_per_second: float | None
    windows_per_second: float | None
    memory: int | None
    projected_seconds: float | None
    "Time for all tokens of the recipe at this speed."
    busy: float | None = None
    "The share of the time that the device worked, where it can be read."
    watts: float | None = None


def devices() -> list[str]:
    """What this machine has to train on."""
    return names()


def measure(config: RunConfig, batch_size: int, device_name: str, seconds: float = 3.0) -> StepMeasurement:
    """Time steps of one batch size on one device, after a warm-up, for about `seconds`."""
    length = config.tokens.context_length
    total = config.training.tokens or config.steps * config.training.batch_size * length
    config = override_config(config, [f"training.batch_size={batch_size}"])
    device = choose_device(device_name, named="--device")
    forget_peak_memory()
    try:
        per_step, meter = _step_seconds(config, device, batch_size, seconds)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return StepMeasurement(str(device), batch_size, None, None, None, None)
    speed = batch_size * length / per_step
    memory = used_memory(device)
    windows = batch_size / per_step
    return StepMeasurement(str(device), batch_size, speed, windows, memory, total / speed, meter.busy, meter.watts)


def _step_seconds(config: RunConfig, device: torch.device, batch_size: int, seconds: float) -> tuple[float, Meter]:
    vocabulary = config.tokenizer.vocabulary_size
    if vocabulary is None:
        raise FledgeError("tokenizer.vocabulary_size = none has no size before training: set one for the benchmark.")
    length = config.tokens.context_length
    reseed(config.training.seed, "weights")
    stepper = Stepper(config, build_model(config.model, vocabulary, length), Ranks(device), whole=True)
    ids = torch.randint(vocabulary, (batch_size, length + 1))
    batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).to(device)
    for _ in range(WARM_UPS + 1):
        stepper.step(batch)
    synchronize(device)
    done = 0
    with Meter(device) as meter:
        start = time.perf_counter()
        while done < 3 or time.perf_counter() - start < seconds:
            stepper.step(batch)
            done += 1
            if done % 10 == 0:
                synchronize(device)
        synchronize(device)
        per_step = (time.perf_counter() - start) / done
    return per_step, meter


class Meter:
    """Reads from entering to leaving; what cannot be read is None.

    >>> with Meter(torch.device("cpu")) as meter:
    ...     _ = sum(range(10**6))
    >>> meter.busy is not None and 0 < meter.busy <= 1.5
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.busy: float | None = None
        "The share of the time that the GPU worked, or that all of the process's threads did on a CPU."
        self.watts: float | None = None
        "Of the whole GPU, or of the processor's package with all that runs on it."
        self._looks: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Meter:
        if self.device.type == "cuda" and shutil.which(QUERY[0]):
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        self._began, self._worked, self._energy = time.perf_counter(), time.process_time(), energy()
        return self

    def __exit__(self, *_: Any) -> None:
        seconds = max(time.perf_counter() - self._began, 1e-9)
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._looks:
            shares, watts = zip(*self._looks, strict=True)
            self.busy, self.watts = sum(shares) / len(shares) / 100, sum(watts) / len(watts)
        elif self.device.type == "cpu":
            self.busy = (time.process_time() - self._worked) / seconds / torch.get_num_threads()
            after = energy()
            if self._energy is not None and after is not None and after > self._energy:  # the counter begins again
                self.watts = (after - self._energy) / seconds

    def _look(self) -> None:
        mark = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        named = [f"--id=GPU-{mark}"] if mark is not None else []
        while not self._over.wait(PAUSE):
            try:
                done = subprocess.run([*QUERY, *named], capture_output=True, text=True, timeout=5, check=True)
                share, watts = map(float, done.stdout.splitlines()[0].split(","))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                return
            self._looks.append((share, watts))


def energy() -> float | None:
    """Joules that the processor's packages have used, where the system lets one read it."""
    try:
        counters = [int((place / "energy_uj").read_text()) for place in POWERCAP.glob("intel-rapl:?")]
    except (OSError, ValueError):
        return None
    return sum(counters) / 1e6 if counters else None
