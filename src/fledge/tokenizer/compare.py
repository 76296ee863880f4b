"""Tokenizers against corpora: bytes per token, speed, the time that 825 GB would take, the width of an id.

Every tokenizer is measured on every corpus, so that one trained elsewhere shows what it loses away from home.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge.errors import FledgeError
from fledge.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from fledge.corpus import Block, Corpus

THE_PILE = 825e9
"Bytes of The Pile: a corpus large enough for speed to matter."


class Measurement(NamedTuple):
    """One tokenizer on one corpus."""

    tokenizer: str
    corpus: str
    source_bytes: int
    tokens: int
    seconds: float
    width: int
    "Bits per id on disk."

    @property
    def bytes_per_token(self) -> float:
        return self.source_bytes / self.tokens if self.tokens else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.source_bytes / self.seconds if self.seconds else 0.0

    @property
    def pile_seconds(self) -> float:
        """How long 825 GB would take at this speed."""
        return THE_PILE / self.bytes_per_second if self.source_bytes else 0.0

    @property
    def pile_bytes(self) -> float:
        """How large the ids of 825 GB would be on disk."""
        return THE_PILE / self.bytes_per_token * self.width / 8 if self.tokens else 0.0

    def record(self) -> dict[str, Any]:
        """All of it by name, for JSON."""
        derived = ("bytes_per_token", "bytes_per_second", "pile_seconds", "pile_bytes")
        return {**self._asdict(), **{name: getattr(self, name) for name in derived}}


def compare(
    tokenizers: Mapping[str, Tokenizer],
    corpora: Mapping[str, Corpus],
    *,
    limit: int | None = None,
    threads: int | None = None,
) -> list[Measurement]:
    """Measure every tokenizer on every corpus, or on the first `limit` bytes or so of it.

    Reading the corpus and making a tokenizer ready are not part of the time.

    >>> from fledge.corpus import Corpus
    >>> from fledge.tokenizer import CharacterTokenizer, WordTokenizer
    >>> story = "the cat and the dog and the cat"
    >>> measured = compare(
    ...     {"word": WordTokenizer.train([story]), "character": CharacterTokenizer([])},
    ...     {"story": Corpus.from_documents([story], validation_fraction=0)},
    ... )
    >>> [round(one.bytes_per_token, 2) for one in measured]
    [2.07, 1.0]
    """
    for tokenizer in tokenizers.values():
        tokenizer.encode("ready?")
    measured = []
    for corpus_name, corpus in corpora.items():
        totals = {name: [0, 0.0] for name in tokenizers}
        source_bytes = 0
        for block in limited(corpus, limit):
            source_bytes += len(block.buffer)
            for name, tokenizer in tokenizers.items():
                started = time.perf_counter()
                ids, _ = tokenizer.encode_spans(block.buffer, block.offsets, corpus.special, threads)
                totals[name][1] += time.perf_counter() - started
                totals[name][0] += len(ids)
        if not source_bytes:
            raise FledgeError(f"{corpus_name} holds no text to compare on.")
        measured += [
            Measurement(
                name,
                corpus_name,
                source_bytes,
                int(tokens),
                seconds,
                8 * tokenizers[name].token_dtype.itemsize,
            )
            for name, (tokens, seconds) in totals.items()
        ]
    return measured


def limited(corpus: Corpus, limit: int | None) -> Iterator[Block]:
    """Blocks of a corpus until `limit` bytes are passed; documents stay whole."""
    left = float("inf") if limit is None else limit
    for block in corpus.blocks():
        size = len(block.buffer)
        if size > left:
            import numpy as np

            count = max(1, int(np.searchsorted(block.offsets, int(left), side="right")) - 1)
            end = int(block.offsets[count])
            block = block._replace(
                buffer=block.buffer[:end],
                offsets=block.offsets[: count + 1],
                validation=block.validation[:count],
            )
        yield block
        left -= size
        if left <= 0:
            return


def readable_time(seconds: float) -> str:
    """
    >>> readable_time(38 * 3600), readable_time(90), readable_time(3.2)
    ('38.0 h', '1.5 min', '3.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    if seconds < 72 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
