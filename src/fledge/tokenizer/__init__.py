"""Text to ids and back: byte-pair encoding, words, characters; files others read. Loaded when first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "BPETokenizer": "bpe",
    "CharacterTokenizer": "character",
    "Roles": "base",
    "StreamDecoder": "base",
    "Tokenizer": "base",
    "WordTokenizer": "word",
    "export_tokenizer": "save",
    "load_tokenizer": "files",
    "open_tokenizer": "files",
    "train_bpe": "train",
    "train_tokenizer": "fit",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge.tokenizer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fledge.tokenizer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
