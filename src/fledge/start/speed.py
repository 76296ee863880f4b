"""How fast this machine trains a model: real steps on random tokens, and the quickest way to take them on a CPU."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from fledge import devices
from fledge.config import ModelConfig, OptimizerConfig, RunConfig, TokenizerConfig, TokensConfig, override_config

COMPILED_FROM = 150.0  # seconds left: compiling takes 10 to 30 of them, and gains a third to a half of the others


class Way(NamedTuple):
    """Precision and compilation, as settings, and the tokens per second that they reach."""

    settings: dict[str, str | float]
    speed: float
    again: float = 0.0
    "Seconds that training needs before it is as quick."


def measured_speed(
    model: ModelConfig,
    vocabulary_size: int,
    context: int,
    batch: int,
    seconds: float,
    settings: dict[str, str | float] | None = None,
) -> float:
    """Tokens per second of real steps on random tokens."""
    from fledge.training.bench import measure

    config = RunConfig(
        tokenizer=TokenizerConfig(vocabulary_size=vocabulary_size),
        tokens=TokensConfig(context_length=context),
        model=model,
        optimizer=OptimizerConfig(name="muon"),
    )
    config = override_config(config, [f"{name}={value}" for name, value in (settings or {}).items()])
    while (found := measure(config, batch, "auto", seconds).tokens_per_second) is None and batch > 1:
        batch //= 2  # training would take it in such parts
    return found or 1.0


def quick_precision(
    model: ModelConfig, vocabulary_size: int, context: int, batch: int, seconds: float, given: Collection[str]
) -> Way:
    """What this CPU is faster in, fp32 or bfloat16; what was set by hand is not tried."""
    import torch

    from fledge.training.rules import quick_type

    plain = Way({}, measured_speed(model, vocabulary_size, context, batch, seconds))
    if "training.precision" in given or quick_type(torch.device("cpu")) is not torch.bfloat16:
        return plain
    narrow: dict[str, str | float] = {"training.precision": "bf16"}
    found = measured_speed(model, vocabulary_size, context, batch, seconds, narrow)
    return Way(narrow, found) if found > plain.speed else plain


def compiled_way(
    way: Way, model: ModelConfig, vocabulary_size: int, context: int, batch: int, seconds: float, left: float
) -> Way:
    """The same way compiled, where that is quicker in the seconds that are `left`, its own cost included."""
    if left < COMPILED_FROM:
        return way
    compiled, began = way.settings | {"training.compile": "on"}, time.monotonic()
    try:
        found = measured_speed(model, vocabulary_size, context, batch, seconds, compiled)
    except RuntimeError:  # no compiler on this machine, or one that torch can't use
        return way
    took = time.monotonic() - began
    left, again = left - took, took / 2  # training compiles once more, with part of the work kept
    if found * (left - again) > way.speed * left:
        return Way(compiled, found, again)
    return way


def machine_name() -> str:
    import torch

    if devices.is_gpu(place := devices.fastest()):
        return devices.title(place)
    threads = torch.get_num_threads()
    return f"a CPU with {threads} thread{'s' * (threads > 1)}"
