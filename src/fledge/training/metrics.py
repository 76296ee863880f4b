"""`metrics.csv`: one row per logged step and per evaluation, with time stamps; a resumed run never doubles a row."""

from __future__ import annotations

import csv
import io
import os
from datetime import datetime, timezone
from pathlib import Path

from fledge.files import atomic_write

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


class Metrics:
    """The rows of a run up to a step, open for more."""

    def __init__(self, path: Path, until: int = 0) -> None:
        self.path = path
        before = read_metrics(path)
        self.rows = [row for row in before if int(row["step"]) <= until]
        if self.rows or path.exists():
            with atomic_write(path) as file:
                file.write(_text([dict(zip(COLUMNS, COLUMNS, strict=True)), *self.rows]))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_text([dict(zip(COLUMNS, COLUMNS, strict=True))]))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  (open for the whole run)

    def add(self, **values: float | int | None) -> Row:
        """Append a row in one write, so that a killed process leaves it whole or not at all."""
        values_text = {name: "" if value is None else repr(value) for name, value in values.items()}
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        row = {**dict.fromkeys(COLUMNS, ""), **values_text, "time": time}
        self._file.write(_text([row]))
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


def read_metrics(path: Path | str) -> list[Row]:
    """The rows of a `metrics.csv`, as text by column; a torn last line, or no file, counts for nothing."""
    path = Path(path)
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = csv.DictReader(io.StringIO(whole))
    return [row for row in rows if row.get("step", "").isdigit() and None not in row and None not in row.values()]


def _text(rows: list[Row]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
