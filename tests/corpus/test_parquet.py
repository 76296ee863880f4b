"""Parquet files: in bounded memory, compressed as a whole, damaged, and where they can't be read."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

import fledge.corpus.readers
from fledge.corpus import Corpus
from fledge.corpus.readers import Options, read
from fledge.corpus.sources import Source
from fledge.errors import FledgeError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = [random.Random(i).randbytes(5000).hex() for i in range(600)]  # 6 MB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table, options = arrow.table({"text": TEXTS}), {"use_dictionary": False, "compression": "zstd"}
    parquet.write_table(table, tmp_path / "text.parquet", write_batch_size=10, data_page_size=100_000, **options)
    return tmp_path / "text.parquet"


def documents(path: Path) -> list[str]:
    return [document.decode() for document in Corpus.open(path, validation_fraction=0).documents()]


def test_a_step_is_as_long_as_its_documents_allow(path, monkeypatch):
    """One row group of long documents is neither read nor given out at once."""
    monkeypatch.setattr(fledge.corpus.readers, "BLOCK", 100_000)
    found = list(read(Source(str(path), "parquet"), Options(), []))
    assert [text.decode() for one in found for text in one.text.documents()] == TEXTS
    assert max(one.text.size for one in found) <= 100_000
    assert found[0].consumed < path.stat().st_size / 2


def test_one_that_is_compressed_as_a_whole(path):
    packed = path.with_name("text.parquet.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    assert documents(packed) == TEXTS
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(FledgeError, match=r"text\.parquet\.gz can't be decompressed to its end"):
        documents(packed)


def test_a_damaged_page_is_refused_by_name(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200_000] = bytes(200_000)
    path.write_bytes(data)
    with pytest.raises(FledgeError, match=r"text\.parquet is not a whole Parquet file \(.+\)\. Fetch it again"):
        documents(path)


def test_standard_input_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # it is not even looked at
    with pytest.raises(FledgeError, match="Parquet can't be read from standard input.*Write it to a file"):
        Corpus.open("-", format="parquet")
