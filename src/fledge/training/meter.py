"""How busy a device was for a while, and what it drew: a GPU as nvidia-smi says, a CPU by the process's own time."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits")
PAUSE = 0.2  # seconds between two looks at a GPU


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
