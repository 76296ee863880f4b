"""SentencePiece's byte-pair encoding, as Llama 2 and Mistral use it: merges of characters, and bytes for rare ones.

A space is U+2581 in its files, and text usually gets one in front. Characters are made of bytes here, by merges that
come before all others, so native code does the work; what is left of a character without a token is taken apart again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fledge.errors import FledgeError
from fledge.files import to_bytes
from fledge.tokenizer.base import Ids, Roles, Special, Tokenizer
from fledge.tokenizer.checks import check_utf8
from fledge.tokenizer.parts import token_id, tokenizer_json
from fledge.tokenizer.patterns import encode_between
from fledge.tokenizer.specials import roles_by_name

if TYPE_CHECKING:
    from fledge._core import Encoder

SPACE = "\u2581"
BYTE = re.compile("<0x([0-9A-F]{2})>")
PREPEND = {"type": "Prepend", "prepend": SPACE}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
NORMALIZERS: list[tuple[Any, str]] = [
    ({"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, "every"),
    ({"type": "Sequence", "normalizers": [REPLACE]}, "none"),
    (REPLACE, "none"),
]
"Sections of a file, and before which stretches of text they put a space."


class SentencePieces(NamedTuple):
    """What such a tokenizer is made of."""

    names: dict[str, int]
    "The tokens as files write them."
    merges: list[tuple[str, str]]
    special_tokens: dict[str, int]
    prefix: str
    "Which stretches of text get a space in front: `every`; `first` or `each`, unless it begins with one; `none`."
    always: frozenset[str] = frozenset()
    "Special tokens that are found in plain text too."


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece's byte-pair encoding; `decode` gives back the space that is put in front of a text."""

    kind = "sentencepiece"

    def __init__(self, pieces: SentencePieces, roles: Roles | None = None) -> None:
        self.names, self.merges, self.special_tokens, self.prefix, self.always = pieces
        self.vocab: dict[int, bytes] = {token: _bytes_of(name) for name, token in self.names.items()}
        self.vocab |= {token: to_bytes(text) for text, token in self.special_tokens.items()}
        self._roles = roles if roles is not None else roles_by_name(self.special_tokens)

    @property
    def roles(self) -> Roles:
        return self._roles

    @cached_property
    def fingerprint(self) -> str:
        parts = [
            self.kind,
            1,
            self.prefix,
            self.merges,
            *map(sorted, (self.names.items(), self.special_tokens.items())),
        ]
        return hashlib.sha256(json.dumps([*parts, sorted(self.always)]).encode()).hexdigest()

    def encode_array(self, text: str | bytes, special: Special = "recognise") -> Ids:
        return encode_between(self, to_bytes(text), special, 0, self._encode_stretch)

    def _encode_stretch(self, text: bytes, start: int) -> Ids:
        text = text.replace(SPACE.encode(), b" ")
        if text and (
            self.prefix == "every"
            or (not text.startswith(b" ") and (self.prefix == "each" or (self.prefix == "first" and start == 0)))
        ):
            text = b" " + text
        words = re.findall(rb" *[^ ]+| +", text) if self._spaces_lead else [text]
        ids = self._encoder.encode_words(text, np.cumsum([0, *map(len, words)], dtype=np.uint64))
        if (ids < self.vocab_size).all():
            return ids.astype(self.token_dtype, copy=False)
        apart, own = self._beginnings_apart, self.vocab_size
        whole = [each for token in ids.tolist() for each in (apart[token - own] if token >= own else (token,))]
        return np.array(whole, self.token_dtype)

    @cached_property
    def _spaces_lead(self) -> bool:
        """Whether spaces only begin tokens: then no merge crosses the place before a space."""
        return not any(SPACE in name.lstrip(SPACE) for name in self._plain)

    @cached_property
    def _plain(self) -> dict[str, int]:
        """The tokens that merges make, and the characters that they begin with."""
        return {name: token for name, token in self.names.items() if _is_plain(name, self.special_tokens)}

    @cached_property
    def _letters(self) -> list[bytes]:
        """The characters with a token that are several bytes."""
        found = (_bytes_of(name) for name in self._plain if len(name) == 1)
        return [data for data in found if len(data) > 1]

    @cached_property
    def _beginnings(self) -> list[bytes]:
        """The first bytes of these: symbols of no token, on the way to the character."""
        return sorted({data[:size] for data in self._letters for size in range(2, len(data))})

    @cached_property
    def _byte_ids(self) -> list[int]:
        return [self.names[f"<0x{byte:02X}>"] for byte in range(256)]

    @cached_property
    def _beginnings_apart(self) -> list[tuple[int, ...]]:
        return [tuple(self._byte_ids[byte] for byte in data) for data in self._beginnings]

    @cached_property
    def _encoder(self) -> Encoder:
        from fledge._core import Encoder

        plain = [(_bytes_of(name), token) for name, token in self._plain.items()]
        taken = {data for data, _ in plain}
        rare = [(bytes([byte]), token) for byte, token in enumerate(self._byte_ids) if bytes([byte]) not in taken]
        begun = [(data, self.vocab_size + place) for place, data in enumerate(self._beginnings)]
        merges = [(data[:-1], data[-1:]) for data in (*self._beginnings, *self._letters)]
        merges += [(_bytes_of(left), _bytes_of(right)) for left, right in self.merges]
        wide = self.vocab_size + len(begun) > 65536
        return Encoder([*plain, *rare, *begun], merges, [], [], "gpt2", False, wide)

    def _document(self, where: str, shared: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        return write_sentencepiece(self), self._described()

    def merges_all_splits(self) -> bool:
        """Whether any two tokens that make a third are a merge, as where SentencePiece itself was trained."""
        known = set(self.merges)
        return all(
            (name[:place], name[place:]) in known
            for name in {left + right for left, right in self.merges}
            for place in range(1, len(name))
            if name[:place] in self.names and name[place:] in self.names
        )


def _is_plain(name: str, special_tokens: Mapping[str, int]) -> bool:
    return name not in special_tokens and " " not in name and not BYTE.fullmatch(name)


def _bytes_of(name: str) -> bytes:
    """The text that a token stands for."""
    byte = BYTE.fullmatch(name)
    return bytes.fromhex(byte[1]) if byte else to_bytes(name.replace(SPACE, " "))


def write_sentencepiece(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """The whole of `tokenizer.json`."""
    normalizer, metaspace = next((each for each, kind in NORMALIZERS if kind == tokenizer.prefix), None), None
    if normalizer is None:
        scheme = {"first": "first", "each": "always"}[tokenizer.prefix]
        metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    spaces = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [] if tokenizer.prefix == "none" else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoder = {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
    model = {
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": dict(sorted(tokenizer.names.items(), key=lambda item: item[1])),
        "merges": [f"{left} {right}" for left, right in tokenizer.merges],
    }
    return tokenizer_json(tokenizer.special_tokens, tokenizer.always, decoder, model, normalizer, metaspace)


def read_sentencepiece(
    document: Mapping[str, Any], special_tokens: dict[str, int], always: frozenset[str], where: str
) -> SentencePieces:
    """The parts in a `tokenizer.json` that falls back to bytes; `special_tokens` are those that it adds."""
    model = document["model"]
    names, merges = model.get("vocab"), model.get("merges")
    if not isinstance(names, dict) or not isinstance(merges, list):
        raise FledgeError(f"{where} lacks a vocabulary (names and ids) or a list of merges.")
    prefix = _prefix_of(document.get("normalizer"), document.get("pre_tokenizer"))
    if prefix is None or model.get("ignore_merges"):
        what = "sets ignore_merges" if prefix else "prepares text in a way that fledge does not know"
        raise FledgeError(
            f"{where} falls back to bytes for rare characters, and {what}. Of such files, fledge reads those that only "
            "write spaces as U+2581, as Llama 2 and Mistral do."
        )
    check_utf8(f"{where}: the vocabulary", "".join(names))
    taken: dict[int, str] = {}
    for name, token in [*names.items(), *special_tokens.items()]:
        if taken.setdefault(token_id(token, where, repr(name)), name) != name or not name:
            raise FledgeError(f"{where} gives the id {token} to {taken[token]!r:.60} and {name!r:.60}.")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    for number, pair in enumerate(pairs, 1):
        halves = pair if isinstance(pair, list) and all(isinstance(half, str) for half in pair) else []
        made = (*halves, "".join(halves))
        if len(halves) != 2 or not all(text in names and _is_plain(text, special_tokens) for text in made):
            raise FledgeError(
                f"{where}: merge {number} is {merges[number - 1]!r:.60}, and a merge makes a token of two."
            )
    lacking = [byte for byte in range(256) if f"<0x{byte:02X}>" not in names]
    if lacking:
        raise FledgeError(
            f"{where} falls back to bytes for rare characters, and has no token for {len(lacking)} of the 256 bytes "
            f"(the first is {lacking[0]:#04x}): it can't spell every text."
        )
    return SentencePieces(names, [(left, right) for left, right in pairs], special_tokens, prefix, always)


def _prefix_of(normalizer: Any, pre_tokenizer: Any) -> str | None:
    if not pre_tokenizer:
        return next((kind for section, kind in NORMALIZERS if normalizer == section), None)
    if normalizer or not isinstance(pre_tokenizer, dict) or pre_tokenizer.get("type") != "Metaspace":
        return None
    if pre_tokenizer.get("replacement") != SPACE or pre_tokenizer.get("split", True):
        return None
    return {"first": "first", "always": "each", "never": "none"}.get(str(pre_tokenizer.get("prepend_scheme", "always")))
