"""Listening: the socket, the address that is printed, and a clean end on Ctrl-C."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from fledge.errors import FledgeError
from fledge.web.app import create_app
from fledge.web.guard import is_loopback

CONNECTIONS = 512


def start(
    sources: Sequence[Path | str],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    device: str = "cpu",
    open_page: bool = False,
    waiting: bool = False,
) -> None:
    """Serve until the process is told to stop; `waiting` as for `Library`."""
    local = is_loopback(host)
    if not local and token is None:
        raise FledgeError(
            f"--host {host} lets other machines reach this page, and with it your runs and this machine's "
            "processor. "
            "Add --token new, so that only those who know it get in; or stay with 127.0.0.1."
        )
    app = create_app(sources, token=token, local=local, device=device, waiting=waiting)
    listener = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    address = f"http://{name}:{listener.getsockname()[1]}/" + (f"#token={token}" if token else "")
    print(f"The workshop is open at {address}  (Ctrl-C closes it)", flush=True)
    if open_page and sys.stdout.isatty():
        threading.Timer(0.5, webbrowser.open, [address]).start()
    sys.setswitchinterval(0.001)  # a text in the making gives way to requests sooner than Python's 5 ms
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        ws="none",
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that a taken port is a sentence and port 0 has a number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise FledgeError(
            f"Can't listen on {host}:{port} ({error.strerror}). Choose another with --port, or 0 for a free one."
        ) from None
    listener.listen(128)
    return listener
