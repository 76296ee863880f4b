"""What the tests of the page share: a small world, the application in memory, and a real server on loopback."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.world import make_learned, make_world

MISSING = [name for name in ("fastapi", "httpx", "uvicorn") if importlib.util.find_spec(name) is None]
if MISSING:
    collect_ignore_glob = ["test_*.py"]
    warnings.warn(f"The page's tests are left out: install {' and '.join(MISSING)}, as fledge-lm[web] and [dev] do.")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_learned(tmp_path_factory.mktemp("learned") / "runs" / "aaa")


@pytest.fixture(scope="session")
def client(world: Path) -> Iterator[Any]:
    """Requests to the application, without a network."""
    from starlette.testclient import TestClient

    from fledge.web.app import create_app

    app = create_app([world / "runs", world / "tokenizers"], rate=100_000)
    with TestClient(app, base_url="http://127.0.0.1:8765") as client:
        yield client


@pytest.fixture(scope="session")
def address(world: Path) -> Iterator[str]:
    """A real server on a free port of this machine."""
    with serving([world / "runs", world / "tokenizers"]) as address:
        yield address


class serving:
    """`with serving(folders) as address:` runs the server in a thread for as long as the block."""

    def __init__(self, sources: list[Path], **options: Any) -> None:
        self.sources, self.options = sources, options

    def __enter__(self) -> str:
        import uvicorn

        from fledge.web.app import create_app
        from fledge.web.server import listen, settings

        self.listener: socket.socket = listen("127.0.0.1", 0)
        app = create_app(self.sources, **{"rate": 100_000, **self.options})
        self.server = uvicorn.Server(settings(app, log_level="error", timeout_graceful_shutdown=2))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=10)
        self.listener.close()
