"""Facts about `fledge serve` as a command: what it prints, what it refuses, and that Ctrl-C ends it cleanly."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from fledge.cli.serve import serve
from fledge.errors import FledgeError
from fledge.web.guard import Guard
from fledge.web.server import listen
from tests.web.world import read_lines


def test_it_prints_its_address_answers_and_ends_on_ctrl_c(world: Path) -> None:
    command = [sys.executable, "-m", "fledge", "serve", str(world / "runs"), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        assert "fledge workshop" in httpx.get(found[0], timeout=30).text
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) in (0, 130, -signal.SIGINT)
        assert "Traceback" not in process.stderr.read()  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
def test_ctrl_c_ends_the_texts_in_the_making_with_a_sentence(world: Path, path: str) -> None:
    """A stream gets its last event, an answer that has not begun the documented form; the terminal one sentence."""
    command = [sys.executable, "-m", "fledge", "serve", str(world / "runs"), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]  # type: ignore[index]
        asked = {"model" if "v1" in path else "bundle": "alpha", "prompt": "egg", "max_tokens": 8000, "temperature": 0}
        with httpx.Client(timeout=60) as client, ThreadPoolExecutor(1) as pool:
            first = client.post(f"{address}/api/generate", json={"bundle": "alpha", "max_tokens": 1})
            assert first.status_code == 200
            answer = pool.submit(client.post, f"{address}{path}", json=asked)
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            found = answer.result(timeout=30)
        assert process.wait(timeout=20) == 130
        said = process.stderr.read()  # type: ignore[union-attr]
        assert said.endswith("fledge: the workshop is closed.\n")
        assert "Traceback" not in said
        assert "ERROR" not in said
    if path == "/v1/completions":
        assert found.status_code == 503
        assert found.json()["error"]["message"] == "The server is stopping."
    else:
        assert read_lines(found.text)[-1] == {"event": "error", "message": "The server is stopping."}


def test_work_that_is_cancelled_ends_in_the_documented_form() -> None:
    """Where the server waits no longer: a problem if nothing was sent yet, else the end of the answer."""

    async def run(begin: bool) -> list[dict[str, Any]]:
        async def hang(scope: Any, receive: Any, send: Any) -> None:
            if begin:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(60)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        sent: list[dict[str, Any]] = []
        scope = {"type": "http", "method": "GET", "path": "/api/x", "headers": [(b"host", b"localhost")]}
        task = asyncio.ensure_future(Guard(hang)(scope, receive, send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task
        return sent

    refused = asyncio.run(run(False))
    assert refused[0]["status"] == 503
    assert b"The server is stopping." in refused[1]["body"]
    assert [message["type"] for message in asyncio.run(run(True))] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize("device", ["nope", "cuda:99", "meta"])
def test_a_device_that_is_not_here_is_refused_at_the_start(world: Path, device: str) -> None:
    with pytest.raises(FledgeError, match="--device"):
        serve([world / "runs"], "127.0.0.1", 0, None, device, False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "lets other machines reach this page"),
        ({"token": "short"}, "at least 16 characters"),
        ({"token": "sixteen and spaces"}, "no browser can send"),
        ({"token": "sechzehn-schlüssel"}, "no browser can send"),
        ({"runs": [Path("nothing-here")]}, "There is no nothing-here to serve"),
    ],
)
def test_what_it_refuses_is_one_sentence(world: Path, options: dict, words: str) -> None:
    given = {"runs": [world / "runs"], "open_page": False, "port": 0, "host": "127.0.0.1", "token": None, **options}
    with pytest.raises(FledgeError, match=words):
        serve(**given, device="cpu")


def test_the_printed_address_brings_the_token_whole(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page reads what follows the # as browsers read a query: + would be a space there, & an end."""
    token = "100%+more&a=secret#/?"
    monkeypatch.setattr("fledge.web.server.run", lambda *given: None)
    serve([world / "runs"], "127.0.0.1", 0, token, "cpu", False)
    address = capsys.readouterr().out.split()[5]
    assert parse_qs(urlsplit(address).fragment) == {"token": [token]}


def test_a_taken_port_is_one_sentence(world: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FledgeError, match="Choose another port with --port"):
            serve([world / "runs"], "127.0.0.1", taken.getsockname()[1], None, "cpu", False)


def test_a_small_answer_is_sent_at_once() -> None:
    """Nagle's algorithm is off: a client that acknowledges late would wait 40 ms for the end of every answer."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(accept, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await found

    assert asyncio.run(option())


def test_without_the_extra_it_says_what_to_install(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fledge.web.server", raising=False)
    with pytest.raises(FledgeError, match=r"pip install .*\[web\]'"):
        serve([world / "runs"])
