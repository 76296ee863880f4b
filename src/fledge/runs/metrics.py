"""`metrics.csv`, one row per logged step and per evaluation, and `samples.txt`; a resumed run never doubles a row."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fledge.files import atomic_write
from fledge.plot import Curve
from fledge.runs.layout import METRICS

COLUMNS = (
    "step",
    "samples",
    "tokens",
    "loss",
    "validation_loss",
    "plain_loss",
    "average_loss",
    "perplexity",
    "bits_per_byte",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "mfu",
    "memory",
    "seconds",
    "time",
)
TIME_COLUMNS = ("tokens_per_second", "mfu", "memory", "seconds", "time")
"Columns that differ between two runs of the same settings; all others are equal to the bit on one machine."

Row = dict[str, str]

RISING = 3  # evaluations above the lowest, after which it is worth a word
NOTABLY = 0.005  # of a loss: less above the lowest is noise


class Course(NamedTuple):
    """How the held-out loss has gone: its lowest, its last, and how many evaluations have come since the lowest."""

    best_step: int
    best: float
    last_step: int
    last: float
    since: int

    @property
    def risen(self) -> bool:
        """Whether it ended notably above its lowest."""
        return self.last > self.best * (1 + NOTABLY)

    def exhausted(self, patience: int | None) -> bool:
        """Whether so many evaluations in a row have not been lower."""
        return patience is not None and self.since >= patience


def course(evaluations: Mapping[int, float]) -> Course | None:
    """The course of the held-out loss, by step; None before the first evaluation.

    >>> course({100: 3.5, 200: 3.2, 300: 3.3, 400: 3.4})
    Course(best_step=200, best=3.2, last_step=400, last=3.4, since=2)
    """
    steps = sorted(step for step, loss in evaluations.items() if math.isfinite(loss))
    if not steps:
        return None
    best = min(steps, key=lambda step: (evaluations[step], step))
    since = sum(step > best for step in steps)
    return Course(best, evaluations[best], steps[-1], evaluations[steps[-1]], since)


def curve(rows: Iterable[Row], x: str, y: str, most: int | None = None) -> Curve:
    """The values of one column against those of another; of many points, about `most`, evenly spread.

    >>> curve([{"step": "1", "loss": "3.5"}, {"step": "2", "loss": ""}, {"step": "3", "loss": "3.1"}], "step", "loss")
    ([1.0, 3.0], [3.5, 3.1])
    """
    found = [(row[x], row[y]) for row in rows if row[x] and row[y]]
    if most is not None and len(found) > most:
        found = [*found[:: -(-len(found) // most)], found[-1]]
    return [float(place) for place, _ in found], [float(value) for _, value in found]


def column(rows: Iterable[Row], name: str) -> list[float]:
    """The values of one column, where it has any."""
    return [float(row[name]) for row in rows if row[name]]


def learning_curves(rows: Sequence[Row], x: str = "step", most: int | None = None) -> tuple[dict[str, Curve], Curve]:
    """Both losses by name against a column, and the seconds at its values: what `plot.curves` draws."""
    columns = {"training": "loss", "validation": "validation_loss"}
    lines = {name: curve(rows, x, column, most) for name, column in columns.items()}
    return {name: line for name, line in lines.items() if len(line[0])}, curve(rows, x, "seconds", most)


class Metrics:
    """The rows of a run up to a step, open for more; `more` are columns that this run has besides `COLUMNS`."""

    def __init__(self, path: Path, until: int = 0, more: Iterable[str] = ()) -> None:
        self.path = path
        before = read_metrics(path)
        self.rows = [row for row in before if int(row["step"]) <= until]
        found = self.rows[0] if self.rows else ()  # columns that an earlier session had stay
        self.columns = tuple(dict.fromkeys((*COLUMNS, *found, *more)))
        header = dict(zip(self.columns, self.columns, strict=True))
        if self.rows or path.exists():
            with atomic_write(path) as file:
                file.write(self._text([header, *self.rows]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._text([header]))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open for the whole run)

    def add(self, **values: float | int | None) -> Row:
        """Append a row in one write, so that a killed process leaves it whole or not at all."""
        values_text = {name: "" if value is None else repr(value) for name, value in values.items()}
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        row = {**dict.fromkeys(self.columns, ""), **values_text, "time": time}
        self._file.write(self._text([row]))
        self.rows.append(row)
        return row

    def sync(self) -> None:
        """Before a checkpoint appears, the rows up to it are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def evaluations(self) -> dict[int, float]:
        """The validation loss by step."""
        return {int(row["step"]): float(row["validation_loss"]) for row in self.rows if row["validation_loss"]}

    def _text(self, rows: list[Row]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self.columns, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def evaluations(place: Path) -> dict[int, float]:
    """The held-out loss by step, as the rows of a run's or a branch's metrics.csv have it."""
    path = place / METRICS
    try:
        facts = path.stat()
    except OSError:
        return {}
    return dict(_evaluations(path, facts.st_mtime_ns, facts.st_size))


@lru_cache(maxsize=64)
def _evaluations(path: Path, _changed: int, _size: int) -> Mapping[int, float]:
    losses = ((int(row["step"]), finite(row["validation_loss"])) for row in _rows(path, "validation_loss"))
    return {step: loss for step, loss in losses if loss is not None}


def finite(value: Any) -> float | None:
    """A number, written as one or as text; None for anything else, infinities and NaN included."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def read_metrics(path: Path | str) -> list[Row]:
    """The rows of a `metrics.csv`, as text by column; a torn or damaged line, or no file, counts for nothing."""
    return [row for row in _rows(Path(path), "step") if all(_is_number(row[name]) for name in row if name != "time")]


def _rows(path: Path, column: str) -> Iterator[Row]:
    """Every line with a step, a value in `column`, and as many fields as the header has."""
    if not path.is_file():
        return
    text = path.read_bytes().decode("utf-8", "replace")
    header, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
    names = header.split(",")
    if "step" not in names or column not in names:
        return
    step, place = names.index("step"), names.index(column)
    for line in lines:
        fields = line.split(",")  # numbers and times: nothing is quoted
        if len(fields) == len(names) and fields[place] and fields[step].isdecimal():
            yield dict(zip(names, fields, strict=True))


def _is_number(text: str) -> bool:
    try:
        return not text or float(text) is not None
    except ValueError:
        return False


HEADER = "──────── step {step} ────────"


class Samples:
    """The samples of a run up to a step, open for more."""

    def __init__(self, path: Path, until: int) -> None:
        self.path = path
        self.steps: set[int] = set()
        kept = []
        for step, part in _parts(path):
            if step <= until:
                kept.append(part)
                self.steps.add(step)
        if path.exists():
            with atomic_write(path) as file:
                file.write("".join(kept).encode())

    def add(self, step: int, texts: list[str]) -> None:
        body = "\n".join(text.strip("\n") for text in texts)
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{HEADER.format(step=step)}\n{body}\n\n".encode("utf-8", "replace"))
        self.steps.add(step)


def newest(path: Path) -> tuple[int, str] | None:
    """The last step that has a sample, and what the model wrote there."""
    step, part = next(reversed(_parts(path)), (0, ""))
    return (step, part.partition("\n")[2].strip()) if part else None


def _parts(path: Path) -> list[tuple[int, str]]:
    """Each step with its header and what follows it; what a kill or a full disk cut short is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    text = re.sub(f"(?<=\n\n)[{HEADER[0]}\ufffd][^\n]*\\Z", "", text)  # a header that was cut short
    headers = list(re.finditer(f"^{HEADER.format(step='([0-9]+)')}$", text, re.MULTILINE))
    bounds = [*(header.start() for header in headers), len(text)]
    found = [(int(header[1]), text[start:end]) for header, (start, end) in zip(headers, pairwise(bounds), strict=True)]
    return [(step, part) for step, part in found if part.endswith("\n\n")]
