"""Means over seeds with their uncertainty, and when a difference is a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % points of Student's t, by degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL95 = 1.95996


def t95(degrees: int) -> float:
    """Beyond the table by its expansion around the normal's, which is right to three digits there.

    >>> t95(2), round(t95(11), 3), round(t95(30), 3)
    (4.303, 2.201, 2.042)
    """
    if degrees <= len(T95):
        return T95[degrees - 1]
    z = NORMAL95
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term * (1 / degrees) ** power for power, term in enumerate(terms, 1))


class Estimate(NamedTuple):
    """A mean and the half-width of its 95 % interval: infinite where one value says nothing of the spread."""

    mean: float
    half_width: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half_width:.4f}" if math.isfinite(self.half_width) else f"{self.mean:.4f}"

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    @property
    def deviation(self) -> float:
        """The standard deviation of one value."""
        return self.half_width * math.sqrt(self.seeds) / t95(self.seeds - 1)

    def overlaps(self, other: Estimate) -> bool:
        return self.low <= other.high and other.low <= self.high


def estimate(values: Sequence[float]) -> Estimate:
    """
    >>> str(estimate([1.0, 2.0, 3.0]))
    '2.0000 ± 2.4843'
    """
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return Estimate(mean, math.inf, count)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, t95(count - 1) * math.sqrt(variance / count), count)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Second minus first, seed by seed: what the seeds share cancels out."""
    return estimate([b - a for a, b in zip(first, second, strict=True)])


def apart(difference: Estimate) -> bool:
    """Whether zero lies outside the interval of a difference."""
    return math.isfinite(difference.half_width) and abs(difference.mean) > difference.half_width


def seeds_needed(first: Estimate, second: Estimate, most: int = 1000) -> int | None:
    """The fewest seeds whose intervals would not overlap, if means and deviations stayed; None where over `most`.

    >>> seeds_needed(Estimate(4.4733, 0.0416, 3), Estimate(4.4994, 0.0508, 3))
    11
    """
    gap, spread = abs(first.mean - second.mean), first.deviation + second.deviation
    return next((count for count in range(2, most + 1) if t95(count - 1) * spread / math.sqrt(count) < gap), None)
