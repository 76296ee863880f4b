"""Sizes that the model, its loss and its optimizer work with, and that their account counts with: numbers, no torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

RECURRENT_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"Matrices of a recurrent cell, side by side."
SHORTEST, LONGEST, SHORT_HEADS = 16, 1024, (16, 32, 64)
"Tokens, and sizes of a head, that the kernel for short attention is made for."
KEPT_SHARE = 4
"BDH keeps all layers' neurons where they take at most one part in so many of the GPU's memory."
CHUNK, CPU_CHUNK, KERNEL_CHUNK, KERNEL_SHARE = 1 << 26, 1 << 21, 1 << 30, 64
"Logits that the fused loss works on at once; with our kernel also at most one for so many bytes of the GPU's memory."
NEWTON_SCHULZ = (
    (8.2242, -23.3563, 16.6409),
    (3.9812, -2.8520, 0.5182),
    (3.5095, -2.5356, 0.4857),
    (2.5696, -1.8538, 0.4183),
)
"""The odd polynomials a·s + b·s³ + c·s⁵ that take every singular value s from 0.003 to 1 to between 0.75 and 1.25: each
comes closest to 1 over all that the one before leaves, with a margin of 2 % for rounding."""
OptimizerName = Literal["adamw", "sgd", "muon"]


class OptimizerSize(NamedTuple):
    """What an optimizer keeps and computes for each parameter; `inner` for the model's inner matrices alone, where the
    rest is AdamW's."""

    title: str
    kept: int
    "Numbers."
    flops: int
    "Elementwise, of one step."
    inner: bool = False


OPTIMIZER_SIZES: dict[str, OptimizerSize] = {
    "adamw": OptimizerSize("AdamW", 2, 14),  # 3 for the mean, 4 for the square, 5 for the update, 2 for the decay
    "sgd": OptimizerSize("SGD", 1, 8),  # 2 for the decay, 2 for the velocity, 2 to look ahead, 2 for the update
    # Of its matrices: 3 for the momentum, 3 to look ahead, 2 for the decay, 3 for the norm, 2 for the update.
    "muon": OptimizerSize("Muon", 1, 13, inner=True),
}
"A new optimizer is a name and a line here, and its class in training/optimizers.py."


def padded(vocabulary_size: int) -> int:
    """Rows of an embedding in memory: as many as matrix units like."""
    step = 128 if vocabulary_size >= 2048 else 8
    return -(-vocabulary_size // step) * step
