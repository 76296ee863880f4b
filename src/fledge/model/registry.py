"""One entry per architecture. A new one is a file with a `Model`, and a line here or a call of `register`."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

from fledge.config import ModelConfig
from fledge.errors import FledgeError, nearest
from fledge.model.base import Model
from fledge.model.bdh import BDH
from fledge.model.recurrent import Recurrent
from fledge.model.transformer import Transformer

ARCHITECTURES: dict[str, type[Model]] = {
    "transformer": Transformer,
    "bdh": BDH,
    "rnn": Recurrent,
    "gru": Recurrent,
    "lstm": Recurrent,
}


def register(name: str, architecture: type[Model]) -> None:
    """Make `model.architecture = name` build this class; defined anew, a class may take its own place."""
    if not (isinstance(architecture, type) and issubclass(architecture, Model)):
        raise FledgeError(
            f"model.architecture = {name} cannot be {architecture!r}: it is a class made from fledge's Model."
        )
    known = ARCHITECTURES.get(name, architecture)
    if (known.__module__, known.__qualname__) != (architecture.__module__, architecture.__qualname__):
        raise FledgeError(
            f"model.architecture = {name} is {known.__module__}.{known.__qualname__} already. Choose another name."
        )
    ARCHITECTURES[name] = architecture


def find_architecture(name: str) -> type[Model]:
    """The class that `model.architecture = name` builds."""
    if name not in ARCHITECTURES:
        raise FledgeError(f"There is no model.architecture = {name!r}. {nearest(name, ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build_model(config: ModelConfig, vocabulary_size: int, context_length: int) -> Model:
    """The model these settings describe, with fresh random weights.

    >>> from fledge.config import ModelConfig
    >>> build_model(ModelConfig(layers=2, width=64), vocabulary_size=100, context_length=32).parameters_count()
    119616
    """
    kind = find_architecture(config.architecture)
    if not all(isinstance(size, Integral) and size >= 1 for size in (vocabulary_size, context_length)):
        raise FledgeError(
            f"A model needs at least one token and one place; the vocabulary is {vocabulary_size!r} and the "
            f"context length {context_length!r}."
        )
    _warn_unused(config, kind)
    return kind(config, vocabulary_size, context_length)


def _warn_unused(config: ModelConfig, kind: type[Model]) -> None:
    """Name, once, what was set and has no effect here."""
    unused = [f"model.{name} = {getattr(config, name)}" for name in _unused(config, kind)]
    if unused:
        verb = "has" if len(unused) == 1 else "have"
        warnings.warn(f"{', '.join(unused)} {verb} no effect on model.architecture = {config.architecture}.")


def _unused(config: ModelConfig, kind: type[Model]) -> dict[str, Any]:
    """What is set and has no effect, with its default."""
    fields = {name: field for name, field in type(config).model_fields.items() if name != "architecture"}
    return {
        name: field.default
        for name, field in fields.items()
        if name not in kind.settings and getattr(config, name) != field.default
    }


def without_unused(config: ModelConfig) -> ModelConfig:
    """The same model, with defaults where a setting has no effect on its architecture."""
    return config.model_copy(update=_unused(config, find_architecture(config.architecture)))
