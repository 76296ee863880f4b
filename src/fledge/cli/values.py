"""`--json`, on every verb that prints a table: the same facts as values, for programs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(values: Any) -> None:
    """One JSON document on standard output, and nothing else there."""
    print(json_text(values))


def json_text(values: Any) -> str:
    """Strictly JSON: what is not a number becomes null, and what is infinite is refused."""
    return json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Records and arrays as JSON has them, by the names of their fields.

    >>> plain({"path": PurePath("a"), 3: (b"text", math.nan)})
    {'path': 'a', '3': ['text', None]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # arrays and numbers of numpy
        return plain(value.tolist())
    if isinstance(value, list | tuple | Set):
        return [plain(each) for each in value]
    return str(value)
