"""How long a number of tokens takes on a device, what it costs, and which size of model a budget suits."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt
from numbers import Integral, Real

from fledge.errors import FledgeError

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models"
DAY = 86_400.0


@dataclass(frozen=True)
class Time:
    """The time of training on `tokens`: of its products at a share `mfu` of the peak, or of its memory traffic at the
    full bandwidth where that takes longer (`bound` says which of them).
    """

    seconds: float
    tokens: float
    peak: float
    mfu: float
    bound: str

    @property
    def days(self) -> float:
        return self.seconds / DAY

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def cost(self, price_per_hour: float) -> float:
        """In the currency of the price."""
        return self.seconds / 3600 * check_number("price", price_per_hour, "a number per hour, 0 or more", least=0)


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


def check_number(
    name: str, value: object, allowed: str, above: float = -inf, least: float = -inf, most: float = inf
) -> float:
    """`value`, where it is a finite number in these bounds; for all else a sentence that says what is allowed."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = inf
        if isfinite(number) and number > above and least <= number <= most:
            return number
    raise FledgeError(f"{name} = {value!r} is not allowed: it is {allowed}.")


def check_counted(name: str, value: object) -> None:
    """For what is counted: batches, tokens of a context, processes."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 1:
        raise FledgeError(f"{name} = {value!r} is not allowed: it is a whole number, 1 or more.")


def readable_share(share: float) -> str:
    """
    >>> readable_share(0.4), readable_share(0.00042)
    ('40%', '0.042%')
    """
    return f"{share:.0%}" if share >= 0.00995 else f"{100 * share:.2g}%"
