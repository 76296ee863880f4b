"""The application: routes of every view, one form for every problem, and the guard around it all."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI

from fledge import __version__
from fledge.config import recipe_names
from fledge.web import (
    accounts,
    bundles,
    completions,
    experiments,
    files,
    inside,
    learn,
    passages,
    runs,
    texts,
    training,
    uploads,
    writing,
)
from fledge.web.guard import Guard
from fledge.web.library import Library
from fledge.web.problems import handle_problems
from fledge.web.schemas import BundleEntry, LibraryAnswer, Problem, TokenizerEntry
from fledge.web.shelf import Shelf
from fledge.web.worker import Worker

STEP = re.compile(r"(?:(.*)/)?checkpoints/step-(\d+)")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "What was asked for can't be done; the message says why."},
    401: {"model": Problem, "description": "The server was started with a token, and it is missing or wrong."},
    403: {"model": Problem, "description": "The request comes from another site."},
    404: {"model": Problem, "description": "There is no such run, bundle or tokenizer below the served folders."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request does not have the documented form."},
    429: {"model": Problem, "description": "Too many requests at once."},
    500: {"model": Problem, "description": "A mistake of the server's own."},
    503: {"model": Problem, "description": "Too many texts wait to be generated."},
    507: {"model": Problem, "description": "The disk is full."},
}
DESCRIPTION = """What the workshop's page uses, open to any program on this machine.

Runs, bundles and tokenizers are named as `GET /api/library` and `GET /v1/models` list them; no request names a path.
"""


def create_app(
    sources: Sequence[Path | str],
    *,
    token: str | None = None,
    local: bool = True,
    host: str = "127.0.0.1",
    device: str = "cpu",
    rate: float = 600.0,
    waiting: bool = False,
    worker: Worker | None = None,
) -> Guard:
    """The whole server as one ASGI application, for `fledge serve` and for tests; `waiting` as for `Library`, `local`
    and `host` as for `Guard`.

    Give the `worker` to end its texts before the server itself ends.
    """
    library = Library(sources, waiting)
    shelf = Shelf(library, device)
    worker = worker or Worker()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        try:
            yield
        finally:
            worker.stop()

    app = FastAPI(
        title="fledge workshop",
        version=__version__,
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere; ours is the view "API"
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.include_router(library_routes(library))
    app.include_router(bundles.routes(library))
    app.include_router(texts.routes(shelf))
    app.include_router(runs.routes(library))
    app.include_router(experiments.routes(library))
    app.include_router(writing.routes(shelf, worker))
    app.include_router(passages.routes(shelf))
    app.include_router(inside.routes(shelf))
    app.include_router(learn.routes(shelf, worker))
    app.include_router(accounts.routes(library))
    kept_texts = uploads.Texts(library)
    app.include_router(uploads.routes(kept_texts))
    app.include_router(training.routes(library, kept_texts))
    app.include_router(completions.routes(library, shelf, worker))
    app.include_router(files.routes())
    handle_problems(app)
    return Guard(app, token=token, local=local, host=host, rate=rate)


def library_routes(library: Library) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["library"])

    @router.get("/library")
    def everything() -> LibraryAnswer:
        """The bundles, tokenizers and recipes that the other requests may name."""
        catalogue = library.catalogue()
        best = set(catalogue.best().values())
        bundles = [
            BundleEntry(
                name=name, run=match[1] if match else None, step=int(match[2]) if match else None, best=path in best
            )
            for name, path in catalogue.bundles.items()
            for match in [STEP.fullmatch(name)]
        ]
        tokenizers = [TokenizerEntry(name=name, source="tokenizer") for name in catalogue.tokenizers]
        tokenizers += [TokenizerEntry(name=name, source="bundle") for name in catalogue.bundles]
        return LibraryAnswer(
            version=__version__,
            tokenizers=tokenizers,
            bundles=bundles,
            recipes=recipe_names(),
            skipped=catalogue.skipped,
        )

    return router
