"""Settings to tokenizer: the kind that is asked for, fitted on the part that is asked for."""

from __future__ import annotations

import gzip
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


@pytest.mark.parametrize(
    ("name", "settings", "tokens", "native"),
    [
        ("story.txt", {"validation_fraction": 0.0}, {}, True),
        ("story.log", {"validation_fraction": 0.5}, {"fit_on": "all"}, True),
        ("story.txt", {"validation_fraction": 0.5}, {}, False),
        ("story.txt", {"validation_fraction": 0.0, "separator": "|"}, {}, False),
        ("story.txt", {"validation_fraction": 0.0, "max_document_bytes": 10**6}, {}, False),
        ("story.txt", {"validation_fraction": 0.0, "format": "lines"}, {}, False),
        ("story.jsonl", {"validation_fraction": 0.0, "format": "text"}, {}, False),
        ("story.txt.gz", {"validation_fraction": 0.0}, {}, False),
        ("story.txt", {"validation_fraction": 0.0}, {"pattern": r"\w+|\W"}, False),
    ],
)
@pytest.mark.filterwarnings("ignore:.* holds", "ignore:the pattern")
def test_native_code_reads_plain_files_of_which_all_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict, tokens: dict, native: bool
) -> None:
    """Everything else goes through the corpus; what is learned is the same."""
    path, text = tmp_path / name, "<|endoftext|>".join(VERSES).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    corpus, config = Corpus.open(path, **settings), TokenizerConfig(vocabulary_size=300, **tokens)
    given: list[object] = []

    def trained(source: object, *arguments: object, **options: object) -> object:
        given.append(source)
        return train_bpe(source, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("fledge.tokenizer.train.train_bpe", trained)
    tokenizer = train_tokenizer(config, corpus)
    assert given == [[path]] if native else not isinstance(given[0], list)
    if native:
        assert tokenizer.fingerprint == train_bpe(VERSES, 300, ["<|endoftext|>"]).fingerprint


def test_a_held_out_file_is_not_read_by_native_code_either(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("<|endoftext|>".join(VERSES))
    (tmp_path / "held.txt").write_text("<|endoftext|>".join("zzzz" * 50 for _ in range(50)))
    corpus = Corpus.open(tmp_path / "train.txt", validation_source=[tmp_path / "held.txt"], validation_fraction=0.0)
    tokenizer = train_tokenizer(TokenizerConfig(vocabulary_size=300), corpus)
    assert tokenizer.fingerprint == train_bpe(VERSES, 300, ["<|endoftext|>"]).fingerprint
