"""Generation as the page and the API need it: tokens one by one, with their bytes, probabilities and alternatives."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from fledge.config import SamplingConfig, parse
from fledge.web.schemas import GenerateRequest
from fledge.web.shelf import Shelf
from fledge.web.streams import LiveResponse, last_words
from fledge.web.worker import GenerationJob, Worker

if TYPE_CHECKING:
    from fledge.generation.generate import Decoding


class Fresh(NamedTuple):
    """What one row gained: ids from `start` on, and the text that became certain with them."""

    row: int
    start: int
    stop: int
    text: str


def open_decoding(
    shelf: Shelf,
    bundle: str,
    prompts: Sequence[str | list[int]],
    sampling: SamplingConfig,
    alternatives: int = 0,
    prefix: Sequence[int] = (),
) -> Decoding:
    """A generation that is ready to run; everything that can be wrong with the request is found here."""
    from fledge.generation.generate import Decoding, check_ids

    found = shelf.bundle(bundle)
    decoding = Decoding(found.model, found.tokenizer, prompts, sampling, alternatives)
    check_ids(prefix, found.tokenizer)
    for history, stream in zip(decoding.histories, decoding.streams, strict=True):
        history += prefix
        for token in prefix:
            stream.push(token)
    return decoding


def run_decoding(decoding: Decoding) -> Iterator[Fresh]:
    """Drive a decoding; ids whose text is not certain yet are given with the next piece of their row."""
    given = [0] * len(decoding.results)
    for piece in decoding.pieces():
        stop = len(decoding.results[piece.row].ids)
        yield Fresh(piece.row, given[piece.row], stop, piece.text)
        given[piece.row] = stop
    for row, result in enumerate(decoding.results):
        if len(result.ids) > given[row]:
            yield Fresh(row, given[row], len(result.ids), "")


def routes(shelf: Shelf, worker: Worker) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["generation"])

    @router.post(
        "/generate",
        status_code=200,
        response_class=LiveResponse,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "One JSON object a line."}},
    )
    async def generate(request: GenerateRequest) -> LiveResponse:
        """Go on from a prompt: one line `start`, then lines of `tokens`, then `end` or `error`.

        Each token has its id, its bytes in base64, its log-probability and the likeliest alternatives at its place.
        """
        values = request.model_dump(exclude={"bundle", "prompt", "prefix", "alternatives"})
        sampling = parse(SamplingConfig, values)
        decoding = await run_in_threadpool(
            open_decoding, shelf, request.bundle, [request.prompt], sampling, request.alternatives, request.prefix
        )
        job = worker.submit(lambda: run_decoding(decoding))
        return LiveResponse(lines(job, decoding), media_type="application/x-ndjson")

    return router


async def lines(job: GenerationJob, decoding: Decoding) -> AsyncGenerator[bytes, None]:
    """The events of one text as lines of JSON."""
    result, vocab = decoding.results[0], decoding.tokenizer.vocab
    limit, prompt = decoding.model.context_length, len(decoding.histories[0])
    started = time.monotonic()
    try:
        yield line({"event": "start", "ahead": job.ahead, "prompt_tokens": prompt, "note": context_note(limit, prompt)})
        async for fresh in job.events():
            yield line({"event": "tokens", "tokens": [token(result, vocab, i) for i in range(fresh.start, fresh.stop)]})
        seconds = time.monotonic() - started
        ended = {"event": "end", "stopped": result.stopped, "count": len(result.ids), "seconds": seconds}
        yield line({**ended, "text": result.text, "note": context_note(limit, prompt, len(result.ids))})
    except Exception as error:
        yield line({"event": "error", "message": last_words(error)})
    finally:
        job.cancelled = True


def token(result: Any, vocab: Any, place: int) -> dict[str, Any]:
    alternatives = result.alternatives[place] if place < len(result.alternatives) else []
    return {
        "id": result.ids[place],
        "bytes": as_base64(vocab[result.ids[place]]),
        "logprob": round(result.logprobs[place], 5),
        "alternatives": [
            {"id": other.id, "bytes": as_base64(vocab.get(other.id, b"")), "logprob": round(other.logprob, 5)}
            for other in alternatives
        ],
    }


def context_note(limit: int, prompt: int, made: int = 0) -> str | None:
    """What happens to a text that is longer than the model's context."""
    if prompt > limit:
        return f"The prompt has {prompt:,} tokens and the model sees {limit:,}: it goes on from the last."
    if prompt + made > limit:
        return f"The model sees {limit:,} tokens at once: past that, it forgot the beginning of the text."
    return None


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
