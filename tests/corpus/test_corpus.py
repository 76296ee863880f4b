"""One corpus out of any kind of source: the documents, the split, the cursor, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import http.server
import io
import json
import lzma
import os
import sys
import threading
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fledge.corpus.corpus
import fledge.corpus.readers
from fledge.corpus import Corpus, Cursor
from fledge.corpus.inspect import inspect
from fledge.corpus.readers import Options, read
from fledge.corpus.sources import Source
from fledge.errors import FledgeError

TEXTS = [f"document {i}\nwith <|pad|> and “quotes” {'x' * (i % 13)}" for i in range(60)]
BYTES = [text.encode() for text in TEXTS]


def packed(data: bytes, ending: str) -> bytes:
    if ending == ".zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames, as parallel compressors write them
        return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))
    return {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, "": bytes}[ending](data)


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(data, path.suffix if path.suffix in (".gz", ".zst", ".xz", ".bz2") else ""))
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".xz", ".bz2"])
def test_text_with_separators(tmp_path, ending):
    path = write(tmp_path / f"text.txt{ending}", b"<|endoftext|>".join(BYTES))
    corpus = Corpus.open(path)
    assert list(corpus.documents()) == BYTES
    assert corpus.special == "recognise"
    assert sorted([*corpus.documents("train"), *corpus.documents("validation")]) == sorted(BYTES)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_jsonl(tmp_path, ending):
    lines = "\n".join(json.dumps({"id": i, "body": text}) for i, text in enumerate(TEXTS))
    corpus = Corpus.open(write(tmp_path / f"text.jsonl{ending}", lines.encode()), field="body")
    assert list(corpus.documents()) == BYTES
    assert corpus.special == "text"


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": [*TEXTS, None, "  "], "number": range(62)})
    parquet.write_table(table, tmp_path / "text.parquet", row_group_size=7)
    corpus = Corpus.open(tmp_path / "text.parquet")
    assert list(corpus.documents()) == BYTES
    with pytest.raises(FledgeError, match="no column 'txt'. Did you mean text"):
        list(Corpus.open(tmp_path / "text.parquet", field="txt").documents())
    with pytest.raises(FledgeError, match="holds int64, not text"):
        list(Corpus.open(tmp_path / "text.parquet", field="number").documents())
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "text.parquet").read_bytes()[:-20])
    with pytest.raises(FledgeError, match="not a whole Parquet file"):
        list(Corpus.open(tmp_path / "cut.parquet").documents())


def test_lines(tmp_path):
    path = write(tmp_path / "lines.txt", "\r\n".join(f"line {i}" for i in range(30)).encode() + b"\n\n")
    assert list(Corpus.open(path, format="lines").documents()) == [b"line %d" % i for i in range(30)]


def test_a_folder_is_one_document_per_file(tmp_path):
    for i, text in enumerate(BYTES):
        write(tmp_path / "texts" / f"{i // 10}" / f"{i:03}.txt", text)
    write(tmp_path / "texts" / ".hidden" / "notes.txt", b"not to be read")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\0\0")
    with pytest.warns(UserWarning, match="left out picture.png"):
        corpus = Corpus.open(tmp_path / "texts")
    assert list(corpus.documents()) == BYTES
    assert corpus.special == "text"
    assert list(Corpus.open(tmp_path / "texts" / "**" / "*.txt").documents()) == BYTES


def test_a_folder_of_shards_with_separators(tmp_path):
    for i in range(3):
        write(tmp_path / f"shard-{i}.txt.gz", b"<|endoftext|>".join(BYTES[20 * i : 20 * i + 20]))
    assert list(Corpus.open(tmp_path).documents()) == BYTES


def test_several_sources_and_formats_at_once(tmp_path):
    one = write(tmp_path / "one.txt", b"<|endoftext|>".join(BYTES[:30]))
    two = write(tmp_path / "two.jsonl", "\n".join(json.dumps({"text": text}) for text in TEXTS[30:]).encode())
    corpus = Corpus.open(one, two)
    assert list(corpus.documents()) == BYTES
    assert corpus.special == "text"


def test_special_tokens_count_in_text_files_beside_other_formats(tmp_path):
    """A batch ends where that changes, and reading goes on from there."""
    one = write(tmp_path / "one.txt", b"<|endoftext|>".join(BYTES[:10]))
    two = write(tmp_path / "two.txt", b"<|endoftext|>".join(BYTES[10:20]))
    rows = write(tmp_path / "rows.jsonl", "\n".join(json.dumps({"text": text}) for text in TEXTS[20:]).encode())
    blank = write(tmp_path / "blank.jsonl", b"\n")
    for sources, expected in (
        ((one, two, rows), [("recognise", BYTES[:20]), ("text", BYTES[20:])]),
        ((rows, one, blank, two), [("text", BYTES[20:]), ("recognise", BYTES[:10]), ("recognise", BYTES[10:20])]),
    ):
        corpus = Corpus.open(*sources)
        batches = list(corpus.batches())
        assert [(batch.special, batch.documents) for batch in batches] == expected
        for done, batch in enumerate(batches):
            rest = [(again.special, again.documents) for again in corpus.batches(batch.cursor)]
            assert rest == expected[done + 1 :]
        assert batches[-1].consumed == corpus.size


def test_fsspec_addresses(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/a.txt.gz", gzip.compress(b"<|endoftext|>".join(BYTES)))
    assert list(Corpus.open("memory://corpus/a.txt.gz").documents()) == BYTES
    assert list(Corpus.open("memory://corpus/*.gz").documents()) == BYTES
    with pytest.raises(FledgeError, match="nothing at memory://corpus/b.txt"):
        Corpus.open("memory://corpus/b.txt")


def test_a_missing_driver_is_named_with_the_way_to_get_it(monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def missing(address):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(FledgeError, match=r"pip install s3fs"):
        Corpus.open("s3://bucket/a.txt")
    with pytest.raises(FledgeError, match=r"pip install 'fledge-lm\[data\]'"):
        Corpus.open("https://example.org/a.txt")


def test_a_page_of_a_server_is_known_by_its_time_of_change(tmp_path):
    """A server that sends no ETag: a text of the same size, changed later, is another one."""
    pytest.importorskip("aiohttp")
    path = write(tmp_path / "text.txt", b"<|endoftext|>".join(BYTES))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(tmp_path))

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/text.txt"
            before = Corpus.open(address)
            assert list(before.documents()) == BYTES
            os.utime(path, (1_000_000_000, 1_000_000_000))
            assert Corpus.open(address).identity != before.identity
        finally:
            server.shutdown()
            thread.join()


def test_standard_input(monkeypatch):
    class Input:
        buffer = io.BytesIO(b"<|endoftext|>".join(BYTES))

    monkeypatch.setattr(sys, "stdin", Input)
    assert list(Corpus.open("-").documents()) == BYTES


def test_standard_input_longer_than_its_head(monkeypatch):
    class Input:
        buffer = io.BytesIO(b"<|endoftext|>".join(BYTES))

    monkeypatch.setattr(sys, "stdin", Input)
    monkeypatch.setattr(fledge.corpus.streams, "HEAD", 100)
    assert list(Corpus.open("-").documents()) == BYTES


def test_akjv_is_one_verse_per_document():
    pytest.importorskip("pythonbible_akjv")
    corpus = Corpus.open("akjv")
    verses = list(corpus.documents())
    assert len(verses) == 31_102
    assert verses[0] == b"In the beginning God created the heaven and the earth."
    assert not any(b"\n" in verse or b"\t" in verse or verse[:1].isdigit() for verse in verses)
    titled = next(Corpus.open("akjv", book_titles=True).documents())
    assert titled == b"Genesis: In the beginning God created the heaven and the earth."
    assert 0.09 < sum(1 for _ in corpus.documents("validation")) / 31_102 < 0.11


def test_one_text_without_a_separator_is_split_into_blocks(tmp_path):
    text = "".join(f"Line number {i} of a long text.\n" for i in range(5000)).encode()
    corpus = Corpus.open(write(tmp_path / "novel.txt", text))
    with pytest.warns(UserWarning, match="holds one document: 10% of the text"):
        parts = [
            (document, held)
            for batch in corpus.batches()
            for document, held in zip(batch.documents, batch.parts, strict=True)
        ]
    assert b"".join(document for document, _ in parts) == text
    held = sum(len(document) for document, held in parts if held)
    assert 0.08 < held / len(text) < 0.12
    assert sum(bool(held) for _, held in parts) == 10
    assert all(document.endswith(b"\n") for document, _ in parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(corpus.documents())  # said once


def test_blocks_hold_the_same_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 300)
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 300)
    corpus = Corpus.open(write(tmp_path / "text.txt", b"<|endoftext|>".join(BYTES)))
    for split in (None, "train", "validation"):
        found = []
        for block in corpus.blocks(split):
            assert block.offsets.dtype == np.uint64
            assert len(block.parts) == len(block.offsets) - 1
            edges = block.offsets.tolist()
            found += [block.buffer[a:b] for a, b in pairwise(edges)]
        assert found == list(corpus.documents(split))


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "text.jsonl", "text.parquet", "lines.txt", "few.txt"])
def test_reading_goes_on_from_any_cursor(tmp_path, monkeypatch, name):
    """From the cursor after each piece come exactly the documents that were still to come."""
    monkeypatch.setattr(fledge.corpus.corpus, "BLOCK", 300)
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 300)
    monkeypatch.setattr(fledge.corpus.readers, "ROWS", 5)
    path, options = tmp_path / name, {"format": "lines"} if name == "lines.txt" else {}
    if name.endswith(".parquet"):
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"text": TEXTS}), path, row_group_size=17)
    elif name == "text.jsonl":
        write(path, "\n".join(json.dumps({"text": text}) for text in TEXTS).encode())
    elif name == "few.txt":
        write(path, b"\n".join(BYTES * 20))
    else:
        write(path, b"<|endoftext|>".join(BYTES))
    other = write(tmp_path / "more.txt", b"<|endoftext|>".join(BYTES if name != "few.txt" else BYTES[:3]))
    corpus = Corpus.open(path, other, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(corpus.batches())
        flat = [document for batch in batches for document in batch.documents]
        flags = [held for batch in batches for held in batch.parts.tolist()]
        assert len(batches) > 3
        done = 0
        for batch in batches:
            done += len(batch.documents)
            again = list(corpus.batches(Cursor(*batch.cursor)))
            assert [document for rest in again for document in rest.documents] == flat[done:]
            assert [held for rest in again for held in rest.parts.tolist()] == flags[done:]


def test_held_out_sources(tmp_path):
    one = write(tmp_path / "train.txt", b"<|endoftext|>".join(BYTES[:30]))
    two = write(tmp_path / "valid.txt", b"<|endoftext|>".join(BYTES[30:]))
    corpus = Corpus.open(one, validation_source=[two])
    assert list(corpus.documents("train")) == BYTES[:30]
    assert list(corpus.documents("validation")) == BYTES[30:]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("kept", [0.5, 0.97])
def test_a_cut_compressed_file_is_refused(tmp_path, ending, kept):
    data = np.random.default_rng(0).integers(97, 123, 50_000, dtype=np.uint8).tobytes()
    path = write(tmp_path / f"text.txt{ending}", data)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(FledgeError, match="can't be decompressed to its end"):
        list(Corpus.open(path, validation_fraction=0).documents())


def test_a_zst_that_looks_far_back(tmp_path):
    """`zstd --long=28` asks for a window of 256 MiB, more than the library allows unless it is told to."""
    packer = pytest.importorskip("zstandard").ZstdCompressor().compressobj()
    data = bytearray(packer.compress(b"<|endoftext|>".join(BYTES)) + packer.flush())
    data[5] = (28 - 10) << 3  # the window's size in the frame's header, where no size of the content is stated
    (tmp_path / "text.txt.zst").write_bytes(data)
    assert list(Corpus.open(tmp_path / "text.txt.zst").documents()) == BYTES


@pytest.mark.parametrize("ending", [".gz", ".zst", ".xz", ".bz2"])
def test_what_is_not_compressed_is_refused(tmp_path, ending):
    path = tmp_path / f"text.txt{ending}"
    path.write_bytes(b"plain text after all " * 50)
    with pytest.raises(FledgeError, match="can't be decompressed"):
        list(Corpus.open(path, validation_fraction=0).documents())


BAD = [
    ('{"text": "broken', "not valid JSON"),
    ("[1, 2]", "a JSON object is needed, and this is a list"),
    ('{"txet": "a"}', "no field 'text'. Did you mean txet"),
    ('{"text": 5}', "holds a number, not text"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_json_lines(tmp_path, line, message):
    good = [json.dumps({"text": text}) for text in TEXTS]
    path = write(tmp_path / "text.jsonl", "\n".join([*good[:33], line, *good[33:]]).encode())
    with pytest.raises(FledgeError, match=f"line 34: .*{message}"):
        list(Corpus.open(path).documents())
    corpus = Corpus.open(path, skip_bad=True)
    assert list(corpus.documents()) == BYTES
    assert sum(batch.skipped for batch in corpus.batches()) == 1


def test_a_damaged_gz_is_refused(tmp_path):
    path = write(tmp_path / "text.txt.gz", b"<|endoftext|>".join(BYTES))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(FledgeError, match="can't be decompressed to its end"):
        list(Corpus.open(path, validation_fraction=0).documents())


@pytest.mark.parametrize("separator", ["<|endoftext|>", "\n\n---- a rule ----\n\n"])
def test_a_block_never_ends_inside_a_separator(tmp_path, separator):
    """Wherever the cut falls, the text is what stands between separators, and nothing of theirs."""
    for length in range(40, 160, 3):
        documents = [chr(97 + i) * length for i in range(19)]
        path = write(tmp_path / "few.txt", separator.join(documents).encode())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            corpus = Corpus.open(path, separator=separator)
            found = [(batch.documents, batch.parts.tolist()) for batch in corpus.batches()]
        assert b"".join(text for texts, _ in found for text in texts).decode() == "".join(documents)
        assert any(held for _, flags in found for held in flags)


def test_reading_goes_on_from_a_cut_before_a_separator(tmp_path):
    separator = b"\n\n---- a rule ----\n\n"
    data = separator.join(bytes([97 + i]) * 50 for i in range(19))
    source, options = Source(str(write(tmp_path / "few.txt", data)), "text", len(data)), Options(separator)
    whole = list(read(source, options, [], len(data)))
    for number, found in enumerate(whole):
        rest = [one.text.documents() for one in read(source, options, found.position, len(data))]
        assert rest == [one.text.documents() for one in whole[number + 1 :]]


def test_lone_surrogates_in_json_are_kept(tmp_path):
    path = write(tmp_path / "text.jsonl", b'{"text": "a\\ud800b"}\n')
    assert list(Corpus.open(path, validation_fraction=0).documents()) == [b"a\xed\xa0\x80b"]


def test_a_document_too_long_for_memory_is_refused(tmp_path):
    path = write(tmp_path / "text.txt", b"<|endoftext|>".join([*BYTES, b"x" * 5000, *BYTES]))
    start = path.read_bytes().index(b"xxxxxxxxxxxxxxxxxxxx")
    with pytest.raises(FledgeError, match=rf"at byte {start:,} is longer than 2\.0 kB.*--max-document-bytes"):
        list(Corpus.open(path, max_document_bytes=2000).documents())


def test_a_limit_of_any_size_takes_no_memory(tmp_path):
    for i, text in enumerate(BYTES):
        write(tmp_path / "texts" / f"{i:03}.txt", text)
    assert list(Corpus.open(tmp_path / "texts", max_document_bytes=1 << 40).documents()) == BYTES


def test_a_row_too_long_for_memory_is_refused(tmp_path):
    for size in (2001, 9000):
        rows = [*TEXTS, "x" * size, *TEXTS]
        path = write(tmp_path / "text.jsonl", "\n".join(json.dumps({"text": text}) for text in rows).encode())
        for skip_bad in (False, True):
            with pytest.raises(FledgeError, match=r"the document at line 61 is longer than 2\.0 kB"):
                list(Corpus.open(path, max_document_bytes=2000, skip_bad=skip_bad).documents())
        assert len(list(Corpus.open(path, max_document_bytes=size).documents())) == 121
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"text": [None, *rows]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "text.parquet", row_group_size=7)
    with pytest.raises(FledgeError, match=r"the document at row 62 is longer than 2\.0 kB"):
        list(Corpus.open(tmp_path / "text.parquet", max_document_bytes=2000).documents())


def test_a_text_without_separators_may_be_of_any_size(tmp_path, monkeypatch):
    """Too long for one document, it is cut at line ends, whether or not something is held out."""
    monkeypatch.setattr(fledge.corpus.split, "LARGEST_PERIOD", 10_000)
    text = "".join(f"Line number {i} of a long text.\n" for i in range(3000)).encode()
    path = write(tmp_path / "novel.txt", text)
    other = write(tmp_path / "other.txt", b"<|endoftext|>".join(BYTES))
    for options in ({"validation_fraction": 0}, {"validation_source": [other]}):
        train = list(Corpus.open(path, max_document_bytes=20_000, **options).documents("train"))
        assert b"".join(train) == text
        assert 8 < len(train) < 12
        assert all(part.endswith(b"\n") for part in train)


@pytest.mark.parametrize("data", [b"", b"  \n <|endoftext|> \n"])
def test_no_documents_at_all(tmp_path, data):
    with pytest.raises(FledgeError, match="holds no documents"):
        list(Corpus.open(write(tmp_path / "text.txt", data)).documents())


def test_wrong_settings_are_one_sentence(tmp_path):
    path = write(tmp_path / "text.txt", b"text")
    for settings in (
        {"format": "verses"},
        {"format": "akjv"},
        {"validation_fraction": 2},
        {"max_document_bytes": 0},
        {"max_document_bytes": 1 << 63},
        {"separator": ""},
    ):
        with pytest.raises(FledgeError, match=next(iter(settings))):
            Corpus.open(path, **settings)
    with pytest.raises(FledgeError, match="validation_fraction = 1.0 is not allowed"):
        Corpus.from_documents(TEXTS, validation_fraction=1.0)


def test_the_format_akjv_is_not_put_in_place_of_another_source(tmp_path):
    pytest.importorskip("pythonbible_akjv")
    assert Corpus.open("akjv", format="akjv").identity == Corpus.open("akjv").identity
    path = write(tmp_path / "text.txt", BYTES[0])
    for given in (([path], []), (["akjv"], [path])):
        with pytest.raises(FledgeError, match=r"is for the corpus akjv alone, and .*text\.txt is another source"):
            Corpus.open(*given[0], format="akjv", validation_source=given[1])


def test_what_is_not_there(tmp_path):
    with pytest.raises(FledgeError, match="There is no file or folder"):
        Corpus.open(tmp_path / "nothing.txt")
    with pytest.raises(FledgeError, match="Did you mean tinystories"):
        Corpus.open("tinystorys")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FledgeError, match="holds no files"):
        Corpus.open(tmp_path / "empty")
    with pytest.raises(FledgeError, match="No file matches"):
        Corpus.open(tmp_path / "*.nothing")


def test_the_report_warns_of_what_looks_wrong(tmp_path):
    corpus = Corpus.open(write(tmp_path / "text.txt", "Café\r\n".encode("latin-1") * 4000), validation_fraction=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = inspect(corpus)
    said = " ".join(report.warnings)
    assert "separators" in said
    assert "not valid UTF-8" in said
    assert "Windows line ends" in said
    twice = inspect(Corpus.from_documents([*TEXTS, *TEXTS[:5]]))
    assert twice.duplicates == 5
    assert sum(twice.documents.values()) == 65


def test_identity_changes_with_the_source(tmp_path):
    path = write(tmp_path / "text.txt", b"<|endoftext|>".join(BYTES))
    before = Corpus.open(path).identity
    assert Corpus.open(path).identity == before
    assert Corpus.open(path, validation_fraction=0.2).identity != before
    path.write_bytes(path.read_bytes() + b"more")
    assert Corpus.open(path).identity != before


def test_a_copy_has_the_same_outline_and_content(tmp_path):
    path = write(tmp_path / "text.txt", b"<|endoftext|>".join(BYTES))
    copied = write(tmp_path / "copied.txt", path.read_bytes())
    first, second = Corpus.open(path), Corpus.open(copied)
    assert first.identity != second.identity
    assert (first.outline, first.content()) == (second.outline, second.content())
    few = write(tmp_path / "few.txt", b"<|endoftext|>".join(BYTES[:3]))
    assert first.content(3) == Corpus.open(few, validation_fraction=0).content()
    assert first.content(0) == 0
    assert Corpus.from_documents(["a"]).outline != Corpus.from_documents(["b"]).outline


def test_a_separator_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(FledgeError, match="is not valid UTF-8"):
        Corpus.open(tmp_path / "a.txt", separator="\udcff")


def test_a_pipe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Named, it can't be read twice; on standard input it is kept."""
    from fledge import train_bpe

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FledgeError, match="Give - as the source"):
        Corpus.open(tmp_path / "pipe")
    with pytest.raises(FledgeError, match="is a pipe or a device"):
        train_bpe(str(tmp_path / "pipe"), 300)
