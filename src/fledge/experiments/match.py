"""Sizes solved so that a comparison is fair: the same parameters, tokens, FLOPs or time, within one per cent."""

from __future__ import annotations

import math
from typing import Literal

from fledge.accounting import Account
from fledge.config import ModelConfig, RunConfig
from fledge.errors import FledgeError

Match = Literal["parameters", "tokens", "flops", "time"]
TOLERANCE = 0.01
WIDEST = 8192


def with_parameters(config: RunConfig, vocabulary_size: int, target: int) -> RunConfig:
    """The same model as wide as it takes to have `target` parameters, within one per cent.

    The width moves in steps that the heads divide; the Transformer's inner size, or BDH's multiplier, closes the gap
    that is left, as close as it can stay to what was asked for.
    """
    best: tuple[tuple[bool, float, float], ModelConfig] | None = None
    for width in widths(config.model):
        for model in candidates(config.model, width, config, vocabulary_size, target):
            off = abs(count(model, config, vocabulary_size) / target - 1)
            strain = abs(math.log(model.multiplier / config.model.multiplier))
            rank = off > TOLERANCE, off if off > TOLERANCE else strain, off
            if best is None or rank < best[0]:
                best = rank, model
    assert best is not None
    if best[0][0]:
        found = count(best[1], config, vocabulary_size)
        raise FledgeError(
            f"No width of {config.name} gives {target:,} parameters within {TOLERANCE:.0%}: the nearest is width "
            f"{best[1].width} with {found:,}. Change its layers, or the size of the first arm."
        )
    return config.model_copy(update={"model": best[1]})


def widths(model: ModelConfig) -> range:
    """Widths the architecture allows: heads divide it, and rotary positions need even heads."""
    step = {"transformer": 2 * model.heads, "bdh": 2 * model.heads}.get(model.architecture, 1)
    return range(step, WIDEST + 1, step)


def candidates(
    model: ModelConfig, width: int, config: RunConfig, vocabulary_size: int, target: int
) -> list[ModelConfig]:
    plain = _with(model, width=width, hidden=None)
    if model.architecture == "bdh":
        solved = (target - 2 * vocabulary_size * width) // (3 * width * width)
        return [plain, *(_with(plain, multiplier=m) for m in (solved, solved + 1) if m >= 4)]
    if model.architecture != "transformer":
        return [plain]
    one = count(_with(plain, hidden=1), config, vocabulary_size)
    slope = count(_with(plain, hidden=2), config, vocabulary_size) - one
    hidden = round((target - one) / slope) + 1
    usual = width * 8 / 3
    return [plain, *([_with(plain, hidden=hidden)] if 0.7 * usual < hidden < 1.7 * usual else [])]


def count(model: ModelConfig, config: RunConfig, vocabulary_size: int) -> int:
    return Account(model, vocabulary_size, config.tokens.context_length).parameters.total


def _with(model: ModelConfig, **changes: object) -> ModelConfig:
    return model.model_copy(update=changes)
