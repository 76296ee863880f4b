"""The matrix of compression: every tokenizer on every corpus, at home and away."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge import Corpus, FledgeError, train_bpe
from fledge.tokenizer import CharacterTokenizer, WordTokenizer
from fledge.tokenizer.compare import Measurement, compare, limited

STORIES = ["the little dog ran to the little cat"] * 40
LAWS = ["notwithstanding the foregoing provisions hereof"] * 40


def test_a_tokenizer_compresses_best_at_home() -> None:
    tokenizers = {"stories": train_bpe(STORIES, 270), "laws": train_bpe(LAWS, 270)}
    corpora = {
        "stories": Corpus.from_documents(STORIES, validation_fraction=0),
        "laws": Corpus.from_documents(LAWS, validation_fraction=0),
    }
    ratio = {(one.tokenizer, one.corpus): one.bytes_per_token for one in compare(tokenizers, corpora)}
    assert len(ratio) == 4
    assert ratio["stories", "stories"] > ratio["laws", "stories"]
    assert ratio["laws", "laws"] > ratio["stories", "laws"]


def test_the_ratio_is_bytes_by_tokens_of_each_document() -> None:
    documents = ["wörter", "und Wörter"]
    corpus = Corpus.from_documents(documents, validation_fraction=0)
    words = WordTokenizer.train(documents)
    (measured,) = compare({"words": words}, {"documents": corpus})
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
        compare({"characters": CharacterTokenizer([])}, {"nothing": corpus})


def test_files_are_compared_with_their_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>".join(STORIES))
    tokenizer = train_bpe(path, 270, ["<|endoftext|>"])
    (measured,) = compare({"own": tokenizer}, {"file": Corpus.open(path, validation_fraction=0)})
    assert measured.source_bytes == sum(map(len, STORIES))
