"""Answers that come bit by bit, and that end the work behind them when the client has gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from fledge.errors import FledgeError

T = TypeVar("T")


class Gone(Exception):
    """The client closed the connection."""


class LiveResponse(Response):
    """Sends each chunk at once; a client that goes away cancels the chunks' source within the same moment."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

        async def forward() -> None:
            async for chunk in self.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await unless_gone(forward(), receive)
        except Gone:
            pass
        finally:
            await self.chunks.aclose()


def last_words(error: Exception) -> str:
    """The sentence that ends a stream; what nobody foresaw is told in full on the server's terminal."""
    if isinstance(error, FledgeError):
        return str(error)
    logging.getLogger("uvicorn.error").error("A text could not be finished.", exc_info=error)
    return "The model failed; the server's terminal says how."


async def unless_gone(work: Awaitable[T], receive: Receive) -> T:
    """The result of `work`, which is cancelled, with `Gone`, when the client closes the connection."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for other in (task, watch):
            if not other.done():
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(events: AsyncIterator[T]) -> list[T]:
    return [event async for event in events]
