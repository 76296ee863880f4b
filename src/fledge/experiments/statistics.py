"""Means over seeds with their uncertainty, and when a difference is a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95 % points of Student's t by degrees of freedom; beyond the table the normal's is near enough.
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)


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
    t = T95[count - 2] if count - 2 < len(T95) else 1.96
    return Estimate(mean, t * math.sqrt(variance / count), count)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Second minus first, seed by seed: what the seeds share cancels out."""
    return estimate([b - a for a, b in zip(first, second, strict=True)])


def apart(difference: Estimate) -> bool:
    """Whether zero lies outside the interval of a difference."""
    return math.isfinite(difference.half_width) and abs(difference.mean) > difference.half_width
