"""The memory of a training step at its fullest moments, part by part: bytes per window, bytes at any batch.

It follows what our compiled training holds on a GPU: weights, gradients and optimizer state in fp32, what the
compiler saves for the backward pass, and the loss fused with the head, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fledge.accounting.activations import (
    FINAL,
    FP32,
    LOOKED_UP,
    activations,
    backward_work,
    forward_work,
    kept_neurons,
    recomputed,
)
from fledge.accounting.budget import check_counted, check_number
from fledge.accounting.parameters import Parameter, Parameters, list_parameters
from fledge.config import ModelConfig
from fledge.config.sizes import (
    CHUNK,
    CPU_CHUNK,
    KEPT_SHARE,
    KERNEL_CHUNK,
    KERNEL_SHARE,
    OPTIMIZER_SIZES,
    RECURRENT_GATES,
    padded,
)
from fledge.errors import FledgeError, nearest

ACTIVATION_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
ASSUMED_MEMORY = 80e9
"Of the device, where none is named: it sets how many logits the loss works on at once."
MOST = 1 << 40  # windows


@dataclass(frozen=True)
class Part:
    """One use of memory: `per_window` bytes for each window and `constant` bytes besides.

    `shrinks` marks what a larger batch may hold less of: it is cut into more chunks, or computed again.
    """

    name: str
    per_window: float = 0.0
    constant: float = 0.0
    shrinks: bool = False

    def at(self, batch: int) -> float:
        return self.per_window * batch + self.constant


@dataclass(frozen=True)
class Moment:
    """A time in the step at which much is held, and what: slope·batch + intercept bytes."""

    name: str
    parts: tuple[Part, ...]

    @cached_property
    def slope(self) -> float:
        return sum(part.per_window for part in self.parts)

    @cached_property
    def intercept(self) -> float:
        return sum(part.constant for part in self.parts)

    def at(self, batch: int) -> float:
        return self.slope * batch + self.intercept

    def floor(self, batch: int) -> float:
        """What this batch and all larger ones hold at least."""
        return self.at(batch) - sum(part.at(batch) for part in self.parts if part.shrinks)


@dataclass(frozen=True)
class BatchRange:
    """Neighbouring batches, `first` to `last`, for which training keeps and chunks alike: the same moments."""

    first: int
    last: int
    moments: tuple[Moment, ...]

    def at(self, batch: int) -> float:
        return max(moment.at(batch) for moment in self.moments)

    def largest_batch(self, memory: float, last: int) -> int:
        """Up to `last`, where `first` fits: within a stretch the peak only grows."""
        return _last(lambda batch: self.at(batch) <= memory, self.first, last)


@dataclass(frozen=True)
class Formula:
    """The peak as slope·batch + intercept, exact for the batches from `first` to `last`."""

    slope: float
    intercept: float
    first: int
    last: int

    def at(self, batch: int) -> float:
        return self.slope * batch + self.intercept


@dataclass(frozen=True)
class Memory:
    """The moments at which a step of `batch` windows may be fullest.

    `stretch_of` gives those of any batch on a device of so many bytes: training chooses by both what it keeps and
    how it chunks. Without a `device_memory`, a device of `ASSUMED_MEMORY` is taken; for `largest_batch`, one of
    just the memory that is asked for.
    """

    stretch_of: Callable[[int, float], BatchRange]
    batch: int
    device_memory: float | None = None

    @property
    def moments(self) -> tuple[Moment, ...]:
        return self._stretch.moments

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
        return self.fullest.slope

    @property
    def intercept(self) -> float:
        """Bytes at any batch: the b of a·batch + b."""
        return self.fullest.intercept

    @property
    def formula(self) -> Formula:
        """a·batch + b with the batches around this one for which it is the peak to the byte."""
        stretch, fullest = self._stretch, self.fullest

        def holds(batch: int) -> bool:
            return fullest.at(batch) == stretch.at(batch)

        # Where one straight line lies above the others is one interval.
        first = -_last(lambda batch: holds(-batch), -self.batch, -stretch.first)
        last = _last(holds, self.batch, stretch.last)
        return Formula(fullest.slope, fullest.intercept, first, last)

    def at(self, batch: int) -> float:
        """The peak of a step of another size."""
        check_counted("batch", batch)
        return self.stretch_of(batch, self.device_memory or ASSUMED_MEMORY).at(batch)

    def largest_batch(self, memory: float) -> int:
        """The most windows that fit into this many bytes; 0 when not even one does."""
        check_number("memory", memory, "a number of bytes, 0 or more", least=0)
        device = self.device_memory or memory

        def may_fit(batch: int) -> bool:
            return max(moment.floor(batch) for moment in self.stretch_of(batch, device).moments) <= memory

        batch = _last(may_fit, 0, MOST) if may_fit(1) else 0
        while batch:
            stretch = self.stretch_of(batch, device)
            if stretch.at(stretch.first) <= memory:
                return stretch.largest_batch(memory, batch)
            batch = stretch.first - 1
        return 0

    @property
    def _stretch(self) -> BatchRange:
        return self.stretch_of(self.batch, self.device_memory or ASSUMED_MEMORY)


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number up to `high` for which it still holds, as it does for `low`."""
    step = 1
    while low + step <= high and holds(low + step):
        low, step = low + step, 2 * step
    high = min(high, low + step - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
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
    device_memory: float | None = None,
    cpu: bool = False,
    shards: int = 1,
    positions: int | None = None,
    average: bool = False,
) -> Memory:
    """What our training holds: in the loss, as the forward pass ends, as the backward pass begins, and as it ends.

    `shards` is the number of processes over which weights, gradients and state are spread, where they are;
    `positions` the context length that the model was built with, where it is trained on shorter windows.
    """
    if precision not in ACTIVATION_BYTES:
        raise FledgeError(f"precision = {precision!r} is not allowed. {nearest(precision, ACTIVATION_BYTES)}")
    size, kernels = ACTIVATION_BYTES[precision], precision == "bf16" and not cpu
    # Autocast runs recurrent layers in fp16, which our loss kernel does not take.
    recurrent = config.architecture in RECURRENT_GATES
    rows = padded(vocabulary_size)
    parameters = list_parameters(config, rows, max(context_length, positions or 1))
    state = optimizer_numbers(optimizer, parameters)
    held = [
        Part("parameters", constant=FP32 * parameters.total / shards),
        Part("gradients", constant=FP32 * parameters.total / shards),
        Part("optimizer state", constant=FP32 * state / shards),
    ]
    if average:
        held.append(Part("averaged weights", constant=FP32 * parameters.total / shards))
    if shards > 1:
        held.append(Part("one layer and the rest, whole", constant=2 * FP32 * _whole(parameters)))
    copied = sum(tensor.count for tensor in parameters.tensors if inner_matrix(tensor))
    copies = [Part(f"{precision} copies of the matrices", constant=size * copied)] if size < FP32 else []
    whole = _parts(activations(config, context_length, size, flash, kernels))
    layer = [Part("one layer's activations", sum(part.per_window for part in whole) / config.layers)]
    saved, again = whole, []
    if recompute and config.architecture == "transformer":
        entering = context_length * config.width * size
        inside = sum(part.per_window for part in whole if part.name != FINAL) / config.layers - entering
        saved = _parts(recomputed(config, context_length, size))
        again = [Part("a layer, computed again", inside, sum(part.constant for part in copies) / config.layers)]
        copies = []
    head = rows * config.width
    head_copies = (FP32 + 2 * size) * head if size < FP32 or not cpu else FP32 * head
    hidden = Part("hidden states and their gradients", 2 * context_length * config.width * size)
    gradient = Part("gradient of the hidden states", context_length * config.width * size)
    neurons = kept_neurons(config, context_length, size) if kernels and not recompute else 0.0

    def stretch(batch: int, device: float) -> BatchRange:
        most = int(device / KEPT_SHARE // neurons) if neurons else 0  # windows whose neurons are kept
        keep = 0 < batch <= most
        kept = [*copies, *saved, *([Part("neurons", neurons, shrinks=True)] if keep else [])]
        backward = _parts(backward_work(config, context_length, size, keep))
        chunk, each = _chunk(size, cpu, device if kernels and not recurrent else 0)
        chunks = -(-batch * context_length * rows // chunk)
        logits = Part(
            "logits" if chunks == 1 else f"logits, in {chunks} chunks",
            context_length * rows * each / chunks,
            shrinks=True,
        )
        in_loss = [Part("the head's gradient and copies", constant=head_copies), logits]
        begun = [part for part in kept if part.name != FINAL]
        begins = [*again, gradient, Part("the head's gradient", constant=FP32 * head)]
        ends = Part("gradients on their way", constant=FP32 * parameters.total / shards)
        work = _parts(forward_work(config, context_length, size, keep))
        moments = (
            Moment("in the loss", (*held, *kept, hidden, *in_loss)),
            Moment("as the forward pass ends", (*held, *kept, *work)),
            Moment("as the backward pass begins", (*held, *begun, *begins, *backward)),
            Moment("as the backward pass ends", (*held, *layer, *backward, ends)),
        )
        first = (chunks - 1) * chunk // (context_length * rows) + 1
        last = chunks * chunk // (context_length * rows)
        return BatchRange(max(first, most + 1) if batch > most else first, min(last, most) if keep else last, moments)

    return Memory(stretch, batch, device_memory)


def _chunk(size: int, cpu: bool, kernel_memory: float) -> tuple[int, int]:
    """The fused loss works in equal chunks: at most so many logits at once, and so many bytes for each.

    In place on a CPU, and where a GPU has our kernels, with chunks by the memory of the device. Elsewhere a chunk is
    held four times in fp32 and three times as a mask. A chunk is freed before the next is made.
    """
    if cpu:
        return CPU_CHUNK, size
    if kernel_memory:
        return max(1, min(KERNEL_CHUNK, int(kernel_memory // KERNEL_SHARE))), size
    return CHUNK, size + 4 * FP32 + 3


def _whole(parameters: Parameters) -> float:
    """Numbers of one layer and of all that is in none: what is gathered from the shards at a time."""
    return sum(t.count / (t.times if t.name.startswith("layers.") else 1) for t in parameters.tensors)


def _parts(sizes: Iterable[tuple[str, float]]) -> list[Part]:
    return [Part(name, per_window) for name, per_window in sizes]


def optimizer_numbers(optimizer: str, parameters: Parameters) -> int:
    """fp32 numbers kept."""
    return _of_parameters(optimizer, parameters, "kept")


def elementwise_flops(optimizer: str, parameters: Parameters) -> int:
    """So small beside a batch's products that no account of time counts it."""
    return _of_parameters(optimizer, parameters, "flops")


def _of_parameters(optimizer: str, parameters: Parameters, what: Literal["kept", "flops"]) -> int:
    sizes = OPTIMIZER_SIZES
    if optimizer not in sizes:
        raise FledgeError(f"optimizer = {optimizer!r} is not allowed. {nearest(optimizer, sizes)}")
    each, total = sizes[optimizer], parameters.total
    rest = total - sum(tensor.count for tensor in parameters.tensors if inner_matrix(tensor)) if each.inner else 0
    return getattr(each, what) * (total - rest) + getattr(sizes["adamw"], what) * rest  # type: ignore[no-any-return]


def inner_matrix(tensor: Parameter) -> bool:
    """Neither a vector nor an embedding nor the head: what is copied to a narrow precision, and Muon's share."""
    return len(tensor.shape) > 1 and tensor.component not in (*LOOKED_UP, "head")
