"""The largest batch that this machine takes at once, found by taking steps of 1, 2, 4 … windows until one does not fit.

The steps are taken by a process of their own, so that running out of memory ends that process and nothing else.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

from fledge import devices
from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError
from fledge.experiments.plan import DATA, TIMING, with_shared_data
from fledge.files import read_json, readable_bytes, write_json

KEPT = "largest-batch.json"
FEWEST_STEPS = 10  # that a trial with the largest batch still takes
CPU_SHARE = 0.9  # of the free memory


class Largest(NamedTuple):
    """The largest power of two that went through, and what stopped the climb."""

    batch_size: int
    limit: Literal["memory", "windows", "time"]
    memory: int
    "Bytes at the fullest moment of the step that went through."

    def sentence(self) -> str:
        why = {
            "memory": "twice as many windows do not fit the memory",
            "windows": f"twice as many would leave a trial fewer than {FEWEST_STEPS} steps",
            "time": f"{FEWEST_STEPS} steps of twice as many would take longer than a trial may",
        }[self.limit]
        return (
            f"The batch size max is {self.batch_size:,}, found by taking steps of growing size: {why} "
            f"({readable_bytes(self.memory)} were in use)."
        )


def largest_batch(config: RunConfig, folder: Path, seconds: float | None = None) -> Largest:
    """Climb until memory, a trial's `seconds` or, where no time is given, its windows end; found once and kept."""
    kept = folder / DATA / KEPT
    if kept.is_file():
        return Largest(**read_json(kept))
    config = with_shared_data(config, folder)
    windows = config.steps * config.training.batch_size if seconds is None else None
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_climb, args=(config, folder, windows, seconds, there), daemon=True)
    process.start()
    there.close()
    best: tuple[int, int] | None = None
    limit: Literal["memory", "windows", "time"] = "memory"
    try:
        while True:
            told = here.recv()
            if isinstance(told, str):
                limit = "windows" if told == "windows" else "time"
            else:
                best = told
    except EOFError:  # the process has ended, by itself or for want of memory
        process.join()
    if best is None:
        raise FledgeError(
            "Even a batch of one window does not fit in a step here. Set a shorter tokens.context_length or "
            "a smaller model."
        )
    found = Largest(best[0], limit, best[1])
    write_json(kept, found._asdict())
    return found


def _climb(config: RunConfig, folder: Path, windows: int | None, seconds: float | None, told: Connection) -> None:
    from fledge.errors import out_of_memory
    from fledge.run import Run
    from fledge.training import join_ranks
    from fledge.training.device import used_memory
    from fledge.training.stepper import Stepper

    _limit_memory()
    size = 1
    with join_ranks(config.training.device) as ranks:
        while True:
            whole = override_config(config, [f"training.batch_size={size}"])
            run, started = Run(whole, folder / TIMING, quiet=True), 0.0
            try:
                stepper = Stepper(whole, run.model, ranks, whole=True)
                for _ in range(2):  # the first one compiles, and makes room that the second finds
                    started = time.perf_counter()
                    float(stepper.step(run.windows("train").batch(range(size)))[1])
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                return
            told.send((size, used_memory(ranks.device)))
            if windows is not None and 2 * FEWEST_STEPS * size > windows:
                return told.send("windows")
            if seconds is not None and 2 * FEWEST_STEPS * (time.perf_counter() - started) > seconds:
                return told.send("time")
            size *= 2


def _limit_memory() -> None:
    """On Linux, refuse what the free memory does not hold: the system itself would first end other programs."""
    status, free = Path("/proc/self/statm"), Path("/proc/meminfo")
    if sys.platform != "linux" or not status.is_file() or not free.is_file():
        return
    import os
    import resource

    if devices.kinds():  # a GPU's addresses are counted like memory
        return
    used = int(status.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    available = next(int(line.split()[1]) << 10 for line in free.read_text().splitlines() if "MemAvailable" in line)
    resource.setrlimit(resource.RLIMIT_AS, (used + int(CPU_SHARE * available), resource.RLIM_INFINITY))
