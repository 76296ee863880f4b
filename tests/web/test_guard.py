"""Facts about who gets in: names, origins, the token, sizes and rates, and the headers of every answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.errors import FledgeError
from fledge.web import server
from fledge.web.app import create_app
from fledge.web.guard import Buckets
from fledge.web.server import own_address, start
from tests.web.conftest import serving

TOKEN = "a-secret-of-enough-characters"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "[::bad", ""]
)
def test_a_foreign_name_is_refused(client: TestClient, host: str) -> None:
    """A page that rebinds its own name to 127.0.0.1 gets nothing."""
    answer = client.get("/api/library", headers={"host": host})
    assert answer.status_code == 421
    assert "does not answer to the name" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:1", "[::1]:8765", "127.0.0.1"])
def test_this_machines_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/library", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8765", "http://[", "["]
)
def test_another_origin_is_refused(client: TestClient, origin: str) -> None:
    headers = {"origin": origin}
    assert client.post("/api/tokens", json={"text": "a", "tokenizers": ["x"]}, headers=headers).status_code == 403


def test_its_own_origin_is_answered(client: TestClient) -> None:
    assert client.get("/api/library", headers={"origin": "http://127.0.0.1:8765"}).status_code == 200


def test_a_request_of_another_site_is_refused_but_a_link_to_the_page_works(client: TestClient) -> None:
    other = {"sec-fetch-site": "cross-site"}
    assert client.get("/api/library", headers=other).status_code == 403
    assert client.get("/", headers={**other, "sec-fetch-mode": "navigate"}).status_code == 200
    assert client.get("/", headers={**other, "sec-fetch-mode": "no-cors"}).status_code == 403


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for path in (
        "/",
        "/static/main.js",
        "/api/library",
        "/api/runs/metrics?run=none",
        "/nowhere",
        "/openapi.json",
    ):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


def test_what_the_api_says_is_not_kept(client: TestClient) -> None:
    assert client.get("/api/library").headers["cache-control"] == "no-store"


def test_with_a_token_the_api_needs_it(world: Path) -> None:
    client = TestClient(create_app([world / "runs"], token=TOKEN, local=False), base_url="http://192.0.2.7:8765")
    assert client.get("/").status_code == 200  # the page itself holds nothing secret
    for path in ("/api/library", "/v1/models", "/openapi.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_with_a_token_names_still_count(world: Path) -> None:
    """Addresses can't be rebound, so they are answered; names only where they are this machine's."""
    client = TestClient(create_app([world / "runs"], token=TOKEN, local=False), base_url="http://x")
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/library", headers={"host": "192.0.2.7:8765", **right}).status_code == 200
    assert client.get("/api/library", headers={"host": socket.gethostname(), **right}).status_code == 200
    assert client.get("/api/library", headers={"host": "evil.example", **right}).status_code == 421


def test_the_name_given_to_host_is_answered_and_names_are_looked_up_once(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app([world / "runs"], token=TOKEN, local=False, host="GPU.lab")
    monkeypatch.setattr(socket, "getfqdn", lambda: pytest.fail("asked the network for every request"))
    client = TestClient(app, base_url="http://x")
    assert client.get("/", headers={"host": "gpu.lab:8765"}).status_code == 200
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"host": ""}).status_code == 421


def test_guessing_the_token_is_slow(world: Path) -> None:
    client = TestClient(create_app([world / "runs"], token=TOKEN), base_url="http://127.0.0.1")
    statuses = [
        client.get("/api/library", headers={"authorization": f"Bearer {guess}"}).status_code for guess in range(15)
    ]
    assert statuses[:10] == [401] * 10
    assert statuses[-1] == 429


def test_a_request_that_is_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/api/tokens", content=b" " * (9 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413

    def endless() -> Any:
        for _ in range(9):
            yield b" " * (1 << 20)

    answer = client.post("/api/tokens", content=endless(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_rates_are_bounded_and_recover() -> None:
    bucket = Buckets(rate=50, burst=5)
    assert [bucket.take("a") for _ in range(5)] == [0] * 5
    assert bucket.take("a") > 0
    assert bucket.take("b") == 0  # another client is not held up
    time.sleep(0.05)
    assert bucket.take("a") == 0


def test_clients_are_forgotten_so_that_memory_stays_bounded() -> None:
    bucket = Buckets(rate=1, burst=1, remembered=3)
    for number in range(100):
        bucket.take(str(number))
    assert len(bucket.clients) == 3


def test_too_many_requests_are_told_when_to_come_back(world: Path) -> None:
    client = TestClient(create_app([world / "runs"], rate=2), base_url="http://127.0.0.1")
    answers = [client.get("/api/library") for _ in range(8)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) >= 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org"])
def test_other_addresses_need_a_token_and_the_refusal_says_why(world: Path, host: str) -> None:
    with pytest.raises(FledgeError, match=r"lets other machines reach this page.*--token"):
        start([world / "runs"], host=host)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/..\\app.py",
        "/static/",
        "/static/views",
    ],
)
def test_no_path_leaves_the_page_s_files(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["../runs/alpha", "/etc", "alpha/../alpha", ".", "..", "alpha/checkpoints", "alpha\0"])
def test_no_name_reaches_outside_the_served_folders(client: TestClient, name: str) -> None:
    for path in ("/api/runs/metrics", "/api/runs/settings", "/api/runs/samples"):
        assert client.get(path, params={"run": name}).status_code == 404
    assert client.post("/api/generate", json={"bundle": name}).status_code == 404
    assert client.post("/api/merges", json={"tokenizer": name, "text": "a"}).status_code == 404
    assert client.post("/api/account", json={"bundle": name}).status_code == 404
    assert client.post("/api/account", json={"recipe": name}).status_code == 400


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_printed_address_of_all_addresses_is_one_that_is_answered(world: Path, host: str) -> None:
    """Another machine can't open http://0.0.0.0/: it needs this machine's address, or its name."""
    name = own_address(host)
    assert name not in ("0.0.0.0", "::", "127.0.0.1", "::1")
    guard = create_app([world / "runs"], token=TOKEN, local=False)
    assert guard.known(f"[{name}]:8765" if ":" in name else f"{name}:8765")


def test_an_address_that_was_given_is_printed_as_it_is() -> None:
    assert [own_address(host) for host in ("127.0.0.1", "192.0.2.7", "example.org")] == [
        "127.0.0.1",
        "192.0.2.7",
        "example.org",
    ]


def is_closed(connection: socket.socket, seconds: float = 5.0) -> bool:
    """Whether the server closes it within that time, with a word or without."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture
def port(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server that waits for half a second, and takes three connections of one client."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(server, "CLIENT_CONNECTIONS", 3)
    with serving([world / "runs"], token=TOKEN) as address:
        yield int(address.rpartition(":")[2])


REQUEST = b"GET /api/library HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as silent:
        assert is_closed(silent)


@pytest.mark.parametrize("answered", [False, True])
def test_a_head_without_end_is_closed(port: int, answered: bool) -> None:
    """Also one that comes line by line, and one behind a request that was answered."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(REQUEST + b"\r\n" if answered else b"")
        if answered:
            assert b"401" in slow.recv(4096)
        slow.sendall(REQUEST)
        began = time.monotonic()
        try:
            while time.monotonic() - began < 5:
                slow.sendall(b"X-Line: more\r\n")
                time.sleep(0.1)
        except OSError:
            pass
        assert time.monotonic() - began < 3


def test_a_connection_whose_request_was_answered_is_kept_for_the_next(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as kept:
        for _ in range(2):
            kept.sendall(REQUEST + b"\r\n")
            time.sleep(0.8)  # longer than a head may take
            assert b"401" in kept.recv(65536)


def test_many_silent_connections_of_a_client_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest give way, long before their time is over; before a token was shown."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 60)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    try:
        with socket.create_connection(("127.0.0.1", port)) as person:
            person.sendall(REQUEST + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b"200 OK" in person.recv(4096)
            assert all(is_closed(connection) for connection in silent[:5])
    finally:
        for connection in silent:
            connection.close()


def test_a_client_whose_connections_are_all_at_work_is_told_so(port: int) -> None:
    body = b"POST /api/tokens HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
    busy = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    try:
        for connection in busy:  # the server waits for their bodies
            connection.sendall(body + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        time.sleep(0.3)
        with socket.create_connection(("127.0.0.1", port)) as more:
            more.settimeout(5)
            assert more.recv(4096).startswith(b"HTTP/1.1 503")
    finally:
        for connection in busy:
            connection.close()
