"""What the account expects of a run before it starts, and how far off it was when it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from fledge.accounting.bars import readable_flops
from fledge.accounting.budget import readable_share
from fledge.accounting.launches import on_gpu
from fledge.accounting.ledger import DEFAULT_MFU, Account
from fledge.files import readable_bytes

LONG = 60.0
"Seconds of training below which a speed is not compared with the expected one."
SLOW = 0.5
"Of the expected speed: below it, the likely reason is given."
PROCESS_NOISE = 100e6
"Bytes that a process grows by for its libraries alone: less than that is not told from them."


@dataclass(frozen=True)
class Forecast:
    """A step's FLOPs over all processes, the memory of each, the speed of all, and what the speed was reckoned from."""

    step_flops: float
    memory: float
    tokens_per_second: float
    mfu: float
    basis: str
    peak_speed: float
    "Tokens/s at the full peak."
    processes: int = 1
    own_memory: bool = True
    "Whether the device tells what it holds; a CPU tells the size of the process alone."

    def sentence(self) -> str:
        """For before the first step."""
        each = " in each process" if self.processes > 1 else ""
        return (
            f"Expected: {readable_flops(self.step_flops)} a step, {readable_bytes(self.memory)} of memory{each}, "
            f"{self.tokens_per_second:,.0f} tokens/s at {readable_share(self.mfu)} of {self.basis}."
        )

    def held_against(self, memory: float | None, tokens_per_second: float, seconds: float = LONG) -> str:
        """For after the last step, beside what was measured; no `memory` where the program had needed more before.

        A run of few `seconds` is mostly start-up: its speed is told, and not compared.
        """
        text = "Memory stayed below what the program had used before training; speed"
        if not self.own_memory and self.memory < PROCESS_NOISE:
            text = "Speed"
        elif memory is not None:
            was = "The process grew by" if not self.own_memory else "Memory was"
            text = f"{was} {readable_bytes(memory)}, {_off(memory, self.memory)} expected; speed"
        share = readable_share(tokens_per_second / self.peak_speed)
        if seconds < LONG:
            return f"{text} was {tokens_per_second:,.0f} tokens/s: {share} of {self.basis}."
        off = _off(tokens_per_second, self.tokens_per_second)
        why = f" {self._why_slow()}" if tokens_per_second < SLOW * self.tokens_per_second else ""
        return f"{text} was {tokens_per_second:,.0f} tokens/s, {off} expected: {share} of {self.basis}.{why}"

    def _why_slow(self) -> str:
        """The likely reason of a speed far below the expected one."""
        cores = os.cpu_count() or 1
        if not self.own_memory and hasattr(os, "getloadavg") and os.getloadavg()[0] > cores + 0.5:
            return f"Other programs are busy on this machine's {cores} cores, which is the likely reason."
        return (
            "A likely reason is a small model or batch: much of its time is spent outside of matrix products. "
            "fledge train --profile shows where the time goes."
        )


def usual_speed(rows: Iterable[Mapping[str, str]]) -> float | None:
    """Tokens/s of a run by its metrics: the median, which no evaluation between two rows disturbs; None if not there.

    >>> usual_speed([{"tokens_per_second": "90"}, {"tokens_per_second": "100"}, {"tokens_per_second": "5"}])
    90.0
    """
    speeds = [float(row["tokens_per_second"]) for row in rows if row["tokens_per_second"]]
    return median(speeds) if speeds else None


def forecast(account: Account, processes: int = 1, mfu: float = DEFAULT_MFU, recorded: bool | None = None) -> Forecast:
    """Of steps of `account.windows` windows on `account.device`, or on one such device for each of the processes.

    On a GPU, whose kernels take time to launch, steps are `recorded` as CUDA graphs or not; None leaves that out.

    >>> from fledge.accounting import SHAPES, account
    >>> found = forecast(account(SHAPES["small"].model, 50_257, 1_024, batch=32, device="h200"))
    >>> round(found.tokens_per_second), round(found.step_flops / 1e12)
    (386407, 34)
    """
    bound, device = account.bound(processes=processes), account.device
    assert device is not None
    seconds = max(bound.product_seconds / mfu, bound.traffic_seconds)
    if recorded is not None:
        seconds = on_gpu(account, seconds, recorded)
    basis = "the device's peak" if processes == 1 else f"the peak of {processes} devices"
    if device.measured:
        rate = readable_flops(processes * (device.peak(account.precision) or 0.0))
        basis = f"the {rate}/s that matrix products reached here before training"
    tokens = account.windows * account.context_length
    return Forecast(
        account.step_flops,
        account.memory.total,
        tokens / seconds,
        bound.product_seconds / seconds,
        basis,
        tokens / bound.product_seconds,
        processes,
        device.name not in ("cpu", "mps"),
    )


def _off(measured: float, expected: float) -> str:
    """
    >>> _off(11, 10), _off(9, 10), _off(35, 10), _off(2, 10)
    ('10% more than', '10% less than', '3.5 times what was', '20% of what was')
    """
    change = measured / expected - 1
    if change >= 1:
        return f"{1 + change:,.1f} times what was"
    if change < -0.5:
        return f"{readable_share(1 + change)} of what was"
    return f"{abs(change):.0%} {'more' if change > 0 else 'less'} than"
