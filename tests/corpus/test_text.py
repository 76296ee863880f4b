"""Documents as places in a buffer, against plain splitting."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.config import TokenizerConfig
from fledge.corpus import Corpus
from fledge.corpus.inspect import inspect, leak
from fledge.corpus.native import crc32
from fledge.corpus.split import Spans, cut_document, held_out
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError
from fledge.tokenizer.fit import _documents

marks = st.sampled_from([b"<|endoftext|>", b"\n\n", b"\n", b"aa", b"aba", b"|"])
pieces = st.lists(st.sampled_from([b"a", b"b", b" ", b"\n", b"\r\n", b"<|endoftext|>", b"|", b"<|end", b"xyz"]))


@given(parts=pieces, mark=marks)
def test_between_marks_is_what_splitting_gives(parts, mark):
    data = b"".join(parts)
    assert JoinedText.between(data, mark).documents() == [text for text in data.split(mark) if text.strip()]


@given(parts=pieces)
def test_lines_lose_their_ends_and_nothing_else(parts):
    data = b"".join(parts)
    found = JoinedText.between(data, b"\n", strip_returns=True).documents()
    assert found == [text.removesuffix(b"\r") for text in data.split(b"\n") if text.strip()]


@given(documents=st.lists(st.binary(max_size=20)))
def test_joining_and_taking_apart(documents):
    text = JoinedText.of(documents)
    assert text.documents() == [text for text in documents if text.strip()]
    assert text.joined().documents() == text.documents()
    assert text.size == sum(map(len, text.documents()))


@given(documents=st.lists(st.binary(min_size=1, max_size=20).filter(bytes.strip), min_size=1), cut=st.integers(0, 9))
def test_a_document_stays_on_its_side_when_others_are_added(documents, cut):
    text, fewer = JoinedText.of(documents), JoinedText.of(documents[cut:])
    assert held_out(text, 0.3)[cut:].tolist() == held_out(fewer, 0.3).tolist()


@given(documents=st.lists(st.binary(max_size=200)))
def test_checksums_are_those_of_zlib(documents):
    """The native core takes many documents at once; the split must not depend on whether it is built."""
    text = JoinedText.of(documents)
    assert text.checksums.tolist() == [zlib.crc32(document) for document in text.documents()]


def test_the_share_held_out_is_the_one_asked_for():
    text = JoinedText.of([b"document number %d" % i for i in range(20_000)])
    for fraction in (0.01, 0.1, 0.5):
        assert abs(held_out(text, fraction).mean() - fraction) < 0.01


def test_another_seed_holds_out_other_documents_and_none_is_the_split_of_old_stores():
    text = JoinedText.of([b"document number %d" % i for i in range(20_000)])
    old = held_out(text, 0.2)
    assert old.tolist() == held_out(text, 0.2, seed=0).tolist()
    drawn = [held_out(text, 0.2, seed=seed) for seed in (1, 2, (1 << 63) - 1)]
    for one in drawn:
        assert abs(one.mean() - 0.2) < 0.01
        assert abs((one & old).mean() - 0.04) < 0.01, "chosen as if the other choice had never been made"
    assert abs((drawn[0] & drawn[1]).mean() - 0.04) < 0.01


@given(validation=st.floats(0, 0.5), test=st.floats(0.01, 0.49), seed=st.sampled_from([0, 5]))
def test_a_test_part_leaves_validation_as_it_is(validation, test, seed):
    text = JoinedText.of([b"document number %d" % i for i in range(2000)])
    alone, both = held_out(text, validation, seed=seed), held_out(text, validation, seed=seed, test=test)
    assert ((both == 1) == (alone == 1)).all()
    assert not alone[both == 2].any(), "the test part is taken from the training part"
    assert abs((both == 2).mean() - test) < 0.05
    larger = held_out(text, validation, seed=seed, test=0.495)
    assert (larger[both == 2] == 2).all(), "a larger test part holds the smaller one"


@given(
    text=st.text(alphabet="aé€𝄞 \n", min_size=1, max_size=4000),
    validation=st.sampled_from([0.0, 0.1, 0.3, 0.5]),
    test=st.floats(0.05, 0.49),
)
def test_the_three_parts_of_one_document_are_all_of_it(text, validation, test):
    data = text.encode()
    pieces = cut_document(data, validation, test)
    assert b"".join(b"".join(piece.split()) for piece, _ in pieces) == b"".join(data.split())
    assert [piece for piece, part in pieces if part == 1] == [
        piece for piece, part in cut_document(data, validation) if part == 1
    ]


def test_stores_made_before_there_was_a_test_part_are_recognised():
    texts = [f"document number {i}" for i in range(200)]
    corpus = Corpus.from_documents(texts, validation_fraction=0.2)
    assert corpus.outline == "8199109754428701d9027483f8de9ffec001843417e35208374066d032ec91c1"
    assert "test_fraction" not in corpus.description
    changed = Corpus.from_documents(texts, validation_fraction=0.2, test_fraction=0.1)
    assert changed.outline != corpus.outline
    assert changed.identity != corpus.identity
    near = [f"the same long text of many words, in copy {i % 2} or another one, {i // 2}" for i in range(200)]
    everything = Corpus.from_documents(near, validation_fraction=0.2, test_fraction=0.2)
    parts = [set(everything.documents(part)) for part in ("train", "validation", "test")]
    assert sorted(set.union(*parts)) == sorted(text.encode() for text in near)
    assert sum(map(len, parts)) == len(near)
    with pytest.raises(FledgeError, match="together hold out all of the text. Lower one of them"):
        Corpus.from_documents(texts, validation_fraction=0.5, test_fraction=0.5)


@pytest.mark.parametrize("name", ["novel.txt", "few.txt"])
def test_blocks_of_a_test_part_leave_the_validation_blocks_where_they_are(tmp_path, name):
    mark = b"<|endoftext|>" if name == "few.txt" else b"\n"
    text = b"".join(b"Line number %d of a long text.%b" % (i, mark if i % 500 == 499 else b"\n") for i in range(5000))
    (tmp_path / name).write_bytes(text)
    found = []
    for test in (0.0, 0.05):
        corpus = Corpus.open(tmp_path / name, test_fraction=test)
        with pytest.warns(UserWarning, match="5% of the text is held out for the test" if test else "validation as"):
            batches = list(corpus.batches())
        found.append([pair for batch in batches for pair in zip(batch.documents, batch.parts, strict=True)])
    plain, tested = found
    assert [d for d, part in plain if part == 1] == [d for d, part in tested if part == 1]
    assert b"".join(d for d, _ in tested) == text.replace(b"<|endoftext|>", b"")
    assert 0.04 < sum(len(d) for d, part in tested if part == 2) / len(text) < 0.06
    train = {line for document, part in tested if part == 0 for line in document.split(b"\n")}
    assert not any(line in train for d, part in tested if part for line in d.split(b"\n") if line)


def test_a_test_part_beside_sources_held_out_as_they_are(tmp_path):
    """It is taken from the text to train on; the tokenizer and the leak take it for held out."""
    texts = [b"document %d of words %d" % (i, i * i) for i in range(300)]
    (tmp_path / "train.txt").write_bytes(b"<|endoftext|>".join(texts))
    (tmp_path / "valid.txt").write_bytes(b"<|endoftext|>".join(b"held out %d" % i for i in range(30)))
    options = {"validation_source": [tmp_path / "valid.txt"], "test_fraction": 0.2}
    corpus = Corpus.open(tmp_path / "train.txt", **options)
    assert len(list(corpus.documents("validation"))) == 30
    tested = set(corpus.documents("test"))
    assert 30 < len(tested) < 90
    assert tested < set(texts)
    assert len(list(corpus.documents("train"))) == 300 - len(tested)
    assert list(_documents(corpus, TokenizerConfig(), False)) == list(corpus.documents("train"))
    report = inspect(corpus)
    assert report.documents == {"train": 300 - len(tested), "validation": 30, "test": len(tested)}
    assert leak(Corpus.from_documents(texts, 0.0, 0.2)), "the test part alone is held out"


def test_the_seed_of_the_split_goes_from_the_settings_into_the_store():
    texts = [f"document number {i}" for i in range(200)]

    def corpus(seed: int) -> Corpus:
        found = Corpus.from_documents(texts, validation_fraction=0.2)
        return Corpus(found.sources, replace(found.options, seed=seed))

    sides = [list(corpus(seed).documents("validation")) for seed in (0, 0, 3)]
    assert sides[0] == sides[1] != sides[2]
    assert corpus(0).outline == Corpus.from_documents(texts, validation_fraction=0.2).outline
    assert corpus(3).outline != corpus(0).outline, "a store with another split is another store"
    assert Corpus.open("akjv", split_seed=3).options.seed == 3


@given(
    text=st.text(alphabet="aé€𝄞 \n", min_size=1, max_size=400),
    fraction=st.floats(0.05, 0.5),
)
def test_cutting_a_document_loses_nothing_and_splits_no_character(text, fraction):
    parts = cut_document(text.encode(), fraction)
    joined = "".join(part.decode() for part, _ in parts)
    assert joined.split() == text.split()


@given(size=st.integers(1, 10**9), fraction=st.floats(0.01, 0.5), data=st.data())
def test_spans_move_forward_and_hold_out_their_share(size, fraction, data):
    spans = Spans.of(size, fraction)
    position = data.draw(st.integers(0, size))
    end, _ = spans.next(position)
    assert position < end <= position + spans.period
    assert spans.slack(0) <= spans.held // 2
    assert abs(spans.held / spans.period - fraction) <= max(0.5 / spans.period + 1e-9, 1 / spans.period)


@given(data=st.binary(max_size=400), before=st.integers(0, 2**32 - 1))
def test_a_checksum_goes_on_as_that_of_zlib(data, before):
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)) == zlib.crc32(data)
