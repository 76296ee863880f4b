"""Sizes and steps solved so that a comparison is fair: what is matched agrees within one per cent over all arms.

A recurrent network has only its width, and one unit more is several per cent of a small one. So sizes are solved
together: where the first arm's own size suits all others it stays, else it moves to the nearest size that does.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

from fledge.accounting import Account
from fledge.config import ModelConfig, RunConfig
from fledge.errors import FledgeError

Match = Literal["parameters", "tokens", "flops", "time"]
TOLERANCE = 0.01
WIDEST = 8192
PASSES = ((0.03, 1.7, False), (0.03, 8.0, True), (0.15, 1.7, False), (0.3, 8.0, True))
"""How far the first arm may move until all others can meet it, as a share of its size; how many times the usual inner
size a model may have, or the usual one its own; and whether recurrent networks may change their layers. In turn."""
MOST_LAYERS = 8  # that a recurrent network is given
FEWEST_NEURONS = 4  # of BDH, for each unit of the width
TRIED = 256  # widths of the first arm that are looked at for advice
KNOBS = {"transformer": "hidden", "bdh": "multiplier"}
"What closes the gaps between the widths, and changes the size by the same for every unit."
SHORTER, LONGER = 0.8, 1.25
"How far the steps of the first arm may move until whole steps of all others give the same."


class Option(NamedTuple):
    """A size that an arm can have, how far it strays from the usual shape or its own, and the settings that give it."""

    strain: float
    size: int
    settings: dict[str, int | None]


class SizeFamily:
    """The sizes that one arm can have. One that `stays` would rather keep its own width."""

    def __init__(self, config: RunConfig, vocabulary_size: int, stays: bool = False) -> None:
        self.model, self.stays = config.model, stays
        self.vocabulary_size, self.context_length = vocabulary_size, config.tokens.context_length
        self.knob = KNOBS.get(self.model.architecture)
        # Heads divide a width, and rotary positions need even heads; so do BDH's neurons.
        even = 1 if self.knob == "hidden" and self.model.position != "rope" else 2
        step = even * self.model.heads if self.knob else 1
        self.widths = range(step, WIDEST + 1, step)
        self.own = self.size()
        self.layers = [self.model.layers]
        self.stretch = PASSES[0][1]
        self.plain: Callable[[int, int], int] = cache(
            lambda width, layers: self.size(width=width, layers=layers, hidden=None)
        )
        self.line: Callable[[int], tuple[int, int, int]] = cache(self._line)

    def with_(self, **settings: int | None) -> ModelConfig:
        return self.model.model_copy(update=settings)

    def size(self, **settings: int | None) -> int:
        return Account(self.with_(**settings), self.vocabulary_size, self.context_length).parameters.total

    def loosen(self, stretch: float, layers: bool) -> None:
        """Allow shapes that are further from the usual."""
        self.stretch = stretch
        self.layers = [self.model.layers]
        if layers and self.knob is None:
            self.layers = sorted({*range(1, MOST_LAYERS + 1), self.model.layers})

    def place(self, size: float, layers: int) -> int:
        """The first width whose usual model is at least this large; a wider one is never smaller."""
        return bisect.bisect_left(self.widths, size, key=lambda width: self.plain(width, layers))

    def between(self, low: float, high: float) -> Iterator[tuple[int, int]]:
        """Widths and layers whose usual models have these sizes."""
        for layers in self.layers:
            for width in self.widths[self.place(low, layers) :]:
                if self.plain(width, layers) > high:
                    break
                yield width, layers

    def best(self, low: float, high: float, target: float) -> Option | None:
        """The least strained of a size in these bounds; of several, the nearest to the target."""
        return min(
            (option for option in self.options(low, high, target) if low <= option.size <= high),
            key=lambda option: (option.strain, abs(option.size - target)),
            default=None,
        )

    def nearest(self, target: float) -> Option:
        """What comes nearest to a size, however far from it."""
        own = self.model.layers
        above = self.place(target, own)
        ends = {self.widths[max(0, min(place, len(self.widths) - 1))] for place in (above - 1, above)}
        plain = [Option(0.0, self.plain(width, own), {"width": width}) for width in ends]
        return min([*self.options(target, target, target), *plain], key=lambda option: abs(option.size - target))

    def options(self, low: float, high: float, target: float) -> Iterator[Option]:
        if self.stays:
            yield Option(0.0, self.own, {})
        for width, layers in self.between(low, high):
            settings = {"width": width, "layers": layers, "hidden": None}
            yield Option(self.moved(width, layers), self.plain(width, layers), settings)
        if self.knob == "hidden":
            widths: Iterable[int] = (width for width, _ in self.between(low / self.stretch, high * self.stretch))
            fewest, furthest = 1, math.log(self.stretch)
        elif self.knob == "multiplier":
            widths, fewest, furthest = self.widths, FEWEST_NEURONS, math.inf
        else:
            return
        aim = min(max(target, low), high)
        for width in widths:
            first, slope, usual = self.line(width)
            if first > high:
                return
            for value in {math.floor((aim - first) / slope) + 1, math.ceil((aim - first) / slope) + 1}:
                if value >= fewest and (strain := abs(math.log(value / usual))) <= furthest:
                    yield Option(
                        strain + self.moved(width, self.model.layers),
                        first + slope * (value - 1),
                        {"width": width, "hidden": None, self.knob: value},
                    )

    def moved(self, width: int, layers: int) -> float:
        """The strain of another shape; the width of all but the first arm is free."""
        return abs(math.log(layers / self.model.layers)) + self.stays * abs(math.log(width / self.model.width))

    def _line(self, width: int) -> tuple[int, int, int]:
        """The size with 1 of what closes the gaps, what each further one adds, and how many are usual."""
        knob = self.knob or ""
        plain = {"width": width, "hidden": None}
        first, second = (self.size(**{**plain, knob: value}) for value in (1, 2))
        usual = self.with_(**plain).inner_size if knob == "hidden" else self.model.multiplier
        return first, second - first, usual


def same_parameters(names: Sequence[str], configs: Sequence[RunConfig], vocabulary_size: int) -> list[RunConfig]:
    """Every arm with as many parameters as all others, within one per cent, as near as can be to the first's own."""
    families = [SizeFamily(config, vocabulary_size, stays=number == 0) for number, config in enumerate(configs)]
    found = meet(families)
    if found is None:
        raise FledgeError(_no_match(names, configs, families, vocabulary_size))
    return [
        config.model_copy(update={"model": family.with_(**option.settings)})
        for config, family, option in zip(configs, families, found, strict=True)
    ]


def meet(families: Sequence[SizeFamily]) -> list[Option] | None:
    """One size of each family, no two further apart than the tolerance; none where there are no such sizes."""
    hard_first = sorted(range(len(families)), key=lambda number: families[number].knob is not None)
    for furthest, stretch, layers in PASSES:
        for family in families:
            family.loosen(stretch, layers)
        for low in _windows(families, furthest):
            found: dict[int, Option] = {}
            for number in hard_first:
                option = families[number].best(low, low * (1 + TOLERANCE), families[0].own)
                if option is None:
                    break
                found[number] = option
            else:
                return [found[number] for number in range(len(families))]
    return None


def _windows(families: Sequence[SizeFamily], furthest: float) -> list[float]:
    """Where the smallest arm may lie: first what leaves the first arm as it is, then ever further away from it."""
    own = families[0].own
    ends = {float(own), own / (1 + TOLERANCE)}
    for family in families:
        if family.knob is None or (furthest > PASSES[0][0] and family.knob == "hidden"):
            for shape in family.between((1 - furthest) * own, (1 + furthest) * own):
                ends |= {float(family.plain(*shape)), family.plain(*shape) / (1 + TOLERANCE)}
    return sorted(ends, key=lambda low: (not low <= own <= low * (1 + TOLERANCE), abs(math.log(low / own))))


def _no_match(
    names: Sequence[str], configs: Sequence[RunConfig], families: Sequence[SizeFamily], vocabulary_size: int
) -> str:
    """Which arm has no such size, what comes nearest, and where the first arm would have to be."""
    first, own = families[0], families[0].own
    others = range(1, len(families))
    number = next((number for number in others if meet([first, families[number]]) is None), len(families) - 1)
    option = families[number].nearest(own)
    advice = "Change its layers, or the size of the first arm."
    for width in range(1, TRIED + 1):
        wider = first.widths.step * (first.model.width // first.widths.step + width)
        changed = configs[0].model_copy(update={"model": first.with_(width=wider)})
        if meet([SizeFamily(changed, vocabulary_size, stays=True), *families[1:]]) is not None:
            advice = f"{names[0]} with width {wider} would do."
            break
    return (
        f"{names[number]} has no size of {own:,} parameters within {TOLERANCE:.0%}, as {names[0]} has, and "
        f"within {PASSES[-1][0]:.0%} of them no size that suits all arms: its nearest is "
        f"width {option.settings['width']} with {option.size:,}. {advice}"
    )


def relative_spread(values: Iterable[float]) -> float:
    """How much more the largest is than the smallest.

    >>> round(relative_spread([100, 101, 100.5]), 4)
    0.01
    """
    found = list(values)
    return max(found) / min(found) - 1


def same_work(names: Sequence[str], costs: Sequence[float], steps: int, match: Match, longer: bool) -> dict[str, int]:
    """Whole steps of each arm that cost the same within one per cent, those of the first as near as can be to `steps`.

    `costs` are those of one step of each arm; with `longer`, the first arm may take more steps than asked for.

    >>> same_work(["a", "b"], [1.0, 2.6], 60, "flops", longer=True)
    {'a': 60, 'b': 23}
    """
    most = math.floor(steps * LONGER) if longer else steps
    for count in sorted(range(max(1, math.ceil(steps * SHORTER)), most + 1), key=lambda count: abs(count - steps)):
        found = _whole(costs, count)
        if _work_apart(costs, found) <= TOLERANCE:
            return dict(zip(names, found, strict=True))
    off = _work_apart(costs, _whole(costs, steps))
    enough = steps + 1
    while _work_apart(costs, _whole(costs, enough)) > TOLERANCE:
        enough += 1
    how = (
        f"Set training.steps={enough}"
        if longer
        else f"Give about {math.ceil(enough / steps * 10) / 10:g} times the time"
    )
    raise FledgeError(
        f"{steps:,} steps of {names[0]} are too few to match {match}: in whole steps the arms are {off:.1%} "
        f"apart, and at most {TOLERANCE:.0%} is allowed. {how}: {enough:,} steps are enough."
    )


def _whole(costs: Sequence[float], first: int) -> list[int]:
    return [first, *(max(1, round(first * costs[0] / cost)) for cost in costs[1:])]


def _work_apart(costs: Sequence[float], steps: Sequence[int]) -> float:
    return relative_spread(cost * count for cost, count in zip(costs, steps, strict=True))
