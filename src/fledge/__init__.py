"""fledge: from raw text to a small language model you can trust. The public names, loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.accounting import account
    from fledge.config import RunConfig, load_recipe
    from fledge.corpus import Corpus
    from fledge.errors import FledgeError
    from fledge.model import build_model
    from fledge.run import Run, load
    from fledge.tokenizer import BPETokenizer, CharacterTokenizer, WordTokenizer, load_tokenizer, train_bpe
    from fledge.tokenizer.display import show
    from fledge.tokens import TokenStore

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
    "show": "fledge.tokenizer.display",
    "TokenStore": "fledge.tokens",
    "build_model": "fledge.model",
    "account": "fledge.accounting",
    "Run": "fledge.run",
    "load": "fledge.run",
}

__all__ = [
    "BPETokenizer",
    "CharacterTokenizer",
    "Corpus",
    "FledgeError",
    "Run",
    "RunConfig",
    "TokenStore",
    "WordTokenizer",
    "__version__",
    "account",
    "build_model",
    "load",
    "load_recipe",
    "load_tokenizer",
    "show",
    "train_bpe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
