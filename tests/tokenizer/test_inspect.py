"""Facts of a vocabulary, and what a text uses of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge import BPETokenizer, Corpus, load_tokenizer, train_bpe
from fledge.tokenizer import WordTokenizer
from fledge.tokenizer.inspect import KINDS, kind_of, longest_tokens, usage, vocabulary_facts


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("egg", "word"),
        (" egg", "space and word"),
        ("don't", "word"),
        (" हिन्दी", "space and word"),
        ("1999", "number"),
        (" 42", "number"),
        ("\n\n", "white space"),
        ("  ", "white space"),
        ("...", "punctuation"),
        (" (", "punctuation"),
        ("'s", "word"),
        ("a1", "mixed"),
        ("__", "punctuation"),
    ],
)
def test_every_token_is_of_one_kind(text: str, kind: str) -> None:
    assert kind_of(text.encode()) == kind


def test_half_a_character_is_no_text() -> None:
    assert kind_of("€".encode()[:2]) == "part of a character"
    assert kind_of(b"\x80") == "byte"


def test_kinds_sum_to_the_vocabulary() -> None:
    tokenizer = train_bpe(["egg Egg eggs, 12 12 12...\n\n\n\n"] * 9, 268, ["<|endoftext|>"])
    facts = vocabulary_facts(tokenizer)
    assert sum(facts.kinds.values()) == facts.tokens == 268
    assert facts.kinds["byte"] == 256
    assert facts.kinds["special"] == 1
    assert set(facts.kinds) <= set(KINDS)
    assert facts.width == 16


def test_longest_tokens_leave_special_ones_out() -> None:
    tokenizer = train_bpe(["the thes theses "] * 20, 262, ["<|a very long special token|>"])
    lengths = [len(token.data) for token in longest_tokens(tokenizer, 5)]
    assert lengths == sorted(lengths, reverse=True)
    assert "special" not in longest_tokens(tokenizer, 1)[0].text


def test_gpt2s_longest_token_is_the_known_one(shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "cs336" / "gpt2_vocab.json")
    facts = vocabulary_facts(tokenizer, longest=2)
    assert [len(token.data) for token in facts.longest] == [128, 66]
    assert facts.kinds["special"] == 1


def test_ids_that_are_not_taken_are_never_frequent() -> None:
    tokenizer = BPETokenizer({1 + byte: bytes([byte]) for byte in range(256)}, [])
    used = usage(tokenizer, Corpus.from_documents(["abba"], validation_fraction=0).blocks())
    assert [(token.text, count) for token, count in used.frequent] == [("a", 2), ("b", 2)]


def test_what_a_text_never_uses() -> None:
    tokenizer = WordTokenizer.train(["egg on toast"])
    used = usage(tokenizer, Corpus.from_documents(["egg egg on"], validation_fraction=0).blocks())
    assert used.tokens == 5
    assert used.source_bytes == 10
    assert used.bytes_per_token == 2
    assert used.used == 3
    assert [token.text for token in used.unused][-1] == "toast"
    assert used.frequent[0][1] == 2
    assert used.half == 2
    assert not any(token.token < 4 for token in used.unused)
