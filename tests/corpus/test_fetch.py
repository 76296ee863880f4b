"""Fetching from a server on this machine: whole, cut off, changed, wrong, and without room."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import fledge.corpus.fetch
from fledge.corpus import Corpus
from fledge.corpus.fetch import Named, Remote, download, fetch_corpus
from fledge.errors import FledgeError

DATA = os.urandom(300_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves DATA with ranges, and cuts the connection after `server.cut` bytes as long as that is set."""

    server: Any

    def do_GET(self) -> None:
        data, tag = self.server.data, self.server.tag
        start = 0
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        self.server.paths.append(self.path)
        if asked and self.server.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.end_headers()
                return
            self.send_response(206)
        elif self.path == "/missing.txt":
            self.send_error(404)
            return
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", tag)
        self.end_headers()
        end = len(data)
        if self.server.cuts > 0:
            self.server.cuts -= 1
            end = min(end, start + 50_000)
        self.wfile.write(data[start:end])

    def do_HEAD(self) -> None:
        """A hub's answer: the file lies elsewhere, and this is its checksum."""
        if self.server.published is None:
            self.send_error(405)
            return
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("X-Linked-Etag", f'"{self.server.published}"')
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(fledge.corpus.fetch, "PAUSE", 0.01)
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.data, running.tag, running.ranges, running.cuts, running.asked = DATA, '"one"', True, 0, []
    running.paths, running.published = [], None
    running.address = f"http://127.0.0.1:{running.server_port}/text.txt"
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def test_a_file_is_fetched_and_verified_once(server, tmp_path):
    remote = Remote(server.address, len(DATA), DIGEST)
    path = download(remote, tmp_path, progress=False)
    assert path.read_bytes() == DATA
    assert os.listdir(tmp_path) == ["text.txt"]
    download(remote, tmp_path, progress=False)
    assert len(server.asked) == 1


def test_a_lost_connection_is_taken_up_where_it_broke(server, tmp_path):
    server.cuts = 3
    assert download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False).read_bytes() == DATA
    assert server.asked == [None, "bytes=50000-", "bytes=100000-", "bytes=150000-"]


def test_giving_up_keeps_what_has_come(server, tmp_path):
    server.cuts = 5
    with pytest.raises(FledgeError, match=r"250\.0 kB are kept; the same command goes on"):
        download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False)
    assert not (tmp_path / "text.txt").exists()
    assert download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False).read_bytes() == DATA
    assert server.asked[-1] == "bytes=250000-"


def test_a_file_replaced_meanwhile_is_fetched_anew(server, tmp_path):
    server.cuts = 5
    with pytest.raises(FledgeError):
        download(Remote(server.address), tmp_path, progress=False)
    server.data, server.tag = DATA[::-1], '"two"'
    assert download(Remote(server.address), tmp_path, progress=False).read_bytes() == DATA[::-1]


def test_a_server_without_ranges(server, tmp_path):
    server.ranges, server.cuts = False, 2
    assert download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False).read_bytes() == DATA


def test_everything_came_but_the_name(server, tmp_path):
    """Killed between the last byte and the rename: nothing is fetched twice."""
    (tmp_path / "text.txt.partial").write_bytes(DATA)
    assert download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False).read_bytes() == DATA
    assert server.asked == ["bytes=300000-"]


def test_wrong_content_is_refused(server, tmp_path):
    with pytest.raises(FledgeError, match="SHA-256"):
        download(Remote(server.address, len(DATA), "0" * 64), tmp_path, progress=False)
    assert os.listdir(tmp_path) == []
    with pytest.raises(FledgeError, match="the file there was replaced"):
        download(Remote(server.address, len(DATA) + 1, DIGEST), tmp_path, progress=False)


def test_what_is_not_there_and_nobody_who_answers(server, tmp_path):
    with pytest.raises(FledgeError, match="answers 404"):
        fetch_corpus(server.address.replace("text", "missing"), tmp_path, progress=False)
    with pytest.raises(FledgeError, match="can't be fetched now"):
        fetch_corpus("http://127.0.0.1:9/text.txt", tmp_path, progress=False)
    with pytest.raises(FledgeError, match="Did you mean tinystories"):
        fetch_corpus("tinystory", tmp_path)


def test_nobody_who_answers_is_known_at_once(tmp_path, monkeypatch):
    """Without a network the sentence comes before any pause, and does not promise that nothing was kept."""
    monkeypatch.setattr(fledge.corpus.fetch, "PAUSE", 60.0)
    with pytest.raises(FledgeError, match=r"can't be fetched now: Connection refused\.$"):
        fetch_corpus("http://127.0.0.1:9/text.txt", tmp_path, progress=False)


def test_a_name_in_any_letters_is_fetched_under_it(server, tmp_path):
    (path,) = fetch_corpus(server.address.replace("text", "a café"), tmp_path, progress=False)
    assert path == tmp_path / "a café.txt"
    assert path.read_bytes() == DATA
    assert server.paths == ["/a%20caf%C3%A9.txt"]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("https://example.com/corpus/", "is the address of a folder"),
        ("https://example.com", "is the address of a folder"),
        ("https://example.com/corpus/..", "is the address of a folder"),
        ("http://[::1/x", "is not a valid address: Invalid IPv6 URL"),
        (f"http://{'x' * 70}.example/x.txt", "can't be fetched: .*Check the address"),
    ],
)
def test_addresses_that_name_no_file(tmp_path, address, sentence):
    with pytest.raises(FledgeError, match=sentence):
        fetch_corpus(address, tmp_path, progress=False)


def test_no_room_on_the_disk_is_known_before(server, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FledgeError, match="only 1.0 kB are free"):
        download(Remote(server.address, len(DATA), DIGEST), tmp_path, progress=False)
    assert server.asked == []


def test_a_named_corpus_is_used_by_its_name(server, tmp_path, monkeypatch):
    server.data = b"<|endoftext|>".join(b"story %d" % i for i in range(50))
    held = server.address.replace("text", "valid")
    monkeypatch.setitem(
        fledge.corpus.fetch.NAMED,
        "stories",
        Named("stories", (Remote(server.address), Remote(held, held_out=True))),
    )
    monkeypatch.setenv("FLEDGE_CORPORA", str(tmp_path))
    with pytest.raises(FledgeError, match="Fetch it: fledge corpus fetch stories"):
        Corpus.open("stories")
    fetch_corpus("stories", progress=False)
    corpus = Corpus.open("stories")
    assert len(list(corpus.documents("train"))) == 50
    assert len(list(corpus.documents("validation"))) == 50


@pytest.fixture
def unknown(server, tmp_path, monkeypatch):
    """A named corpus of which fledge knows no checksum."""
    monkeypatch.setitem(fledge.corpus.fetch.NAMED, "unknown", Named("a text", (Remote(server.address),)))
    monkeypatch.delenv("FLEDGE_CORPORA", raising=False)
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpora" / "unknown" / "text.txt"


def test_what_the_server_publishes_is_compared_and_kept(server, unknown):
    server.published = hashlib.sha256(b"other bytes").hexdigest()
    with pytest.raises(FledgeError, match="does not match its checksum"):
        fetch_corpus("unknown", progress=False)
    assert not unknown.exists()
    server.published = DIGEST
    assert fetch_corpus("unknown", progress=False) == [unknown]
    assert unknown.with_name("text.txt.sha256").read_text() == f"{DIGEST}  text.txt\n"
    unknown.write_bytes(DATA[::-1])
    with pytest.raises(FledgeError, match="text.txt does not match its checksum.*changed or damaged"):
        fetch_corpus("unknown", progress=False)


def test_where_nothing_is_published_the_first_copy_is_the_measure(server, unknown):
    fetch_corpus("unknown", progress=False)
    server.data, server.tag = DATA[::-1], '"two"'
    unknown.unlink()
    with pytest.raises(FledgeError, match=r"stored in .*text.txt.sha256; remove it to accept the new file"):
        fetch_corpus("unknown", progress=False)
    unknown.with_name("text.txt.sha256").unlink()
    assert fetch_corpus("unknown", progress=False)[0].read_bytes() == DATA[::-1]
