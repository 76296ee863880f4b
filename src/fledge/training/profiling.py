"""`--profile`: a trace of a few steps for a browser, and a table of where their time goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fledge import devices

FIRST, LAST = 4, 8  # the first steps compile and warm up
COUNT = LAST - FIRST + 1
NO_LOG = "6"  # above all of torch's levels: the marks of a start and a stop rank above its errors


class StepProfile:
    """Watches `COUNT` steps from the `FIRST` of this session on, then writes and forgets."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seen = 0
        self.profiler: Any = None
        if device.type == "cpu":  # on a GPU an error in the log says why a trace is empty
            os.environ.setdefault("KINETO_LOG_LEVEL", NO_LOG)

    def step(self, folder: Path) -> str | None:
        """Called after every step; the table once the last watched one is done."""
        self.seen += 1
        if self.seen == FIRST - 1:
            activities = [ProfilerActivity.CPU]
            if self.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self.profiler = profile(activities=activities, acc_events=True)
            self.profiler.__enter__()
        elif self.seen == LAST:
            devices.synchronize(self.device)
            self.profiler.__exit__(None, None, None)
            self.profiler.export_chrome_trace(str(folder / "trace.json"))
            return self._table(folder)
        return None

    def close(self) -> str | None:
        """Stop watching; what to say where there were too few steps."""
        if self.seen >= LAST:
            return None
        if self.seen >= FIRST - 1:
            self.profiler.__exit__(None, None, None)
        return f"--profile watches steps {FIRST} to {LAST}, and there were {self.seen} here: no trace is written."

    def _table(self, folder: Path) -> str:
        on_device = self.device.type == "cuda"
        entries = sorted(self.profiler.key_averages(), key=lambda entry: -self._time(entry, on_device))
        total = sum(self._time(entry, on_device) for entry in entries) or 1.0
        lines = [f"{self._time(entry, on_device) / COUNT / 1e3:9.3f} ms  {self._time(entry, on_device) / total:5.1%}  "
                 f"{entry.count // COUNT:5}×  {entry.key[:70]}" for entry in entries[:15]]  # fmt: skip
        where = "device" if on_device else "CPU"
        title = f"A step takes {total / COUNT / 1e3:.2f} ms of {where} time, of which:"
        end = f"The trace is {folder / 'trace.json'}: open it at https://ui.perfetto.dev"
        return "\n".join([title, *lines, end])

    @staticmethod
    def _time(entry: Any, on_device: bool) -> float:
        return float(entry.self_device_time_total if on_device else entry.self_cpu_time_total)
