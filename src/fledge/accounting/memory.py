"""The memory of a training step at its fullest moments, part by part: bytes per window, bytes at any batch.

It follows what our compiled training holds on a GPU: weights, gradients and optimizer state in fp32, what the
compiler saves for the backward pass, and the loss fused with the head, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from fledge.accounting.activations import (
    FP32,
    LOOKED_UP,
    RECURRENT_KEPT,
    activations,
    backward_work,
    forward_work,
    kept_neurons,
    recomputed,
)
from fledge.accounting.parameters import Parameter, Parameters, list_parameters
from fledge.config import ModelConfig
from fledge.errors import FledgeError, nearest

ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
OPTIMIZERS = ("adamw", "sgd", "muon")


@dataclass(frozen=True)
class Part:
    """One use of memory: `per_window` bytes for each window and `constant` bytes besides."""

    name: str
    per_window: float = 0.0
    constant: float = 0.0

    def at(self, batch: int) -> float:
        return self.per_window * batch + self.constant


@dataclass(frozen=True)
class Moment:
    """A time in the step at which much is held, and what."""

    name: str
    parts: tuple[Part, ...]

    def at(self, batch: int) -> float:
        return sum(part.at(batch) for part in self.parts)


@dataclass(frozen=True)
class Memory:
    """The moments at which a step of `batch` windows may be fullest. Around it, the peak is slope·batch + intercept.

    `moments_of` gives the moments of any batch: with its size, training chooses what it keeps and what it chunks.
    """

    moments_of: Callable[[int], tuple[Moment, ...]]
    batch: int

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self.moments_of(self.batch)

    @property
    def fullest(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.at(self.batch))

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is held at the fullest moment."""
        return self.fullest.parts

    @property
    def total(self) -> float:
        return self.at(self.batch)

    @property
    def slope(self) -> float:
        """Bytes per window: the a of a·batch + b."""
        return sum(part.per_window for part in self.parts)

    @property
    def intercept(self) -> float:
        """Bytes at any batch: the b of a·batch + b."""
        return sum(part.constant for part in self.parts)

    def at(self, batch: int) -> float:
        """The peak of a step of another size."""
        return max(moment.at(batch) for moment in self.moments_of(batch))

    def largest_batch(self, memory: float) -> int:
        """Windows that fit into this many bytes; 0 when not even one does."""
        low, high = 0, 1
        while self.at(high) <= memory and high < 1 << 40:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle) <= memory else (low, middle)
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
    device_memory: float = 80e9,
) -> Memory:
    """What our training holds: in the loss, as the forward pass ends, as the backward pass begins, and as it ends."""
    if precision not in ACTIVATION_BYTES:
        raise FledgeError(f"precision = {precision!r} is not allowed. {nearest(precision, ACTIVATION_BYTES)}")
    size, kernels = ACTIVATION_BYTES[precision], precision == "bf16"
    # Autocast runs recurrent layers in fp16, which our loss kernel does not take.
    recurrent = config.architecture in RECURRENT_KEPT
    rows = padded(vocabulary_size)
    parameters = list_parameters(config, rows, context_length)
    held = [
        Part("parameters", constant=FP32 * parameters.total),
        Part("gradients", constant=FP32 * parameters.total),
        Part("optimizer state", constant=FP32 * optimizer_numbers(optimizer, parameters)),
    ]
    copied = sum(tensor.count for tensor in parameters.tensors if _inner_matrix(tensor))
    copies = [Part(f"{precision} copies of the matrices", constant=size * copied)] if size < FP32 else []
    whole = _parts(activations(config, context_length, size, flash, kernels))
    saved = _parts(recomputed(config, context_length, size)) if recompute else whole
    layer = [Part("one layer's activations", sum(part.per_window for part in whole) / config.layers)]
    head = rows * config.width
    hidden = Part("hidden states and their gradients", 2 * context_length * config.width * size)

    def moments(batch: int) -> tuple[Moment, ...]:
        neurons = kept_neurons(config, context_length, size)
        keep = kernels and 0 < neurons * batch <= device_memory / 4
        kept = [*copies, *saved, *([Part("neurons", neurons)] if keep else [])]
        backward = _parts(backward_work(config, context_length, size, keep))
        in_loss = [
            Part("the head's gradient and copies", constant=(FP32 + 2 * size) * head),
            _logits(batch, context_length, rows, size, device_memory if kernels and not recurrent else 0),
        ]
        begins = [*(layer if recompute else []), Part("the head's gradient", constant=2 * FP32 * head)]
        ends = Part("gradients on their way", constant=FP32 * parameters.total)
        return (
            Moment("in the loss", (*held, *kept, hidden, *in_loss)),
            Moment(
                "as the forward pass ends", (*held, *kept, *_parts(forward_work(config, context_length, size, keep)))
            ),
            Moment("as the backward pass begins", (*held, *kept, hidden, *begins, *backward)),
            Moment("as the backward pass ends", (*held, *layer, *backward, ends)),
        )

    return Memory(moments, batch)


def _logits(batch: int, tokens: int, rows: int, size: int, device_memory: float) -> Part:
    """The fused loss works in equal chunks: large ones and in place where a GPU has our kernels.

    Elsewhere a chunk is held four times in fp32 and three times as a mask. A chunk is freed only when the next is made.
    """
    chunk, each = (min(1 << 30, device_memory // 64), size) if device_memory else (1 << 26, size + 4 * FP32 + 3)
    logits = batch * tokens * rows
    if logits <= chunk:
        return Part("logits", tokens * rows * each)
    return Part("two chunks of logits", constant=logits / ceil(logits / chunk) * (each + size))


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
