"""Choosing a recipe for a text and a time: rules that were measured, and a few measured steps where speed decides.

The size of the model and how often it sees the text follow from the law of `law.py`: in a given time a larger model
sees fewer tokens, and past some passes it overfits, so some use of the time is best. Vocabulary, rate, decay, dropout
and schedule follow from rules; docs/results/little-text.md has their figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fledge.accounting import Account
from fledge.config import ModelConfig
from fledge.start import law
from fledge.start.look import Look
from fledge.start.work import cost

MOST_PASSES = 20
"The most that was measured on more than one size."
FEW_PASSES = 4
"Up to so many, text that is seen again is nearly as good as new, and overfitting is no danger."
FEW_FOR_SMALL, MANY_FOR_SMALL = 8, 12
"""The same for dropout in the small models of a CPU: at 4 passes they were better without it, at 8 with 0.1, and at 16
with 0.2, if they are crowded (measured)."""
CROWDED, FULL = 5, 10
"""Parameters for each token of the text. With 6 a dropout of 0.2 paid in 16 passes, but a decay above 0.1 did not; with
17 a decay of 1 did, on a GPU (measured)."""

ROW_DECAY = 0.5
"The decay of embeddings and head in the small models of a CPU, from as many passes on as dropout (measured)."

TEACHERS, TAUGHT, FROM_PASSES = 3, 0.986, 8
"""So many models teach one, which is counted on to reach this share of the bits that each of them reaches (measured on
120 kB of books with three seeds). Not chosen where a text is seen fewer times than the last number."""

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


class Use(NamedTuple):
    """What a time is used for."""

    tokens: float
    "That each model sees."
    teachers: int
    "Models of the same size that are trained first, to teach the one that is handed over."
    bits: float
    "Per byte, expected by the law."


class Size(NamedTuple):
    """One step of the ladder with the best that it can do in the time."""

    layers: int
    width: int
    parameters: int
    inside: int
    "Of these, between embeddings and head."
    tokens_per_second: float
    use: Use


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


def choose_decay(passes: float, crowding: float = math.inf) -> tuple[float, str]:
    """The weight decay: 0.1 for text that is new, 1 from twelve passes on. On a CPU 0.1 before them, and always for a
    model of few parameters for each token of the text.

    >>> [choose_decay(passes)[0] for passes in (1, 4, 12, 20)]
    [0.1, 0.24, 1.0, 1.0]
    >>> [choose_decay(8, crowding=18)[0], choose_decay(12, crowding=18)[0], choose_decay(20, crowding=7)[0]]
    [0.1, 1.0, 0.1]
    """
    if crowding < FULL:
        return 0.1, "the usual decay: a model of few parameters for each token of the text is worse with more"
    if crowding < math.inf and passes < MANY_FOR_SMALL:
        return 0.1, f"the usual decay: in {passes:.1f} passes more would cost what it saves"
    if passes <= 2:
        return 0.1, "the usual decay: the text is hardly seen twice"
    decay = 0.1 * min(10.0, max(1.0, passes / 2) ** (math.log(10) / math.log(6)))
    return float(f"{decay:.2g}"), f"a model overfits less in {passes:.1f} passes when its weights decay faster"


def crowding(text: law.Text, size: int, fast: bool) -> float:
    """Parameters inside for each token of the text; on a GPU as if there were many, for there passes decide alone."""
    return math.inf if fast else size / text.tokens


def choose_dropout(passes: float, crowding: float = math.inf) -> tuple[float, str]:
    """
    >>> [choose_dropout(n)[0] for n in (3, 4, 20)], [choose_dropout(n, crowding=7)[0] for n in (4, 8, 12)]
    ([0.0, 0.1, 0.1], [0.0, 0.1, 0.2])
    """
    small = crowding < math.inf
    if passes < (FEW_FOR_SMALL if small else FEW_PASSES):
        return 0.0, f"{passes:.1f} passes over the text are too few to overfit"
    share = 0.2 if small and passes >= MANY_FOR_SMALL and crowding >= CROWDED else 0.1
    return share, f"a model overfits less in {passes:.1f} passes when some activations are dropped"


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


def expected_bits(text: law.Text, size: int, tokens: float, fast: bool) -> float:
    """By the law, with the weight decay that would be chosen."""
    decay, _ = choose_decay(tokens / text.tokens, crowding(text, size, fast))
    return law.expected_bits(text, size, tokens, decay)


def one_model(affordable: float, text: law.Text, size: int, fast: bool) -> Use:
    """As many tokens as there is time for, or fewer where the law expects more passes to overfit."""
    most = min(affordable, MOST_PASSES * text.tokens)
    amounts = [most * 0.9**fewer for fewer in range(20)]
    return min((Use(n, 0, expected_bits(text, size, n, fast)) for n in amounts), key=lambda use: use.bits)


def with_teachers(use: Use, affordable: float, text: law.Text) -> Use:
    """The same with teachers before it, where a time is left that one model has no use for."""
    if use.tokens < FROM_PASSES * text.tokens or cost(use.tokens, TEACHERS) > affordable:
        return use
    return Use(use.tokens, TEACHERS, TAUGHT * use.bits)


def choose_size(
    seconds: float,
    text: law.Text,
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
            parameters = accounts[place].parameters
            use = one_model(seconds * speed, text, parameters.inside, fast)
            sizes.append(Size(layers, width, parameters.total, parameters.inside, speed, use))
        # The law was not measured where a model has far more parameters than tokens to see.
        sane = [place for place in range(len(LADDER)) if sizes[place].parameters <= 2 * sizes[place].use.tokens] or [0]
        best = min(sane, key=lambda place: sizes[place].use.bits)
        if best in speeds or len(speeds) >= measurements:
            return sizes[best], sizes


def power_of_two(value: float, low: int, high: int, down: bool = False) -> int:
    """The nearest one, or the next one below, within bounds.

    >>> power_of_two(1012, 512, 32768), power_of_two(90, 32, 1024, down=True)
    (1024, 64)
    """
    exponent = math.log2(max(value, 1))
    return min(high, max(low, 1 << int(exponent if down else round(exponent))))
