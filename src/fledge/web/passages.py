"""Where a text stands in the training text: its copied stretches, and the passages around them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from fledge.errors import FledgeError
from fledge.web.completions import SourceFacts
from fledge.web.library import NotFound
from fledge.web.schemas import NUMBER, Answer, Name, Request
from fledge.web.shelf import Shelf

AROUND = 160  # tokens of the document that are shown before and after
LONGEST = 16_384


class SourcesRequest(Request):
    bundle: Name
    ids: Annotated[list[Annotated[int, Field(ge=0, le=1 << 31), NUMBER]], Field(min_length=1, max_length=LONGEST)]
    at_least: Annotated[int, Field(ge=4, le=1000), NUMBER] = 20
    "Tokens of a stretch; shorter ones are often but ways of speaking."


class SourcesAnswer(Answer):
    sources: list[SourceFacts]
    note: str | None
    "Why none can be named, where that is so."


class PassageAnswer(Answer):
    """A passage of the training text with what stands around it in its document."""

    document: int
    documents: int
    before: str
    text: str
    after: str
    begins: bool
    "Whether `before` begins with the document's beginning."
    ends: bool


def routes(shelf: Shelf) -> APIRouter:
    router = APIRouter(prefix="/api/sources", tags=["generation"])

    @router.post("")
    def sources(request: SourcesRequest) -> SourcesAnswer:
        """The stretches of some tokens that stand word for word in the text that a bundle was trained on."""
        tokenizer = shelf.bundle(request.bundle).tokenizer
        if any(token not in tokenizer.vocab for token in request.ids):
            raise FledgeError("One of the ids is no token of this bundle's tokenizer.")
        try:
            index = shelf.passages(request.bundle)
        except FledgeError as error:
            return SourcesAnswer(sources=[], note=str(error))
        found = index.sources(request.ids, tokenizer, request.at_least)
        return SourcesAnswer(sources=[SourceFacts.model_validate(source) for source in found], note=None)

    @router.get("/passage")
    def passage(
        bundle: str = Query(min_length=1, max_length=500),
        document: int = Query(ge=0, le=1 << 62),
        place: int = Query(ge=0, le=1 << 62),
        length: int = Query(ge=1, le=LONGEST),
    ) -> PassageAnswer:
        """A passage of the training text, as `POST /api/sources` names it, with what stands around it."""
        split, tokenizer = shelf.passages(bundle).store.split("train"), shelf.bundle(bundle).tokenizer
        if document >= len(split.documents):
            raise NotFound(f"There is no document {document:,}: the training text has {len(split.documents):,}.")
        ids = split.document(document)
        if place + length > len(ids):
            raise NotFound(f"Document {document:,} has {len(ids):,} tokens, and the passage lies behind them.")
        first, last = max(0, place - AROUND), min(len(ids), place + length + AROUND)
        special = set(tokenizer.special_tokens.values())

        def text(start: int, stop: int) -> str:
            return str(tokenizer.decode([token for token in ids[start:stop].tolist() if token not in special]))

        return PassageAnswer(
            document=document,
            documents=len(split.documents),
            before=text(first, place),
            text=text(place, place + length),
            after=text(place + length, last),
            begins=first == 0,
            ends=last == len(ids),
        )

    return router
