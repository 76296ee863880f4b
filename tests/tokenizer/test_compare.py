"""The matrix of compression: every tokenizer on every corpus, at home and away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fledge import Corpus, FledgeError, train_bpe
from fledge.tokenizer import CharacterTokenizer, WordTokenizer
from fledge.tokenizer import compare as module
from fledge.tokenizer.compare import Measurement, clearly_fastest, compare_tokenizers, limited

STORIES = ["the little dog ran to the little cat"] * 40
LAWS = ["notwithstanding the foregoing provisions hereof"] * 40


def test_a_tokenizer_compresses_best_at_home() -> None:
    tokenizers = {"stories": train_bpe(STORIES, 270), "laws": train_bpe(LAWS, 270)}
    corpora = {
        "stories": Corpus.from_documents(STORIES, validation_fraction=0),
        "laws": Corpus.from_documents(LAWS, validation_fraction=0),
    }
    ratio = {(one.tokenizer, one.corpus): one.bytes_per_token for one in compare_tokenizers(tokenizers, corpora)}
    assert len(ratio) == 4
    assert ratio["stories", "stories"] > ratio["laws", "stories"]
    assert ratio["laws", "laws"] > ratio["stories", "laws"]


def test_the_ratio_is_bytes_by_tokens_of_each_document() -> None:
    documents = ["wörter", "und Wörter"]
    corpus = Corpus.from_documents(documents, validation_fraction=0)
    words = WordTokenizer.train(documents)
    (measured,) = compare_tokenizers({"words": words}, {"documents": corpus})
    assert measured.source_bytes == sum(len(text.encode()) for text in documents)
    assert measured.tokens == sum(len(words.encode(text)) for text in documents)
    assert measured.width == 16
    assert measured.record()["bytes_per_token"] == measured.bytes_per_token


def test_the_projection_is_proportional() -> None:
    measured = Measurement("a", "b", source_bytes=6_030_000, tokens=2_000_000, seconds=1.0, width=16)
    assert measured.pile_seconds / 3600 == pytest.approx(38.0, abs=0.1)
    assert measured.pile_bytes == pytest.approx(825e9 / 3.015 * 2)


def test_a_limit_keeps_documents_whole() -> None:
    corpus = Corpus.from_documents(["aaaa", "bbbb", "cccc"], validation_fraction=0)
    for limit, expected in (
        (1, b"aaaa"),
        (4, b"aaaa"),
        (7, b"aaaa"),
        (8, b"aaaabbbb"),
        (99, b"aaaabbbbcccc"),
    ):
        blocks = list(limited(corpus, limit))
        assert b"".join(bytes(block.buffer) for block in blocks) == expected
        assert all(int(block.offsets[-1]) == len(block.buffer) for block in blocks)


def test_nothing_to_compare_on_is_told() -> None:
    corpus = Corpus.from_documents([], validation_fraction=0)
    with pytest.raises(FledgeError, match=r"no text|no documents"):
        compare_tokenizers({"characters": CharacterTokenizer([])}, {"nothing": corpus})


def test_files_are_compared_with_their_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>".join(STORIES))
    tokenizer = train_bpe(path, 270, ["<|endoftext|>"])
    (measured,) = compare_tokenizers({"own": tokenizer}, {"file": Corpus.open(path, validation_fraction=0)})
    assert measured.source_bytes == sum(map(len, STORIES))


class Timed(CharacterTokenizer):
    """Takes so many seconds of a clock that stands still otherwise, one after the other for each call."""

    clock = 0.0

    def __init__(self, seconds: list[float]) -> None:
        super().__init__([])
        self.seconds = seconds

    def encode_spans(self, *arguments: Any, **options: Any) -> Any:
        Timed.clock += self.seconds.pop(0)
        return super().encode_spans(*arguments, **options)


def test_speed_is_the_best_of_short_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one that makes ready, which does not count; on a part of a long text, whose time is that of all of it."""
    monkeypatch.setattr(module.time, "perf_counter", lambda: Timed.clock)
    monkeypatch.setattr(module, "TIMED", 4)
    corpus = Corpus.from_documents(["aaaa", "bbbb", "cccc"], validation_fraction=0)
    (slow, quick) = compare_tokenizers({"slow": Timed([9, 3, 4, 5]), "quick": Timed([9, 2, 7, 1])}, {"letters": corpus})
    assert (slow.source_bytes, slow.tokens, slow.seconds, slow.spread) == (12, 12, 9.0, 6.0)
    assert (quick.seconds, quick.spread) == (3.0, 18.0)
    assert slow.record()["spread"] == 6.0


def test_no_fastest_is_named_within_the_spread() -> None:
    one = Measurement("one", "x", 100, 50, 1.0, 16, spread=0.1)
    for seconds, spread, named in ((1.3, 0.1, True), (1.3, 0.4, False), (1.05, 0.0, False), (1.0, 0.0, False)):
        other = Measurement("other", "x", 100, 50, seconds, 16, spread)
        for measured in ([one, other], [other, one]):
            assert clearly_fastest(measured) == (one if named else None)
    assert clearly_fastest([one]) == one
