"""Settings to tokenizer: the kind that is asked for, fitted on the part that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge import BPETokenizer, Corpus, FledgeError, train_bpe
from fledge.config import TokenizerConfig
from fledge.tokenizer import CharacterTokenizer, WordTokenizer, train_tokenizer

VERSES = [f"verse number{number} and the word of day{number}" for number in range(200)]


@pytest.fixture
def corpus() -> Corpus:
    return Corpus.from_documents(VERSES, validation_fraction=0.2)


@pytest.mark.parametrize(
    ("kind", "expected"), [("bpe", BPETokenizer), ("word", WordTokenizer), ("character", CharacterTokenizer)]
)
@pytest.mark.filterwarnings("ignore:The text fills")
def test_the_kind_asked_for_is_trained(corpus: Corpus, kind: str, expected: type) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocabulary_size=400), corpus)  # type: ignore[arg-type]
    assert type(tokenizer) is expected
    assert tokenizer.vocab_size <= 400


def test_held_out_documents_are_not_seen(corpus: Corpus) -> None:
    everything = TokenizerConfig(kind="word", vocabulary_size=None, fit_on="all")
    training = TokenizerConfig(kind="word", vocabulary_size=None)
    held_out = {word for document in corpus.documents("validation") for word in document.decode().split()}
    seen = {word for document in corpus.documents("train") for word in document.decode().split()}
    only_held_out = held_out - seen
    assert only_held_out
    assert only_held_out <= set(WordTokenizer.train(VERSES).pieces)
    assert only_held_out <= set(train_tokenizer(everything, corpus).pieces)  # type: ignore[attr-defined]
    assert not only_held_out & set(train_tokenizer(training, corpus).pieces)  # type: ignore[attr-defined]


def test_bpe_of_a_corpus_is_bpe_of_its_documents(corpus: Corpus) -> None:
    config = TokenizerConfig(vocabulary_size=300, special_tokens=("<|endoftext|>", "<|pad|>"))
    expected = train_bpe(list(corpus.documents("train")), 300, ["<|endoftext|>", "<|pad|>"])
    tokenizer = train_tokenizer(config, corpus)
    assert tokenizer.fingerprint == expected.fingerprint
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.training_profile is not None


def test_a_path_is_loaded_and_nothing_is_trained(corpus: Corpus, tmp_path: Path) -> None:
    WordTokenizer.train(VERSES).save(tmp_path)
    tokenizer = train_tokenizer(TokenizerConfig(path=str(tmp_path)), corpus)
    assert tokenizer.fingerprint == WordTokenizer.train(VERSES).fingerprint
    with pytest.raises(FledgeError, match="no tokenizer at"):
        train_tokenizer(TokenizerConfig(path=str(tmp_path / "missing")), corpus)


def test_settings_without_effect_are_told(corpus: Corpus) -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.pattern has no effect on a word tokenizer"):
        train_tokenizer(TokenizerConfig(kind="word", vocabulary_size=None, pattern="cl100k"), corpus)
