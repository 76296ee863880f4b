"""Training is exact: the rule, word for word, on corpora made to break it."""

from __future__ import annotations

import bz2
import gzip
import itertools
import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import FledgeError, train_bpe
from fledge.tokenizer.huggingface import EXPRESSIONS
from fledge.tokenizer.parts import unwritten
from fledge.tokenizer.patterns import compile_pattern

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


@pytest.mark.parametrize("texts", [["eee", "eeoeoee", "eeroeeeeeeroroeero"], ["abcabcab bcbcab aab", "cabcab"]])
@pytest.mark.parametrize("least", [2, 3, 4, 5])
def test_no_pair_below_the_limit_is_merged(texts, least):
    """A count that fell below the limit while its pair waited is not merged after all."""
    assert learned(texts, None, min_frequency=least).merges == naive(texts, 1000, least=least)


def test_no_size_on_real_text(shared_data):
    path = shared_data / "cs336/address.txt"
    assert train_bpe(path, None).merges == naive([path.read_text()], 1000, least=2)


@settings(max_examples=300, deadline=None)
@given(
    letters=st.sampled_from(["ero", "ab", "abc é", "there fo"]),
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    source=st.randoms(use_true_random=True),
    merges=st.none() | st.integers(1, 40),
    least=st.integers(1, 5),
)
def test_naive_trainer_agrees_on_every_limit(letters, sizes, source, merges, least):
    texts = ["".join(source.choices(letters, k=size)) for size in sizes]
    size = None if merges is None else 256 + merges
    expected = naive([*texts, "x"], 10**6 if merges is None else merges, least=max(2, least) if size is None else least)
    assert learned([*texts, "x"], size, min_frequency=least).merges == expected


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
    assert [phase.name for phase in profile.phases] == ["scan and count", "count pairs", "merge", "vocabulary"]
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
        (b"some text", 300, (), "a bytes is one text; give a list"),
        (["x"], "300", (), "vocab_size = '300' must be a whole number"),
        (["x"], 300.5, (), r"vocab_size = 300\.5 must be a whole number"),
        (["x"], True, (), "vocab_size = True must be a whole number"),
        (["x"], 256, ("<a>",), "1 special token and"),
        (["x"], 300, [5], "the special token 5 is a int"),
        (["x"], 300, None, "no list of texts"),
        (["x"], 300, [""], "a special token is empty"),
        (["x"], 300, ["a\ud800"], "character 1 is half of a UTF-16 pair"),
        (["x"], 300, ["a\udcff"], "character 1 is a byte that is not UTF-8"),
        (["x"], 10**30, (), r"vocab_size = 1000+ must be a whole number from 0 to 16,777,216\."),
        pytest.param("x" * 5000, 300, (), "does not exist", id="a long name"),
        ([Path("a.txt"), 5], 300, (), "does not exist"),
        (["no/such/a.txt", "no/such/b.txt"], 300, (), r"a\.txt does not exist"),
        (["missing.jsonl"], 300, (), r"missing\.jsonl does not exist"),
        (iter([Path("missing.txt")]), 300, (), "put paths into a list"),
    ],
)
def test_mistakes_get_one_sentence(source, size, specials, message):
    with pytest.raises(FledgeError, match=message):
        train_bpe(source, size, specials)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": None}, "pattern = None must be gpt2"),
        ({"pattern": "gtp2"}, "gtp2 is not a pattern. Did you mean gpt2?"),
        ({"pattern": "cl100k_base"}, "Did you mean cl100k?"),
        ({"pattern": "O200K"}, "Did you mean o200k?"),
        ({"threads": "x"}, "threads = 'x' must be a whole number"),
        ({"threads": 0}, "threads = 0 must be a whole number, 1 or more"),
        ({"min_frequency": 0}, "min_frequency = 0 must be"),
        ({"min_frequency": "2"}, "min_frequency = '2' must be"),
        (
            {"min_frequency": 10**30},
            r"min_frequency = 10+ must be a whole number from 1 to 9,223,372,036,854,775,807\.",
        ),
        ({"threads": 10**30}, r"threads = 10+ must be a whole number from 1 to 4,096\."),
        ({"threads": 2**31}, "threads = 2147483648 must be"),
        ({"pattern": "a\udcff"}, "the pattern .* is not text: character 1 is a byte"),
    ],
)
def test_wrong_options_get_one_sentence(options, message):
    with pytest.raises(FledgeError, match=message):
        train_bpe(["x"], 300, **options)


def test_a_plain_word_near_no_name_is_an_expression():
    assert learned(["abab abab"], 257, pattern="abab").merges == naive(["abab abab"], 1)


def test_a_missing_file_among_files_is_an_error(tmp_path):
    """Whatever its name looks like: it was meant as a file, and its name is not to be learned."""
    there = tmp_path / "there.txt"
    there.write_text("abab")
    with pytest.raises(FledgeError, match="misspelt does not exist"):
        train_bpe([str(there), "misspelt"], 300)
    assert learned(["and/or", "misspelt.txt"], 258).merges == naive(["and/or", "misspelt.txt"], 2)
    assert learned([b"misspelt.txt"], 258).merges == naive(["misspelt.txt"], 2)


def test_names_in_capitals(tmp_path):
    packed = tmp_path / "STORY.TXT.GZ"
    packed.write_bytes(gzip.compress(b"abab abab"))
    assert learned(packed, 258).merges == naive(["abab abab"], 2)
    assert learned(packed, 258, pattern=r"\S+|\s+").merges == [(b"a", b"b"), (b"ab", b"ab")]
    packed.write_bytes(gzip.compress(b"abab" * 9)[:-9])
    with pytest.raises(FledgeError, match="cut or damaged"):
        learned(packed, 258)


@pytest.mark.parametrize("name", ["a.jsonl", "A.JSONL", "a.jsonl.gz"])
def test_only_the_text_of_jsonl_is_learned(name, tmp_path):
    path = tmp_path / name
    lines = b'{"title": "zzzzzzzz", "text": "abab"}\n{"title": "zzzz", "text": "abcd"}\n'
    path.write_bytes(gzip.compress(lines) if name.endswith(".gz") else lines)
    expected = naive(["abab", "abcd"], 1000)
    assert learned(path, 1000).merges == expected
    assert learned([str(path)], 1000).merges == expected
    assert learned(path, 1000, pattern=r"\S+|\s+").merges == expected


def test_only_the_text_of_parquet_is_learned(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"title": ["zzzzzzzz", "zzzz"], "text": ["abab", "abcd"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert learned(tmp_path / "a.parquet", 1000).merges == naive(["abab", "abcd"], 1000)


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
