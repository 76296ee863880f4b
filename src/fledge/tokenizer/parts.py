"""What a byte-pair encoding is made of, between a file and a tokenizer; checked, then believed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from fledge.errors import FledgeError
from fledge.files import to_bytes
from fledge.tokenizer.checks import MOST_IDS, check_utf8


def tokenizer_json(
    special_tokens: Mapping[str, int],
    always: Collection[str],
    decoder: Any,
    model: Mapping[str, Any],
    normalizer: Any = None,
    pre_tokenizer: Any = None,
) -> dict[str, Any]:
    """The sections of a `tokenizer.json`; `model` is what its model has besides what every BPE of ours has."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": text, **plain, "special": text not in always}
            for text, token in sorted(special_tokens.items(), key=lambda item: item[1])
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            **model,
        },
    }


class Parts(NamedTuple):
    """A vocabulary that includes the special tokens, merges in order, and how text is cut before them."""

    vocab: dict[int, bytes]
    merges: list[tuple[bytes, bytes]]
    special_tokens: dict[str, int]
    pattern: str
    always: frozenset[str] = frozenset()
    "Special tokens that are found in plain text too."
    composed: bool = False
    "Text is composed to Unicode's form NFC first."
    whole_words: bool = False
    "A pre-token that is a token becomes that token, wherever its merges lead (`ignore_merges`)."


def checked(parts: Parts, where: str) -> Parts:
    """The same parts, or the first reason why they can't be a tokenizer: `where` names the file."""
    for text in parts.special_tokens:
        check_utf8(f"{where}: the special token", text)
    special_ids = set(parts.special_tokens.values())
    ordinary = {data for token, data in parts.vocab.items() if token not in special_ids}
    needed = {token for left, right in parts.merges for token in (left, right, left + right)}
    for text in parts.special_tokens:
        data = to_bytes(text)
        if data not in ordinary and (data in needed or len(data) == 1):
            raise FledgeError(
                f"{where} adds the token {text:.60}, which its merges or bytes need as an ordinary one; fledge keeps "
                "the two apart, so it is not read. Add a token that is not in the vocabulary yet."
            )
    lacking = [byte for byte in range(256) if bytes([byte]) not in ordinary]
    if lacking:
        count = f"{len(lacking)} of the 256 bytes" if len(lacking) > 1 else "one of the 256 bytes"
        raise FledgeError(
            f"{where} has no token for {count} (the first is {lacking[0]:#04x}): it can't spell every text."
        )
    if needed <= ordinary and len(set(parts.merges)) == len(parts.merges):
        return parts
    seen = set()
    for number, (left, right) in enumerate(parts.merges, 1):
        for token in (left, right, left + right):
            if token not in ordinary:
                raise FledgeError(
                    f"{where}: merge {number} needs the token {token!r:.60}, which is not in the vocabulary."
                )
        if (left, right) in seen:
            raise FledgeError(f"{where}: merge {number} ({left!r:.40} and {right!r:.40}) is there twice.")
        seen.add((left, right))
    return parts


def token_id(value: Any, where: str, token: str) -> int:
    """`value` if it can be an id, else a refusal."""
    if type(value) is not int or not 0 <= value < MOST_IDS:
        raise FledgeError(f"{where} gives {token:.60} the id {value!r:.40}; ids are whole numbers below {MOST_IDS:,}.")
    return value


def add_token(vocab: dict[int, bytes], token: int, data: bytes, where: str) -> None:
    """Enter `data` as `token`; no bytes at all, or an id that is already taken by another, are refused."""
    if not data:
        raise FledgeError(f"{where} gives the id {token} to no bytes at all; every token stands for some.")
    if vocab.setdefault(token, data) != data:
        raise FledgeError(f"{where} gives the id {token} to both {vocab[token]!r:.60} and {data!r:.60}.")


@cache
def byte_letters() -> dict[int, str]:
    """GPT-2's way to write a byte as one printable character: itself where it is one, else from U+0100 on.

    >>> byte_letters()[ord("A")], byte_letters()[ord(" ")]
    ('A', 'Ġ')
    """
    letters = {byte: chr(byte) for byte in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))}
    hidden = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(0x100 + position) for position, byte in enumerate(hidden)})
    return letters


@cache
def letter_bytes() -> dict[str, int]:
    return {letter: byte for byte, letter in byte_letters().items()}


def written(data: bytes) -> str:
    """A token as GPT-2's files write it.

    >>> written(b" the")
    'Ġthe'
    """
    letters = byte_letters()
    return "".join([letters[byte] for byte in data])


def unwritten(text: str) -> bytes | None:
    """The bytes behind a token as GPT-2's files write it; None for what they would never write."""
    numbers = letter_bytes()
    try:
        return bytes([numbers[letter] for letter in text])
    except KeyError:
        return None
