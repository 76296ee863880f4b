"""fledge: from raw text to a small language model you can trust. The public names, loaded when first used."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "FledgeError": "fledge.errors",
    "RunConfig": "fledge.config",
    "load_recipe": "fledge.config",
    "Corpus": "fledge.corpus",
    "BPETokenizer": "fledge.tokenizer",
    "WordTokenizer": "fledge.tokenizer",
    "CharacterTokenizer": "fledge.tokenizer",
    "train_bpe": "fledge.tokenizer",
    "load_tokenizer": "fledge.tokenizer",
    "TokenStore": "fledge.tokens",
    "build_model": "fledge.model",
    "account": "fledge.accounting",
    "Run": "fledge.run",
    "load": "fledge.run",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604  (the keys are texts)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
