"""Facts about `fledge serve` as a command: what it prints, what it refuses, and that Ctrl-C ends it cleanly."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from fledge.cli.serve import serve
from fledge.errors import FledgeError


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "lets other machines reach this page"),
        ({"token": "short"}, "at least 16 characters"),
        ({"runs": [Path("nothing-here")]}, "There is no nothing-here to serve"),
    ],
)
def test_what_it_refuses_is_one_sentence(world: Path, options: dict, words: str) -> None:
    given = {"runs": [world / "runs"], "open_page": False, "port": 0, "host": "127.0.0.1", "token": None, **options}
    with pytest.raises(FledgeError, match=words):
        serve(**given, device="cpu")


def test_a_taken_port_is_one_sentence(world: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FledgeError, match="Choose another with --port"):
            serve([world / "runs"], "127.0.0.1", taken.getsockname()[1], None, "cpu", False)


def test_without_the_extra_it_says_what_to_install(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fledge.web.server", raising=False)
    with pytest.raises(FledgeError, match=r"pip install .*\[web\]'"):
        serve([world / "runs"])
