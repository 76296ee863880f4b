"""Text in tokenizers: ids and bytes for colouring, the merges of a word one by one, and what the characters are."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fastapi import APIRouter

from fledge.errors import FledgeError
from fledge.tokenizer.unicode import CATEGORIES, code_points, flaws, string_sizes
from fledge.web.replay import replay_merges
from fledge.web.schemas import (
    BytesRequest,
    CharacterFacts,
    FlawFacts,
    MergesAnswer,
    MergesRequest,
    Problem,
    ProblemDetail,
    TextRequest,
    TokenizedText,
    TokensAnswer,
    TokensRequest,
    UnicodeAnswer,
)
from fledge.web.shelf import Shelf
from fledge.web.writing import as_base64

CHARACTERS = 400


def routes(shelf: Shelf) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["tokens"])

    @router.post("/tokens")
    def tokens(request: TokensRequest) -> TokensAnswer:
        """A text in one to four tokenizers. Special tokens in it are plain text, since a page's text is a
        stranger's."""
        data = request.text.encode()
        results: list[TokenizedText | Problem] = []
        for name in request.tokenizers:
            try:
                results.append(tokenize_texts(shelf, name, data))
            except FledgeError as error:  # one bad tokenizer leaves the other panels alone
                results.append(Problem(error=ProblemDetail(message=str(error), type="tokenizer")))
        return TokensAnswer(characters=len(request.text), bytes=len(data), results=results)

    @router.post("/merges")
    def merges(request: MergesRequest) -> MergesAnswer:
        """The merge steps of a short text, from single bytes to tokens."""
        return replay_merges(shelf.tokenizer(request.tokenizer), request.text)

    @router.post("/unicode")
    def unicode(request: TextRequest | BytesRequest) -> UnicodeAnswer:
        """Code points, names and bytes of a text; or of bytes, with the reason where they are not UTF-8."""
        if isinstance(request, TextRequest):
            return unicode_facts(request.text, request.text.encode())
        data = bytes.fromhex(request.hex)
        return unicode_facts(data.decode("utf-8", "replace"), data)

    return router


def tokenize_texts(shelf: Shelf, name: str, data: bytes) -> TokenizedText:
    tokenizer = shelf.tokenizer(name)
    started = time.perf_counter()
    ids = tokenizer.encode_array(data, special="text")
    elapsed = time.perf_counter() - started
    different, counts = np.unique(ids, return_counts=True)
    pieces = {int(token): tokenizer.vocab[int(token)] for token in different}
    covered = sum(len(pieces[int(token)]) * int(count) for token, count in zip(different, counts, strict=True))
    return TokenizedText(
        tokenizer=name,
        kind=tokenizer.kind,
        vocabulary_size=tokenizer.vocab_size,
        ids=ids.tolist(),
        pieces={str(token): as_base64(piece) for token, piece in pieces.items()},
        exact=covered == len(data),
        bytes_per_token=len(data) / len(ids) if len(ids) else None,
        milliseconds=elapsed * 1000,
    )


def unicode_facts(text: str, data: bytes) -> UnicodeAnswer:
    facts = string_sizes(text)
    return UnicodeAnswer(
        text=text,
        code_points=facts.code_points,
        utf8_bytes=len(data),
        utf16_bytes=facts.utf16_bytes,
        composed=facts.composed,
        characters=[character(point) for point in code_points(text[:CHARACTERS])],
        flaws=[
            FlawFacts(start=flaw.start, bytes=flaw.data.hex(" ").upper(), reason=flaw.reason) for flaw in flaws(data)
        ],
    )


def character(point: Any) -> CharacterFacts:
    return CharacterFacts(
        character=point.character,
        code_point=f"U+{point.code:04X}",
        name=point.name,
        category=CATEGORIES[point.category],
        utf8=point.utf8.hex(" ").upper() if point.utf8 else "",
        note=point.invisible,
    )
