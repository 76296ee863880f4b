"""The merges of a word one by one, from single bytes to tokens: how byte-pair encoding came to its answer.

The tokens are those of the tokenizer itself, and a merge never crosses the border of a token: so the replay needs no
rule for cutting text into words, and always ends where encoding ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from fledge.web.schemas import MergesAnswer, MergeStep
from fledge.web.writing import as_base64

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer

Ranks = Mapping[tuple[bytes, bytes], int]


def replay_merges(tokenizer: Tokenizer, text: str) -> MergesAnswer:
    """Every step of encoding a short text; a tokenizer without merges has one step, and a sentence that says so."""
    ids = tokenizer.encode(text, special="text")
    tokens = [tokenizer.vocab[token] for token in ids]
    if tokenizer.kind != "bpe":
        only = MergeStep(pieces=[as_base64(token) for token in tokens], position=None, rank=None)
        note = f"A {tokenizer.kind} tokenizer looks its pieces up: there are no merges to replay."
        return MergesAnswer(ids=ids, steps=[only], note=note)
    ranks = _ranks(tokenizer)
    told = [
        MergeStep(pieces=[as_base64(piece) for piece in pieces], position=position, rank=rank)
        for pieces, position, rank in steps(tokens, ranks)
    ]
    return MergesAnswer(ids=ids, steps=told)


def steps(tokens: list[bytes], ranks: Ranks) -> list[tuple[list[bytes], int | None, int | None]]:
    """The pieces after each merge, which piece it made, and its rank; first all bytes, with neither.

    >>> [pieces for pieces, _, _ in steps([b"abc"], {(b"b", b"c"): 0, (b"a", b"bc"): 1})]
    [[b'a', b'b', b'c'], [b'a', b'bc'], [b'abc']]
    """
    words = [[token[i : i + 1] for i in range(len(token))] for token in tokens]
    found: list[tuple[list[bytes], int | None, int | None]] = [
        ([piece for word in words for piece in word], None, None)
    ]
    while True:
        possible = [
            (rank, number, place)
            for number, word in enumerate(words)
            for place in range(len(word) - 1)
            if (rank := ranks.get((word[place], word[place + 1]))) is not None
        ]
        if not possible:
            return found
        rank, number, place = min(possible)
        words[number][place : place + 2] = [words[number][place] + words[number][place + 1]]
        position = sum(map(len, words[:number])) + place
        found.append(([piece for word in words for piece in word], position, rank))


def _ranks(tokenizer: Tokenizer) -> Ranks:
    return _ranks_of(_Held(tokenizer))


class _Held:
    """A tokenizer as a key: equal where the ids are, so that a copy read anew uses the same table."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.fingerprint = tokenizer, tokenizer.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.fingerprint == self.fingerprint


@lru_cache(maxsize=4)
def _ranks_of(held: _Held) -> Ranks:
    merges: list[tuple[bytes, bytes]] = held.tokenizer.merges  # type: ignore[attr-defined]
    return {pair: rank for rank, pair in enumerate(merges)}
