"""A bundle as a person takes it up: the settings and the prompt to begin with, and the whole of it as one file."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from threading import Lock

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from fledge.bundle.archive import pack
from fledge.bundle.describe import open_manifest
from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.tokens import TokenStore
from fledge.web.library import Library
from fledge.web.schemas import SamplingAnswer

OPENING_TOKENS, OPENING_WORDS, OPENING_LENGTH = 48, 4, 60


def routes(library: Library) -> APIRouter:
    router = APIRouter(prefix="/api/bundles", tags=["library"])
    packing = Lock()

    @router.get("/sampling")
    def sampling(bundle: str = Query(min_length=1, max_length=500)) -> SamplingAnswer:
        """How a bundle would generate by itself, and a prompt of its own text."""
        path = library.bundle(bundle)
        settings = parse(RunConfig, open_manifest(path)[1].config, where=bundle).sampling
        values = settings.model_dump(include=set(SamplingAnswer.model_fields))
        passage = held_out_opening(library.tokens(path))
        opening = " ".join(passage.split()[:OPENING_WORDS])[:OPENING_LENGTH]
        return SamplingAnswer(bundle=bundle, **{**values, "prompt": settings.prompt or opening, "passage": passage})

    @router.get(
        "/download",
        response_class=FileResponse,
        responses={200: {"content": {"application/zip": {}}, "description": "The bundle as one file."}},
    )
    def download(bundle: str = Query(min_length=1, max_length=500)) -> FileResponse:
        """A bundle as a .zip that fledge uses as it is: all but the state of its training."""
        path = library.bundle(bundle)
        home = Path(tempfile.mkdtemp(prefix="fledge-"))
        try:
            with packing:  # one at a time: two would only share the disk
                packed = pack(path, home / "bundle.zip", training=False)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", bundle.removesuffix(".zip")).strip("-.") or "bundle"
        gone = BackgroundTask(shutil.rmtree, home, ignore_errors=True)
        return FileResponse(packed, media_type="application/zip", filename=f"{name}.zip", background=gone)

    return router


def held_out_opening(tokens: Path | None) -> str:
    """The beginning of the text that a run held out, which its model has not seen; empty where there is no such."""
    if tokens is None:
        return ""
    try:
        store = TokenStore.open(tokens)
        split = store.split("validation")
        end = min(OPENING_TOKENS, len(split.tokens))
        split.token_file.check(0, max(0, end - 1))
        tokenizer = store.tokenizer
        special = set(tokenizer.special_tokens.values())
        return tokenizer.decode([token for token in split.tokens[:end].tolist() if token not in special])
    except (FledgeError, OSError, ValueError):
        return ""
