"""The character tokenizer: one id per known character, bytes for the others, every text back exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import FledgeError
from fledge.tokenizer import CharacterTokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


@pytest.fixture(scope="module")
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer.train(["naïve café, 中文 😀 €"])


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text_comes_back(tokenizer: CharacterTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), errors="surrogatepass") == text


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_come_back(tokenizer: CharacterTokenizer, data: bytes) -> None:
    assert tokenizer.decode_bytes(tokenizer.encode_array(data)) == data


@settings(deadline=None)
@given(st.text(st.sampled_from("aïé中😀€ßж<|end>\x00"), max_size=40))
def test_each_known_character_is_one_id(tokenizer: CharacterTokenizer, text: str) -> None:
    """The plain way of writing it, character by character, is the judge."""
    expected: list[int] = []
    for character in text:
        token = tokenizer.known.get(character)
        expected += [4 + byte for byte in character.encode()] if token is None else [token]
    assert tokenizer.encode(text, "text") == expected


@settings(deadline=None)
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_spans_are_encoded_each_on_its_own(tokenizer: CharacterTokenizer, data: bytes, cuts: list[int]) -> None:
    offsets = np.array(sorted(min(cut, len(data)) for cut in [*cuts, 0]), np.uint64)
    ids, bounds = tokenizer.encode_spans(data, offsets)
    for index in range(len(offsets) - 1):
        span = data[int(offsets[index]) : int(offsets[index + 1])]
        found = ids[int(bounds[index]) : int(bounds[index + 1])]
        assert found.tolist() == tokenizer.encode_array(span, "text").tolist()


@settings(deadline=None)
@given(st.text(st.sampled_from("aé中<|end>pad"), max_size=40), st.integers(1, 9))
def test_the_way_a_text_is_cut_changes_no_id(tokenizer: CharacterTokenizer, text: str, size: int) -> None:
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(tokenizer.encode_iterable(parts)) == tokenizer.encode(text)


def test_a_special_token_cut_in_two_is_found(tokenizer: CharacterTokenizer) -> None:
    assert list(tokenizer.encode_iterable(["a<|en", "d|>b<"])) == [101, 2, 102, 64]


def test_frequency_decides_who_gets_an_id() -> None:
    tokenizer = CharacterTokenizer.train(["ééé ßß ж"], min_frequency=2)
    assert tokenizer.pieces == ("é", "ß")
    assert CharacterTokenizer.train(["ééé ßß ж"], 261).pieces == ("é",)


@pytest.mark.parametrize("piece", ["", "ab", "a", "\ud800", 5])
def test_what_is_not_a_character_beyond_ascii_is_refused(piece: object) -> None:
    with pytest.raises(FledgeError, match="pieces must be"):
        CharacterTokenizer([piece])  # type: ignore[list-item]


def test_an_unknown_id_is_refused(tokenizer: CharacterTokenizer) -> None:
    with pytest.raises(FledgeError, match="9999"):
        tokenizer.decode([9999])
