"""Choosing a recipe for a text and a time: rules of thumb, and a few measured steps where speed decides.

The size of the model follows from a scaling law: the loss falls as A/N^α with its N parameters and as B/D^β with the
D tokens it sees. In a given time a larger model sees fewer tokens, so some size is best. Only the trade between the two
is taken from the law (Hoffmann et al. 2022, table A3), not the loss it predicts. Text that is seen again counts for
less and less: U tokens, seen R times more, count as U·(1 + 15.4·(1 − e^(−R/15.4))) new ones (Muennighoff et al. 2023),
which up to four passes is nearly as good as new text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fledge.accounting import Account
from fledge.config import ModelConfig

A, ALPHA, B, BETA = 406.4, 0.34, 410.7, 0.28
FORGETTING = 15.4
MOST_PASSES = 20
"More passes over a text than this overfit."
FEW_PASSES = 4
"Up to so many, text that is seen again is nearly as good as new, and overfitting is no danger."

TWICE_THE_BATCH = 1.35
"How much faster twice the batch must be: so many times more tokens teach as much in half as many steps (measured)."

LADDER = (
    (2, 64),
    (3, 96),
    (4, 128),
    (4, 160),
    (5, 192),
    (5, 224),
    (6, 256),
    (6, 320),
    (7, 384),
    (8, 512),
    (10, 640),
    (12, 768),
    (16, 1024),
    (24, 1280),
)
"Layers and widths to choose from, each about twice the work of the one before."


@dataclass(frozen=True)
class Look:
    """What there is to see of a text without understanding it."""

    documents: int
    bytes: int
    characters: int
    "Different ones, in the first megabyte."


class Size(NamedTuple):
    """One step of the ladder with what it would do in the time."""

    layers: int
    width: int
    parameters: int
    tokens_per_second: float
    tokens: int
    "That it sees in the time, or as many as the text is worth."
    loss: float
    "By the law: for comparing sizes, not a forecast."


def choose_vocabulary(look: Look, fast: bool) -> tuple[str, int | None, str]:
    """Kind, size and reason: about the root of the text's bytes. On a CPU the head of a larger one costs too much."""
    if look.bytes < 100_000:
        why = f"a text of {look.bytes:,} bytes shows pairs too seldom to learn from: its characters are the tokens"
        return "character", None, why
    size = power_of_two(1.7 * math.sqrt(look.bytes), 512, 16_384 if fast else 4096)
    why = (
        f"about the square root of the text's {look.bytes / 1e6:,.1f} million bytes, as a power of two"
        f"{'' if fast else ', and at most 4,096 on a CPU'}: longer tokens carry more text per step, and rare ones are "
        "not seen often enough to be learned"
    )
    return "bpe", size, why


def choose_context(flops: float, document_tokens: float) -> tuple[int, str]:
    """A quarter power of the work there is time for, and no longer than two documents."""
    affordable = power_of_two(64 * (flops / 1e13) ** 0.25, 64, 1024, down=True)
    useful = power_of_two(2 * document_tokens, 64, 1024)
    length = min(affordable, useful)
    if length < affordable:
        return length, f"a document has about {document_tokens:,.0f} tokens, so a longer window would join strangers"
    return length, f"longer windows see further and cost more: the {flops:.1g} FLOPs of this time pay for {length}"


def choose_batch(tokens: float, context_length: int) -> int:
    """Windows a step: 1,200 steps for two million tokens, and four times the steps for 256 times as many."""
    steps = 1200 * (tokens / 2e6) ** 0.25
    return power_of_two(tokens / steps / context_length, 8, 4096)


def choose_fast_batch(batch: int, speed: Callable[[int], float]) -> tuple[int, float]:
    """The batch, or twice or four times it where a step of the smaller one leaves the machine idle; and its speed.

    >>> choose_fast_batch(8, {8: 100.0, 16: 180.0, 32: 200.0}.__getitem__)
    (16, 180.0)
    """
    size, fastest = batch, speed(batch)
    while size < 4 * batch and (faster := speed(2 * size)) >= TWICE_THE_BATCH * fastest:
        size, fastest = 2 * size, faster
    return size, fastest


def choose_rate(width: int) -> float:
    """For what Muon leaves to AdamW: 0.003 at width 128, falling with the root of the width, as in the packaged
    recipes."""
    return float(f"{3e-3 * math.sqrt(128 / max(width, 128)):.2g}")


def choose_decay(passes: float) -> tuple[float, str]:
    """The weight decay: 0.1 for text that is new, 1 from twelve passes on.

    >>> [choose_decay(passes)[0] for passes in (1, 4, 12, 20)]
    [0.1, 0.24, 1.0, 1.0]
    """
    decay = 0.1 * min(10.0, max(1.0, passes / 2) ** (math.log(10) / math.log(6)))
    if passes <= 2:
        return 0.1, "the usual decay: the text is hardly seen twice"
    return float(f"{decay:.2g}"), f"a model overfits less in {passes:.1f} passes when its weights decay faster"


def choose_dropout(passes: float) -> tuple[float, str]:
    if passes < FEW_PASSES:
        return 0.0, f"{passes:.1f} passes over the text are too few to overfit"
    return 0.1, f"a model overfits less in {passes:.1f} passes when some activations are dropped"


def choose_schedule(passes: float) -> tuple[dict[str, str | float], str]:
    """How the rate falls: in a line, and in short runs not before two fifths of the steps."""
    if passes < FEW_PASSES:
        why = "after the warm-up the full rate for two fifths of the steps, then down to zero: best in short runs"
        return {"schedule.name": "stable", "schedule.decay_fraction": 0.6}, why
    return {"schedule.name": "linear"}, "after the warm-up the rate falls in a line to zero"


def model_of(layers: int, width: int, fast: bool = False) -> ModelConfig:
    """The shape of one step of the ladder: heads of 32, of 64 from width 512 on.

    On a GPU, QK-norm is worth its cost, and the embedding is the head too. On a CPU time is short: the head is a matrix
    of its own, so that training can start from counts.
    """
    heads = max(1, width // (64 if width >= 512 else 32))
    return ModelConfig(layers=layers, width=width, heads=heads, tied=fast, qk_norm=fast)


def law(parameters: float, tokens: float) -> float:
    return float(A / parameters**ALPHA + B / tokens**BETA)


def worth(tokens: float, unique: float) -> float:
    """New tokens that are worth as much as `tokens` from a text of `unique` ones.

    >>> round(worth(4e6, 1e6) / 1e6, 2), round(worth(0.5e6, 1e6) / 1e6, 2)
    (3.73, 0.5)
    """
    repeats = max(0.0, tokens / unique - 1)
    return min(tokens, unique * (1 + FORGETTING * (1 - math.exp(-repeats / FORGETTING))))


def choose_size(
    seconds: float,
    unique_tokens: int,
    vocabulary_size: int,
    context_length: int,
    measure: Callable[[ModelConfig], float],
    start: int,
    measurements: int,
    fast: bool = False,
) -> tuple[Size, list[Size]]:
    """The step of the ladder that the law likes best, at speeds that are measured where it matters.

    `measure` gives a model's tokens per second; speeds not measured follow from the FLOPs of the nearest one that was.
    The best is measured, and the search ends when it stays the best. All sizes are returned, for the report.
    """
    accounts = [Account(model_of(*shape, fast), vocabulary_size, context_length) for shape in LADDER]
    speeds: dict[int, float] = {}
    best = start
    while True:
        speeds[best] = measure(model_of(*LADDER[best], fast))
        sizes = []
        for place, (layers, width) in enumerate(LADDER):
            near = min(speeds, key=lambda known: abs(known - place))
            flops = speeds[near] * accounts[near].flops_per_token
            speed = speeds.get(place, flops / accounts[place].flops_per_token)
            tokens = min(seconds * speed, MOST_PASSES * unique_tokens)
            parameters = accounts[place].parameters.total
            loss = law(parameters, worth(tokens, unique_tokens))
            sizes.append(Size(layers, width, parameters, speed, int(tokens), loss))
        # A model with far more parameters than tokens to see learns the text by heart; the law does not know that.
        sane = [place for place in range(len(LADDER)) if sizes[place].parameters <= 2 * sizes[place].tokens] or [0]
        best = min(sane, key=lambda place: sizes[place].loss)
        if best in speeds or len(speeds) >= measurements:
            return sizes[best], sizes


def power_of_two(value: float, low: int, high: int, down: bool = False) -> int:
    """The nearest one, or the next one below, within bounds.

    >>> power_of_two(1012, 512, 32768), power_of_two(90, 32, 1024, down=True)
    (1024, 64)
    """
    exponent = math.log2(max(value, 1))
    return min(high, max(low, 1 << int(exponent if down else round(exponent))))
