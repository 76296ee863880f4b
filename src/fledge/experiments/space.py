"""What a sweep varies: `key=1e-4..1e-1:log:8` (a range, in steps) or `key=1,8,64` (a list); several make a grid."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from fledge.config import RunConfig, Settings, setting_paths
from fledge.errors import FledgeError, nearest, short

LARGEST_GRID = 2000
MAX = "max"
"In a list of batch sizes: the largest that this machine takes, found when the sweep begins."
BATCH, RATE = "training.batch_size", "optimizer.learning_rate"
MATRIX_RATE = "optimizer.matrix_learning_rate"


@dataclass(frozen=True)
class Axis:
    """One setting and the values it takes."""

    key: str
    values: tuple[Any, ...]
    log: bool = False
    continuous: bool = False

    def text(self) -> str:
        """
        >>> Axis("model.layers", (1, 2)).text(), Axis("optimizer.learning_rate", (0.001, 0.1), True, True).text()
        ('model.layers=1,2', 'optimizer.learning_rate=0.001..0.1:log:2')
        """
        if self.continuous:
            return f"{self.key}={self.low:g}..{self.high:g}{':log' * self.log}:{len(self.values)}"
        return f"{self.key}={','.join(map(_short, self.values))}"

    @property
    def low(self) -> float:
        return float(min(self.values))

    @property
    def high(self) -> float:
        return float(max(self.values))


Point = dict[str, Any]


def parse_axis(text: str) -> Axis:
    """
    >>> parse_axis("optimizer.learning_rate=1e-3..1e-1:log:3").values
    (0.001, 0.01, 0.1)
    >>> parse_axis("training.batch_size=1,8,64,max").values
    (1, 8, 64, 'max')
    """
    key, equals, spec = text.partition("=")
    key = key.strip()
    known = setting_paths()
    if not equals or not spec:
        raise FledgeError(
            f"--over {short(repr(text))} is not of the form key=LOW..HIGH[:log][:STEPS] or key=A,B,C, such as "
            "optimizer.learning_rate=1e-4..1e-1:log:8."
        )
    if key not in known:
        raise FledgeError(f"--over {short(repr(text))}: there is no setting {short(key)}. {nearest(key, known)}")
    if ".." not in spec or "/" in spec:  # a path may go up
        values = tuple(_value(part) for part in spec.split(","))
        if MAX in values and key != BATCH:
            raise FledgeError(f"--over {short(repr(text))}: only {BATCH} has a largest value that can be found.")
        if twice := [value for value in values if values.count(value) > 1]:
            raise FledgeError(
                f"--over {short(repr(text))}: {short(_short(twice[0]))} is given twice. Give every value once."
            )
        return Axis(key, values)
    bounds, *options = spec.split(":")
    low_text, _, high_text = bounds.partition("..")
    low, high = _number(low_text, text), _number(high_text, text)
    log = "log" in options
    counts = [option for option in options if option != "log"]
    if len(counts) > 1 or (counts and not re.fullmatch("[0-9]+", counts[0])):
        raise FledgeError(
            f"--over {short(repr(text))}: after the range come :log and a number of steps, such as :log:8."
        )
    count = int(counts[0]) if counts else 8
    if not low < high or count < 2:
        raise FledgeError(f"--over {short(repr(text))}: the range must rise and have at least 2 steps.")
    if count > LARGEST_GRID:
        raise too_many(f"{count:,}")
    if log and low <= 0:
        raise FledgeError(f"--over {short(repr(text))}: a logarithmic range begins above 0.")
    whole = _takes_whole_numbers(key)
    if whole and not (low.is_integer() and high.is_integer()):
        raise FledgeError(f"--over {short(repr(text))}: {key} takes whole numbers.")
    return Axis(key, _spaced(low, high, count, log, whole), log, continuous=True)


def check_once(axes: Sequence[Axis]) -> None:
    """Refuse a setting that is given twice."""
    keys = [axis.key for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise FledgeError(f"--over {twice} is given twice. Give all its values at once, as in {twice}=A,B,C.")


def too_many(size: str) -> FledgeError:
    return FledgeError(
        f"The grid has {size} points, and at most {LARGEST_GRID:,} are run. Take fewer steps, or sample it: --method "
        "random --trials 50."
    )


def grid(axes: list[Axis]) -> list[Point]:
    """Every combination; too many are refused with their number, and so is a setting that is given twice."""
    check_once(axes)
    keys = [axis.key for axis in axes]
    size = math.prod(len(axis.values) for axis in axes)
    if size > LARGEST_GRID:
        shape = f"{' × '.join(str(len(axis.values)) for axis in axes)} = " * (len(axes) > 1)
        raise too_many(f"{shape}{size:,}")
    return [dict(zip(keys, point, strict=True)) for point in product(*(a.values for a in axes))]


def overrides(point: Point) -> list[str]:
    """A point as `--set` changes."""
    return [f"{key}={value}" for key, value in point.items()]


def label(point: Point) -> str:
    """A point in a few words, with the last part of each key.

    >>> label({"optimizer.learning_rate": 0.001, "training.batch_size": 8})
    'learning_rate=0.001 batch_size=8'
    """
    return " ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in point.items())


def _takes_whole_numbers(key: str) -> bool:
    group, _, name = key.partition(".")
    kind = RunConfig.model_fields[group].annotation
    if not name or not isinstance(kind, type) or not issubclass(kind, Settings):
        return False
    annotation = kind.model_fields[name].annotation
    kinds = {annotation, *get_args(annotation)}
    return int in kinds and float not in kinds


def _spaced(low: float, high: float, count: int, log: bool, whole: bool) -> tuple[Any, ...]:
    """
    >>> _spaced(8, 64, 4, log=True, whole=True), _spaced(0, 1, 3, log=False, whole=False)
    ((8, 16, 32, 64), (0.0, 0.5, 1.0))
    """
    if log:
        ratio = (high / low) ** (1 / (count - 1))
        values = [low * ratio**i for i in range(count - 1)] + [high]
    else:
        values = [low + (high - low) * i / (count - 1) for i in range(count)]
    values = [float(f"{value:.6g}") for value in values]  # no 0.010000000000000002 in names and tables
    return tuple(sorted({round(value) for value in values})) if whole else tuple(values)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FledgeError(f"--over {short(repr(where))}: {short(repr(text))} is not a number.")
    return value


def _value(text: str) -> Any:
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
