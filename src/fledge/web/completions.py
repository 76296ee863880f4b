"""OpenAI's completions for the served bundles, so that existing clients work against them:
`/v1/completions`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationInfo, field_validator
from starlette.concurrency import run_in_threadpool

from fledge.config import SamplingConfig, parse
from fledge.errors import FledgeError
from fledge.web.library import Library
from fledge.web.schemas import NUMBER, Answer, Name
from fledge.web.shelf import Shelf
from fledge.web.streams import LiveResponse, collect, last_words, unless_gone
from fledge.web.worker import GenerationJob, Worker
from fledge.web.writing import Fresh, open_decoding, run_decoding

if TYPE_CHECKING:
    from fledge.generation.generate import Decoding
    from fledge.tokenizer import Tokenizer
    from fledge.tokens.index import PassageIndex

Id = Annotated[int, Field(ge=0, le=1 << 31), NUMBER]
Text = Annotated[str, Field(max_length=100_000)]
Ids = Annotated[list[Id], Field(min_length=1, max_length=65_536)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]
ROWS = 64
PART = "bytes:"
# What there is nothing for here, with the value that asks for nothing.
NEUTRAL: dict[str, Any] = {"suffix": "", "logit_bias": {}, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0}


class StreamOptions(BaseModel):
    include_usage: StrictBool = False


class CompletionRequest(BaseModel):
    """As OpenAI documents it. What a small model can't mean anything by is refused where it is set, not ignored."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())
    model: Name
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=ROWS)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=ROWS)]
    ) = ""
    max_tokens: Annotated[int, Field(ge=1, le=8192), NUMBER] | None = 16
    temperature: Annotated[float, Field(ge=0, le=2), NUMBER] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1), NUMBER] | None = 1.0
    n: Annotated[int, Field(ge=1, le=16), NUMBER] | None = 1
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), NUMBER] | None = None
    echo: StrictBool | None = False
    stop: Stop | Annotated[list[Stop], Field(max_length=8)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 53), NUMBER] | None = None
    "Without one, every request gives another text."
    presence_penalty: Annotated[float, Field(ge=0, le=0), NUMBER] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=0, le=0), NUMBER] | None = 0.0
    best_of: Annotated[int, Field(ge=1, le=1), NUMBER] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: str | None = None
    sources: StrictBool | None = False
    "Of fledge alone: with each text, what of it stands word for word in the training text of its run."

    @field_validator(*NEUTRAL, mode="before")
    @classmethod
    def offered(cls, value: Any, info: ValidationInfo) -> Any:
        neutral = NEUTRAL[str(info.field_name)]
        if type(value) in (type(neutral), int, float) and value != neutral:
            raise ValueError(f"not offered here; leave it out, or at {json.dumps(neutral)}")
        return value


class Logprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class SourceFacts(Answer):
    """A stretch of 20 tokens or more that stands in the training text."""

    model_config = ConfigDict(from_attributes=True)
    start: int
    "Its first token in the generated text."
    length: int
    "Tokens."
    text: str
    document: int
    "The number of the training document, from 0."
    place: int
    "Where in that document it begins, in tokens."
    opening: str
    "How the document begins."


class CompletionChoice(Answer):
    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"] | None
    sources: list[SourceFacts] | None = None
    "With the end of a text, where they were asked for."


class CompletionUsage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(Answer):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


class ModelEntry(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "fledge"


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


def routes(library: Library, shelf: Shelf, worker: Worker) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI-compatible"])

    @router.get("/models")
    def models() -> ModelList:
        """The bundles; a run's name stands for its best checkpoint."""
        catalogue = library.catalogue()
        return ModelList(data=[ModelEntry(id=name) for name in {**catalogue.best(), **catalogue.bundles}])

    @router.get("/models/{name:path}")
    def model(name: str = Path(max_length=500)) -> ModelEntry:
        """One of them, by its name."""
        library.bundle(name)
        return ModelEntry(id=name)

    @router.post("/completions", response_model=Completion, responses={200: {"content": {"text/event-stream": {}}}})
    async def completions(asked: CompletionRequest, request: Request) -> Any:
        """Go on from one or several prompts; with `stream`, as server-sent events that end with `[DONE]`."""
        decoding = await run_in_threadpool(start_decoding, shelf, asked)
        index = await run_in_threadpool(shelf.passages, asked.model) if asked.sources else None
        writer = Writer(asked, decoding, index)
        job = worker.submit(lambda: run_decoding(decoding))
        if asked.stream:
            return LiveResponse(writer.stream(job), media_type="text/event-stream")
        try:
            await unless_gone(collect(job.events()), request.receive)
        finally:
            job.cancelled = True
        return await run_in_threadpool(writer.whole)

    return router


def start_decoding(shelf: Shelf, asked: CompletionRequest) -> Decoding:
    shelf.library.bundle(asked.model)
    if asked.echo and asked.logprobs is not None:
        raise FledgeError("logprobs are not offered with echo: a prompt's own tokens get none. Leave one of them out.")
    prompts = prompts_of(asked)
    if len(prompts) * (asked.n or 1) > ROWS:
        raise FledgeError(
            f"{len(prompts)} prompts times n = {asked.n} are more than {ROWS} texts. Ask for fewer at once."
        )
    stop = asked.stop if isinstance(asked.stop, list) else [asked.stop] if asked.stop else []
    values = {
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_p": asked.top_p,
        "max_tokens": asked.max_tokens or 16,
        "samples": asked.n or 1,
        "stop": stop,
        "seed": secrets.randbits(48) if asked.seed is None else asked.seed,
    }
    return open_decoding(shelf, asked.model, prompts, parse(SamplingConfig, values), asked.logprobs or 0)


def prompts_of(asked: CompletionRequest) -> list[Any]:
    """Each prompt as it was sent: a text, or ids."""
    prompt = asked.prompt
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


class Writer:
    """Turns a decoding's progress into the answers that OpenAI's clients read."""

    def __init__(self, asked: CompletionRequest, decoding: Decoding, index: PassageIndex | None) -> None:
        self.asked, self.decoding, self.index = asked, decoding, index
        self.name = f"cmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.prompts = [list(ids) for ids in decoding.histories]
        self.decoders = [decoding.tokenizer.decoder() for _ in decoding.results]
        self.offsets = [0] * len(decoding.results)

    def whole(self) -> Completion:
        choices = []
        for row, result in enumerate(self.decoding.results):
            text = self.echo(row) + result.text
            choices.append(self.end(row, text, self.logprobs(row, 0, len(result.ids))))
        return self.answer(choices, self.usage())

    async def stream(self, job: GenerationJob) -> AsyncGenerator[bytes, None]:
        """One event per piece of text, one with the reason of the end per text, the usage where asked,
        `[DONE]`."""
        try:
            if self.asked.echo:
                for row in range(len(self.decoding.results)):
                    yield self.event(
                        [CompletionChoice(text=self.echo(row), index=row, logprobs=None, finish_reason=None)]
                    )
            async for fresh in job.events():
                yield self.event([self.piece(fresh)])
            for row in range(len(self.decoding.results)):
                yield self.event([await run_in_threadpool(self.end, row, "", None)])
            if self.asked.stream_options and self.asked.stream_options.include_usage:
                yield self.event([], self.usage())
            yield b"data: [DONE]\n\n"
        except Exception as error:
            told = {"error": {"message": last_words(error), "type": "server_error"}}
            yield b"data: " + json.dumps(told).encode() + b"\n\n"
        finally:
            job.cancelled = True

    def end(self, row: int, text: str, logprobs: Logprobs | None) -> CompletionChoice:
        """What is known when a text has ended."""
        found = None
        if self.index is not None:
            sources = self.index.sources(self.decoding.results[row].ids, self.decoding.tokenizer)
            found = [SourceFacts.model_validate(source) for source in sources]
        return CompletionChoice(text=text, index=row, logprobs=logprobs, finish_reason=self.reason(row), sources=found)

    def piece(self, fresh: Fresh) -> CompletionChoice:
        logprobs = self.logprobs(fresh.row, fresh.start, fresh.stop)
        return CompletionChoice(text=fresh.text, index=fresh.row, logprobs=logprobs, finish_reason=None)

    def event(self, choices: list[CompletionChoice], usage: CompletionUsage | None = None) -> bytes:
        return b"data: " + self.answer(choices, usage).model_dump_json().encode() + b"\n\n"

    def answer(self, choices: list[CompletionChoice], usage: CompletionUsage | None) -> Completion:
        return Completion(id=self.name, created=self.created, model=self.asked.model, choices=choices, usage=usage)

    def echo(self, row: int) -> str:
        """The prompt as it was sent, and not as the model meets it: after a start token, perhaps."""
        if not self.asked.echo:
            return ""
        sent = prompts_of(self.asked)[row // self.decoding.sampling.samples]
        return sent if isinstance(sent, str) else self.decoding.tokenizer.decode(sent)

    def reason(self, row: int) -> Literal["stop", "length"]:
        return "length" if self.decoding.results[row].stopped == "length" else "stop"

    def usage(self) -> CompletionUsage:
        distinct = self.prompts[:: self.decoding.sampling.samples]
        prompt = sum(map(len, distinct))
        made = sum(len(result.ids) for result in self.decoding.results)
        return CompletionUsage(prompt_tokens=prompt, completion_tokens=made, total_tokens=prompt + made)

    def logprobs(self, row: int, start: int, stop: int) -> Logprobs | None:
        if self.asked.logprobs is None:
            return None
        result, tokenizer = self.decoding.results[row], self.decoding.tokenizer
        tokens = [token_text(tokenizer, token) for token in result.ids[start:stop]]
        chosen = result.logprobs[start:stop]
        found = result.alternatives[start:stop] if self.asked.logprobs else [[] for _ in tokens]
        top = [{token_text(tokenizer, other.id): other.logprob for other in others} for others in found]
        return Logprobs(
            tokens=tokens,
            token_logprobs=list(chosen),
            # The token that was taken is always one of them, however unlikely it was.
            top_logprobs=[
                {**others, token: logprob} for others, token, logprob in zip(top, tokens, chosen, strict=True)
            ],
            text_offset=[self.offset(row, *pair) for pair in zip(result.ids[start:stop], tokens, strict=True)],
        )

    def offset(self, row: int, token: int, text: str) -> int:
        """Where in its text the row's next token stands; one that holds a part of a character, where that stands."""
        before = self.offsets[row]
        self.offsets[row] += len(self.decoders[row].push(token))
        return before if text.startswith(PART) else self.offsets[row] - len(text)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as OpenAI writes it: its text, or its bytes where these are only a part of a character."""
    data = tokenizer.decode_bytes([token])
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return PART + "".join(f"\\x{byte:02x}" for byte in data)
