"""`fledge tokenizer` as a person types it: what it prints, and one sentence and exit code 2 for a mistake."""

from __future__ import annotations

import gzip
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge import BPETokenizer, load_tokenizer, train_bpe
from fledge.corpus import Corpus
from fledge.tokenizer import WordTokenizer, train_tokenizer

from .conftest import Fledge

TEXT = "The cat sat on the mat. The egg, an Egg, ran to the cat!\n<|endoftext|>" * 40


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    train_bpe(iter([TEXT]), 280, ["<|endoftext|>"]).save(tmp_path / "bpe")
    return tmp_path / "bpe"


@pytest.fixture
def word(tmp_path: Path) -> Path:
    WordTokenizer.train([TEXT]).save(tmp_path / "word")
    return tmp_path / "word"


# ---- train -------------------------------------------------------------------------------------------------


def test_train_prints_the_phases_and_the_longest_tokens(fledge: Fledge, corpus: Path, tmp_path: Path) -> None:
    options = ("--fit-on", "all", "--threads", 1)
    result = fledge("tokenizer", "train", corpus, "--vocab-size", 280, "--out", tmp_path / "own", *options)
    assert result.code == 0
    for words in ("phase", "peak memory", "scan", "count pairs", "merge", "Longest tokens", "280 ids"):
        assert words in result.out
    tokenizer = load_tokenizer(tmp_path / "own")
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.fingerprint == train_bpe(corpus, 280, ["<|endoftext|>"]).fingerprint


@pytest.mark.filterwarnings("ignore:training ended")
def test_of_a_token_as_long_as_the_text_train_prints_the_beginning(fledge: Fledge, tmp_path: Path) -> None:
    """Fifty megabytes of one letter made tokens of a megabyte, and each was printed."""
    (tmp_path / "one.txt").write_text("a" * 60_000)
    result = fledge("tokenizer", "train", tmp_path / "one.txt", "--vocab-size", 300, "--out", tmp_path / "own")
    assert result.code == 0
    assert "“" + "a" * 20 in result.out
    assert "…" in result.out
    assert result.out.count("a") < 2000


@pytest.mark.parametrize("name", ["own", "my own"])
def test_the_next_command_that_train_prints_works(fledge: Fledge, corpus: Path, tmp_path: Path, name: str) -> None:
    import shlex

    out = fledge("tokenizer", "train", corpus, "--vocab-size", 280, "--out", tmp_path / name).out
    (line,) = [line for line in out.splitlines() if line.strip().startswith("fledge tokenizer show")]
    result = fledge(*shlex.split(line)[1:])
    assert result.code == 0
    assert "egg" in result.out


def test_the_separator_of_documents_is_never_learned(fledge: Fledge, tmp_path: Path) -> None:
    """Not even where it is no special token, and all of a plain file is wanted."""
    path = tmp_path / "documents.txt"
    path.write_text("a cat<|endoftext|>" * 50)
    options = ("--fit-on", "all", "--special", "<|x|>", "--vocab-size", 300)
    assert fledge("tokenizer", "train", path, *options, "--out", tmp_path / "own").code == 0
    tokenizer = load_tokenizer(tmp_path / "own")
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.merges
    assert not any(b"|" in left + right for left, right in tokenizer.merges)


@pytest.mark.parametrize("kind", ["word", "character"])
def test_train_makes_the_other_kinds(fledge: Fledge, corpus: Path, tmp_path: Path, kind: str) -> None:
    result = fledge("tokenizer", "train", corpus, "--kind", kind, "--vocab-size", 0, "--out", tmp_path / "own", "-q")
    assert (result.code, result.out) == (0, "")
    assert load_tokenizer(tmp_path / "own").kind == kind


def test_train_takes_several_special_tokens_and_a_pattern(fledge: Fledge, corpus: Path, tmp_path: Path) -> None:
    options = ["--special", "<|a|>", "--special", "<|ab|>", "--pattern", "cl100k", "--min-frequency", 2]
    assert fledge("tokenizer", "train", corpus, "--vocab-size", 270, *options, "--out", tmp_path / "own").code == 0
    tokenizer = load_tokenizer(tmp_path / "own")
    assert tokenizer.special_tokens == {"<|a|>": 0, "<|ab|>": 1}
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.pattern == "cl100k"


def test_train_reads_jsonl_and_folders_through_a_corpus(fledge: Fledge, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": TEXT}) + "\n" for _ in range(3)))
    for source in (folder, tmp_path / "lines.jsonl"):
        result = fledge("tokenizer", "train", source, "--vocab-size", 270, "--out", tmp_path / f"own-{source.name}")
        assert result.code == 0, result.err
        assert load_tokenizer(tmp_path / f"own-{source.name}").vocab_size == 270


def test_a_folder_made_while_training_stays(
    fledge: Fledge, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither it nor the trained tokenizer is lost."""
    train, out = train_tokenizer, tmp_path / "own"

    def slow_train(*arguments: Any) -> Any:
        out.mkdir()
        (out / "tokenizer.json").write_text("theirs")
        return train(*arguments)

    monkeypatch.setattr("fledge.tokenizer.fit.train_tokenizer", slow_train)
    result = fledge("tokenizer", "train", corpus, "--vocab-size", 270, "--out", out)
    assert result.code == 0
    assert f"the tokenizer is in {out}-2." in result.err
    assert f"270 ids in {out}-2." in result.out
    assert (out / "tokenizer.json").read_text() == "theirs"
    assert load_tokenizer(f"{out}-2").vocab_size == 270


def test_space_is_asked_for_what_the_text_can_fill(
    fledge: Fledge, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten million ids of a text of a few kilobytes take a megabyte, not two gigabytes."""
    free = shutil._ntuple_diskusage(10**9, 10**9, 1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert fledge("tokenizer", "train", corpus, "--vocab-size", 10_000_000, "--out", tmp_path / "own").code == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=10_000))
    refused = fledge("tokenizer", "train", corpus, "--vocab-size", 10_000_000, "--out", tmp_path / "more")
    assert (refused.code, refused.out) == (2, "")
    assert "only 10.0 kB are free" in refused.err


def test_train_never_sees_what_tokenize_holds_out(fledge: Fledge, tmp_path: Path) -> None:
    """One word of its own in each document: those of the documents held out are in no tokenizer, unless asked for."""
    words = ["".join(chr(97 + (i * step) % 26) for step in (1, 3, 7, 11)) + "qzx" * 3 for i in range(26)]
    lines = tmp_path / "posts.jsonl"
    lines.write_text("".join(json.dumps({"body": f"{word} {i}"}) + "\n" for i, word in enumerate(words * 4)))
    novel = tmp_path / "novel.txt"
    novel.write_text("".join(f"Line {i} of the novel about number {i * i}.\n" for i in range(2000)))
    for source, more in ((lines, ["--field", "body", "--validation-fraction", 0.3]), (novel, [])):
        own, every = tmp_path / f"own-{source.stem}", tmp_path / f"all-{source.stem}"
        command = ("tokenizer", "train", source, "--vocab-size", 400, *more)
        made = fledge(*command, "--out", own)
        assert made.code == 0, made.err
        assert fledge(*command, "--fit-on", "all", "--out", every).code == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            named = {"field": "body", "validation_fraction": 0.3} if source is lines else {}
            text = Corpus.open(source, **named)  # type: ignore[arg-type]
            wanted = train_bpe(text.documents("train"), 400, ["<|endoftext|>"])
            assert 0 < sum(map(len, text.documents("train"))) < sum(map(len, text.documents()))
        assert load_tokenizer(own).fingerprint == wanted.fingerprint
        assert load_tokenizer(every).fingerprint != wanted.fingerprint
        assert f"{sum(map(len, text.documents('train'))):,} bytes of text" in made.out


# ---- look --------------------------------------------------------------------------------------------------


def test_show_puts_tokenizers_side_by_side(fledge: Fledge, bpe: Path, word: Path) -> None:
    result = fledge("tokenizer", "show", "egg", " egg", "-t", bpe, "-t", word, "--ids")
    assert result.code == 0
    assert "bpe" in result.out
    assert "word" in result.out
    assert " ¦egg" in result.out


def test_show_as_json_gives_the_ids(fledge: Fledge, bpe: Path, word: Path) -> None:
    cells = json.loads(fledge("tokenizer", "show", "the cat", "-t", bpe, "-t", word, "--json").out)
    assert [cell["ids"] for cell in cells] == [load_tokenizer(path).encode("the cat") for path in (bpe, word)]


def test_show_as_a_page(fledge: Fledge, bpe: Path, tmp_path: Path) -> None:
    result = fledge("tokenizer", "show", "the <cat>", "-t", bpe, "--html", tmp_path / "tokens.html")
    assert result.code == 0
    assert "&lt;" in (tmp_path / "tokens.html").read_text()


def test_a_page_and_a_description_replace_nothing(fledge: Fledge, bpe: Path, tmp_path: Path) -> None:
    notes, beside = tmp_path / "notes.html", tmp_path / "own.tiktoken.json"
    for path in (notes, beside):
        path.write_text("mine")
    for arguments in (
        ("show", "the cat", "-t", bpe, "--html", notes),
        ("show", "the cat", "-t", bpe, "--html", "/dev/stdout"),
        ("convert", bpe, tmp_path / "own.tiktoken", "--to", "tiktoken"),
    ):
        refused = fledge("tokenizer", *arguments)
        assert refused.code == 2
        assert "is already there" in refused.err
    assert notes.read_text() == beside.read_text() == "mine"
    assert not (tmp_path / "own.tiktoken").exists()


def test_show_reads_standard_input(fledge: Fledge, word: Path) -> None:
    result = fledge("tokenizer", "show", "-t", word, "--json", stdin="cat é".encode() + b"\xff")
    assert "".join(json.loads(result.out)[0]["tokens"]) == "cat ⟨C3⟩⟨A9⟩⟨FF⟩"


def test_inspect_lists_the_facts(fledge: Fledge, bpe: Path, corpus: Path) -> None:
    result = fledge("tokenizer", "inspect", bpe, "--corpus", corpus)
    assert result.code == 0
    for words in ("single bytes", "Longest tokens", "bytes per token", "ids never used", "<|endoftext|>"):
        assert words in result.out
    record = json.loads(fledge("tokenizer", "inspect", bpe, "--json", "-c", corpus).out)
    assert record["ids"] == 280
    assert record["usage"]["bytes_per_token"] > 1


def test_compare_prints_the_matrix(fledge: Fledge, bpe: Path, word: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("quite another text, of other words\n" * 50)
    result = fledge("tokenizer", "compare", corpus, tmp_path / "other.txt", "-t", bpe, "-t", word)
    assert result.code == 0
    for words in ("Bytes per token", "corpus.txt", "other.txt", "MB/s", "time for 825 GB", "bits per id"):
        assert words in result.out
    records = json.loads(fledge("tokenizer", "compare", corpus, "-t", bpe, "--json", "--limit", "inf").out)
    assert records[0]["width"] == 16
    assert records[0]["pile_seconds"] > 0


def test_compare_looks_at_documents_one_by_one(fledge: Fledge, bpe: Path, word: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("aaaaaaaa<|endoftext|>the the the")
    options = ("tokenizer", "compare", tmp_path / "two.txt", "-t", bpe, "-t", word, "--documents", "5")
    result = fledge(*options)
    assert "documents drawn at random" in result.out
    record = json.loads(fledge(*options, "--json").out)[0]["sample"]
    assert [size for size, _ in record["documents"]] == [8, 11]
    first, second = record["ratios"]
    assert record["mean"] == (first + second) / 2
    assert record["deviation"] == pytest.approx(abs(first - second) / 2**0.5)


def test_contrast_shows_what_one_vocabulary_has_alone(fledge: Fledge, bpe: Path, word: Path, tmp_path: Path) -> None:
    texts = {"bird": "the bird sings " * 30, "fish": "the fish swims " * 30}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        fledge("tokenizer", "train", tmp_path / f"{name}.txt", "--vocab-size", "265", "--out", tmp_path / name)
    result = fledge("tokenizer", "contrast", tmp_path / "bird", tmp_path / "fish")
    assert result.code == 0
    assert "Only in bird" in result.out
    record = json.loads(fledge("tokenizer", "contrast", tmp_path / "bird", tmp_path / "fish", "--json").out)
    bird, fish = ({bytes(entry["data"], "utf-8") for entry in record["only"][name]} for name in texts)
    vocabularies = [set(load_tokenizer(tmp_path / name).vocab.values()) - {b"<|endoftext|>"} for name in texts]
    assert (bird, fish) == (vocabularies[0] - vocabularies[1], vocabularies[1] - vocabularies[0])
    assert record["shared"] == len(vocabularies[0] & vocabularies[1])
    result = fledge("tokenizer", "contrast", tmp_path / "bird")
    assert result.code == 2
    assert "name two different tokenizers" in result.err


def test_unicode_names_every_character(fledge: Fledge) -> None:
    result = fledge("tokenizer", "unicode", "e\u0301\u200b😀")
    assert result.code == 0
    for words in (
        "U+0301",
        "COMBINING ACUTE ACCENT",
        "F0 9F 98 80",
        "D8 3D DE 00",
        "takes no room",
        "not in composed",
    ):
        assert words in result.out


def test_unicode_breaks_no_word_at_80_columns(fledge: Fledge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = fledge("tokenizer", "unicode", "n!\u00ef💩\u200d漢(").out
    for word in (
        "EXCLAMATION",
        "DIAERESIS",
        "IDEOGRAPH-6F22",
        "PARENTHESIS",
        "lower-case",
        "punctuation",
        "00 01 F4 A9",
    ):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_unicode_says_why_bytes_do_not_decode(fledge: Fledge, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"A\xc0\xaf")
    for arguments in (("--hex", r"41 \xC0 0xAF"), ("--file", tmp_path / "broken"), ("A\udcc0\udcaf",)):
        result = fledge("tokenizer", "unicode", *arguments)
        assert result.code == 0
        assert "overlong" in result.out
        assert "U+002F" in result.out
    assert fledge("tokenizer", "unicode", "A", "--limit", 10**30).code == 0
    record = json.loads(fledge("tokenizer", "unicode", "--json", stdin=b"\xed\xa0\x80").out)
    assert record["flaws"][0]["fault"] == "surrogate"


# ---- ids ---------------------------------------------------------------------------------------------------


def test_encode_and_decode_undo_each_other(fledge: Fledge, bpe: Path) -> None:
    ids = fledge("tokenizer", "encode", bpe, "the egg<|endoftext|>").out
    assert ids.split() == [str(token) for token in load_tokenizer(bpe).encode("the egg<|endoftext|>")]
    assert fledge("tokenizer", "decode", bpe, *ids.split()).out == "the egg<|endoftext|>"
    assert fledge("tokenizer", "decode", bpe, stdin=ids.replace(" ", ", ").encode()).out == "the egg<|endoftext|>"


def test_encode_writes_a_file_that_numpy_reads(fledge: Fledge, bpe: Path, corpus: Path, tmp_path: Path) -> None:
    result = fledge("tokenizer", "encode", bpe, "--file", corpus, "--out", tmp_path / "ids.bin")
    assert result.code == 0
    ids = np.memmap(tmp_path / "ids.bin", "<u2")
    assert ids.tolist() == load_tokenizer(bpe).encode(TEXT)
    assert fledge("tokenizer", "decode", bpe, "--file", tmp_path / "ids.bin").out == TEXT


def test_ids_that_are_not_text_are_refused(fledge: Fledge, bpe: Path) -> None:
    result = fledge("tokenizer", "decode", bpe, stdin=b"1 2 \xff")
    assert (result.code, result.err) == (2, "fledge: ids are whole numbers with spaces between them.\n")


def test_encode_reads_what_is_compressed(fledge: Fledge, bpe: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.gz").write_bytes(gzip.compress(TEXT.encode()))
    result = fledge("tokenizer", "encode", bpe, "--file", tmp_path / "corpus.gz", "--out", tmp_path / "ids.bin")
    assert f"from {len(TEXT):,} bytes" in result.out
    assert np.fromfile(tmp_path / "ids.bin", "<u2").tolist() == load_tokenizer(bpe).encode(TEXT)


# ---- convert and fetch -------------------------------------------------------------------------------------


def test_convert_goes_round(fledge: Fledge, bpe: Path, tmp_path: Path) -> None:
    assert fledge("tokenizer", "convert", bpe, tmp_path / "gpt2", "--to", "gpt2").code == 0
    assert fledge("tokenizer", "convert", tmp_path / "gpt2", tmp_path / "own.tiktoken", "--to", "tiktoken").code == 0
    assert fledge("tokenizer", "convert", tmp_path / "own.tiktoken", tmp_path / "again").code == 0
    assert load_tokenizer(tmp_path / "again").fingerprint == load_tokenizer(bpe).fingerprint


def test_convert_takes_what_ranks_do_not_say(fledge: Fledge, bpe: Path, tmp_path: Path) -> None:
    fledge("tokenizer", "convert", bpe, tmp_path / "own.tiktoken", "--to", "tiktoken")
    (tmp_path / "own.tiktoken.json").unlink()
    arguments = ["--pattern", "gpt2", "--special", "<|endoftext|>=0"]
    assert fledge("tokenizer", "convert", tmp_path / "own.tiktoken", tmp_path / "again", *arguments).code == 0
    assert load_tokenizer(tmp_path / "again").fingerprint == load_tokenizer(bpe).fingerprint


def test_fetch_uses_the_cache(
    fledge: Fledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_data: Path
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "tokenizers").mkdir(parents=True)
    (tmp_path / "cache" / "tokenizers" / "gpt2.tiktoken").symlink_to(shared_data / "ranks" / "gpt2.tiktoken")
    assert fledge("tokenizer", "fetch", "gpt2", "--out", tmp_path / "gpt2").code == 0
    assert load_tokenizer(tmp_path / "gpt2").encode("Hello world") == [15496, 995]
    assert fledge("tokenizer", "encode", "gpt2", "Hello world").out == "15496 995\n"


# ---- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "missing.txt", "--out", "own"), "missing.txt"),
        (("train", "empty.txt", "--out", "own"), "no text|empty"),
        (("train", "corpus.txt", "--out", "word"), "word is already there"),
        (("train", "corpus.txt", "--out", "own", "--vocab-size", 10), "too small"),
        (("train", "corpus.txt", "--out", "own", "--kind", "word", "--vocab-size", 10), "at least 260"),
        (
            ("train", "corpus.txt", "--out", "own", "--kind", "word", "--special", "<a>"),
            "--special and --pattern",
        ),
        (("train", "corpus.txt", "--out", "own", "--pattern", "("), "pattern"),
        (("train", "corpus.txt", "--out", "own", "--special", "a", "--special", "a"), "special"),
        (("train", "corpus.txt", "--out", "corpus.txt/own"), "is a file and not a folder"),
        (("train", "corpus.txt", "--out", "link"), "link is already there"),
        pytest.param(("train", "corpus.txt", "--out", "x" * 5000), "can't be a path", id="train into a long name"),
        (("train", "corpus.txt", "--out", "own", "--vocab-size", 10**30), "vocab_size = 10+ must be"),
        (("train", "corpus.txt", "--out", "own", "--min-frequency", 10**30), "min_frequency = 10+ must be"),
        (("train", "corpus.txt", "--out", "own", "--threads", 10**30), "threads = 10+ must be"),
        (("train", "corpus.txt", "--out", "own", "--special", "a\udcff"), "a byte that is not UTF-8"),
        (("train", "corpus.txt", "--out", "own", "--pattern", "a\udcff"), "a byte that is not UTF-8"),
        (("show", "text"), "name a tokenizer"),
        (("show", "text", "-t", "nowhere"), "no tokenizer at nowhere"),
        (("show", "text", "-t", "texts"), "holds no tokenizer"),
        (("show", "<|end|>", "-t", "word", "--special", "refuse"), r"<\|end\|>"),
        (("inspect", "corpus.txt"), "not valid JSON"),
        (("inspect", "word", "-c", "missing"), "missing"),
        (("inspect", "word", "-c", "empty.txt"), "no documents|no text"),
        (("compare", "corpus.txt"), "name the tokenizers"),
        (("compare", "missing", "-t", "word"), "missing"),
        (("compare", "empty.txt", "-t", "word"), "no documents|no text"),
        (("unicode", "--hex", "zz"), "hexadecimal"),
        (("unicode", "a", "--hex", "41"), "give one of"),
        (("unicode", "--file", "missing"), "no file or folder"),
        (("unicode", "--file", "texts"), "is a folder"),
        (("encode", "word", "--file", "corpus.txt"), "both --file and --out"),
        (("encode", "word", "--file", "texts", "--out", "ids.bin"), "a folder"),
        (("encode", "word", "--file", "missing", "--out", "ids.bin"), "not there"),
        (("encode", "word", "--file", "corpus.txt", "--out", "empty.txt"), "already there"),
        (("encode", "word", "--file", "corpus.txt", "--out", "corpus.txt"), "already there"),
        pytest.param(("encode", "x" * 5000, "a"), "can't be a path", id="encode by a long name"),
        pytest.param(("show", "text", "-t", "x" * 5000), "can't be a path", id="show by a long name"),
        (("decode", "word", 99999), "99999"),
        (("decode", "word", 10**30), "id 10+ is not in the vocabulary"),
        (("decode", "word", "--file", "odd.bin"), "whole ids"),
        (("decode", "word"), "whole numbers"),
        (("convert", "word", "own", "--to", "gpt2"), "they read BPE only"),
        (("convert", "word", "texts"), "already there"),
        (("convert", "word", "own", "--special", "<a>"), "must be a text"),
        pytest.param(("convert", "word", "own", "--special", "<a>=" + "9" * 5000), "must be a text", id="a long id"),
        (("fetch", "gpt5"), "is not a published vocabulary"),
        (("fetch", "gpt2", "--out", "texts"), "already there"),
    ],
)
def test_a_mistake_is_one_sentence(
    fledge: Fledge,
    arguments: tuple[object, ...],
    sentence: str,
    corpus: Path,
    word: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "link").symlink_to("nowhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = fledge("tokenizer", *arguments, stdin=b"one two")
    assert result.code == 2, result
    assert re.search(sentence, result.err), result.err
    assert result.err.startswith("fledge: ")
    assert "Traceback" not in result.err
    assert result.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_no_memory_for_a_text_is_told_of_the_text(
    fledge: Fledge, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("fledge.tokenizer.fit.train_tokenizer", too_much)
    result = fledge("tokenizer", "train", corpus, "--out", tmp_path / "own")
    assert result.code == 2
    assert "the text, or one of its documents, is too large" in result.err
    assert "model.width" not in result.err


def test_an_unknown_option_is_refused_with_code_2(fledge: Fledge, corpus: Path) -> None:
    assert fledge("tokenizer", "train", corpus, "--out", "x", "--kind", "sentence").code == 2
    assert fledge("tokenizer", "train", corpus).code == 2
    assert fledge("tokenizer", "nothing").code == 2
