"""Stretches that stand elsewhere in the text, and suffixes in order, against a search by brute force."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fledge import _core
from fledge.corpus.passages import find_passages
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError

MINIMUM = 6


def stretches(documents: list[bytes], queries: int = 0, minimum: int = MINIMUM, threads: int = 1):
    """(start, source, length) of all that is copied; with `queries`, of the documents from that number on."""
    bounds = np.cumsum([0, *map(len, documents)]).astype(np.uint64)
    found = _core.find_stretches(b"".join(documents), bounds, minimum, int(bounds[queries]), threads)
    return found.reshape(-1, 3).tolist(), bounds.tolist()


def longest_by_brute_force(documents: list[bytes], queries: int) -> list[int]:
    """For each byte the length of the longest stretch of its document that holds it and stands in an earlier place, or
    before the queries."""
    starts = np.cumsum([0, *map(len, documents)]).tolist()
    longest = [0] * starts[-1]
    for number, document in enumerate(documents):
        for first in range(len(document)):
            place = starts[number] + first
            for other, earlier in enumerate(documents):
                for begin in range(len(earlier)):
                    source = starts[other] + begin
                    allowed = source < starts[queries] <= place if queries else source < place
                    if not allowed:
                        continue
                    length = 0
                    room = min(len(document) - first, len(earlier) - begin)
                    while length < room and document[first + length] == earlier[begin + length]:
                        length += 1
                    for at in range(place, place + length):
                        longest[at] = max(longest[at], length)
    return longest


def longest_of(found, size: int) -> list[int]:
    longest = [0] * size
    for start, _, length in found:
        for at in range(start, start + length):
            longest[at] = max(longest[at], length)
    return longest


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text("ab", max_size=24), min_size=1, max_size=4), st.integers(0, 3))
@example(["aaaaaaaaaaaaaaaaaaaaaaaa"], 0)
@example(["abababbbabababba", "abbabababbbabaab"], 1)
@example(["aaaaaaaaaaaaaaaabab"], 0)
def test_stretches_are_those_of_brute_force(texts, queries):
    """Every byte's longest copied stretch, of the asked length or more; and what is given stands where it is said."""
    documents = [text.encode() for text in texts]
    queries = min(queries, len(documents) - 1)
    found, bounds = stretches(documents, queries if bounds_rise(documents, queries) else 0)
    queries = queries if bounds_rise(documents, queries) else 0
    joined = b"".join(documents)
    for start, source, length in found:
        assert length >= MINIMUM
        assert joined[start : start + length] == joined[source : source + length]
        assert source < (bounds[queries] if queries else start)
        assert start >= bounds[queries]
        for place in (start, source):  # within one document
            assert np.searchsorted(bounds, place, "right") == np.searchsorted(bounds, place + length - 1, "right")
    wanted = [n if n >= MINIMUM else 0 for n in longest_by_brute_force(documents, queries)]
    assert longest_of(found, len(joined)) == wanted


def bounds_rise(documents: list[bytes], queries: int) -> bool:
    """Whether there is text before the queries; without any, none is asked for."""
    return queries > 0 and any(documents[:queries])


def test_stretches_do_not_depend_on_threads_and_parts(monkeypatch):
    """A text of many parts, with passages across their borders; and every planted passage is found whole."""
    generator = random.Random(5)
    text = bytearray(generator.randbytes(300_000))
    for place in (32_700, 65_500, 98_304 - 31, 131_072 + 1, 262_144 - 64):
        text[place : place + 100] = text[1000:1100]
    found, _ = stretches([bytes(text)], minimum=64, threads=2)
    assert found == stretches([bytes(text)], minimum=64, threads=1)[0]
    assert [start for start, _, length in found if length >= 100] == [32_700, 65_500, 98_273, 131_073, 262_080]


def test_copies_of_one_letter_and_many_copies_of_one_passage_take_no_time():
    found, _ = stretches([b"a" * 100_000], minimum=50)
    assert [1, 0, 99_999] in found
    passage = bytes(random.Random(6).randbytes(300))
    found, bounds = stretches([passage + bytes([i % 256, i // 256]) for i in range(3000)], minimum=50)
    assert len({np.searchsorted(bounds, start, "right") for start, _, length in found if length >= 300}) == 2999


@pytest.mark.parametrize("unit", [b"-", b"ab"])
def test_a_run_of_a_letter_in_two_texts_takes_little_memory_and_is_covered(unit):
    """Each of its places begins like thousands of others: their lengths are not all kept."""
    one, other = unit * 10_000 + b" one", unit * 600 + b" other " + unit * 12_000
    found, bounds = stretches([one, other], queries=1, minimum=50)
    assert len(found) < 8000
    covered = np.zeros(len(other), bool)
    for start, _, length in found:
        covered[start - bounds[1] : start - bounds[1] + length] = True
    word = range(len(unit) * 600 + 2, len(unit) * 600 + 6)  # "other" but for its "o", which is that of "one"
    assert not covered[list(word)].any()
    assert covered[: word[0] - 1].all()
    assert covered[word[-1] + 2 :].all()


def test_what_stands_hundreds_of_times_on_both_sides_is_found_on_both():
    """The nearest places in the order are of one's own side: the nearest of the other side lies beyond all of them."""
    footer = b"This page may be copied by everybody who wants to, all rights reserved and none given."
    train = [b"a%d on one side %s" % (i, footer) for i in range(1500)]
    held = [b"z%d on the other: %s" % (i, footer) for i in range(1500)]
    found, bounds = stretches([*train, *held], queries=len(train), minimum=50)
    whole = [start for start, _, length in found if length >= len(footer)]
    assert {int(np.searchsorted(bounds, start, "right")) - 1 for start in whole} == set(range(1500, 3000))


@pytest.mark.parametrize(
    ("bounds", "minimum", "queries", "threads"),
    [([0, 9], 4, 0, 1), ([0, 5, 2], 4, 0, 1), ([], 4, 0, 1), ([0, 8], 3, 0, 1), ([0, 8], 4, 3, 1), ([0, 8], 4, 0, 0)],
)
def test_wrong_bounds_are_refused(bounds, minimum, queries, threads):
    with pytest.raises(ValueError, match="offsets|stretch|queries|threads"):
        _core.find_stretches(b"12345678", np.array(bounds, np.uint64), minimum, queries, threads)


ids = st.lists(st.integers(0, 3), max_size=40)


@settings(max_examples=80, deadline=None)
@given(ids, ids, st.sampled_from(["<u2", "<u4"]), st.sampled_from([1, 2, 5, 100]), st.integers(1, 2))
@example([0] * 40, [0] * 12, "<u2", 5, 1)
def test_the_longest_matches_are_those_of_brute_force(tokens, sought, width, limit, threads):
    """Up to the depth of the order exactly, beyond it at least that much; where they stand is told."""
    text, asked = np.array(tokens, width), np.array(sought, width)
    order = np.empty(len(text), np.uint32)
    _core.sort_suffixes(text, order, limit, threads)
    assert sorted(order.tolist()) == list(range(len(text)))
    heads = [tokens[i : i + limit] for i in order.tolist()]
    assert heads == sorted(heads)
    lengths, places = np.zeros(len(asked), np.int64), np.full(len(asked), -1, np.int64)
    _core.longest_matches(text, order, limit, asked, 0, lengths, places, threads)
    for i, (length, place) in enumerate(zip(lengths.tolist(), places.tolist(), strict=True)):
        wanted = max(
            (common(sought[i:], tokens[j:]) for j in range(len(tokens))),
            default=0,
        )
        assert min(wanted, limit) <= length <= wanted
        assert place == -1 if not length else tokens[place : place + length] == sought[i : i + length]


def test_a_long_text_that_stands_there_many_times_is_looked_up_in_linear_time():
    """Each of its tokens begins a match that goes on to the end."""
    text = np.tile(np.random.default_rng(1).integers(0, 5000, 100_000).astype(np.uint16), 3)
    order = np.empty(len(text), np.uint32)
    _core.sort_suffixes(text, order, 256, 2)
    lengths, places = np.zeros(100_000, np.int64), np.full(100_000, -1, np.int64)
    began = time.process_time()
    _core.longest_matches(text, order, 256, text[:100_000], 0, lengths, places, 1)
    assert time.process_time() - began < 1
    assert lengths.tolist() == list(range(100_000, 0, -1))
    assert np.array_equal(text[places], text[:100_000])


def common(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


def test_suffixes_that_are_not_of_the_tokens_are_refused():
    tokens = np.zeros(4, np.uint16)
    with pytest.raises(ValueError, match="more suffixes"):
        _core.sort_suffixes(tokens, np.zeros(5, np.uint32), 8, 1)
    with pytest.raises(ValueError, match="one token"):
        _core.sort_suffixes(tokens, np.zeros(4, np.uint32), 0, 1)
    with pytest.raises(ValueError, match="id"):
        _core.sort_suffixes(np.array([2**31], np.uint32), np.zeros(1, np.uint32), 8, 1)
    lengths = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="for each"):
        _core.longest_matches(tokens, np.zeros(4, np.uint32), 8, np.zeros(3, np.uint16), 0, lengths, lengths.copy(), 1)
    # A damaged order is not read beyond the tokens.
    _core.longest_matches(
        tokens, np.full(4, 2**32 - 1, np.uint32), 8, np.zeros(1, np.uint16), 0, lengths, lengths.copy(), 1
    )
    assert lengths.tolist() == [0]


def test_a_full_temporary_folder_is_named(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: open("/dev/full", "wb+", buffering=0))  # noqa: SIM115
    with pytest.raises(FledgeError, match="TMPDIR"):
        find_passages([JoinedText.of([b"a text"])])


some_texts = st.lists(st.text("ab", min_size=1, max_size=16), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(some_texts, some_texts)
def test_the_leak_and_the_shares_are_those_of_brute_force(train, held):
    """How many held-out bytes lie in a stretch of the training text, and how much of each text in a larger one."""
    documents = [text.encode() for text in train]
    found = find_passages([JoinedText.of(documents)], [JoinedText.of([text.encode() for text in held])], at_least=4)
    both = [*documents, *(text.encode() for text in held)]
    longest = longest_by_brute_force(both, len(documents))[sum(map(len, documents)) :]
    for least in (4, 6, 9):
        assert found.covered(least) == sum(length >= least for length in longest)
    shares = find_passages([JoinedText.of(documents)], at_least=4).shares()
    for number, (text, share) in enumerate(zip(documents, shares.tolist(), strict=True)):
        inside = [False] * len(text)
        for other, larger in enumerate(documents):
            if (len(larger), -other) <= (len(text), -number):
                continue
            for start in range(len(text) - 3):
                for end in range(start + 4, len(text) + 1):
                    if text[start:end] in larger:
                        inside[start:end] = [True] * (end - start)
        assert share <= sum(inside) / max(1, len(text))
        if len(documents) == 2:
            assert share == sum(inside) / max(1, len(text))


@pytest.mark.parametrize(
    ("documents", "wanted"),
    [
        (["aaaaaaaaaaa", "baaaaaaaabbb"], [1.0, 0.0]),  # eight of the larger one's letters stand in eleven
        (["abbaaaaabaabbab", "bbaaaaaa"], [0.0, 1.0]),  # what follows it found in itself
        (["abccabaaaaaaaa", "aabaaaaaaaaaab"], [0.0, 12 / 14]),
    ],
)
def test_what_a_document_says_twice_is_found_in_a_larger_one(documents, wanted):
    found = find_passages([JoinedText.of([text.encode() for text in documents])], at_least=4)
    assert found.shares().tolist() == pytest.approx(wanted)
