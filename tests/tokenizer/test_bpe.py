"""BPE encoding: equal to the reference implementations, whole for any bytes, and the same by every way in."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import warnings
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
import tiktoken_ext.openai_public as public
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fledge import BPETokenizer, FledgeError, train_bpe
from fledge.tokenizer import load_tokenizer

END = "<|endoftext|>"
NAMES = {"gpt2": "gpt2", "cl100k": "cl100k_base", "o200k": "o200k_base"}

messy = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\r\t'sSdtrevml/.!\"“”aBéÉжЖ漢字कि़ा١½Ⅷǅʰ\u00a0\u3000\u2028\u0301\U0001f600012"),
        st.characters(codec="utf-8"),
    ),
    max_size=120,
)
PIECES = (END, "<|end|>", "<|", "the", " cat", "é", "漢", " ", "\n", "'s", "\udc80")
mixed = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


@pytest.fixture(scope="module")
def pairs(shared_data):
    """(ours, tiktoken's) for the three published vocabularies."""
    found = {}
    for pattern, name in NAMES.items():
        path = shared_data / "ranks" / f"{name}.tiktoken"
        lines = path.read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
        ours = load_tokenizer(path)
        expression = public.r50k_pat_str
        if pattern != "gpt2":
            loader, public.load_tiktoken_bpe = public.load_tiktoken_bpe, lambda *_, **__: {}
            expression = getattr(public, name)()["pat_str"]
            public.load_tiktoken_bpe = loader
        theirs = tiktoken.Encoding(
            name, pat_str=expression, mergeable_ranks=ranks, special_tokens=dict(ours.special_tokens)
        )
        found[pattern] = ours, theirs
    return found


@pytest.fixture(scope="module")
def small():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = "the cat sat on the mat, didn't it? 漢字漢字 été ababab aaaaaaaa 0000 \n\n\n  x" * 4
        return train_bpe([text], 340, [END, "<|end|>", "<|"])


@pytest.mark.parametrize("pattern", NAMES)
def test_ids_equal_tiktoken_on_real_text(pairs, pattern, shared_data):
    import zstandard

    ours, theirs = pairs[pattern]
    packed = (shared_data / "messy/udhr_multilingual.txt.zst").read_bytes()
    texts = [zstandard.ZstdDecompressor().decompressobj().decompress(packed)[:600_000].decode("utf-8", "ignore")]
    for folder in ("cs336", "messy", "tinystories"):
        for path in sorted((shared_data / folder).glob("*.*")):
            if path.suffix == ".zst" or path.name == "UTF-8-test.txt":
                continue
            texts.append(path.read_bytes().decode()[:600_000])
    for text in texts:
        expected = theirs.encode(text, allowed_special="all")
        assert ours.encode_array(text).tolist() == expected


@pytest.mark.parametrize("pattern", NAMES)
@settings(max_examples=300, deadline=None)
@given(text=messy)
@example(text="\U000323b0/A")  # a letter since Unicode 17, which tiktoken does not know yet
def test_ids_equal_tiktoken_on_any_text(pairs, pattern, text):
    ours, theirs = pairs[pattern]
    assert ours.encode(text, special="text") == theirs.encode(text, disallowed_special=())


@pytest.mark.parametrize("pattern", NAMES)
def test_every_unicode_category(pairs, pattern):
    """One text that holds every block of characters beside letters, digits, spaces and symbols."""
    ours, theirs = pairs[pattern]
    codes = [code for code in (*range(0x3100), *range(0x3100, 0x110000, 97)) if not 0xD800 <= code < 0xE000]
    text = "".join(f"a{chr(code)}b {chr(code)}1{chr(code)}.{chr(code)}\n{chr(code)} " for code in codes)
    assert ours.encode(text, special="text") == theirs.encode(text, disallowed_special=())


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_come_back(small, data):
    assert small.decode_bytes(small.encode_array(data)) == data


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(), max_size=100))
def test_any_text_comes_back(small, text):
    """Lone surrogates too, which UTF-8 does not have: they keep their three bytes."""
    ids = small.encode(text)
    assert small.decode(ids, errors="surrogatepass") == text


@settings(max_examples=200, deadline=None)
@given(text=mixed, data=st.data())
def test_every_way_in_gives_the_same_ids(small, text, data):
    expected = small.encode(text)
    assert small.encode_array(text).tolist() == expected
    assert small.encode_batch([text, "", text])[2].tolist() == expected
    raw = text.encode("utf-8", "surrogatepass")
    ids, starts = small.encode_spans(b"xx" + raw, np.array([2, 2 + len(raw)]), "recognise")
    assert ids.tolist() == expected
    assert starts.tolist() == [0, len(expected)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert list(small.encode_iterable(pieces)) == expected


def test_iterable_is_cut_anywhere(small, monkeypatch):
    """With a tiny buffer every piece is a chance to cut wrongly."""
    from fledge.tokenizer import stream

    monkeypatch.setattr(stream, "PIECE", 8)
    source = random.Random(5)
    parts = ["the", " cat", "  ", "\n", "\n\n", END, "<|end", "|>", "é", "漢字", "'s", "'", "ll", "!", "12", "\u00a0"]
    for _ in range(200):
        text = "".join(source.choices(parts, k=30))
        pieces, at = [], 0
        while at < len(text):
            step = source.randint(1, 7)
            pieces.append(text[at : at + step])
            at += step
        assert list(small.encode_iterable(pieces)) == small.encode(text)


def test_iterable_is_lazy(small):
    def endless():
        while True:
            yield "the cat sat "

    ids = small.encode_iterable(endless())
    assert small.decode([next(ids) for _ in range(30)]).startswith("the cat sat the cat")


def test_threads_change_nothing(pairs, shared_data):
    ours, _ = pairs["gpt2"]
    data = (shared_data / "tinystories/tinystories_3m.txt").read_bytes()
    one = ours.encode_array(data, threads=1)
    assert np.array_equal(one, ours.encode_array(data, threads=3))
    assert one.dtype == np.uint16


def test_special_tokens_by_one_keyword(small):
    assert small.encode(f"a{END}b") == [small.encode("a")[0], 0, small.encode("b")[0]]
    plain = small.encode(f"a{END}b", special="text")
    assert not {0, 1, 2} & set(plain)
    assert small.decode(plain) == f"a{END}b"
    with pytest.raises(FledgeError, match=r"<\|endoftext\|> at byte 1"):
        small.encode(f"a{END}b", special="refuse")
    assert small.encode("ab", special="refuse") == small.encode("ab")
    with pytest.raises(FledgeError, match="Did you mean recognise"):
        small.encode("a", special="recognize")


@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\W"])
def test_a_refusal_names_the_byte_of_the_whole_text(small, pattern, tmp_path, monkeypatch):
    """By whatever way in, and however many blocks came before."""
    from fledge.tokenizer import stream

    monkeypatch.setattr(stream, "PIECE", 8)
    monkeypatch.setattr(stream, "BLOCK", 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = BPETokenizer(small.vocab, small.merges, small.special_tokens, pattern=pattern)
    text = "été " * 50 + END
    source = tmp_path / "text.txt"
    source.write_text(text, encoding="utf-8")
    ways = [
        lambda: tokenizer.encode(text, special="refuse"),
        lambda: tokenizer.encode_array(text, special="refuse"),
        lambda: list(tokenizer.encode_iterable(text, special="refuse")),
        lambda: tokenizer.encode_file(source, tmp_path / "ids.bin", special="refuse"),
    ]
    for way in ways:
        with pytest.raises(FledgeError, match=r"<\|endoftext\|> at byte 300, .*special='text'"):
            way()


def test_a_refusal_of_a_batch_names_the_text(small):
    with pytest.raises(FledgeError, match=r"^text 3 of 4 holds the special token <\|end\|> at byte 1,"):
        small.encode_batch(["a", "", "b<|end|>", "c"], special="refuse")


def test_wrong_types_get_one_sentence(small):
    assert small.encode(b"the cat") == small.encode("the cat") == small.encode([b"the", " cat"])
    assert small.decode(np.array([5, 6])) == small.decode([5, 6])
    wrong = {
        "a text is a NoneType": lambda: small.encode(None),
        "a text is a int": lambda: small.encode(["a", 5]),
        "a text is a list": lambda: small.encode_array(["a"]),
        "a text is a float": lambda: small.encode_batch(["a", 1.5]),
        "special = None is not a way": lambda: small.encode("a", special=None),
        r"special = \[\] is not a way": lambda: small.encode_array("a", special=[]),
        "threads = 0 must be": lambda: small.encode_array("a", threads=0),
        "threads = 'x' must be": lambda: small.encode_batch(["a"], threads="x"),
        "this is a int": lambda: small.decode(5),
        "this is a NoneType": lambda: small.decode(None),
        "a ndarray of 2 dimensions": lambda: small.decode(np.array([[5, 6]])),
        "this is a str": lambda: small.decode("a"),
        "this is a bytes": lambda: small.decode(b"a"),
        r"id 1\.5 is not in the vocabulary": lambda: small.decode([1.5]),
        "errors = 'replaced' is not a way to decode. Did you mean replace?": lambda: small.decode([5], "replaced"),
        "errors = None is not a way": lambda: small.decode([5], None),
        "pattern = None must be": lambda: BPETokenizer(small.vocab, small.merges, pattern=None),
        "the special token 5 is a int": lambda: BPETokenizer(small.vocab, small.merges, [5]),
        "the id of <a> = 'x' must be": lambda: BPETokenizer(small.vocab, small.merges, {"<a>": "x"}),
        "the id of <a> = 10+ must be": lambda: BPETokenizer(small.vocab, small.merges, {"<a>": 10**30}),
        "has the id 10+; ids are": lambda: BPETokenizer({**small.vocab, 10**30: b"x"}, small.merges),
        "has the id -1; ids are": lambda: BPETokenizer({**small.vocab, -1: b"x"}, small.merges),
        "a vocabulary is ids and their bytes": lambda: BPETokenizer({**small.vocab, 999: "x"}, small.merges),
        "their bytes, and merges": lambda: BPETokenizer({**small.vocab, "a": b"x"}, small.merges),
        "merges are pairs of bytes": lambda: BPETokenizer(small.vocab, [("a", "b")]),
        "something else is among them": lambda: BPETokenizer(small.vocab, 5),
        "special_tokens = 5 is no list": lambda: BPETokenizer(small.vocab, small.merges, 5),
        "the special token .* half of a UTF-16": lambda: BPETokenizer(small.vocab, small.merges, {"\ud800": 999}),
        "vocab_size = a number of thousands of digits must be": lambda: train_bpe(["x"], 10**5000),
        "threads = 10+ must be": lambda: small.encode_array("a", threads=10**30),
        "from 1 to 4,096": lambda: small.encode_batch(["a"], threads=2**32),
        "id 10+ is not in the vocabulary": lambda: small.decode([10**30]),
        "id a number of thousands of digits is not": lambda: small.decode([10**5000]),
        "a str is one text": lambda: small.encode_batch("abc"),
        "a int is no list of texts": lambda: small.encode_batch(5),
        "a NoneType is no list of texts": lambda: next(small.encode_iterable(None)),
        "always = '<a>' is not one of": lambda: BPETokenizer(small.vocab, small.merges, always=["<a>"]),
    }
    for sentence, call in wrong.items():
        with pytest.raises(FledgeError, match=sentence):
            call()


SHORTENED = """
import os, sys
from fledge import FledgeError, train_bpe
from fledge.tokenizer import stream

stream.BLOCK = 1 << 16
source, sink = sys.argv[1:]
tokenizer = train_bpe(["the cat"], 258)
encode = tokenizer._encoder.encode

class Encoder:
    last_cut = tokenizer._encoder.last_cut
    def encode(self, *arguments):
        os.truncate(source, stream.BLOCK)
        return encode(*arguments)

tokenizer._encoder = Encoder()
try:
    tokenizer.encode_file(source, sink)
except FledgeError as error:
    print(error)
"""


def test_a_file_that_becomes_shorter_is_refused(tmp_path):
    """To touch what is gone of a mapped file would end the process."""
    source, sink = tmp_path / "text.txt", tmp_path / "ids.bin"
    source.write_text("the cat " * 100_000)
    done = subprocess.run([sys.executable, "-c", SHORTENED, source, sink], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "became shorter while it was read" in done.stdout
    assert not sink.exists()


LINES = ("apple\nbanana\ncherry\n", "1\n22\n333\n4444\n", "d41d8cd98f\n00b204e980\n", "漢字\nété\n٣\n")


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("pattern", NAMES)
def test_lines_without_blanks_are_not_gathered(small, pattern, lines):
    """A column of numbers is cut at its line ends: the first ids come long before the last line."""
    tokenizer = BPETokenizer(small.vocab, small.merges, small.special_tokens, pattern=pattern)
    read = []

    def long():
        for _ in range(2000):
            read.append(lines * 100)
            yield read[-1]

    ids = tokenizer.encode_iterable(long())
    first = [next(ids) for _ in range(50)]
    assert len(read) < 100
    assert first == tokenizer.encode("".join(read))[:50]


@pytest.mark.parametrize("pattern", NAMES)
@settings(max_examples=300, deadline=None)
@given(text=st.text("\naBé漢123٣'s./ \r", min_size=12))
def test_parts_between_safe_cuts_have_the_ids_of_the_whole(pairs, pattern, text):
    ours, _ = pairs[pattern]
    text = text.encode()
    parts, rest = [], text
    while end := ours._encoder.last_cut(rest, "text"):
        parts.insert(0, rest[end:])
        rest = rest[:end]
    ids = [token for part in [rest, *parts] for token in ours.encode(part, special="text")]
    assert ids == ours.encode(text, special="text")


def test_thousands_of_special_tokens_are_found_as_quickly_as_one(small):
    import time

    names = [f"<|reserved {number}|>" for number in range(20_000)]
    tokenizer = BPETokenizer(small.vocab, small.merges, [*small.special_tokens, *names])
    text = "a<b " * 200_000 + names[777]
    started = time.process_time()
    ids = tokenizer.encode_array(text, threads=1)
    assert time.process_time() - started < 2  # eight, if each were looked at
    assert ids[-1] == tokenizer.special_tokens[names[777]]


def test_the_longest_special_wins(small):
    assert small.encode("<|end|>") == [1]
    assert small.encode("<|e")[0] == 2


@pytest.mark.parametrize("unit", ["a", "ab", "漢", "the"])
def test_a_long_pretoken_is_quick(pairs, unit):
    """A megabyte without a space: n log n, so seconds would mean a quadratic way."""
    import time

    ours, _ = pairs["gpt2"]
    text = unit * (1_000_000 // len(unit.encode()))
    started = time.process_time()
    ids = ours.encode_array(text)
    assert time.process_time() - started < 3
    assert ours.decode(ids) == text


def test_decoder_never_emits_half_a_character(small):
    text = "漢字 été 😀 the"
    decoder = small.decoder()
    parts = [decoder.push(token) for token in small.encode(text)]
    assert "".join(parts) + decoder.finish() == text
    assert not any("\ufffd" in part for part in parts)
    assert decoder.push(small.encode("漢".encode()[:1])[0]) == ""
    assert decoder.finish() == "\ufffd"


def test_decoding_replaces_what_is_not_text(small):
    assert small.decode(small.encode_array(b"a\xff")) == "a\ufffd"
    with pytest.raises(FledgeError, match="not in the vocabulary"):
        small.decode([10**6])


def test_roles(small):
    assert small.roles == (None, 0, 1, None, 0)
    lone = train_bpe(["ab ab"], 258, [END])
    assert (lone.roles.start, lone.roles.end, lone.roles.separator) == (0, 0, 0)


def test_what_is_found_in_plain_text_ends_nothing():
    vocab = {i: bytes([i]) for i in range(256)}
    assert BPETokenizer(vocab, [], ["  "]).roles.end == 256
    assert BPETokenizer(vocab, [], ["  "], always=["  "]).roles.end is None


def test_saved_and_loaded(small, tmp_path):
    small.save(tmp_path / "tokenizer")
    again = load_tokenizer(tmp_path / "tokenizer")
    text = f"the cat{END} 漢字 <|end|>"
    assert again.encode(text) == small.encode(text)
    assert again.fingerprint == small.fingerprint
    assert again.vocab == small.vocab


def test_copies_and_other_processes(small):
    import pickle

    again = pickle.loads(pickle.dumps(small))
    assert again.encode("the cat") == small.encode("the cat")
    assert again.fingerprint == small.fingerprint


def test_gpt2_files(shared_data, pairs):
    _, theirs = pairs["gpt2"]
    folder = shared_data / "cs336"
    for specials in (None, [END], {END: 50256}):
        tokenizer = BPETokenizer.from_files(folder / "gpt2_vocab.json", folder / "gpt2_merges.txt", specials)
        assert tokenizer.encode(f"Hello, world!{END}") == theirs.encode(f"Hello, world!{END}", allowed_special="all")


def test_fingerprint_sees_what_changes_ids(small):
    other = BPETokenizer(small.vocab, small.merges, small.special_tokens, pattern="cl100k")
    shorter = BPETokenizer(small.vocab, small.merges[:-1], small.special_tokens)
    assert len({small.fingerprint, other.fingerprint, shorter.fingerprint}) == 3


def test_a_vocabulary_without_all_bytes():
    """What it can spell it encodes; what it can't is refused by name."""
    tokenizer = BPETokenizer({0: b"a", 1: b"b", 2: b"ab"}, [(b"a", b"b")])
    assert tokenizer.encode("aab") == [0, 2]
    with pytest.raises(FledgeError, match="no token for byte 99"):
        tokenizer.encode("abc")
    with pytest.raises(FledgeError, match="a merge needs the token"):
        BPETokenizer({0: b"a", 1: b"b"}, [(b"a", b"b")])
    with pytest.raises(FledgeError, match=r"needs the token b'\\x00a', which is not in the vocabulary"):
        BPETokenizer({0: b"a", 1: b"\0"}, [(b"\0", b"a")])
    with pytest.raises(FledgeError, match="a token of no bytes"):
        BPETokenizer({0: b"a", 1: b""}, [])


def merged_naively(word: bytes, merges: list[tuple[bytes, bytes]]) -> list[bytes]:
    symbols = [bytes([byte]) for byte in word]
    while True:
        ranks = [merges.index(pair) if (pair := (a, b)) in merges else len(merges) for a, b in pairwise(symbols)]
        if min(ranks, default=len(merges)) == len(merges):
            return symbols
        at = ranks.index(min(ranks))
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@given(st.permutations([(1, 1), (2, 2), (2, 1), (3, 1), (1, 3), (4, 4), (4, 1), (1, 4)]), st.integers(1, 200))
def test_the_same_bytes_reached_by_several_merges(lengths, count):
    """`aa` + `aa`, `aaa` + `a` and `a` + `aaa` are one token, whichever comes first, in words of any length."""
    merges = [(b"a" * left, b"a" * right) for left, right in lengths]
    tokens = sorted({left + right for left, right in merges} | {bytes([byte]) for byte in range(256)})
    vocab = dict(enumerate(tokens))
    ids = BPETokenizer(vocab, merges).encode("a" * count)
    assert [vocab[token] for token in ids] == merged_naively(b"a" * count, merges)


def test_special_tokens_given_as_texts():
    vocab = {i: bytes([i]) for i in range(256)}
    tokenizer = BPETokenizer(vocab, [], ["<|b|>", "<|a|>", "<|b|>"])
    assert tokenizer.special_tokens == {"<|b|>": 256, "<|a|>": 257}
    assert tokenizer.vocab_size == 258
    for wrong in ({"x": 5}, {"": 300}, {"p": 300, "q": 300}, "abc"):
        with pytest.raises(FledgeError):
            BPETokenizer(vocab, [], wrong)


def test_wide_ids():
    vocab = {i: bytes([i]) for i in range(256)} | {70_000: b"ab"}
    tokenizer = BPETokenizer(vocab, [(b"a", b"b")])
    assert tokenizer.token_dtype == np.uint32
    assert tokenizer.encode_array("cab").tolist() == [99, 70_000]


def test_a_pattern_of_ones_own_keeps_every_byte(small):
    with pytest.warns(UserWarning, match="regex package"):
        tokenizer = BPETokenizer(small.vocab, small.merges, small.special_tokens, pattern=r"\w+|[!]")
    text = f"the cat -- sat!{END} on"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert list(tokenizer.encode_iterable(text)) == tokenizer.encode(text)
    assert 0 in tokenizer.encode(text)
    for wrong in ("(", "(" * 3000 + "a" + ")" * 3000):
        with pytest.raises(FledgeError, match="nor a regular expression"):
            BPETokenizer(small.vocab, small.merges, pattern=wrong)
    with pytest.raises(FledgeError, match="searches backwards"):
        BPETokenizer(small.vocab, small.merges, pattern=r"(?r)\w+")
    with pytest.raises(FledgeError, match="forbids"):
        tokenizer.encode(text, special="refuse")


def test_import_needs_no_torch():
    code = "import sys, fledge.tokenizer as t; t.BPETokenizer; print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_training_on_a_plain_file_needs_no_corpus(tmp_path):
    """What settings are checked with takes longer to import than 5 MB take to train on."""
    (tmp_path / "a.txt").write_text("low lower lowest")
    code = "import sys, fledge; fledge.train_bpe(sys.argv[1], 260); print({'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
