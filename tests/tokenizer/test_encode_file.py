"""A file of text becomes a file of ids, by every kind of tokenizer; the source is never harmed, whatever is asked."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fledge import FledgeError, train_bpe
from fledge.tokenizer import CharacterTokenizer, Tokenizer, WordTokenizer
from tests.tokens.helpers import ByteTokenizer

TEXT = ("the cat sat on the mat, été 漢字 " * 3000).encode() + b"\xff end<|endoftext|>\xe2\x80"


def bpe() -> Tokenizer:
    return train_bpe([TEXT], 280, ["<|endoftext|>"])


KINDS: list[Callable[[], Tokenizer]] = [
    bpe,
    lambda: WordTokenizer.train([TEXT]),
    lambda: CharacterTokenizer.train([TEXT]),
    ByteTokenizer,  # of another program: it knows nothing but whole texts
]


@pytest.fixture(params=KINDS, ids=["bpe", "word", "character", "foreign"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT)
    return path


def compress_zstandard(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)  # type: ignore[no-any-return]


def test_the_file_holds_the_ids_of_the_text(tokenizer: Tokenizer, source: Path, tmp_path: Path) -> None:
    report = tokenizer.encode_file(source, tmp_path / "ids.bin")
    ids = np.fromfile(tmp_path / "ids.bin", tokenizer.token_dtype.newbyteorder("<"))
    assert ids.tolist() == tokenizer.encode_array(TEXT).tolist()
    assert report == (len(ids), len(TEXT), 3)


def test_an_empty_file_has_no_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert tokenizer.encode_file(tmp_path / "empty.txt", tmp_path / "ids.bin") == (0, 0, 0)
    assert (tmp_path / "ids.bin").read_bytes() == b""


def test_pieces_have_the_ids_of_the_text(tokenizer: Tokenizer) -> None:
    pieces = [TEXT[start : start + 1001] for start in range(0, len(TEXT), 1001)]
    assert list(tokenizer.encode_iterable(pieces)) == tokenizer.encode_array(TEXT).tolist()


@pytest.mark.parametrize(
    ("ending", "compress"),
    [(".gz", gzip.compress), (".BZ2", bz2.compress), (".xz", lzma.compress), (".zst", compress_zstandard)],
)
def test_a_compressed_file_is_encoded_decompressed(
    tokenizer: Tokenizer, source: Path, tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    packed = tmp_path / f"packed.txt{ending}"
    packed.write_bytes(compress(TEXT))
    assert tokenizer.encode_file(packed, tmp_path / "packed.bin") == tokenizer.encode_file(source, tmp_path / "ids.bin")
    assert (tmp_path / "packed.bin").read_bytes() == (tmp_path / "ids.bin").read_bytes()


def test_a_compressed_file_is_not_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are encoded as they come: what is held at once does not grow with the file."""
    from fledge.tokenizer import base

    monkeypatch.setattr(base, "READ_AT_ONCE", 1 << 17)
    tokenizer, sizes = train_bpe(["the cat"], 258), []
    encode = tokenizer._encode_part

    def watched(block: bytes, *more: object) -> object:
        sizes.append(len(block))
        return encode(block, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(tokenizer, "_encode_part", watched)
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"the cat " * 200_000))
    assert tokenizer.encode_file(tmp_path / "text.gz", tmp_path / "ids.bin").source_bytes == 1_600_000
    assert max(sizes) <= 1 << 18


def test_a_damaged_compressed_file_leaves_no_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TEXT)[:-20])
    with pytest.raises(FledgeError, match="cut or damaged"):
        tokenizer.encode_file(tmp_path / "cut.gz", tmp_path / "ids.bin")
    assert not (tmp_path / "ids.bin").exists()


@pytest.mark.parametrize("way", ["same", "relative", "symbolic", "hard", "source is a link"])
def test_the_source_is_never_the_sink(
    tokenizer: Tokenizer, source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = {"same": source, "relative": Path("text.txt")}.get(way, tmp_path / "other.txt")
    if way == "hard":
        os.link(source, sink)
    elif way in ("symbolic", "source is a link"):
        sink.symlink_to(source)
    given = (sink, source) if way == "source is a link" else (source, sink)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FledgeError, match="itself: its text would be lost. Name another file"):
        tokenizer.encode_file(*given)
    assert source.read_bytes() == TEXT
    assert sorted(tmp_path.iterdir()) == before


def test_a_pipe_is_read_too(tokenizer: Tokenizer, source: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(TEXT,))
    writer.start()
    report = tokenizer.encode_file(tmp_path / "pipe", tmp_path / "ids.bin")
    writer.join()
    assert report == tokenizer.encode_file(source, tmp_path / "again.bin")


def test_wrong_places_get_one_sentence(tokenizer: Tokenizer, source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    wrong = {
        "missing is not a file that can be read": (tmp_path / "missing", "ids.bin"),
        "folder is not a file that can be read": (tmp_path / "folder", "ids.bin"),
        "a Parquet file, .* fledge tokenize": (tmp_path / "a.parquet", "ids.bin"),
        "folder is a folder. Name the file": (source, tmp_path / "folder"),
        "5 is not a path": (5, "ids.bin"),
        "None is not a path": (source, None),
        "names have at most 255 bytes": (source, "x" * 5000),
        "and none is zero": ("a\0b", "ids.bin"),
    }
    for sentence, (path, sink) in wrong.items():
        with pytest.raises(FledgeError, match=sentence):
            tokenizer.encode_file(path, sink)  # type: ignore[arg-type]
    with pytest.raises(FledgeError, match="threads = 10000"):
        tokenizer.encode_file(source, tmp_path / "ids.bin", threads=10**30)
    assert sorted(tmp_path.iterdir()) == before


def test_a_pipe_is_no_sink_and_stays_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(TEXT)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FledgeError, match="is a pipe or a device, and ids are written to a plain file"):
        tokenizer.encode_file(tmp_path / "text.txt", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="such files are Linux's")
def test_a_file_that_states_no_size_is_read_all_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    report = tokenizer.encode_file("/proc/version", tmp_path / "ids.bin")
    assert report.source_bytes == len(Path("/proc/version").read_bytes()) > 0
