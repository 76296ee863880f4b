"""The page's own files: read once, when the server starts, so that no request ever turns into a path."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request, Response

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class File(NamedTuple):
    content: bytes
    type: str
    tag: str


def read_files() -> dict[str, File]:
    """Every file below `static`, by its name there."""
    files = {}
    for path in sorted(STATIC.rglob("*")):
        if (kind := TYPES.get(path.suffix)) and path.is_file():
            content = path.read_bytes()
            files[path.relative_to(STATIC).as_posix()] = File(content, kind, _tag(content))
    return files


def routes() -> APIRouter:
    files = read_files()
    router = APIRouter(include_in_schema=False)

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise HTTPException(404, "There is no such page here.")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.type, headers=headers)

    @router.get("/")
    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    @router.get("/favicon.ico")
    async def icon(request: Request) -> Response:
        return answer(request, "mark.svg")

    @router.get("/static/{name:path}")
    async def file(request: Request, name: str) -> Response:
        return answer(request, name)

    return router


def _tag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:20]}"'
