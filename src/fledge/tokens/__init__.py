"""Ids on disk, and batches out of them: the token store, windows over it, packing, the loader.

Names load when first used, for writing a store needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.tokens.batch import Batch, get_batch
    from fledge.tokens.loader import Loader
    from fledge.tokens.policies import make_windows
    from fledge.tokens.store import TokenSplit, TokenStore
    from fledge.tokens.windows import Windows
    from fledge.tokens.writer import store_on_the_fly, write_store

_HOMES = {
    "Batch": "fledge.tokens.batch",
    "Loader": "fledge.tokens.loader",
    "TokenSplit": "fledge.tokens.store",
    "TokenStore": "fledge.tokens.store",
    "Windows": "fledge.tokens.windows",
    "get_batch": "fledge.tokens.batch",
    "make_windows": "fledge.tokens.policies",
    "store_on_the_fly": "fledge.tokens.writer",
    "write_store": "fledge.tokens.writer",
}

__all__ = [
    "Batch",
    "Loader",
    "TokenSplit",
    "TokenStore",
    "Windows",
    "get_batch",
    "make_windows",
    "store_on_the_fly",
    "write_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge.tokens' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
