"""A model laid out without memory: its names and shapes are held against a file before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from fledge.bundle.weights import TensorHeader, total_bytes
from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.files import readable_bytes

if TYPE_CHECKING:
    from fledge.model import Model

LARGEST_TABLES = 1 << 30  # bytes of rotary angles and the like, which no file vouches for


def lay_out_for(
    shapes: Mapping[str, TensorHeader], config: ModelConfig, vocabulary_size: int, context_length: int, where: Path
) -> Model:
    """The model that the file `where` describes, laid out; refused if it is out of all proportion to its weights."""
    if config.layers > max(len(shapes), 4096):
        raise FledgeError(f"{where} asks for {config.layers:,} layers, and has no weights for them.")
    if config.architecture == "bdh":
        places = config.multiplier * config.width // config.heads // 2  # a pair of neurons each
    else:
        places = config.width if config.position == "sinusoidal" else config.head_width
    tables = 8 * context_length * places
    if tables > max(LARGEST_TABLES, 4 * total_bytes(shapes)):
        raise FledgeError(
            f"{where} describes a model with tables of {readable_bytes(tables)}, for a context of {context_length:,} "
            "tokens: more than its weights are worth. Do not trust it."
        )
    try:
        return lay_out_model(config, vocabulary_size, context_length)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise FledgeError(f"{where} describes a model that can't be built ({error}).") from None


def lay_out_model(config: ModelConfig, vocabulary_size: int, context_length: int) -> Model:
    """A model without memory: its names and shapes, to hold a file against before anything is allocated."""
    from fledge.model import build_model

    with torch.device("meta"), _Unfilled():
        return build_model(config, vocabulary_size, context_length)


def fill(model: Model, weights: Mapping[str, torch.Tensor]) -> None:
    """Make a file's pages the weights of a laid-out model."""
    model.load_state_dict(weights, assign=True)
    model.make_tables()


class _Unfilled(TorchFunctionMode):
    """Lays out a model without work: weights without memory need no filling, and a range on the meta device would make
    torch load a second's worth of modules."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, options = getattr(func, "__name__", ""), kwargs or {}
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else options.get("tensor")
        return func(*args, **({"device": "cpu", **options} if func is torch.arange else options))
