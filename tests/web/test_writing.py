"""Facts about generation through the server: streams, seeds, branches, the queue, and clients that go away."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from starlette.testclient import TestClient

from fledge.generation.generate import Decoding
from fledge.web.worker import Busy, Worker
from tests.web.world import read_lines


def write(client: TestClient, **values: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/generate", json={"bundle": "alpha", "prompt": "the egg", "max_tokens": 12, **values})
    assert answer.status_code == 200, answer.text
    return read_lines(answer.text)


def ids(events: list[dict[str, Any]]) -> list[int]:
    return [token["id"] for event in events if event["event"] == "tokens" for token in event["tokens"]]


def test_a_text_comes_as_start_tokens_end(client: TestClient) -> None:
    events = write(client, alternatives=3)
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"
    assert events[-1]["count"] == len(ids(events)) <= 12
    token = events[1]["tokens"][0]
    assert base64.b64decode(token["bytes"])
    assert token["logprob"] <= 0
    assert len(token["alternatives"]) == 3
    likeliest = [other["logprob"] for other in token["alternatives"]]
    assert likeliest == sorted(likeliest, reverse=True)


def test_the_same_seed_gives_the_same_text(client: TestClient) -> None:
    assert ids(write(client, seed=7)) == ids(write(client, seed=7))
    assert ids(write(client, seed=7)) != ids(write(client, seed=8))


def test_a_branch_goes_on_from_the_tokens_it_keeps(client: TestClient) -> None:
    """With temperature 0, keeping the first tokens of a text and going on gives the rest of it."""
    whole = ids(write(client, temperature=0))
    rest = ids(write(client, temperature=0, prefix=whole[:5], max_tokens=7))
    assert whole == whole[:5] + rest


def test_a_branch_with_another_token_is_another_text(client: TestClient) -> None:
    events = write(client, temperature=0, alternatives=2)
    first = events[1]["tokens"][0]
    other = next(a["id"] for a in first["alternatives"] if a["id"] != first["id"])
    assert ids(write(client, temperature=0, prefix=[other], max_tokens=11)) != ids(events)[1:]


def test_ids_outside_the_vocabulary_are_refused(client: TestClient) -> None:
    answer = client.post("/api/generate", json={"bundle": "alpha", "prefix": [99_999]})
    assert answer.status_code == 400
    assert "99999 is not in this tokenizer's vocabulary" in answer.json()["error"]["message"]


def test_a_text_past_the_context_says_what_happens(client: TestClient) -> None:
    assert write(client)[-1]["note"] is None
    events = write(client, max_tokens=80)
    assert "sees 64 tokens" in events[-1]["note"]
    assert "has" in write(client, prompt="the egg " * 40)[0]["note"]


def test_a_special_token_in_a_prompt_is_plain_text(client: TestClient) -> None:
    plain = write(client, prompt="<|endoftext|>")[0]["prompt_tokens"]
    assert plain > 1


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"top_p": 0},
        {"top_k": 0},
        {"max_tokens": 0},
        {"seed": -1},
        {"typo": 1},
        {"stop": [""]},
    ],
)
def test_values_out_of_range_are_refused_by_name(client: TestClient, values: dict[str, Any]) -> None:
    answer = client.post("/api/generate", json={"bundle": "alpha", **values})
    assert answer.status_code == 422
    assert next(iter(values)) in answer.json()["error"]["message"]


def counting(made: list[int], until: int = 10**9) -> Iterator[int]:
    for number in range(until):
        time.sleep(0.001)
        made.append(number)
        yield number


def test_running_texts_take_turns() -> None:
    """A short text behind a long one does not wait for its end."""

    async def run() -> None:
        worker = Worker()
        worker.start()
        long, short = [], []
        worker.submit(lambda: counting(long))
        job = worker.submit(lambda: counting(short, 5))
        assert [event async for event in job.events()] == [0, 1, 2, 3, 4]
        assert len(long) < 50
        worker.stop()

    anyio.run(run)


def test_a_text_whose_reader_goes_is_dropped() -> None:
    async def run() -> None:
        worker = Worker()
        worker.start()
        made: list[int] = []
        job = worker.submit(lambda: counting(made))
        async for _ in job.events():
            break
        job.cancelled = True
        while worker._running:
            await anyio.sleep(0.001)
        done = len(made)
        await anyio.sleep(0.02)
        assert len(made) == done
        worker.stop()

    anyio.run(run)


def test_a_full_queue_refuses_and_an_error_reaches_its_reader() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken model")

    async def run() -> None:
        worker = Worker(running=1, waiting=2)  # not started: everything waits
        for _ in range(2):
            worker.submit(lambda: counting([]))
        with pytest.raises(Busy, match="wait to be generated"):
            worker.submit(lambda: counting([]))
        other = Worker()
        other.start()
        job = other.submit(failing)
        with pytest.raises(ValueError, match="broken model"):
            [event async for event in job.events()]
        other.stop()

    anyio.run(run)


@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
def test_a_model_that_fails_in_the_middle_is_the_last_word_of_its_stream(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*given: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Decoding, "_step", failing)
    asked = {"bundle": "alpha"} if "api" in path else {"model": "alpha", "stream": True}
    answer = client.post(path, json={**asked, "prompt": "the egg"})
    assert answer.status_code == 200
    assert "The model failed; the server's terminal says how." in answer.text.splitlines()[-1 if "api" in path else -2]
    assert "CUDA out of memory" in caplog.text


def test_a_client_that_goes_away_ends_its_text(address: str) -> None:
    """Close the connection in the middle of a long stream: the queue is empty soon after."""
    place = urlsplit(address)
    body = b'{"bundle": "alpha", "prompt": "the egg", "max_tokens": 8000, "temperature": 1}'
    head = f"POST /api/generate HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        received = b""
        while b'"tokens"' not in received:
            received += connection.recv(65536)
    workers = [thread for thread in threading.enumerate() if thread.name == "generation"]
    assert workers
    started = time.monotonic()
    quick = httpx.post(f"{address}/api/generate", json={"bundle": "alpha", "max_tokens": 3}, timeout=30)
    assert read_lines(quick.text)[0]["ahead"] <= 1
    time.sleep(0.3)
    again = httpx.post(f"{address}/api/generate", json={"bundle": "alpha", "max_tokens": 3}, timeout=30)
    assert read_lines(again.text)[0]["ahead"] == 0
    assert time.monotonic() - started < 10
