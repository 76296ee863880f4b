"""What the backward pass needs of the forward pass: bytes per window, by part, for each architecture.

These are the tensors that the compiler keeps for our models; what is cheap it computes again. A test holds
the list against what torch saves. `size` is the bytes of an activation; statistics are always fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fledge.accounting.built import built_activations
from fledge.config import ModelConfig
from fledge.config.sizes import LONGEST, RECURRENT_GATES, SHORT_HEADS, SHORTEST

FP32 = 4
FINAL = "input of the final norm"
"The first to be freed: the backward pass begins with it."
LOOKED_UP = ("token embeddings", "position embeddings")
RECURRENT_KEPT = {"rnn": 2, "gru": 6, "lstm": 5}
"Numbers per unit and token that cuDNN keeps for the backward pass: gates, cell, and what the gates were made of."
Bytes = Iterator[tuple[str, float]]


def activations(config: ModelConfig, tokens: int, size: int, flash: bool = True, kernels: bool = False) -> Bytes:
    """What is saved, by part, in bytes per window; `kernels` says whether our own ones run (bf16 on a GPU)."""
    if config.architecture not in _SAVED:
        return iter([("activations", built_activations(config, tokens) * size / FP32)])
    return _SAVED[config.architecture](config, tokens, size, flash, kernels)


def recomputed(config: ModelConfig, tokens: int, size: int) -> Bytes:
    """With recomputation: what enters each layer. The rest is computed again, the narrow copies of matrices too."""
    if config.architecture != "transformer":
        yield from activations(config, tokens, size)
        return
    yield "inputs of the layers", tokens * config.layers * config.width * size


def kept_neurons(config: ModelConfig, tokens: int, size: int) -> float:
    """BDH keeps all layers' neurons where a quarter of the GPU holds them, and else computes them again."""
    return 2 * config.layers * tokens * _neurons(config) * size if config.architecture == "bdh" else 0


def forward_work(config: ModelConfig, tokens: int, size: int, keep: bool = False) -> Bytes:
    """What the last layer holds besides while it runs, where that is more than the loss needs."""
    if config.architecture == "bdh":
        yield "neurons at work", (1 if keep else 3) * tokens * _neurons(config) * size
        yield "what the heads add", tokens * config.heads * config.width * size


def backward_work(config: ModelConfig, tokens: int, size: int, keep: bool = False) -> Bytes:
    """What a layer's backward pass holds besides: gradients of what it is working on."""
    if config.architecture == "transformer":
        times = 2 if config.gated else 1
        yield "gradients of a layer", tokens * size * times * config.inner_size
    elif config.architecture == "bdh":
        alive = 1 + 2 / config.heads if keep else 2 + 3 / config.heads
        yield "neurons at work", alive * tokens * _neurons(config) * size
        yield "gradients of the scores", 2 * tokens * config.heads * (tokens + config.width) * size
    elif config.architecture in RECURRENT_GATES:
        yield "gradients of a layer", 2 * tokens * config.width * RECURRENT_GATES[config.architecture] * size


def _transformer(config: ModelConfig, tokens: int, size: int, flash: bool, kernels: bool) -> Bytes:
    width, heads = config.width, config.heads
    wide, narrow = config.attention_width, config.head_width * (config.kv_heads or heads)
    numbers = tokens * config.layers
    normed, statistics = config.norm != "none", {"rms": 1, "layer": 2, "none": 0}[config.norm]
    yield "inputs of the sub-layers", numbers * 2 * width * size
    if normed:
        yield "inputs and statistics of the norms", numbers * 2 * (width * size + statistics * FP32)
    if flash:
        yield "queries, keys, values", numbers * (wide + 2 * narrow) * size
        fused = kernels and _short(config, tokens)
        if (config.position == "rope" or config.qk_norm) and not fused:
            yield "queries and keys, turned", numbers * (wide + narrow) * size
        if config.qk_norm:
            yield "statistics of the QK-norm", numbers * (heads + (config.kv_heads or heads)) * FP32
        yield "attention's output", numbers * (wide * size + heads * FP32)
    else:
        yield "queries, keys, values", numbers * 3 * wide * FP32
        yield "attention's scores and output", numbers * (heads * tokens * FP32 + wide * size)
    yield "feed-forward", numbers * config.inner_size * size * (3 if config.gated else 2)
    if config.dropout:
        yield "dropout", numbers * width * (size + 2)
    if normed and config.norm_place == "pre":
        yield FINAL, tokens * (width * size + statistics * FP32)


def _bdh(config: ModelConfig, tokens: int, size: int, flash: bool, kernels: bool) -> Bytes:
    """Scores and what they read are kept; for the neurons, see `kept_neurons`."""
    width, heads = config.width, config.heads
    numbers = tokens * config.layers
    sums, statistics = (3, 4) if size < FP32 else (2, 2)
    yield "residual stream and norms", numbers * (sums * width + statistics) * size
    yield "scores", numbers * heads * tokens * size
    yield "what the scores read", numbers * heads * width * size
    yield "embedding and its norm", tokens * (width + statistics // 2) * size


def _recurrent(config: ModelConfig, tokens: int, size: int, flash: bool, kernels: bool) -> Bytes:
    width, numbers = config.width, tokens * config.layers
    yield "gates and states", numbers * RECURRENT_KEPT[config.architecture] * width * size
    yield "inputs and outputs of the layers", (numbers + tokens) * width * size
    if config.dropout:
        yield "dropout", 2 * tokens * width


def _short(config: ModelConfig, tokens: int) -> bool:
    """Whether our kernel for short contexts attends: it turns queries and keys as it reads them."""
    plain = not config.qk_norm and not config.attention_share
    return plain and SHORTEST <= tokens <= LONGEST and config.head_width in SHORT_HEADS


def _neurons(config: ModelConfig) -> int:
    """Of all heads: on a GPU they work together."""
    return config.multiplier * config.width


_SAVED: dict[str, Callable[[ModelConfig, int, int, bool, bool], Bytes]] = {
    "transformer": _transformer,
    "bdh": _bdh,
    "rnn": _recurrent,
    "gru": _recurrent,
    "lstm": _recurrent,
}
