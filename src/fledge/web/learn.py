"""How a run learned: one prompt, one text and one token, put to each of its checkpoints in turn.

One checkpoint is in memory at a time, whoever asks. What it answered is kept, so that a second look needs no model.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from fledge.bundle.describe import open_manifest
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.evaluation.look import TOKENS, ids_of
from fledge.runs.checkpoints import held_out_losses, step_of
from fledge.runs.layout import CHECKPOINTS
from fledge.web.inside import finite_or_none, require_little
from fledge.web.library import NotFound
from fledge.web.runs import summarise
from fledge.web.schemas import NUMBER, Name, Request
from fledge.web.shelf import Shelf, written_when
from fledge.web.streams import LiveResponse, collect, last_words
from fledge.web.worker import Busy, Worker
from fledge.web.writing import as_base64, line, run_decoding, token

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer

SHOWN = 64
STREAMS = 16
KEPT = 2000  # parts of answers; the largest have some 20 kB
NEAREST = 8
Key = tuple[Path, int, str, str]


class LearnRequest(Request):
    """What is put to each checkpoint: a prompt to go on from, a text to be scored, a token with its neighbours."""

    run: Name
    prompt: Annotated[str, Field(max_length=20_000)] = ""
    max_tokens: Annotated[int, Field(ge=0, le=256), NUMBER] = 60
    "0 leaves the writing out."
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), NUMBER] = 0
    seed: Annotated[int, Field(ge=0, lt=1 << 53), NUMBER] = 0
    text: Annotated[str, Field(max_length=20_000)] = ""
    "Its loss is told token by token."
    token: Annotated[int, Field(ge=0, le=1 << 31), NUMBER] | None = None
    "The id whose nearest neighbours among the embeddings are told."


@dataclass
class LearningReplay:
    """One request, checked: the checkpoints that are asked, oldest first, and what of the text they are asked about."""

    request: LearnRequest
    checkpoints: list[Path]
    tokenizer: Tokenizer
    ids: list[int]
    start: dict[str, Any]


class Answers:
    """The parts of answers used last, by checkpoint, its time of change, and what was asked."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit, self._lock = limit, Lock()
        self._kept: OrderedDict[Key, Any] = OrderedDict()

    def find(self, key: Key) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, answer: Any) -> None:
        with self._lock:
            self._kept[key] = answer
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)


def routes(shelf: Shelf, worker: Worker) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["learn"])
    answers, alone = Answers(), asyncio.Lock()
    streams = 0

    @router.post(
        "/learn",
        status_code=200,
        response_class=LiveResponse,
        responses={200: {"content": {"application/x-ndjson": {}}, "description": "One JSON object a line."}},
    )
    async def learn(request: LearnRequest) -> LiveResponse:
        """Put a prompt, a text and a token to every checkpoint of a run: a line `start`, a line `checkpoint` for each
        as it answers, then `end` or `error`.

        A checkpoint tells the tokens it `written`, the log-probability of each token of the text, and the `nearest`
        embeddings by their cosine; or in `problem` why it can't.
        """
        if streams >= STREAMS:
            raise Busy(f"{streams} runs are replayed already. Try again in a moment.")
        return LiveResponse(
            lines(await run_in_threadpool(prepare_replay, shelf, request)), media_type="application/x-ndjson"
        )

    async def lines(replay: LearningReplay) -> AsyncGenerator[bytes, None]:
        nonlocal streams
        streams, began = streams + 1, time.monotonic()
        try:
            yield line(replay.start)
            for path in replay.checkpoints:
                yield line({"event": "checkpoint", "step": step_of(path), **await answer(replay, path)})
            yield line({"event": "end", "seconds": time.monotonic() - began})
        except Exception as error:
            yield line({"event": "error", "message": last_words(error)})
        finally:
            streams -= 1

    async def answer(replay: LearningReplay, path: Path) -> dict[str, Any]:
        """What one checkpoint says; its model is read only where something of that is not known."""
        found: dict[str, Any] = {"written": None, "logprobs": None, "nearest": None, "problem": None}
        try:
            keys = {part: (path, written_when(path), part, asked) for part, asked in replayed_parts(replay).items()}
            found |= {part: answers.find(key) for part, key in keys.items()}
            missing = [part for part in keys if found[part] is None]
            if not missing:
                return found
            async with alone:
                bundle = await run_in_threadpool(shelf.read_bundle, path)
                if bundle.tokenizer.fingerprint != replay.tokenizer.fingerprint:
                    raise FledgeError("This checkpoint has another tokenizer than the first: their tokens differ.")
                for part in missing:
                    try:
                        found[part] = await work(part, replay, bundle)
                        answers.keep(keys[part], found[part])
                    except Busy:
                        raise
                    except Exception as error:  # the other parts may be told
                        found["problem"] = last_words(error)
        except Busy:
            raise
        except OSError:
            found["problem"] = "This checkpoint could not be read: its files changed meanwhile."
        except FledgeError as error:
            found["problem"] = str(error)
        return found

    async def work(part: str, replay: LearningReplay, bundle: Bundle) -> Any:
        """One part of an answer. Writing takes turns with the other texts of the server."""
        if part == "written":
            return (await collect(worker.submit(lambda: write_sample(replay.request, bundle)).events()))[-1]
        if part == "logprobs":
            return await run_in_threadpool(score_tokens, bundle.model, replay.ids)
        assert replay.request.token is not None
        return await run_in_threadpool(neighbours, bundle.model, bundle.tokenizer, replay.request.token)

    return router


def prepare_replay(shelf: Shelf, request: LearnRequest) -> LearningReplay:
    """Everything that can be wrong with a request is found here, before a model is read."""
    import torch

    from fledge.generation.generate import check_ids

    library = shelf.library
    folder = library.run(request.run)
    names = {path: name for name, path in library.catalogue().bundles.items() if path.parent == folder / CHECKPOINTS}
    found = sorted((path for path in names if step_of(path) is not None), key=lambda path: step_of(path) or 0)
    if not found:
        raise NotFound(f"{request.run} has no checkpoint yet: there is nothing to replay.")
    tokenizer = shelf.tokenizer(names[found[0]])
    facts = open_manifest(found[0])[1].model
    ids = ids_of(tokenizer, request.text, several=False) if request.text else []
    limit = min(TOKENS, facts.context_length)
    note = f"The loss is of the first {limit:,} tokens: as many as are read at once." if len(ids) > limit else None
    ids = ids[:limit]
    require_little(facts.parameters, len(ids), torch.device(shelf.device))
    wanted = [] if request.token is None else [request.token]
    check_ids(wanted, tokenizer)
    shown = evenly_spread(found, SHOWN)
    losses = held_out_losses(shown)
    start = {
        "event": "start",
        "run": request.run,
        "steps": summarise(request.run, folder).steps,
        "checkpoints": [{"step": step_of(path), "validation_loss": losses.get(path)} for path in shown],
        "left_out": len(found) - len(shown),
        "tokens": [{"id": each, "bytes": as_base64(tokenizer.vocab.get(each, b""))} for each in ids],
        "token": next(({"id": each, "bytes": as_base64(tokenizer.vocab[each])} for each in wanted), None),
        "note": note,
    }
    return LearningReplay(request, shown, tokenizer, ids, start)


def evenly_spread(found: Sequence[Path], most: int) -> list[Path]:
    """At most so many, evenly spread, the first and the last among them.

    >>> [path.name for path in evenly_spread([Path(str(number)) for number in range(9)], 3)]
    ['0', '4', '8']
    """
    if len(found) <= most:
        return list(found)
    return [found[round(place * (len(found) - 1) / (most - 1))] for place in range(most)]


def replayed_parts(replay: LearningReplay) -> dict[str, str]:
    """What is asked of each checkpoint, by the part of the answer, as a key to what is kept."""
    request, asked = replay.request, {}
    if request.max_tokens:
        asked["written"] = repr((request.prompt, request.max_tokens, request.temperature, request.seed))
    if request.text:
        asked["logprobs"] = repr(replay.ids)
    if request.token is not None:
        asked["nearest"] = str(request.token)
    return asked


def write_sample(request: LearnRequest, bundle: Bundle) -> Iterator[Any]:
    """The text that a checkpoint writes, after a piece for each step towards it: other texts take turns with these."""
    from fledge.generation.generate import Decoding

    sampling = SamplingConfig(max_tokens=request.max_tokens, temperature=request.temperature, seed=request.seed)
    decoding = Decoding(bundle.model, bundle.tokenizer, [request.prompt], sampling)
    yield from run_decoding(decoding)
    result, vocab = decoding.results[0], bundle.tokenizer.vocab
    yield {"tokens": [token(result, vocab, place) for place in range(len(result.ids))], "stopped": result.stopped}


def score_tokens(model: Model, ids: Sequence[int]) -> list[float | None]:
    """The log-probability of each token after those before it; none for the first."""
    import numpy as np

    from fledge.evaluation.losses import Window, token_losses

    if len(ids) < 2:
        return [None] * len(ids)
    nats = token_losses(model, np.array(ids), [Window(0, len(ids), 1)]).nats
    return [None, *(round(-float(value), 4) for value in nats)]


def neighbours(model: Model, tokenizer: Tokenizer, token: int) -> list[dict[str, Any]]:
    """The tokens whose embeddings point most nearly where that of a token does, by their cosine."""
    import torch

    from fledge.generation.generate import holes_of
    from fledge.model.base import VocabularyMatrix

    matrix = getattr(model, "token_embeddings", None)
    if not isinstance(matrix, VocabularyMatrix):
        raise FledgeError(f"model.architecture = {model.config.architecture} has no token_embeddings to compare.")
    with torch.inference_mode():
        rows = matrix.used[: tokenizer.vocab_size].float()
        cosines = (rows @ rows[token]) / (rows.norm(dim=1) * rows[token].norm()).clamp(min=1e-12)
        cosines[[token, *holes_of(tokenizer)]] = -torch.inf
        values, ids = cosines.topk(min(NEAREST, len(tokenizer.vocab) - 1))
    found = zip(ids.tolist(), finite_or_none(values), strict=True)
    return [{"id": each, "bytes": as_base64(tokenizer.vocab[each]), "cosine": cosine} for each, cosine in found]
