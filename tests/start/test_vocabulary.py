"""The vocabulary of a text by counting: what decides, when it is asked, and that a start keeps what was chosen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fledge.corpus import Corpus
from fledge.evaluation import baselines
from fledge.start import plan, vocabulary
from fledge.start.look import Look
from fledge.start.speed import Way
from fledge.start.start import Start
from fledge.start.vocabulary import count_vocabularies, fivegram_bits, worth_counting
from fledge.tokenizer import train_bpe

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def documents(new_words: bool) -> list[str]:
    """Of words that are learned once and come back, or of words that are new each time."""
    chance = random.Random(0)

    def invented() -> str:
        return "".join(chance.choice("aeiou") + chance.choice(LETTERS) for _ in range(chance.randint(2, 4)))

    known = ["".join(chance.choice(LETTERS) for _ in range(chance.randint(4, 9))) for _ in range(1500)]
    return [" ".join(invented() if new_words else chance.choice(known) for _ in range(600)) for _ in range(50)]


def test_words_that_come_back_want_a_large_vocabulary_and_new_ones_a_small() -> None:
    for new, best in ((False, 4096), (True, 1024)):
        found = count_vocabularies(Corpus.from_documents(documents(new)), 2048)
        assert found is not None
        size, tokenizer, why = found
        assert size == tokenizer.vocab_size == best
        assert all(f"with {ids}" in why for ids in ("1,024", "2,048", "4,096"))


def test_nothing_is_counted_on_too_little_held_out_text() -> None:
    assert count_vocabularies(Corpus.from_documents(documents(False)[:3], validation_fraction=0), 2048) is None


def test_the_figure_is_in_bits_per_byte_of_the_held_out_text() -> None:
    """Held against the trigram of the reports: on text without a pattern, two tokens more of context change nothing."""
    text = [" ".join(random.Random(n).choices(["red", "blue", "green"], k=4000)) for n in (1, 2)]
    tokenizer = train_bpe(text, 300)
    train, ids = (tokenizer.encode_array(part) for part in text)
    nats_a_byte = baselines(train, ids, tokenizer.vocab_size).trigram * len(ids) / len(text[1])
    bits = fivegram_bits(text[0].encode(), text[1].encode(), tokenizer)
    assert bits == pytest.approx(nats_a_byte / 0.6931, rel=0.05)


def test_it_is_asked_where_it_was_measured() -> None:
    """Not of a short text, of one much longer than the sample, or where a model would see few tokens."""
    asked = [(1e6, 3e6), (4e6, 3e6), (1e5, 3e6), (64e6, 3e6), (1e6, 5e5)]
    assert [worth_counting(Look(100, int(size), 80), seen) for size, seen in asked] == [True, True, False, False, False]


def test_a_start_says_what_was_counted_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "measured_speed", lambda *_: 1e4)
    monkeypatch.setattr(plan, "quick_precision", lambda *_: Way({}, 1e4))
    monkeypatch.setattr(vocabulary, "FROM_BYTES", 100_000)
    monkeypatch.setattr(vocabulary, "FROM_TOKENS", 1e5)
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(documents(False)))
    said: list[tuple[str, str]] = []

    def begin(*given: str) -> int | None:
        start = Start(
            [str(tmp_path / "text.txt")], 60.0, "1m", tmp_path / "run", lambda *fact: said.append(fact), given
        )
        return start.run().config.tokenizer.vocabulary_size

    assert begin() == 2048
    assert next(fact for word, fact in said if word == "vocabulary").startswith("measured on held-out text, a 5-gram")
    assert "# Measured on held-out text, a 5-gram" in (tmp_path / "run" / "recipe.toml").read_text()
    monkeypatch.setattr(vocabulary, "count_vocabularies", None)  # not asked again
    assert begin() == 2048
