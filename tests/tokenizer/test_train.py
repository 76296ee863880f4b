"""Training is exact: the rule, word for word, on corpora made to break it."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
import warnings
from collections import Counter

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import FledgeError, train_bpe
from fledge.tokenizer.custom import compile_pattern
from fledge.tokenizer.huggingface import EXPRESSIONS
from fledge.tokenizer.parts import unwritten

END = "<|endoftext|>"
SPLIT = regex.compile(EXPRESSIONS["gpt2"])


def naive(texts, merges_wanted, specials=(), least=1):
    """The rule as plainly as it can be said: count all pairs, merge the best, start again."""
    words = Counter()
    for text in texts:
        expression = "|".join(map(regex.escape, sorted(specials, key=len, reverse=True)))
        pieces = regex.split(expression, text) if specials else [text]
        for piece in pieces:
            words.update(tuple(bytes([b]) for b in word.encode()) for word in SPLIT.findall(piece))
    merges = []
    while len(merges) < merges_wanted:
        pairs = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < least:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        changed = Counter()
        for word, count in words.items():
            merged, i = [], 0
            while i < len(word):
                step = 2 if word[i : i + 2] == best else 1
                merged.append(b"".join(word[i : i + step]))
                i += step
            changed[tuple(merged)] += count
        words = changed
    return merges


def learned(texts, size, specials=(), **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train_bpe(texts, size, specials, **options)


def test_reference_merges(shared_data):
    """The merges and the vocabulary of the course's reference, byte for byte."""
    tokenizer = train_bpe(shared_data / "cs336/corpus.en", 500, [END])
    lines = (shared_data / "cs336/train-bpe-reference-merges.txt").read_text().rstrip("\n").split("\n")
    assert tokenizer.merges == [tuple(unwritten(half) for half in line.split(" ")) for line in lines]
    assert tokenizer.vocab[0] == END.encode()
    assert [tokenizer.vocab[1 + byte] for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.vocab_size == 500


@pytest.mark.parametrize("seed", range(300))
def test_naive_trainer_agrees(seed):
    """Ties, repeats, runs, overlaps: alphabets of one to four letters make all of them frequent."""
    source = random.Random(seed)
    letters = source.choice(["a", "ab", "abc", "ab é", "0a", "re thfo"])
    texts = ["".join(source.choices(letters, k=source.randint(0, 60))) for _ in range(source.randint(1, 6))]
    merges = source.randint(1, 40)
    assert learned([*texts, "x"], 256 + merges).merges == naive([*texts, "x"], merges)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("therefore", [(b"r", b"e")]),  # `re` occurs twice in one word
        ("0000", [(b"0", b"0"), (b"00", b"00")]),  # a run: merged from the left, then its halves
        ("aaa aaa", [(b"a", b"a"), (b"aa", b"a")]),
    ],
)
def test_hard_cases(text, first):
    assert learned([text], 256 + len(first)).merges == first == naive([text], len(first))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab \n's<|end>", max_size=40), min_size=1, max_size=5), st.integers(1, 25))
def test_specials_are_never_inside_a_merge(texts, merges):
    """Specials, one a prefix of the other: the longest wins, and no merge holds or crosses one."""
    specials = ["<|end|>", "<|end|>>", "<|"]
    tokenizer = learned([*texts, "x"], 259 + merges, specials)
    assert tokenizer.merges == naive([*texts, "x"], merges, specials)
    assert list(tokenizer.special_tokens.values()) == [0, 1, 2]
    assert not any("<|" in (left + right).decode("utf-8", "replace") for left, right in tokenizer.merges)


def test_threads_chunks_and_sources_change_nothing(shared_data, tmp_path):
    """A file, its compressed form, its lines, one thread or three: the same merges."""
    data = (shared_data / "tinystories/tinystories_3m.txt").read_bytes()
    path = tmp_path / "stories.txt"
    path.write_bytes(data)
    packed = tmp_path / "stories.txt.gz"
    packed.write_bytes(gzip.compress(data, 1))
    twice = tmp_path / "stories.bz2"
    twice.write_bytes(bz2.compress(data, 1))
    expected = train_bpe(path, 1000, [END], threads=1).merges
    assert train_bpe(str(path), 1000, [END], threads=3).merges == expected
    assert train_bpe([str(packed)], 1000, [END]).merges == expected
    assert train_bpe(twice, 1000, [END]).merges == expected
    assert train_bpe([data], 1000, [END], threads=2).merges == expected
    assert train_bpe(data.decode().split(END), 1000, [END]).merges == expected


@pytest.mark.parametrize("pattern", ["cl100k", "o200k"])
def test_other_native_patterns(pattern):
    """The named patterns cut like their regular expressions do."""
    text = "Hello HELLOworld 12345 don't\n\n  x\t(yes)  ‘quoted’ été naïve 漢字 हिन्दी 3.14 " * 3
    compile_pattern.cache_clear()
    with pytest.warns(UserWarning, match="regex package"):
        expected = train_bpe([text], 300, pattern=EXPRESSIONS[pattern]).merges
    assert learned([text], 300, pattern=pattern).merges == expected


def test_no_size_merges_until_no_pair_occurs_twice():
    tokenizer = train_bpe(["abab abcd"], None)
    assert tokenizer.merges == naive(["abab abcd"], 1000, least=2)


def test_min_frequency():
    with pytest.warns(UserWarning, match=r"ended at 2\d\d ids instead of 1,000.*3 times"):
        tokenizer = train_bpe(["the the the then thin"], 1000, min_frequency=3)
    assert tokenizer.merges == naive(["the the the then thin"], 1000, least=3)


def test_a_vocabulary_larger_than_the_text_ends_early():
    with pytest.warns(UserWarning, match="no pair is left"):
        tokenizer = train_bpe(["abc"], 1000)
    assert tokenizer.vocab_size == 258


def test_profile_is_kept():
    profile = train_bpe(["some text " * 1000], 260).training_profile
    assert [phase.name for phase in profile.phases] == ["scan and count", "merge", "vocabulary"]
    assert profile.source_bytes == 10000
    assert profile.distinct_pretokens == 4
    assert "peak memory" in str(profile)


def test_counts_past_32_bits():
    from fledge._core import PretokenCounter

    counter = PretokenCounter("gpt2", [], 1)
    counter.add_words([(b"ab", 2**40), (b"cd", 2**40 + 1)], 4)
    assert [count for *_, count in counter.train(2, 1, None)] == [2**40 + 1, 2**40]


@pytest.mark.parametrize(
    ("source", "size", "specials", "message"),
    [
        ("no/such/file.txt", 300, (), "does not exist"),
        ([], 300, (), "no text"),
        ([""], 300, (), "no text"),
        (["x"], 10, (), "too small"),
        (["x"], 300, END, "list of texts"),
        (["x"], 300, ("a", "a"), "different"),
        ([1, 2], 300, (), "str or bytes"),
        (5, 300, (), "give a path"),
    ],
)
def test_mistakes_get_one_sentence(source, size, specials, message):
    with pytest.raises(FledgeError, match=message):
        train_bpe(source, size, specials)


def test_folder_is_refused(tmp_path):
    with pytest.raises(FledgeError, match="is a folder"):
        train_bpe(tmp_path, 300)


def test_only_specials():
    with pytest.warns(UserWarning, match="no pair is left"):
        assert train_bpe([END * 5], 300, [END]).merges == []


def test_blocks_of_a_corpus():
    """Anything with a buffer and offsets is a block of documents; nothing merges across their borders."""

    class Block:
        buffer = b"ababab"
        offsets = np.array([0, 1, 3, 5, 6], np.uint64)

    assert learned([Block()], 258).merges == [(b"b", b"a")]
