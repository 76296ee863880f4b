"""Texts at addresses: what a server may do, and what becomes of it."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fledge.corpus import Corpus
from fledge.errors import FledgeError

BYTES = [b"document %d of a server" % i for i in range(30)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server that sends files of the temporary folder, always from their start."""
    pytest.importorskip("aiohttp")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(tmp_path))

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("query", ["?token=a.b/c", "#part", "?a=1#b"])
def test_a_query_hides_neither_compression_nor_format(server, tmp_path, query):
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"<|endoftext|>".join(BYTES)))
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text.decode()}) for text in BYTES))
    assert list(Corpus.open(f"{server}/text.txt.gz{query}").documents()) == BYTES
    assert list(Corpus.open(f"{server}/text.jsonl{query}").documents()) == BYTES
    (tmp_path / "novel.txt").write_bytes(BYTES[0])
    assert [source.format for source in Corpus.open(f"{server}/novel.txt{query}").sources] == ["text"]


def test_a_server_without_ranges_is_refused_in_a_sentence(server, tmp_path):
    (tmp_path / "long.txt").write_bytes(b"<|endoftext|>".join(BYTES) * 20_000)
    with pytest.raises(FledgeError, match=r"long\.txt can't be read: .*range.* fetch the file first"):
        list(Corpus.open(f"{server}/long.txt").documents())


@pytest.mark.parametrize("step", ["info", "open"])
def test_whatever_a_driver_raises_is_a_sentence(monkeypatch, step):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/broken/a.txt", BYTES[0])

    class DriverError(Exception):
        pass

    def broken(*given, **more):
        raise DriverError("the connection was closed.")

    monkeypatch.setattr(type(memory), step, broken)
    with pytest.raises(FledgeError, match=r"^memory:///?broken/a\.txt can't be read: the connection was closed\."):
        list(Corpus.open("memory://broken/a.txt").documents())
