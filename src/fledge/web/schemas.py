"""The shapes of requests and answers: what the OpenAPI document says, and what is checked at the door."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from fledge.config import SamplingConfig, StrategyConfig

USUAL = SamplingConfig()
TEXT_LIMIT = 2_000_000
HEX = r"^ *([0-9A-Fa-f]{2} *)*$"

Name = Annotated[str, Field(min_length=1, max_length=500)]


def _only_numbers(value: Any) -> Any:
    """JSON knows what a number is; `true` and "3" are none, though Python would take them for one."""
    if isinstance(value, (bool, str)):
        raise ValueError("should be a number")
    return value


NUMBER = BeforeValidator(_only_numbers)


class Request(BaseModel):
    """What comes from outside: a name that is not known is an error, so that a typing mistake does not go unnoticed."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class Answer(BaseModel):
    """What goes out."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())


class ProblemDetail(Answer):
    message: str
    "One sentence for the person."
    type: str
    param: str | None = None
    code: str | None = None


class Problem(Answer):
    """The answer to a request that can't be met, in the form that OpenAI's clients read."""

    error: ProblemDetail


class TokenizerEntry(Answer):
    name: str
    source: Literal["bundle", "tokenizer"]


class BundleEntry(Answer):
    name: str
    run: str | None
    "The run whose checkpoint it is."
    step: int | None
    best: bool
    "Of the checkpoints of its run, as the lowest validation loss tells; what the run's own name stands for."


class LibraryAnswer(Answer):
    """Everything below the served folders."""

    version: str
    tokenizers: list[TokenizerEntry]
    bundles: list[BundleEntry]
    recipes: list[str]
    skipped: dict[str, str]
    "Folders that could not be looked into, and why."


class SamplingAnswer(StrategyConfig, Answer):
    bundle: str
    prompt: str
    "Of its settings, or the first words of `passage`; empty where neither is known."
    passage: str
    "The beginning of the text that its run held out; empty where it is not there."
    max_tokens: int
    stop: list[str]


class TokensRequest(Request):
    text: Annotated[str, Field(max_length=TEXT_LIMIT)]
    tokenizers: Annotated[list[Name], Field(min_length=1, max_length=4)]


class TokenizedText(Answer):
    """A text in one tokenizer. The bytes of `ids`, one after the other, are those of the text where
    `exact`."""

    tokenizer: str
    kind: str
    vocabulary_size: int
    ids: list[int]
    pieces: dict[str, str]
    "For each id that occurs, its bytes in base64."
    exact: bool
    bytes_per_token: float | None
    milliseconds: float


class TokensAnswer(Answer):
    characters: int
    bytes: int
    results: list[TokenizedText | Problem]


class MergesRequest(Request):
    tokenizer: Name
    text: Annotated[str, Field(min_length=1, max_length=400)]


class MergeStep(Answer):
    pieces: list[str]
    "The pieces after this step, each in base64."
    position: int | None
    "Which piece was made by this step; none for the first, where every byte stands alone."
    rank: int | None
    "The place of the merge in the order in which it was learned."


class MergesAnswer(Answer):
    """How a short text becomes its tokens. No merge crosses the border of a token."""

    ids: list[int]
    steps: list[MergeStep]
    note: str | None = None
    "Why there is nothing to replay, where there is not."


def _only_bytes(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(HEX, value):
        raise ValueError("should have two hexadecimal digits a byte, such as E2 82 AC")
    return value


class TextRequest(Request):
    text: Annotated[str, Field(max_length=2000)]


class BytesRequest(Request):
    hex: Annotated[str, Field(max_length=4000, pattern=HEX), BeforeValidator(_only_bytes)]
    "Bytes in hexadecimal, to see whether and why they do not decode."


class CharacterFacts(Answer):
    character: str
    code_point: str
    name: str
    category: str
    utf8: str
    note: str | None
    "Why the eye does not see it, where it does not."


class FlawFacts(Answer):
    start: int
    bytes: str
    reason: str


class UnicodeAnswer(Answer):
    text: str
    code_points: int
    utf8_bytes: int
    utf16_bytes: int
    composed: bool
    characters: list[CharacterFacts]
    flaws: list[FlawFacts]


class RunSummary(Answer):
    name: str
    state: Literal["training", "finished", "stopped", "empty", "broken"]
    problem: str | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    tokens_per_second: float | None = None
    updated: float | None = None
    "Seconds since 1970 of the last sign of life."
    architecture: str | None = None
    parameters: int | None = None
    checkpoints: list[str] = []
    best: str | None = None
    "Of the checkpoints the one that stands for the run: that of its lowest validation loss."
    experiment: str | None = None
    "The experiment that it is a trial of."
    has_report: bool = False


class ExperimentEntry(Answer):
    name: str
    has_report: bool


class RunsAnswer(Answer):
    runs: list[RunSummary]
    experiments: list[ExperimentEntry]
    "Of the runs that are trials."
    now: float
    skipped: dict[str, str]


class MetricsAnswer(Answer):
    run: str
    columns: dict[str, list[float | None]]
    cursor: str
    "Send it with the next request to get only what is new."
    reset: bool
    "Whether the columns start from the beginning, since the file is not the one the cursor belongs to."
    more: bool
    unreadable: int
    "Lines left out because they are not numbers, or broken."
    flops_per_token: float | None
    "Forward and backward, for the axis of FLOPs."


class SettingsAnswer(Answer):
    run: str
    settings: dict[str, Any]
    "Flat: `model.layers` and its value."


class SamplesAnswer(Answer):
    run: str
    text: str
    cut: bool
    "Whether only the end of a long file is here."


class GenerateRequest(StrategyConfig, Request):
    bundle: Name
    prompt: Annotated[str, Field(max_length=100_000)] = ""
    prefix: Annotated[list[Annotated[int, Field(ge=0, le=1 << 31), NUMBER]], Field(max_length=16_384)] = []
    "Ids that follow the prompt: what a branch keeps of an earlier text."
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False), NUMBER] = USUAL.temperature
    repetition_penalty: Annotated[float, Field(ge=1, le=10), NUMBER] = USUAL.repetition_penalty
    max_tokens: Annotated[int, Field(ge=1, le=8192), NUMBER] = USUAL.max_tokens
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=8)] = list(USUAL.stop)
    seed: Annotated[int, Field(ge=0, lt=1 << 53), NUMBER] = USUAL.seed
    alternatives: Annotated[int, Field(ge=0, le=20), NUMBER] = 5

    _numbers = field_validator(*StrategyConfig.model_fields, mode="before")(_only_numbers)


class AccountRequest(Request):
    recipe: Annotated[str, Field(max_length=100)] | None = None
    "A packaged recipe; or name a bundle."
    bundle: Name | None = None
    model: dict[str, str | int | float | bool | None] = {}
    "Settings of the model that differ, such as `layers`."
    vocabulary_size: Annotated[int, Field(ge=2, le=10_000_000), NUMBER] | None = None
    context_length: Annotated[int, Field(ge=1, le=4_194_304), NUMBER] | None = None
    batch: Annotated[int, Field(ge=1, le=1_048_576), NUMBER] = 1


class TensorFacts(Answer):
    name: str
    component: str
    shape: list[int]
    times: int
    count: int
    training_bytes: int
    "Of its weights, gradients and optimizer state."


class ProductFacts(Answer):
    name: str
    component: str
    shape: str
    times: int
    flops: int


class PartFacts(Answer):
    name: str
    bytes: float
    grows: bool
    "Whether it grows with the batch."


class NodeFacts(Answer):
    """A box of the diagram, and what of the account belongs to it."""

    key: str
    title: str
    detail: str
    tensors: list[str]
    products: list[str]
    memory: list[str]
    "Parts of the memory that all boxes of its kind share."


class AccountAnswer(Answer):
    """What a model costs. FLOPs are of one forward pass over one window; memory is of a training step of the batch."""

    settings: dict[str, Any]
    vocabulary_size: int
    context_length: int
    batch: int
    optimizer: str
    optimizer_title: str
    "As it is written in a sentence."
    precision: str
    parameters: int
    parameters_by_component: dict[str, int]
    tensors: list[TensorFacts]
    forward_flops: int
    flops_per_token: float
    "Of training: forward and backward."
    flops_by_component: dict[str, int]
    products: list[ProductFacts]
    memory: float
    memory_parts: list[PartFacts]
    bytes_per_window: float
    bytes_at_any_batch: float
    largest_batch: dict[str, int]
    "Windows at once on a device of so many GB."
    diagram: str
    "The flow chart as SVG, without styles; its boxes, from top to bottom and left to right, are the `nodes`."
    nodes: list[NodeFacts]
