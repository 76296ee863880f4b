"""Copies and near-copies of documents, against a search by brute force; and the split that keeps them on one side."""

from __future__ import annotations

import random
import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fledge import _core
from fledge.corpus import Corpus
from fledge.corpus.copies import ALIKE, SHINGLE, Copies, find_copies
from fledge.errors import FledgeError
from fledge.tokens import TokenStore, write_store
from tests.tokens.helpers import ByteTokenizer

KEY = bytes(range(16))


def shingles(text: str) -> set[tuple[str, ...]]:
    """The naive twin of the native shingles, for text of letters, digits and blanks."""
    words = re.findall("[a-z0-9]+", text.lower())
    if not words:
        return {(text,)}
    return {tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}


def alike(left: str, right: str) -> float:
    one, other = shingles(left), shingles(right)
    return len(one & other) / len(one | other)


def groups_by_brute_force(texts: list[str]) -> list[int]:
    first = list(range(len(texts)))
    for left, right in combinations(range(len(texts)), 2):
        if alike(texts[left], texts[right]) >= ALIKE:
            low, high = sorted((first[left], first[right]))
            first = [low if one == high else one for one in first]
    return first


def copies_of(texts: list[str], **options) -> Copies:
    return find_copies(Corpus.from_documents(texts, validation_fraction=0).batches(), **options)


def changed(text: str, share: float, generator: random.Random) -> str:
    words = text.split()
    for i in generator.sample(range(len(words)), round(share * len(words))):
        words[i] = f"new{generator.randrange(10**6)}"
    return " ".join(words)


def story(generator: random.Random, words: int = 200) -> str:
    return " ".join(f"word{generator.randrange(3000)}" for _ in range(words))


def test_the_hash_is_siphash_of_128_bits():
    """The first vectors of its authors."""
    wanted = [
        "a3817f04ba25a8e66df67214c7550293",
        "da87c1d86b99af44347659119b22fc45",
        "8177228da4a45dc7fca38bdef60affe4",
    ]
    assert [_core.document_hash(bytes(range(n)), KEY).hex() for n in range(3)] == wanted


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["a", "bee", "sea", "d", "e"]), min_size=1, max_size=9), min_size=1, max_size=9)
)
@example([["a"], ["a"], ["bee", "a"]])
@example([["a", "bee", "sea", "d", "e", "a"], ["a", "bee", "sea", "d", "e", "d"]])  # as much alike as is asked
def test_groups_are_those_of_brute_force(documents):
    """On small texts, where many are nearly the same, and where a document is shorter than a shingle."""
    texts = [" ".join(words) for words in documents]
    copies = copies_of(texts)
    assert copies.exact.tolist() == [texts.index(text) for text in texts]
    for left, right in combinations(range(len(texts)), 2):
        assert copies.similarity(left, right) == pytest.approx(alike(texts[left], texts[right]))
    assert copies.groups.tolist() == groups_by_brute_force(texts)


def test_planted_copies_are_found_and_nothing_else():
    """Of documents with one word in twenty changed nearly all are found, of others none; on any number of threads."""
    generator = random.Random(1)
    texts = [story(generator) for _ in range(300)]
    planted = {}
    for share in (0, 0.01, 0.05):
        for i in range(100):
            planted[len(texts)] = (i, share)
            texts.append(changed(texts[i], share, generator))
    groups = copies_of(texts, threads=2).groups
    assert groups.tolist() == copies_of(texts, threads=1).groups.tolist()
    for share, least in ((0, 1), (0.01, 1), (0.05, 0.95)):
        hits = [groups[copy] == first for copy, (first, of) in planted.items() if of == share]
        assert np.mean(hits) >= least
    assert all(groups[i] == i for i in range(300))


def test_case_and_punctuation_make_no_difference_and_ideographs_are_words():
    texts = [
        "In the Beginning, God created!",
        "in the beginning god created",
        "今日は天気が良い。",
        "今日は天気が悪い。",
    ]
    copies = copies_of(texts)
    assert copies.groups.tolist()[:2] == [0, 0]
    assert copies.exact.tolist() == [0, 1, 2, 3]
    assert 0 < copies.similarity(2, 3) < 1


def test_a_large_crowd_of_near_copies_is_one_group():
    """Hundreds of members in every bucket: none is compared with all the others, and none is lost."""
    generator = random.Random(2)
    first = story(generator, 60)
    texts = [changed(first, 0.05, generator) for _ in range(400)]
    assert not np.any(copies_of([first, *texts]).groups)


@pytest.mark.parametrize(
    ("starts", "ends"), [([0], [9]), ([-1], [1]), ([2], [1]), ([0, 1], [1]), ([0, 2**62], [1, 2**62 + 1])]
)
def test_documents_outside_their_text_are_refused(starts, ends):
    found = _core.NearCopies(0.5, 3, 1, KEY)
    with pytest.raises(ValueError, match="document|starts"):
        found.add(b"12345678", np.array(starts, np.int64), np.array(ends, np.int64))
    assert len(found) == 0
    with pytest.raises(ValueError, match="no such document"):
        found.similarity(0, 0)
    for wrong in ((0.0, 3, 1), (2.0, 3, 1), (0.5, 0, 1), (0.5, 65, 1)):
        with pytest.raises(ValueError, match="threshold|words"):
            _core.NearCopies(*wrong, KEY)


def parts(texts: list[str], **options) -> dict[str, bool]:
    corpus = Corpus.from_documents(texts, 0.3)
    return {
        document.decode(): bool(held)
        for batch in corpus.batches()
        for document, held in zip(batch.documents, batch.parts.tolist(), strict=True)
    }


def test_near_copies_are_held_out_together_and_new_documents_move_no_old_ones():
    generator = random.Random(3)
    texts = [story(generator, 50) for _ in range(100)]
    copies = [changed(text, 0.04, generator) for text in texts]
    sides = parts(texts + copies)
    assert all(sides[text] == sides[copy] for text, copy in zip(texts, copies, strict=True))
    assert 0.15 < np.mean(list(sides.values())) < 0.45
    alone = Corpus.from_documents(texts + copies, 0.3).without_groups()
    mixed = [held for batch in alone.batches() for held in batch.parts.tolist()]
    assert mixed[:100] != mixed[100:], "without groups they would be apart"
    more = parts([*texts, *copies, *(story(generator, 50) for _ in range(50)), changed(texts[0], 0.04, generator)])
    assert all(more[text] == side for text, side in sides.items())


def test_a_store_begun_before_near_copies_were_kept_together_keeps_its_split(tmp_path):
    """The same command finds it whole; asked for by name, another split is another store."""
    generator = random.Random(4)
    texts = [story(generator, 50) for _ in range(40)]
    source = tmp_path / "text.txt"
    source.write_text("<|endoftext|>".join(texts + [changed(text, 0.04, generator) for text in texts]))
    before = Corpus.open(source, split="document")
    write_store(before, ByteTokenizer(), tmp_path / "store", progress=False)
    again = write_store(Corpus.open(source), ByteTokenizer(), tmp_path / "store", progress=False)
    assert again.manifest["source"]["split"] == "documents"
    with pytest.raises(FledgeError, match="another tokenizer|other text"):
        write_store(Corpus.open(source, split="group"), ByteTokenizer(), tmp_path / "store", progress=False)
    fresh = write_store(Corpus.open(source), ByteTokenizer(), tmp_path / "fresh", progress=False)
    assert fresh.manifest["source"]["split"] == "groups"
    held = [TokenStore.open(tmp_path / name).split("validation").documents.tolist() for name in ("store", "fresh")]
    assert held[0] != held[1]


def test_the_checksum_of_settings_is_that_of_stores_of_old():
    """What a store remembers of its corpus does not change with a setting that it was written without."""
    corpus = Corpus.open("akjv", split="document")
    assert repr(corpus.options) == (
        r"Options(separator=b'<|endoftext|>', field='text', book_titles=False, validation_fraction=0.1, "
        "skip_bad=False, max_document_bytes=268435456)"
    )
    assert corpus.identity != Corpus.open("akjv").identity


def test_the_reading_that_finds_near_copies_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    """To the end of the text, and before the tokens; with `progress=False` nothing is shown."""
    monkeypatch.setattr("fledge.progress.LINE_EVERY", -1)
    path = tmp_path / "text.jsonl"
    path.write_text("".join(f'{{"text": "story {i} about {i * i} of them"}}\n' for i in range(60)))
    write_store(Corpus.open(path), ByteTokenizer(), tmp_path / "quiet", progress=False)
    assert not capsys.readouterr().err
    write_store(Corpus.open(path), ByteTokenizer(), tmp_path / "tokens")
    first, *_ = lines = capsys.readouterr().err.splitlines()
    assert first.startswith("finding near-copies: ")
    assert "(100%)" in first
    assert lines[-1].startswith("tokenizing: ")
