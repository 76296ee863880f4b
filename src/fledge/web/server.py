"""Listening: the socket and its connections, the address that is printed, and a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fledge.errors import FledgeError
from fledge.web.app import create_app
from fledge.web.guard import Guard, is_loopback
from fledge.web.worker import Worker

CONNECTIONS = 512
CLIENT_CONNECTIONS = 128
REQUEST_SECONDS = 15.0
"For the head of a request: from the opening of a connection, or from the first byte after an answer."


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
    from fledge.training.device import choose_device

    local = is_loopback(host)
    if not local and token is None:
        raise FledgeError(
            f"--host {host} lets other machines reach this page, your runs and this machine's processor. Add "
            "--token new, so that only those who know the token get in, or use 127.0.0.1."
        )
    if token is not None and not all("!" <= character <= "~" for character in token):
        raise FledgeError(
            "--token holds a character that no browser can send. Use letters, digits and signs of ASCII, without "
            "spaces; or `new`, which makes one."
        )
    worker = Worker()
    place = str(choose_device(device, named="--device"))  # one that is not here is refused now, not with the first text
    app = create_app(sources, token=token, local=local, host=host, device=place, waiting=waiting, worker=worker)
    listener = listen(host, port)
    name = own_address(host)
    name = f"[{name}]" if ":" in name else name
    address = f"http://{name}:{listener.getsockname()[1]}/" + (f"#token={quote(token, safe='')}" if token else "")
    try:
        with listener:
            print(f"The workshop is open at {address}  (Ctrl-C closes it)", flush=True)
            run(app, worker, listener, address if open_page else None)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the workshop is closed.") from None


def run(app: Guard, worker: Worker, listener: socket.socket, page: str | None) -> None:
    """Answer requests until the process is told to stop; `page` is opened in the browser."""
    if page and sys.stdout.isatty():
        threading.Timer(0.5, webbrowser.open, [page]).start()
    sys.setswitchinterval(0.001)  # a text in the making gives way to requests sooner than Python's 5 ms
    Server(settings(app), worker).run(sockets=[listener])


def settings(app: Guard, **changes: Any) -> uvicorn.Config:
    """How uvicorn serves the page."""
    usual: dict[str, Any] = {
        "http": Connection,
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "date_header": False,
        "limit_concurrency": CONNECTIONS,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 3,
    }
    return uvicorn.Config(app, **{**usual, **changes})


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One that says nothing is closed after a while, and gives way to a new one before that where there are many: of
    one client, or of all. Nobody has to be known, or to have sent a request, to be counted."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.opened = self.loop.time()
        self.host = self.client[0] if self.client else ""
        every = [other for other in self.connections if not other.transport.is_closing()]
        own = [other for other in every if other.host == self.host]
        crowd = own if len(own) > CLIENT_CONNECTIONS else every
        if len(crowd) > (CLIENT_CONNECTIONS if crowd is own else CONNECTIONS):
            idle = [other for other in crowd if other is not self and not other.is_busy()]
            if not idle:
                self.refuse()
                return
            min(idle, key=lambda other: other.opened).transport.abort()
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, error: Exception | None) -> None:
        self.unwatch()
        super().connection_lost(error)

    def is_busy(self) -> bool:
        """Whether a request is being answered; its body has a time limit of its own."""
        return self.cycle is not None and not self.cycle.response_complete

    def watch(self) -> None:
        if self.is_busy():
            self.unwatch()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.end)

    def unwatch(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def end(self) -> None:
        self.deadline = None
        if not self.is_busy():
            self.transport.abort()

    def refuse(self) -> None:
        words = f"{CLIENT_CONNECTIONS} requests from here are being answered already. Wait for one of them to end."
        body = json.dumps({"error": {"message": words, "type": "refused"}}).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Retry-After: 2\r\nConnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Ends the texts in the making as soon as it is told to stop, so that their readers get a last word."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.end()
        await super().shutdown(sockets)


def own_address(host: str) -> str:
    """What others write for this machine: `host` itself, and where it means all addresses, the one that faces the
    network, or this machine's name where there is none. Nothing is sent to find it."""
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return host
    except ValueError:
        return host
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that a taken port is a sentence and port 0 has a number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP by name: only then does asyncio turn Nagle's waiting off, which holds a small answer for up to 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise FledgeError(
            f"Can't listen on {host}:{port} ({error.strerror}). Choose another port with --port, or 0 for a free one."
        ) from None
    listener.listen(128)
    return listener
