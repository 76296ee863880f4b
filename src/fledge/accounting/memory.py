"""The memory of a training step at its fullest moments, part by part: bytes per window, bytes at any batch.

It follows what our compiled training holds on a GPU: weights, gradients and optimizer state in fp32, what the
compiler saves for the backward pass, and the loss fused with the head, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from fledge.accounting.activations import (
    FP32,
    LOOKED_UP,
    activations,
    backward_work,
    forward_work,
    recomputed,
)
from fledge.accounting.parameters import Parameter, Parameters, list_parameters
from fledge.config import ModelConfig
from fledge.errors import FledgeError, nearest

ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
OPTIMIZERS = ("adamw", "sgd", "muon")
CHUNK_LOGITS = 1 << 29  # logits that the fused loss holds at once on a GPU


@dataclass(frozen=True)
class Part:
    """One use of memory: `per_window` bytes for each window and `constant` bytes besides.

    What would grow past `limit` is done in equal chunks that do not.
    """

    name: str
    per_window: float = 0.0
    constant: float = 0.0
    limit: float = inf

    def at(self, batch: int) -> float:
        grown = self.per_window * batch
        return grown / max(1, ceil(grown / self.limit)) + self.constant

    def bound(self, batch: int) -> float:
        """As `at`, but never falling as the batch grows."""
        return min(self.per_window * batch, self.limit) + self.constant

    def grows(self, batch: int) -> bool:
        return self.per_window * batch <= self.limit


@dataclass(frozen=True)
class Moment:
    """A time in the step at which much is held, and what."""

    name: str
    parts: tuple[Part, ...]

    def at(self, batch: int) -> float:
        return sum(part.at(batch) for part in self.parts)

    def bound(self, batch: int) -> float:
        return sum(part.bound(batch) for part in self.parts)


@dataclass(frozen=True)
class Memory:
    """The moments at which a step may be fullest. Around a batch, the peak is slope·batch + intercept."""

    moments: tuple[Moment, ...]
    batch: int

    @property
    def fullest(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.at(self.batch))

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is held at the fullest moment."""
        return self.fullest.parts

    @property
    def total(self) -> float:
        return self.fullest.at(self.batch)

    @property
    def slope(self) -> float:
        """Bytes per window: the a of a·batch + b."""
        return sum(part.per_window for part in self.parts if part.grows(self.batch))

    @property
    def intercept(self) -> float:
        """Bytes at any batch: the b of a·batch + b."""
        return self.total - self.slope * self.batch

    def largest_batch(self, memory: float) -> int:
        """Windows that fit into this many bytes; 0 when not even one does."""
        return min(_largest(moment, memory) for moment in self.moments)


def _largest(moment: Moment, memory: float) -> int:
    """By halving: a moment's bound only grows with the batch."""
    low, high = 0, 1
    while moment.bound(high) <= memory:
        low, high = high, high * 2
        if high > 1 << 40:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if moment.bound(middle) <= memory else (low, middle)
    return low


def training_memory(
    config: ModelConfig,
    vocabulary_size: int,
    context_length: int,
    *,
    batch: int = 1,
    precision: str = "bf16",
    optimizer: str = "adamw",
    recompute: bool = False,
    flash: bool = True,
) -> Memory:
    """What our training holds: in the loss, where the backward pass begins, and where it ends."""
    if precision not in ACTIVATION_BYTES:
        raise FledgeError(f"precision = {precision!r} is not allowed. {nearest(precision, ACTIVATION_BYTES)}")
    size = ACTIVATION_BYTES[precision]
    rows = padded(vocabulary_size)
    parameters = list_parameters(config, rows, context_length)
    held = [
        Part("parameters", constant=FP32 * parameters.total),
        Part("gradients", constant=FP32 * parameters.total),
        Part("optimizer state", constant=FP32 * optimizer_numbers(optimizer, parameters)),
    ]
    copied = sum(tensor.count for tensor in parameters.tensors if _inner_matrix(tensor))
    copies = [Part(f"{precision} copies of the matrices", constant=size * copied)] if size < FP32 else []
    whole = _parts(activations(config, context_length, size, flash))
    kept = _parts(recomputed(config, context_length, size, flash)) if recompute else whole
    layer = [Part("one layer's activations", sum(part.per_window for part in whole) / config.layers)]
    backward = _parts(backward_work(config, context_length, size))
    head = rows * config.width
    hidden = Part("hidden states and their gradients", 2 * context_length * config.width * size)
    logits = Part("a chunk of logits", context_length * rows * size, limit=CHUNK_LOGITS * size)
    moments = {
        "in the loss": [
            *copies,
            *kept,
            hidden,
            Part("the head's gradient and copies", constant=(FP32 + 2 * size) * head),
            logits,
        ],
        "as the forward pass ends": [*copies, *kept, *_parts(forward_work(config, context_length, size))],
        "as the backward pass begins": [
            *copies,
            *kept,
            *(layer if recompute else []),
            hidden,
            Part("the head's gradient", constant=2 * FP32 * head),
            *backward,
        ],
        "as the backward pass ends": [
            *layer,
            *backward,
            Part("gradients on their way", constant=FP32 * parameters.total),
        ],
    }
    return Memory(tuple(Moment(name, (*held, *parts)) for name, parts in moments.items()), batch)


def _parts(sizes: Iterable[tuple[str, float]]) -> list[Part]:
    return [Part(name, per_window) for name, per_window in sizes]


def padded(vocabulary_size: int) -> int:
    """Rows of the embedding in memory: the model rounds them up to what matrix units like."""
    step = 128 if vocabulary_size >= 2048 else 8
    return -(-vocabulary_size // step) * step


def optimizer_numbers(optimizer: str, parameters: Parameters) -> int:
    """fp32 numbers kept: AdamW two per parameter, SGD one, Muon one for inner matrices, two for the rest."""
    if optimizer not in OPTIMIZERS:
        raise FledgeError(f"optimizer = {optimizer!r} is not allowed. {nearest(optimizer, OPTIMIZERS)}")
    if optimizer == "sgd":
        return parameters.total
    inner = sum(t.count for t in parameters.tensors if _inner_matrix(t)) if optimizer == "muon" else 0
    return 2 * parameters.total - inner


def _inner_matrix(tensor: Parameter) -> bool:
    return len(tensor.shape) > 1 and tensor.component not in (*LOOKED_UP, "head")
