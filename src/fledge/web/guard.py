"""What stands between the network and the page: names, origins, the token, sizes and rates, and the headers of every
answer. Plain ASGI, so that streams pass through untouched and a client that goes away is noticed at once."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_LIMIT = 8 << 20
BODY_SECONDS = 20.0
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """Whether an address, as given to --host, can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names() -> set[str]:
    """What this machine is called. May ask the network, and so is asked once."""
    own = socket.gethostname().lower()
    return {own, f"{own}.local", socket.getfqdn().lower()}


def host_of(origin: str) -> str | None:
    """The name and port of an Origin; None where it is none.

    >>> host_of("http://127.0.0.1:8765"), host_of("http://[")
    ('127.0.0.1:8765', None)
    """
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


@dataclass
class Buckets:
    """A token bucket per client: `rate` a second, `burst` at once. The least recently seen clients are forgotten."""

    rate: float
    burst: float
    clients: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    remembered: int = 1024

    def take(self, client: str) -> float:
        """0 where the client may go on, else the seconds after which it may."""
        now = time.monotonic()
        level, before = self.clients.pop(client, (self.burst, now))
        level = min(self.burst, level + (now - before) * self.rate)
        allowed = level >= 1
        self.clients[client] = (level - 1 if allowed else level, now)
        while len(self.clients) > self.remembered:
            self.clients.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self.rate


class Refusal(Exception):
    """A request answered before it reaches the page: a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, list(headers)


class Guard:
    """Wraps an application; `token` is needed for the API where one is set, and `local` allows loopback names only.
    Else `host`, as given to --host, is a name that is answered too."""

    def __init__(
        self,
        app: Application,
        *,
        token: str | None = None,
        local: bool = True,
        host: str = "127.0.0.1",
        rate: float = 600.0,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self.app, self.token, self.local, self.body_limit = app, token, local, body_limit
        self.names = set() if local else own_names() | {host.lower()}
        self.requests = Buckets(rate, 2 * rate)
        self.wrong_tokens = Buckets(0.2, 10)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.life(scope, receive, send)
        elif scope["type"] == "http":
            await self.request(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def life(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From the start to the end. A second Ctrl-C cuts the end short, which is no failure to be told of."""

        async def send_unless_cut(message: Message) -> None:
            if message["type"] != "lifespan.shutdown.failed" or "CancelledError" not in message.get("message", ""):
                await send(message)

        with suppress(asyncio.CancelledError):
            await self.app(scope, receive, send_unless_cut)

    async def request(self, scope: Scope, receive: Receive, send: Send) -> None:
        private = scope["path"].startswith(("/api/", "/v1/", "/openapi"))

        begun = ended = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun, ended
            begun, ended = True, message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                present = {name for name, _ in message.get("headers", ())}
                added = dict(HEADERS, **({"cache-control": "no-store"} if private else {}))
                extra = [(n.encode(), v.encode()) for n, v in added.items() if n.encode() not in present]
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            client = (scope.get("client") or ("unknown", 0))[0]
            self.check_rate(client)
            self.check_names(scope, headers)
            if private:
                self.check_token(client, headers)
            body = await self.body(headers, receive)
        except Refusal as refusal:
            await refuse(refusal, send_guarded)
            return
        try:
            await self.app(scope, replay(body, receive), send_guarded)
        except asyncio.CancelledError:  # the server stops and waits no longer
            if not begun:
                await refuse(Refusal(503, "The server is stopping."), send_guarded)
            elif not ended:
                await send_guarded({"type": "http.response.body", "body": b"", "more_body": False})

    def check_rate(self, client: str) -> None:
        if wait := self.requests.take(client):
            raise Refusal(
                429, "Too many requests at once. Wait a moment and go on.", [("retry-after", str(max(1, round(wait))))]
            )

    def check_names(self, scope: Scope, headers: dict[str, str]) -> None:
        """Refuse a page of another site that reaches for this one through the person's browser."""
        host = headers.get("host", "")
        if not self.known(host):
            raise Refusal(421, f"This server does not answer to the name {host!r}. Open it by the address it printed.")
        origin = headers.get("origin")
        if origin is not None and host_of(origin) != host:
            raise Refusal(403, f"Requests from {origin} are refused: only this server's own page may use it.")
        navigation = scope["method"] == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not navigation:
            raise Refusal(403, "Requests from another site are refused: only this server's own page may use it.")

    def known(self, host: str) -> bool:
        """A rebound name is never an address, so an address is safe; names are those of this machine."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        if self.local:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True

    def check_token(self, client: str, headers: dict[str, str]) -> None:
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return
        if given and (wait := self.wrong_tokens.take(client)):
            raise Refusal(429, "Too many wrong tokens. Wait a little.", [("retry-after", str(max(1, round(wait))))])
        raise Refusal(
            401,
            "This server needs its token: open the address it printed when it started, or send it as "
            "'Authorization: Bearer TOKEN'.",
            [("www-authenticate", "Bearer")],
        )

    async def body(self, headers: dict[str, str], receive: Receive) -> bytes:
        """The whole body, bounded in size and time: a client can neither fill the memory nor hold a place
        by waiting."""
        too_large = Refusal(
            413, f"The request is larger than {self.body_limit >> 20} MB. Send less at once.", [("connection", "close")]
        )
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.body_limit:
            raise too_large
        parts, size = [], 0
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        while True:
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), timeout=max(left, 0.001))
            except asyncio.TimeoutError:
                raise Refusal(408, "The request did not arrive in time.", [("connection", "close")]) from None
            if message["type"] == "http.disconnect":
                raise Refusal(400, "The request was cut off.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.body_limit:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body once, and afterwards whatever the connection says (that the client went)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def refuse(refusal: Refusal, send: Send) -> None:
    content = json.dumps({"error": {"message": refusal.sentence, "type": "refused"}}).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(content))), *refusal.headers]
    await send(
        {
            "type": "http.response.start",
            "status": refusal.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers],
        }
    )
    await send({"type": "http.response.body", "body": content})
