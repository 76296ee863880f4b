"""The load test: 50 clients that stream completions, 200 tokenizations a second and pages that watch, for a minute.

No stream is lost, memory stays flat, and tokenization keeps up. FLEDGE_LOAD_SECONDS sets another length.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil", reason="the load test reads the server's memory with psutil")

SECONDS = float(os.environ.get("FLEDGE_LOAD_SECONDS", "60"))
STREAMS, RATE, TOKENS = 50, 200, 32
# What open pages ask for again and again, beside a look inside a model.
PAGES = ("/api/training", "/api/training/run?run=alpha", "/api/runs", "/api/runs/metrics?run=alpha", "/api/experiments")


@dataclass
class Tally:
    """What the clients saw."""

    streams: int = 0
    pieces: int = 0
    lost: list[str] = field(default_factory=list)
    tokenizations: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


@pytest.fixture
def server(world: Path) -> Iterator[tuple[int, int]]:
    """`fledge serve` in a process of its own: its port, and its process id."""
    command = [sys.executable, "-m", "fledge", "serve", str(world / "runs"), str(world / "tokenizers")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-open"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        assert found, line
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(timeout=15)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_a_minute_of_load(server: tuple[int, int]) -> None:
    port, pid = server
    tally = asyncio.run(load(port, pid))
    latencies = sorted(tally.tokenizations)
    median, slow = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    early, late = mean(tally.memory[5:15]), mean(tally.memory[-10:])
    print(
        f"\n{tally.streams} streams ({tally.pieces / SECONDS:.0f} pieces/s), {len(tally.lost)} lost; "
        f"{len(latencies) / SECONDS:.0f} tokenizations/s, {len(tally.failed)} failed, "
        f"median {median * 1e3:.1f} ms, 99 % {slow * 1e3:.0f} ms; "
        f"{len(tally.pages)} answers to pages, {mean(tally.pages) * 1e3:.0f} ms; "
        f"memory {early / 1e6:.0f} -> {late / 1e6:.0f} MB"
    )
    assert tally.lost == []
    assert tally.failed == []
    assert tally.streams >= STREAMS
    assert len(latencies) >= 0.9 * RATE * SECONDS
    assert len(tally.pages) >= SECONDS * len(PAGES) / 4  # they wait for each other, and none is lost
    assert late < 1.05 * early + 15e6


async def load(port: int, pid: int) -> Tally:
    tally = Tally()
    await complete(port, 0, Tally())  # the model is read before the clock starts
    until = time.monotonic() + SECONDS
    clients = [stream_again_and_again(port, number, until, tally) for number in range(STREAMS)]
    text = request(port, "/api/tokens", {"text": "In the beginning was the egg. " * 20, "tokenizers": ["bpe-370"]})
    took = tally.tokenizations
    tokenizers = [ask_steadily(port, text, 10 / RATE, until, tally, took, number / 10) for number in range(10)]
    look = request(port, "/api/inside", {"bundle": "alpha", "text": "the egg, and the egg was warm " * 8})
    pages = [*(request(port, path) for path in PAGES), look]
    watchers = [ask_steadily(port, asked, 1, until, tally, tally.pages) for asked in pages]
    await asyncio.gather(*clients, *tokenizers, *watchers, watch_memory(pid, until, tally))
    return tally


async def stream_again_and_again(port: int, number: int, until: float, tally: Tally) -> None:
    while time.monotonic() < until:
        try:
            await asyncio.wait_for(complete(port, number, tally), timeout=60)
        except Exception as error:
            tally.lost.append(f"{type(error).__name__}: {error}")


async def complete(port: int, number: int, tally: Tally) -> None:
    """One streamed completion, read to its `[DONE]`."""
    body = {"model": "alpha", "prompt": "the egg", "max_tokens": TOKENS, "stream": True, "seed": number}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request(port, "/v1/completions", body))
        seen = b""
        while b"data: [DONE]" not in seen[-4096:]:
            chunk = await reader.read(65536)
            if not chunk:
                raise ConnectionError(f"the stream ended before its end: {seen[-200:]!r}")
            seen += chunk
        tally.streams += 1
        tally.pieces += seen.count(b"data: {")
    finally:
        writer.close()


async def ask_steadily(
    port: int, asked: bytes, pause: float, until: float, tally: Tally, took: list[float], phase: float = 0
) -> None:
    """One request again and again over one connection that is kept; what it took is put into `took`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    due = time.monotonic() + phase * pause
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        started = time.monotonic()
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length, head
        await reader.readexactly(int(length[1]))
        if b" 200 " not in head[:20]:
            tally.failed.append(f"{asked[:40]!r}: {head[:40]!r}")
        took.append(time.monotonic() - started)
        due = max(due + pause, started)
    writer.close()


async def watch_memory(pid: int, until: float, tally: Tally) -> None:
    process = psutil.Process(pid)
    while time.monotonic() < until:
        tally.memory.append(process.memory_info().rss)
        await asyncio.sleep(SECONDS / 60)


def request(port: int, path: str, body: dict[str, object] | None = None) -> bytes:
    data = json.dumps(body).encode() if body else b""
    method = "POST" if body else "GET"
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
