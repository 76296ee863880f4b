"""Fetching a vocabulary from a server on this machine: checked, cached, resumed; clear without a network."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fledge import FledgeError
from fledge.tokenizer import fetch as fetching
from fledge.tokenizer.fetch import cached, fetch_tokenizer, kept_file
from fledge.tokenizer.ranks import ENCODINGS, Encoding

CONTENT = b"".join(b"line %d of a file to fetch\n" % number for number in range(20_000))


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `cut` breaks the connection after so many bytes, `ranges` says if it can resume."""

    cut: int | None = None
    ranges = True
    content = CONTENT
    status = 200
    requests: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(self.server.content) - 1}/{len(self.server.content)}"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/gpt2.tiktoken"
    encoding = Encoding(address, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "gpt2", {})
    monkeypatch.setitem(ENCODINGS, "gpt2", encoding)
    monkeypatch.setattr("fledge.corpus.fetch.PAUSE", 0.01)
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_once(server: Server) -> None:
    with pytest.raises(FledgeError, match="fledge tokenizer fetch gpt2"):
        cached("gpt2")
    place = fetch_tokenizer("gpt2")
    assert place.read_bytes() == CONTENT
    assert fetch_tokenizer("gpt2") == place == cached("gpt2") == kept_file("gpt2")
    assert server.requests == [None]
    assert [path.name for path in place.parent.iterdir()] == ["gpt2.tiktoken"]


def test_a_broken_connection_is_resumed(server: Server) -> None:
    server.cut = 200_000
    fetch_tokenizer("gpt2")
    assert server.requests[0] is None
    assert server.requests[1:] == ["bytes=200000-", "bytes=400000-"]


def test_what_an_earlier_command_left_is_used(server: Server) -> None:
    place = kept_file("gpt2")
    place.parent.mkdir(parents=True)
    place.with_name("gpt2.tiktoken.partial").write_bytes(CONTENT[:1000])
    assert fetch_tokenizer("gpt2").read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-"]


def test_a_server_that_can_not_resume_sends_all_again(server: Server) -> None:
    server.ranges = False
    place = kept_file("gpt2")
    place.parent.mkdir(parents=True)
    place.with_name("gpt2.tiktoken.partial").write_bytes(b"other")
    assert fetch_tokenizer("gpt2").read_bytes() == CONTENT


def test_the_wrong_content_is_thrown_away(server: Server) -> None:
    server.content = CONTENT.replace(b"1", b"2")
    with pytest.raises(FledgeError, match="does not match its checksum"):
        fetch_tokenizer("gpt2")
    assert list(kept_file("gpt2").parent.iterdir()) == []


def test_a_file_changed_in_the_cache_is_noticed(server: Server) -> None:
    fetch_tokenizer("gpt2").write_bytes(b"changed")
    with pytest.raises(FledgeError, match="checksum"):
        cached("gpt2")
    assert fetch_tokenizer("gpt2").read_bytes() == CONTENT


def test_an_answer_without_the_file_is_told(server: Server) -> None:
    server.status = 404
    with pytest.raises(FledgeError, match="answers 404"):
        fetch_tokenizer("gpt2")


def test_a_connection_that_keeps_breaking_keeps_what_came(server: Server) -> None:
    server.cut = 1000
    with pytest.raises(FledgeError, match="the same command goes on from there"):
        fetch_tokenizer("gpt2")
    server.cut = None
    assert fetch_tokenizer("gpt2").read_bytes() == CONTENT


def test_no_network_is_one_sentence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*arguments: object, **options: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "create_connection", nowhere)
    with pytest.raises(FledgeError, match=r"name resolution.*Without a network, copy gpt2.tiktoken"):
        fetch_tokenizer("gpt2")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(FledgeError, match="Did you mean gpt2"):
        fetch_tokenizer("gpt-2")
    assert cached("elsewhere") is None


def test_published_facts_agree_with_tiktoken(shared_data: Path) -> None:
    tiktoken_ext = pytest.importorskip("tiktoken_ext.openai_public")
    files = {"gpt2": "gpt2", "cl100k": "cl100k_base", "o200k": "o200k_base"}
    for name, file in files.items():
        path = shared_data / "ranks" / f"{file}.tiktoken"
        assert fetching.sha256(path) == ENCODINGS[name].sha256
        assert path.stat().st_size == ENCODINGS[name].size
    source = Path(tiktoken_ext.__file__).read_text()
    for encoding in ENCODINGS.values():
        assert encoding.address in source
        assert encoding.sha256 in source
