"""The word tokenizer: any text comes back, however rare its words; ids are those promised."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import FledgeError
from fledge.tokenizer import CharacterTokenizer, Roles, WordTokenizer
from fledge.tokenizer.word import words

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
WORDY = st.text(st.sampled_from(list("ab'’ \n.,é\u0301हि<|>startend\ud800\U0001f600")), max_size=80)
CORPUS = ["The cat's café, the cat’s CAFÉ.\n\nnaïve हिन्दी words; <s> and </s>  twice  twice"]


@pytest.fixture(scope="module")
def tokenizer() -> WordTokenizer:
    return WordTokenizer.train(CORPUS)


def test_special_ids_are_fixed(tokenizer: WordTokenizer) -> None:
    assert tokenizer.special_tokens == {"<|unknown|>": 0, "<|start|>": 1, "<|end|>": 2, "<|pad|>": 3}
    assert tokenizer.roles == Roles(unknown=0, start=1, end=2, pad=3, separator=None)
    assert [tokenizer.vocab[4 + byte] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert sorted(tokenizer.vocab) == list(range(tokenizer.vocab_size))


def test_no_two_ids_stand_for_the_same_bytes(tokenizer: WordTokenizer) -> None:
    assert max(Counter(tokenizer.vocab.values()).values()) == 1


def test_white_space_and_punctuation_are_tokens_of_their_own() -> None:
    assert words("Hello?  You're\n\tannoying...") == [
        "Hello",
        "?",
        "  ",
        "You're",
        "\n\t",
        "annoying",
        ".",
        ".",
        ".",
    ]


def test_words_of_scripts_with_combining_marks_stay_whole() -> None:
    assert words("हिन्दी cafe\u0301") == ["हिन्दी", " ", "cafe\u0301"]


@settings(deadline=None)
@given(ANY_TEXT)
def test_pieces_joined_are_the_text(text: str) -> None:
    assert "".join(words(text)) == text


@settings(deadline=None)
@given(ANY_TEXT | WORDY)
def test_any_text_comes_back(tokenizer: WordTokenizer, text: str) -> None:
    for special in ("recognise", "text"):
        assert tokenizer.decode(tokenizer.encode(text, special), errors="surrogatepass") == text


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_come_back(tokenizer: WordTokenizer, data: bytes) -> None:
    assert tokenizer.decode_bytes(tokenizer.encode_array(data)) == data


def test_known_words_are_one_id_and_unknown_ones_are_spelled(tokenizer: WordTokenizer) -> None:
    assert len(tokenizer.encode("cat's café")) == 3
    assert tokenizer.encode("zoo") == [4 + ord(letter) for letter in "zoo"]
    # é is known as a character of a known word; € is not, and needs its three bytes
    spelled = tokenizer.encode("zé€")
    assert [tokenizer.vocab[token] for token in spelled] == [b"z", "é".encode(), b"\xe2", b"\x82", b"\xac"]


@settings(deadline=None)
@given(WORDY | ANY_TEXT | st.text(" \n\ta.", max_size=30))
def test_every_piece_is_encoded_by_itself(tokenizer: WordTokenizer, text: str) -> None:
    """The plain way of writing it, piece by piece, is the judge."""
    expected: list[int] = []
    for piece in words(text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")):
        for part in [piece] if piece in tokenizer.known else piece:
            data = part.encode("utf-8", "surrogateescape")
            expected += [tokenizer.known[part]] if part in tokenizer.known else [4 + byte for byte in data]
    assert tokenizer.encode(text, "text") == expected


@settings(deadline=None)
@given(st.lists(WORDY | st.text(" \n\ta.é", max_size=30), max_size=5))
def test_pieces_are_counted_as_they_are_cut(texts: list[str]) -> None:
    clean = [text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for text in texts]
    expected = Counter(piece for text in clean for piece in words(text))
    characters = Counter(character for piece in expected.elements() if len(piece) > 1 for character in piece)
    counted = WordTokenizer.count(clean)
    for piece in {*counted, *expected}:
        if piece.isascii() and len(piece) == 1:
            continue  # has its id as a byte already
        assert counted[piece] == expected[piece] + characters[piece]


def test_a_character_comes_before_every_word_that_it_is_part_of() -> None:
    tokenizer = WordTokenizer.train(["où où où déjà déjà à"])
    for position, piece in enumerate(tokenizer.pieces):
        for character in piece:
            assert character.isascii() or tokenizer.pieces.index(character) <= position


def test_frequency_and_size_limit_the_vocabulary() -> None:
    text = ["one two two three three three"]
    assert WordTokenizer.train(text).pieces == ("three", "two", "one")
    assert WordTokenizer.train(text, min_frequency=2).pieces == ("three", "two")
    assert WordTokenizer.train(text, 261).pieces == ("three",)
    with pytest.warns(UserWarning, match="fills 263 of the 300"):
        WordTokenizer.train(text, 300)


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(FledgeError, match="at least 260"):
        WordTokenizer.train(["a"], 100)


def test_encode_takes_a_list_and_lines_are_wrapped(tokenizer: WordTokenizer) -> None:
    assert tokenizer.encode(["The cat", "'s café"]) == tokenizer.encode("The cat") + tokenizer.encode("'s café")
    assert tokenizer.encode_lines(["The", ""]) == [[1, *tokenizer.encode("The"), 2], [1, 2]]


def test_one_keyword_rules_special_tokens(tokenizer: WordTokenizer) -> None:
    text = "The<|end|>"
    assert tokenizer.encode(text)[-1] == 2
    assert 2 not in tokenizer.encode(text, "text")
    with pytest.raises(FledgeError, match=r"<\|end\|>"):
        tokenizer.encode(text, "refuse")
    with pytest.raises(FledgeError, match="special"):
        tokenizer.encode(text, "recognize")  # type: ignore[arg-type]


@settings(deadline=None)
@given(WORDY, st.lists(st.integers(0, 80), max_size=8))
def test_the_way_a_text_is_cut_changes_no_id(tokenizer: WordTokenizer, text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(edges) if end > start]
    for special in ("recognise", "text"):
        assert list(tokenizer.encode_iterable(parts, special)) == tokenizer.encode(text, special)


@settings(deadline=None)
@given(st.binary(max_size=60), st.integers(1, 7))
def test_bytes_cut_inside_characters_keep_their_ids(tokenizer: WordTokenizer, data: bytes, size: int) -> None:
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert list(tokenizer.encode_iterable(parts)) == tokenizer.encode_array(data).tolist()


def test_encode_iterable_is_lazy(tokenizer: WordTokenizer) -> None:
    endless = itertools.repeat("The café ")
    assert list(itertools.islice(tokenizer.encode_iterable(endless), 4)) == tokenizer.encode("The café ")


def test_a_megabyte_without_a_space_in_small_parts_is_quick(tokenizer: WordTokenizer) -> None:
    assert len(list(tokenizer.encode_iterable("x" * 100 for _ in range(10_000)))) == 1_000_000


@settings(max_examples=50, deadline=None)
@given(st.lists(ANY_TEXT, max_size=5))
def test_spans_are_encoded_each_on_its_own(tokenizer: WordTokenizer, texts: list[str]) -> None:
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.uint64)
    ids, bounds = tokenizer.encode_spans(b"".join(parts), offsets)
    assert ids.dtype == np.uint16
    assert bounds.dtype == np.uint64
    for index, part in enumerate(parts):
        span = ids[int(bounds[index]) : int(bounds[index + 1])]
        assert span.tolist() == tokenizer.encode_array(part, "text").tolist()


def test_a_stream_never_shows_half_a_character(tokenizer: WordTokenizer) -> None:
    decoder = tokenizer.decoder()
    shown = [decoder.push(token) for token in tokenizer.encode("a€b")]
    assert shown == ["a", "", "", "€", "b"]
    assert decoder.push(4 + 0xE2) + decoder.finish() == "\ufffd"


def test_the_fingerprint_follows_the_vocabulary(tokenizer: WordTokenizer) -> None:
    assert tokenizer.fingerprint == WordTokenizer(tokenizer.pieces).fingerprint
    assert tokenizer.fingerprint != WordTokenizer(tokenizer.pieces[1:]).fingerprint
    assert len(tokenizer.fingerprint) == 64


def test_it_travels_to_another_process(tokenizer: WordTokenizer) -> None:
    assert pickle.loads(pickle.dumps(tokenizer)).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("piece", ["", "a", "two words", "a.", "\udcff", 7, None])
def test_a_piece_that_could_not_be_found_again_is_refused(piece: object) -> None:
    with pytest.raises(FledgeError, match="pieces must be"):
        WordTokenizer([piece])  # type: ignore[list-item]


def test_a_piece_given_twice_is_refused() -> None:
    with pytest.raises(FledgeError, match="both 'the'"):
        WordTokenizer(["the", "cat", "the"])


def test_real_text_comes_back(shared_data: Path) -> None:
    text = (shared_data / "tinystories" / "tinystories_10k_lines.txt").read_bytes().decode()
    tokenizer = WordTokenizer.train([text], 4000)
    assert tokenizer.decode(tokenizer.encode_array(text)) == text
    messy = (shared_data / "messy" / "blns.txt").read_bytes()
    assert tokenizer.decode_bytes(tokenizer.encode_array(messy)) == messy


@pytest.mark.parametrize("kind", [WordTokenizer, CharacterTokenizer])
def test_a_refusal_names_the_character_of_the_whole_text(kind, tmp_path, monkeypatch):
    from fledge.tokenizer import base

    monkeypatch.setattr(base, "READ_AT_ONCE", 16)
    tokenizer = kind.train(["the egg"])
    text = "été " * 50 + "<|end|>"
    source = tmp_path / "text.txt"
    source.write_text(text, encoding="utf-8")
    ways = [
        lambda: tokenizer.encode(text, special="refuse"),
        lambda: list(tokenizer.encode_iterable([text[i : i + 7] for i in range(0, len(text), 7)], special="refuse")),
        lambda: tokenizer.encode_file(source, tmp_path / "ids.bin", special="refuse"),
    ]
    for way in ways:
        with pytest.raises(FledgeError, match=r"<\|end\|> at character 200,"):
            way()


@pytest.mark.parametrize(
    "options", [{"vocab_size": "300"}, {"vocab_size": 300.5}, {"vocab_size": 10**30}, {"min_frequency": 0}]
)
def test_wrong_types_get_one_sentence(options):
    with pytest.raises(FledgeError, match="must be a whole number"):
        WordTokenizer.train(["the egg"], **options)
    with pytest.raises(FledgeError, match="one text; give a list"):
        WordTokenizer.train("the egg")
    with pytest.raises(FledgeError, match="a int is no list of texts"):
        WordTokenizer.train(5)
    with pytest.raises(FledgeError, match="one text; give a list"):
        WordTokenizer([]).encode_lines("the egg")
