"""What a vocabulary is made of: kinds of tokens, the longest ones, and those that a text never uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fledge.errors import FledgeError
from fledge.tokenizer.base import Tokenizer

KINDS = {
    "special": "special tokens",
    "byte": "single bytes",
    "word": "words",
    "space and word": "words with a space before",
    "number": "numbers",
    "white space": "white space",
    "punctuation": "punctuation and symbols",
    "mixed": "other text",
    "part of a character": "parts of characters, not text alone",
}
"Each kind of token, and what it is called in a table."


class Token(NamedTuple):
    """One token of the vocabulary."""

    token: int
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class VocabularyFacts(NamedTuple):
    """What can be said of a vocabulary without any text."""

    kind: str
    ids: int
    tokens: int
    "Fewer than the ids where some are not taken."
    special_tokens: dict[str, int]
    roles: dict[str, int | None]
    kinds: dict[str, int]
    mean_bytes: float
    "Of the tokens that are not special."
    width: int
    "Bits that an id needs on disk: 16 or 32."
    longest: list[Token]


class Usage(NamedTuple):
    """What a text uses of a vocabulary."""

    source_bytes: int
    tokens: int
    used: int
    unused: list[Token]
    "Tokens that never occur, special ones left out; the highest ids last."
    frequent: list[tuple[Token, int]]
    half: int
    "How many of the most frequent tokens make up half of the text."

    @property
    def bytes_per_token(self) -> float:
        return self.source_bytes / self.tokens if self.tokens else 0.0


def vocabulary_facts(tokenizer: Tokenizer, longest: int = 10) -> VocabularyFacts:
    """Count and sort a vocabulary.

    >>> from fledge.tokenizer import WordTokenizer
    >>> facts = vocabulary_facts(WordTokenizer.train(["egg on toast on egg"]), longest=1)
    >>> facts.kinds["word"], [token.text for token in facts.longest]
    (3, ['toast'])
    """
    special_ids = set(tokenizer.special_tokens.values())
    counts = Counter("special" if token in special_ids else kind_of(data) for token, data in tokenizer.vocab.items())
    ordinary = [Token(token, data) for token, data in tokenizer.vocab.items() if token not in special_ids]
    return VocabularyFacts(
        kind=tokenizer.kind,
        ids=tokenizer.vocab_size,
        tokens=len(tokenizer.vocab),
        special_tokens=dict(tokenizer.special_tokens),
        roles=tokenizer.roles._asdict(),
        kinds={kind: counts[kind] for kind in KINDS if counts[kind]},
        mean_bytes=sum(len(token.data) for token in ordinary) / max(len(ordinary), 1),
        width=8 * tokenizer.token_dtype.itemsize,
        longest=longest_tokens(tokenizer, longest),
    )


def longest_tokens(tokenizer: Tokenizer, count: int = 10) -> list[Token]:
    """The tokens of the most bytes, special ones left out; of equal length, the lower id first."""
    special_ids = set(tokenizer.special_tokens.values())
    ordinary = (Token(token, data) for token, data in tokenizer.vocab.items() if token not in special_ids)
    return sorted(ordinary, key=lambda token: (-len(token.data), token.token))[:count]


class Contrast(NamedTuple):
    """What two vocabularies have in common, and what each has alone."""

    shared: int
    "Tokens of the same bytes, special ones left out."
    only_first: list[Token]
    "In the order of their ids: what was learned first, and so is most frequent, comes first."
    only_second: list[Token]


def contrast(first: Tokenizer, second: Tokenizer) -> Contrast:
    """Hold two vocabularies against each other, token by token.

    >>> from fledge.tokenizer import WordTokenizer
    >>> found = contrast(WordTokenizer.train(["an egg"]), WordTokenizer.train(["an apple"]))
    >>> [token.text for token in found.only_first], [token.text for token in found.only_second]
    (['egg'], ['apple'])
    """

    def ordinary(tokenizer: Tokenizer) -> dict[bytes, int]:
        special = set(tokenizer.special_tokens.values())
        return {data: token for token, data in sorted(tokenizer.vocab.items(), reverse=True) if token not in special}

    def alone(mine: dict[bytes, int], other: dict[bytes, int]) -> list[Token]:
        return sorted(Token(token, data) for data, token in mine.items() if data not in other)

    one, two = ordinary(first), ordinary(second)
    return Contrast(len(one.keys() & two.keys()), alone(one, two), alone(two, one))


def kind_of(data: bytes) -> str:
    """Which of `KINDS` the bytes of a token are.

    >>> kind_of(b" egg"), kind_of(b"42"), kind_of(b"..."), kind_of("é".encode()[:1])
    ('space and word', 'number', 'punctuation', 'byte')
    """
    if len(data) == 1:
        return "byte"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "part of a character"
    if text.isspace():
        return "white space"
    body = text[1:] if text[0] == " " else text
    letters = body.replace("'", "").replace("’", "")
    if letters.isalpha() or (letters and all(character.isalpha() or _is_mark(character) for character in letters)):
        return "space and word" if body is not text else "word"
    if body.isnumeric():
        return "number"
    if not any(character.isalnum() for character in body):
        return "punctuation"
    return "mixed"


def _is_mark(character: str) -> bool:
    import unicodedata

    return unicodedata.category(character).startswith("M")


def usage(tokenizer: Tokenizer, blocks: Iterable[Any], special: Any = "text", frequent: int = 10) -> Usage:
    """What the documents in a corpus's blocks use of the vocabulary."""
    counts: npt.NDArray[np.int64] = np.zeros(tokenizer.vocab_size, np.int64)
    source_bytes = 0
    for block in blocks:
        ids, _ = tokenizer.encode_spans(block.buffer, block.offsets, special)
        counts += np.bincount(ids, minlength=tokenizer.vocab_size)
        source_bytes += len(block.buffer)
    if not source_bytes:
        raise FledgeError("there is no text to look at: every document is empty.")
    special_ids = set(tokenizer.special_tokens.values())
    order = np.argsort(-counts, kind="stable")
    total = int(counts.sum())
    half = int(np.searchsorted(np.cumsum(counts[order]), total / 2)) + 1 if total else 0
    unused = [
        Token(token, tokenizer.vocab[token])
        for token in sorted(tokenizer.vocab)
        if not counts[token] and token not in special_ids
    ]
    met = [int(token) for token in order[:frequent] if counts[token]]  # an id that is not taken never is
    top = [(Token(token, tokenizer.vocab[token]), int(counts[token])) for token in met]
    return Usage(source_bytes, total, int(np.count_nonzero(counts)), unused, top, half)
