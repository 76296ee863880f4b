"""A real browser for the tests: Debian's Chromium driven by Playwright, and why it is skipped where it is not there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """The browser's path, or a skip that says what is missing."""
    pytest.importorskip("playwright", reason="the browser walks need the playwright package")
    names = (os.environ.get("FLEDGE_CHROMIUM", ""), "chromium", "chromium-browser")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here: apt install chromium, or set FLEDGE_CHROMIUM to its path")
    return found


@contextmanager
def browsing(**options: Any) -> Iterator[Any]:
    """A page in a fresh browser. What it logs as an error, or asks of another host, is kept on the page."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    settings = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce", **options}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=path, args=FLAGS, headless=True, **settings
        )
        page = context.pages[0]
        page.set_default_timeout(15_000)
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
        page.on("request", lambda asked: "//127.0.0.1" in asked.url or page.problems.append(f"left: {asked.url}"))
        try:
            yield page
        finally:
            context.close()


def others_share(seconds: float = 0.5) -> float:
    """How much of the processors' time others take while we wait: 0 on an idle machine, 1 on a full one."""
    times = Path("/proc/stat")
    if not times.exists():
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    def read() -> tuple[int, int]:
        numbers = [int(number) for number in times.read_text().splitlines()[0].split()[1:]]
        return sum(numbers[3:5]), sum(numbers[:8])  # idle or waiting for a disk, and all

    (idle, whole), _ = read(), time.sleep(seconds)
    later_idle, later_whole = read()
    return 1 - (later_idle - idle) / max(1, later_whole - whole)
