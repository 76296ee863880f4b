"""Documents as places in a buffer, against plain splitting."""

from __future__ import annotations

import zlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fledge.corpus import Corpus
from fledge.corpus.native import crc32
from fledge.corpus.split import Spans, cut_document, held_out
from fledge.corpus.text import Text

marks = st.sampled_from([b"<|endoftext|>", b"\n\n", b"\n", b"aa", b"aba", b"|"])
pieces = st.lists(st.sampled_from([b"a", b"b", b" ", b"\n", b"\r\n", b"<|endoftext|>", b"|", b"<|end", b"xyz"]))


@given(parts=pieces, mark=marks)
def test_between_marks_is_what_splitting_gives(parts, mark):
    data = b"".join(parts)
    assert Text.between(data, mark).documents() == [text for text in data.split(mark) if text.strip()]


@given(parts=pieces)
def test_lines_lose_their_ends_and_nothing_else(parts):
    data = b"".join(parts)
    found = Text.between(data, b"\n", strip_returns=True).documents()
    assert found == [text.removesuffix(b"\r") for text in data.split(b"\n") if text.strip()]


@given(documents=st.lists(st.binary(max_size=20)))
def test_joining_and_taking_apart(documents):
    text = Text.of(documents)
    assert text.documents() == [text for text in documents if text.strip()]
    assert text.joined().documents() == text.documents()
    assert text.size == sum(map(len, text.documents()))


@given(documents=st.lists(st.binary(min_size=1, max_size=20).filter(bytes.strip), min_size=1), cut=st.integers(0, 9))
def test_a_document_stays_on_its_side_when_others_are_added(documents, cut):
    text, fewer = Text.of(documents), Text.of(documents[cut:])
    assert held_out(text, 0.3)[cut:].tolist() == held_out(fewer, 0.3).tolist()


@given(documents=st.lists(st.binary(max_size=200)))
def test_checksums_are_those_of_zlib(documents):
    """The native core takes many documents at once; the split must not depend on whether it is built."""
    text = Text.of(documents)
    assert text.checksums.tolist() == [zlib.crc32(document) for document in text.documents()]


def test_the_share_held_out_is_the_one_asked_for():
    text = Text.of([b"document number %d" % i for i in range(20_000)])
    for fraction in (0.01, 0.1, 0.5):
        assert abs(held_out(text, fraction).mean() - fraction) < 0.01


def test_another_seed_holds_out_other_documents_and_none_is_the_split_of_old_stores():
    text = Text.of([b"document number %d" % i for i in range(20_000)])
    old = held_out(text, 0.2)
    assert old.tolist() == held_out(text, 0.2, seed=0).tolist()
    drawn = [held_out(text, 0.2, seed=seed) for seed in (1, 2, (1 << 63) - 1)]
    for one in drawn:
        assert abs(one.mean() - 0.2) < 0.01
        assert abs((one & old).mean() - 0.04) < 0.01, "chosen as if the other choice had never been made"
    assert abs((drawn[0] & drawn[1]).mean() - 0.04) < 0.01


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
    assert spans.slack <= spans.held // 2
    assert abs(spans.held / spans.period - fraction) <= max(0.5 / spans.period + 1e-9, 1 / spans.period)


@given(data=st.binary(max_size=400), before=st.integers(0, 2**32 - 1))
def test_a_checksum_goes_on_as_that_of_zlib(data, before):
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)) == zlib.crc32(data)
