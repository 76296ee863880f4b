"""How long a number of tokens takes on a device, what it costs, and which size of model a budget suits."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models"
ADAMW_FLOPS = 14  # per parameter: 3 for the mean, 4 for the square, 5 for the update, 2 for the decay
DAY = 86_400.0


@dataclass(frozen=True)
class Time:
    """The time that `flops` take at a peak of which a share (the MFU) is used."""

    flops: float
    tokens: float
    peak: float
    mfu: float

    @property
    def seconds(self) -> float:
        return self.flops / (self.peak * self.mfu)

    @property
    def days(self) -> float:
        return self.seconds / DAY

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def cost(self, price_per_hour: float) -> float:
        """In the currency of the price."""
        return self.seconds / 3600 * price_per_hour


@dataclass(frozen=True)
class Bound:
    """The two floors of a training step: its products at the peak, its traffic at the full bandwidth."""

    product_seconds: float
    traffic_seconds: float

    @property
    def name(self) -> str:
        return "compute" if self.product_seconds >= self.traffic_seconds else "memory"


@dataclass(frozen=True)
class Optimum:
    """The size and the tokens that spend a budget of FLOPs best, by the rule of 20 tokens per parameter."""

    parameters: float
    tokens: float


def optimum(flops: float) -> Optimum:
    """With FLOPs = 6·parameters·tokens and tokens = 20·parameters.

    >>> round(optimum(5.88e23).parameters / 1e9)
    70
    """
    parameters = sqrt(flops / (6 * TOKENS_PER_PARAMETER))
    return Optimum(parameters, TOKENS_PER_PARAMETER * parameters)


def readable_time(seconds: float) -> str:
    """
    >>> readable_time(95), readable_time(3 * 86400)
    ('1.6 minutes', '3.0 days')
    """
    for unit, size in (("years", 365.25 * DAY), ("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= (2 * size if unit == "years" else 1.5 * size):
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
