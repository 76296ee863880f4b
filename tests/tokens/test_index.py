"""The index of passages: what generated text has word for word from the training text, and where it stands there."""

from __future__ import annotations

import random

import numpy as np
import pytest

import fledge.tokens.index
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.tokens import TokenStore, write_store
from fledge.tokens.index import PassageIndex
from tests.tokens.helpers import ByteTokenizer


@pytest.fixture
def store(tmp_path) -> TokenStore:
    generator = random.Random(1)
    texts = ["".join(generator.choice("abc ") for _ in range(120)) + f" {i}" for i in range(40)]
    corpus = Corpus.from_documents(texts, validation_fraction=0)
    return write_store(corpus, ByteTokenizer(), tmp_path / "store", progress=False)


def by_brute_force(text: list[int], sought: list[int]) -> list[int]:
    whole, found = bytes(text), []
    for start in range(len(sought)):
        length = 0
        while start + length < len(sought) and bytes(sought[start : start + length + 1]) in whole:
            length += 1
        found.append(length)
    return found


@pytest.mark.parametrize("segment", [1 << 18, 1000])
def test_the_longest_stretches_are_those_of_brute_force(store, segment, monkeypatch):
    """In one segment and in several, with stretches across their borders."""
    monkeypatch.setattr(fledge.tokens.index, "SEGMENT", segment)
    index = PassageIndex.of(store, threads=2)
    text = store.split("train").tokens.tolist()
    generator = random.Random(2)
    sought = [*text[970:1060], *(generator.choice(b"abc ") for _ in range(50)), *text[1990:2040], 255]
    lengths, places = index.longest(sought)
    assert lengths.tolist() == by_brute_force(text, sought)
    for start, (length, place) in enumerate(zip(lengths.tolist(), places.tolist(), strict=True)):
        assert text[place : place + length] == sought[start : start + length] or not length
    wanted = np.zeros(len(sought), bool)
    for start, length in enumerate(lengths.tolist()):
        if length >= 20:
            wanted[start : start + length] = True
    assert index.copied(sought).tolist() == wanted.tolist()


def test_sources_name_the_document_and_the_place(store):
    train = store.split("train")
    first = int(train.documents[7])
    ids = [*b"zzz", *train.tokens[first + 10 : first + 60].tolist(), *b"zzz"]
    (source,) = PassageIndex.of(store).sources(ids, ByteTokenizer())
    assert (source.start, source.length, source.document, source.place) == (3, 50, 7, 10)
    assert source.text == ByteTokenizer().decode(ids[3:53])
    assert (store.folder / "passages" / "order.bin").stat().st_size == 4 * len(train.tokens)


def test_an_index_of_other_tokens_and_a_damaged_one_are_refused(store, tmp_path):
    PassageIndex.of(store)
    other = Corpus.from_documents(["another text"] * 30, validation_fraction=0)
    another = write_store(other, ByteTokenizer(), tmp_path / "other", progress=False)
    (store.folder / "passages").rename(another.folder / "passages")
    with pytest.raises(FledgeError, match="not the index of the tokens"):
        PassageIndex.of(another)
    manifest = another.folder / "passages" / "passages.json"
    for damage in ("[]", "{}", '{"format": "fledge-passages", "store": null}', "not json"):
        manifest.write_text(damage)
        with pytest.raises(FledgeError, match=r"not the index|not valid JSON"):
            PassageIndex.of(another)


def test_two_who_ask_at_once_both_get_the_index(store, monkeypatch):
    """The second finds the folder of the first, who was quicker."""

    def meanwhile(*_: object) -> None:
        monkeypatch.undo()
        PassageIndex.of(store)

    monkeypatch.setattr("fledge.tokens.index.require_space", meanwhile)
    tokens = store.split("train").tokens
    assert PassageIndex.of(store).longest(tokens[:30])[0][0] >= 30
    assert [path.name for path in store.folder.iterdir() if "passages" in path.name] == ["passages"]
