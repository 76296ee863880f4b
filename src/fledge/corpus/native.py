"""The native core's functions on bytes and numbers; where it is not built, plain ones take their place."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any


@cache
def native(name: str) -> Any:
    """A function of the core; None where the core is not built, for training needs no tokenizer."""
    try:
        from fledge import _core
    except ImportError:
        return None
    return getattr(_core, name, None)


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 of zlib, several times as fast."""
    found: int = (native("checksum") or zlib.crc32)(data, before)
    return found
