"""`metrics.csv` while training writes it: the rows that are new since a cursor, and what the whole file comes to.

A line is used only when it is whole, and one that holds no row is counted and left out.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

CHUNK = 4 << 20
TAIL = 1 << 20
GAPS = 9  # rows at the end, whose times say how often there is a new one

Row = dict[str, float | None]
_BEST: dict[Path, tuple[str, float]] = {}  # by file: the cursor behind what was read, and the least loss before it


@lru_cache(maxsize=512)
def last_facts(path: str, modified: int, size: int) -> dict[str, float]:
    """The last value of every column, the longest `gap` between the last rows in seconds of training, and the least
    validation loss; remembered for as long as the file is the same."""
    header = read_columns(Path(path))
    data, _ = tail(Path(path), TAIL)
    rows, _ = parse_rows(header, whole_lines(data)[1:])  # the first line is the header, or was cut
    facts = {key: value for row in rows for key, value in row.items() if value is not None}
    if not facts:
        return {}
    times = [0.0, *(seconds for row in rows if (seconds := row.get("seconds")) is not None)][-GAPS:]
    facts["gap"] = max((after - before for before, after in pairwise(times)), default=0.0)
    if (best := best_validation_loss(Path(path))) is not None:
        facts["best_validation_loss"] = best
    return facts


def best_validation_loss(path: Path) -> float | None:
    """The least of the whole file: what is new since the last call is read, or all of it where the file is another."""
    cursor, best = _BEST.get(path, ("", math.inf))
    more = True
    while more:
        lines = read_new_lines(path, cursor)
        losses = [
            loss for field in one_field(lines, "validation_loss") if field and (loss := number(field)) is not None
        ]
        best = min([math.inf if lines.reset else best, *losses])
        cursor, more = lines.cursor, lines.more
    _BEST[path] = cursor, best
    return best if best < math.inf else None


class NewLines(NamedTuple):
    """The lines below the header that came since a cursor: all of them with `reset`, and `more` where they are many."""

    header: list[str]
    lines: list[str]
    cursor: str
    reset: bool
    more: bool


def read_new_lines(path: Path, cursor: str) -> NewLines:
    header = read_columns(path)
    with open(path, "rb") as file:
        start = _continue_at(file, cursor)
        reset = start is None
        file.seek(start or 0)
        data = file.read(CHUNK)
        data = data[: data.rfind(b"\n") + 1]
        end = (start or 0) + len(data)
        left = file.seek(0, 2) - end
        more = bool(data) and (left > CHUNK or len(data) > CHUNK // 2)  # a line that never ends is not waited for
        new_cursor = f"{end}-{_mark(file, end):08x}" if end else ""
    lines = whole_lines(data)
    return NewLines(header, lines[1:] if reset else lines, new_cursor, reset, more)


def _continue_at(file: Any, cursor: str) -> int | None:
    """Where to read on, if the bytes before the cursor are still those that were read; else None."""
    offset_text, _, mark = cursor.partition("-")
    if not offset_text.isascii() or not offset_text.isdigit() or not mark:
        return None
    offset = int(offset_text)
    if offset > file.seek(0, 2) or f"{_mark(file, offset):08x}" != mark:
        return None
    return offset


def _mark(file: Any, offset: int) -> int:
    start = max(0, offset - 256)
    file.seek(start)
    return zlib.crc32(file.read(offset - start))


def read_columns(path: Path) -> list[str]:
    with open(path, "rb") as file:
        line = file.readline(TAIL)
    if not line.endswith(b"\n"):
        return []
    return next(split_fields([line.decode("utf-8", "replace")]), [])


def whole_lines(data: bytes) -> list[str]:
    """The lines that end: what training is still writing waits for the next look."""
    return data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()


def parse_rows(header: list[str], lines: list[str]) -> tuple[list[Row], int]:
    """Rows of finite numbers, with None where there is none; and how many lines were no rows."""
    rows, unreadable = [], 0
    for fields in split_fields(lines):
        if len(fields) != len(header):
            unreadable += 1
            continue
        rows.append({name: number(field) for name, field in zip(header, fields, strict=True)})
    return rows, unreadable


def one_field(lines: NewLines, name: str) -> list[str]:
    """One field of each row, which costs a tenth of all of them."""
    size, place = len(lines.header), lines.header.index(name) if name in lines.header else None
    return [] if place is None else [fields[place] for fields in split_fields(lines.lines) if len(fields) == size]


def split_fields(lines: list[str]) -> Iterator[list[str]]:
    """The fields of each row; none where they are more than the csv module takes."""
    reader = csv.reader(line.replace("\0", "") for line in lines)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield []


def number(field: str) -> float | None:
    """
    >>> number("3.5"), number(""), number("nan"), number("2026-01-01T00:00:00+00:00")
    (3.5, None, None, 1767225600.0)
    """
    try:
        value = float(field)
    except ValueError:
        return timestamp(field)
    return value if math.isfinite(value) else None


def timestamp(field: str) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(field.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def tail(path: Path, limit: int) -> tuple[bytes, bool]:
    """The last bytes of a file, and whether there are more before them."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - limit))
        return file.read(limit), size > limit
