"""Text to ids and back: byte-pair encoding, words, characters; files others read. Loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.tokenizer.base import Roles, StreamDecoder, Tokenizer
    from fledge.tokenizer.bpe import BPETokenizer
    from fledge.tokenizer.character import CharacterTokenizer
    from fledge.tokenizer.files import load_tokenizer, open_tokenizer
    from fledge.tokenizer.fit import train_tokenizer
    from fledge.tokenizer.save import export_tokenizer
    from fledge.tokenizer.train import train_bpe
    from fledge.tokenizer.word import WordTokenizer

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

__all__ = [
    "BPETokenizer",
    "CharacterTokenizer",
    "Roles",
    "StreamDecoder",
    "Tokenizer",
    "WordTokenizer",
    "export_tokenizer",
    "load_tokenizer",
    "open_tokenizer",
    "train_bpe",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge.tokenizer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fledge.tokenizer.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
