"""AdamW's memory as a textbook reckons it by hand: fp32, two feed-forward matrices of size 4·d, no fusing.

A simplification to learn from, with its formula shown; `memory.py` is what our training holds. The notes list
the output embedding alone, as if it were tied, and write the weighted sum of the values as h·T·d with d a
head's size: T·d in all.
"""

from __future__ import annotations

from dataclasses import dataclass

from fledge.accounting.activations import FP32
from fledge.accounting.memory import MOST, BatchRange, Memory, Moment, Part
from fledge.config import ModelConfig
from fledge.errors import FledgeError

BLOCK_LINES = 9  # of the list of activations: those of a block come first


@dataclass(frozen=True)
class Line:
    """One line of the list: how many fp32 numbers, in letters and as a value; L times for a block's."""

    name: str
    formula: str
    value: int
    times: int = 1

    @property
    def total(self) -> int:
        return self.value * self.times


@dataclass(frozen=True)
class Textbook:
    """The notes' list for one shape: numbers that do not depend on the batch, and numbers per window."""

    layers: int
    width: int
    heads: int
    context_length: int
    vocabulary_size: int

    @property
    def parameter_lines(self) -> list[Line]:
        d, L, V = self.width, self.layers, self.vocabulary_size
        return [
            Line("two norms", "2·d", 2 * d, L),
            Line("attention", "4·d²", 4 * d * d, L),
            Line("feed-forward", "8·d²", 8 * d * d, L),
            Line("final norm", "d", d),
            Line("output embedding", "d·V", d * V),
        ]

    @property
    def activation_lines(self) -> list[Line]:
        d, L, V = self.width, self.layers, self.vocabulary_size
        T, h = self.context_length, self.heads
        return [
            Line("two norms", "2·T·d", 2 * T * d, L),
            Line("queries, keys, values", "3·T·d", 3 * T * d, L),
            Line("scores", "h·T²", h * T * T, L),
            Line("softmax", "h·T²", h * T * T, L),
            Line("weighted sum of values", "T·d", T * d, L),
            Line("output projection", "T·d", T * d, L),
            Line("feed-forward, first matrix", "4·T·d", 4 * T * d, L),
            Line("SiLU", "4·T·d", 4 * T * d, L),
            Line("feed-forward, second matrix", "T·d", T * d, L),
            Line("final norm", "T·d", T * d),
            Line("output embedding", "T·V", T * V),
            Line("cross-entropy", "T", T),
        ]

    @property
    def parameters(self) -> int:
        return sum(line.total for line in self.parameter_lines)

    @property
    def activations(self) -> int:
        """Per window."""
        return sum(line.total for line in self.activation_lines)

    def memory(self, batch: int = 1) -> Memory:
        """Parameters, gradients and AdamW's two moments, four bytes each; and each window's activations."""
        block = sum(line.total for line in self.activation_lines[:BLOCK_LINES])
        size = FP32 * self.parameters
        parts = (
            Part("parameters", constant=size),
            Part("gradients", constant=size),
            Part("optimizer state", constant=2 * size),
            Part("activations of the blocks", per_window=FP32 * block),
            Part("final norm, logits, loss", per_window=FP32 * (self.activations - block)),
        )
        stretch = BatchRange(1, MOST, (Moment("in a step", parts),))
        return Memory(lambda *_: stretch, batch)

    @property
    def formula(self) -> str:
        """The whole of it as a·batch + b, in letters and with the numbers put in."""
        L, d, h = self.layers, self.width, self.heads
        T, V = self.context_length, self.vocabulary_size
        memory = self.memory()
        return "\n".join(
            (
                "parameters    P = L·(12·d² + 2·d) + d + d·V",
                f"                = {L}·(12·{d}² + 2·{d}) + {d} + {d}·{V}",
                f"                = {self.parameters:,}",
                "activations   A = L·(16·T·d + 2·h·T²) + T·d + T·V + T     (for each window)",
                f"                = {L}·(16·{T}·{d} + 2·{h}·{T}²) + {T}·{d} + {T}·{V} + {T}",
                f"                = {self.activations:,}",
                "bytes           = 4·A·batch + 4·(P + P + 2·P)",
                f"                = {memory.slope:,.0f}·batch + {memory.intercept:,.0f}",
                f"                = {memory.slope / 1e9:.2f} GB·batch + {memory.intercept / 1e9:.2f} GB",
            )
        )


def textbook(config: ModelConfig, vocabulary_size: int, context_length: int) -> Textbook:
    """The notes' list with this configuration's L, d, h, T and V; its other settings play no part in it.

    >>> xl = textbook(ModelConfig(layers=48, width=1600, heads=25), 50_257, 1_024)
    >>> xl.memory().largest_batch(80e9)
    3
    """
    if config.architecture != "transformer":
        raise FledgeError(
            f"The textbook formula is for Transformers, and model.architecture = {config.architecture}. Use "
            "--memory real."
        )
    return Textbook(config.layers, config.width, config.heads, context_length, vocabulary_size)
