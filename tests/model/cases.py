"""Small models of every architecture and every ablation, and batches of documents for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.config import ModelConfig
from fledge.model import Model, build_model

VOCABULARY, CONTEXT = 61, 24

_GPT2 = {
    "norm": "layer",
    "position": "learned",
    "feed_forward": "gelu_tanh",
    "bias": True,
    "tied": True,
    "initialisation": "gpt2",
}

CASES: dict[str, dict[str, Any]] = {
    "transformer": {},
    "one layer": {"layers": 1},
    "layer norm": {"norm": "layer", "bias": True},
    "no norm": {"norm": "none"},
    "post-norm": {"norm_place": "post"},
    "learned positions": {"position": "learned"},
    "sinusoidal positions": {"position": "sinusoidal"},
    "no positions": {"position": "none"},
    "silu": {"feed_forward": "silu"},
    "gelu": {"feed_forward": "gelu"},
    "relu2": {"feed_forward": "relu2", "hidden": 40},
    "grouped heads": {"kv_heads": 2},
    "one key head": {"kv_heads": 1, "qk_norm": True},
    "wide heads": {"head_size": 12, "heads": 6, "kv_heads": 2, "qk_norm": True, "bias": True},
    "qk-norm": {"qk_norm": True},
    "tied": {"tied": True},
    "bias": {"bias": True},
    "gpt2": _GPT2,
    "bdh": {"architecture": "bdh", "multiplier": 8},
    "rnn": {"architecture": "rnn", "bias": True},
    "gru": {"architecture": "gru", "tied": True},
    "lstm": {"architecture": "lstm", "bias": True},
}
ARCHITECTURE_CASES = ["transformer", "gpt2", "bdh", "rnn", "gru", "lstm"]


class Batch(NamedTuple):
    inputs_BT: Tensor
    targets_BT: Tensor | None = None
    positions_BT: Tensor | None = None
    documents_BT: Tensor | None = None


def config(name: str, **changes: Any) -> ModelConfig:
    values = {"layers": 2, "width": 32, "heads": 4} | CASES[name] | changes
    if values.get("architecture", "transformer") in ("rnn", "gru", "lstm"):
        values.pop("heads")
    return ModelConfig(**values)


def small(name: str, context_length: int = CONTEXT, **changes: Any) -> Model:
    """A model in eval mode whose weights are large enough for differences to show."""
    torch.manual_seed(0)
    model = build_model(config(name, **changes), VOCABULARY, context_length).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms away from zeros and ones
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def ids(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def packed(rows: list[list[int]], length: int) -> Batch:
    """Rows of documents of these lengths, padded to `length`."""
    documents = torch.full((len(rows), length), -1)
    positions = torch.zeros(len(rows), length, dtype=torch.long)
    for row, sizes in enumerate(rows):
        start = 0
        for number, size in enumerate(sizes):
            documents[row, start : start + size] = number
            positions[row, start : start + size] = torch.arange(size)
            start += size
    return Batch(ids(len(rows), length), None, positions, documents)
