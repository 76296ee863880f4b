"""Tokenizers against corpora: bytes per token, speed, the time that 825 GB would take, the width of an id.

Every tokenizer is measured on every corpus, so that one trained elsewhere shows what it loses away from home.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge.errors import FledgeError
from fledge.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from fledge.corpus import Corpus, TextBlock

THE_PILE = 825e9
"Bytes of The Pile: a corpus large enough for speed to matter."
PASSES = 3
"How often a text is encoded for its speed, by one tokenizer after the other; the best pass counts."
TIMED = 8_000_000
"Bytes of a corpus on which speed is measured, at most: passes are short, and all of them see the same machine."


class Measurement(NamedTuple):
    """One tokenizer on one corpus."""

    tokenizer: str
    corpus: str
    source_bytes: int
    tokens: int
    seconds: float
    "For all of the text, at the speed of the best pass."
    width: int
    "Bits per id on disk."
    spread: float = 0.0
    "By how many seconds the slowest pass was slower."

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


def compare_tokenizers(
    tokenizers: Mapping[str, Tokenizer],
    corpora: Mapping[str, Corpus],
    *,
    limit: int | None = None,
    threads: int | None = None,
) -> list[Measurement]:
    """Measure every tokenizer on every corpus, or on the first `limit` bytes or so of it.

    Reading the corpus and making a tokenizer ready are not part of the time. Speed is the best of several passes over
    the same text, whose words are then known: a text of new and rare words takes somewhat longer.

    >>> from fledge.corpus import Corpus
    >>> from fledge.tokenizer import CharacterTokenizer, WordTokenizer
    >>> story = "the cat and the dog and the cat"
    >>> measured = compare_tokenizers(
    ...     {"word": WordTokenizer.train([story]), "character": CharacterTokenizer([])},
    ...     {"story": Corpus.from_documents([story], validation_fraction=0)},
    ... )
    >>> [round(one.bytes_per_token, 2) for one in measured]
    [2.07, 1.0]
    """
    measured = []
    for corpus_name, corpus in corpora.items():
        tokens = dict.fromkeys(tokenizers, 0)
        passes = {name: [0.0] * PASSES for name in tokenizers}
        source_bytes = timed_bytes = 0
        for block in limited(corpus, limit):
            source_bytes += len(block.buffer)
            for name, tokenizer in tokenizers.items():  # which makes it ready too, with the words that are frequent
                ids, _ = tokenizer.encode_spans(block.buffer, block.offsets, corpus.special, threads)
                tokens[name] += len(ids)
            if timed_bytes >= TIMED:
                continue
            block = _first(block, TIMED - timed_bytes)
            timed_bytes += len(block.buffer)
            for number in range(PASSES):
                for name, tokenizer in tokenizers.items():
                    started = time.perf_counter()
                    tokenizer.encode_spans(block.buffer, block.offsets, corpus.special, threads)
                    passes[name][number] += time.perf_counter() - started
        if not source_bytes:
            raise FledgeError(f"{corpus_name} holds no text to compare on.")
        whole = source_bytes / timed_bytes
        for name, tokenizer in tokenizers.items():
            best, width = min(passes[name]), 8 * tokenizer.token_dtype.itemsize
            spread = (max(passes[name]) - best) * whole
            measured.append(Measurement(name, corpus_name, source_bytes, tokens[name], best * whole, width, spread))
    return measured


class Sample(NamedTuple):
    """One tokenizer on some documents of a corpus, each by itself."""

    tokenizer: str
    corpus: str
    documents: list[tuple[int, int]]
    "Bytes and tokens of each."

    @property
    def ratios(self) -> list[float]:
        """Bytes per token of each document."""
        return [size / tokens for size, tokens in self.documents]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.ratios)

    @property
    def deviation(self) -> float:
        """The standard deviation from document to document; 0 of one."""
        return statistics.stdev(self.ratios) if len(self.documents) > 1 else 0.0

    def record(self) -> dict[str, Any]:
        """All of it by name, for JSON."""
        return {**self._asdict(), "ratios": self.ratios, "mean": self.mean, "deviation": self.deviation}


def sample_documents(corpus: Corpus, count: int, limit: int | None = None) -> list[bytes]:
    """Some documents of a corpus, or of the first `limit` bytes or so: every one is as likely, and empty ones are none.

    >>> from fledge.corpus import Corpus
    >>> sample_documents(Corpus.from_documents(["one", "", "two", "three"], validation_fraction=0), 2)
    [b'one', b'three']
    """
    draw, kept, met = random.Random(0), list[tuple[int, bytes]](), 0
    for block in limited(corpus, limit):
        for start, end in pairwise(block.offsets.tolist()):
            if start == end:
                continue
            met += 1
            place = len(kept) if len(kept) < count else draw.randrange(met)
            if place < count:
                kept[place : place + 1] = [(met, bytes(block.buffer[start:end]))]
    return [document for _, document in sorted(kept)]


def compare_documents(
    tokenizers: Mapping[str, Tokenizer],
    corpora: Mapping[str, Corpus],
    count: int = 10,
    *,
    limit: int | None = None,
) -> list[Sample]:
    """How well every tokenizer compresses a sample of each corpus's documents, one by one.

    A corpus as a whole hides how much documents differ: a long one in another language weighs as much as hundreds.

    >>> from fledge.corpus import Corpus
    >>> from fledge.tokenizer import CharacterTokenizer
    >>> texts = Corpus.from_documents(["plain", "naïve"], validation_fraction=0)
    >>> compare_documents({"character": CharacterTokenizer(["ï"])}, {"words": texts})[0].ratios
    [1.0, 1.2]
    """
    found = []
    for corpus_name, corpus in corpora.items():
        documents = sample_documents(corpus, count, limit)
        if not documents:
            raise FledgeError(f"{corpus_name} holds no text to compare on.")
        for name, tokenizer in tokenizers.items():
            sizes = [(len(text), len(tokenizer.encode_array(text, corpus.special))) for text in documents]
            found.append(Sample(name, corpus_name, sizes))
    return found


def clearly_fastest(measured: Sequence[Measurement]) -> Measurement | None:
    """The fastest of several on the same corpus; None where another is within the spread of their passes.

    >>> one, two = Measurement("a", "x", 100, 50, 1.0, 16, 0.1), Measurement("b", "x", 100, 50, 1.2, 16, 0.1)
    >>> clearly_fastest([one, two]).tokenizer, clearly_fastest([one, two._replace(spread=0.3)])
    ('a', None)
    """
    first, *others = sorted(measured, key=lambda one: one.seconds)
    clear = all(other.seconds - first.seconds > max(first.spread, other.spread) for other in others)
    return first if clear else None


def limited(corpus: Corpus, limit: int | None) -> Iterator[TextBlock]:
    """Blocks of a corpus until `limit` bytes are passed; documents stay whole."""
    left = float("inf") if limit is None else limit
    for block in corpus.blocks():
        yield _first(block, left)
        left -= len(block.buffer)
        if left <= 0:
            return


def _first(block: TextBlock, size: float) -> TextBlock:
    """The documents of a block that fit into `size` bytes; the first in any case."""
    if len(block.buffer) <= size:
        return block
    import numpy as np

    count = max(1, int(np.searchsorted(block.offsets, int(size), side="right")) - 1)
    return block._replace(
        buffer=block.buffer[: int(block.offsets[count])], offsets=block.offsets[: count + 1], parts=block.parts[:count]
    )
