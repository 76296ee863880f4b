"""One entry per architecture. A new one is a file with a `Model`, and a line here or a call of `register`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from numbers import Integral
from typing import Any

from fledge.config import ModelConfig, allowed_code
from fledge.errors import FledgeError, nearest, note
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


def is_known(name: str) -> bool:
    """Whether there is such an architecture, among ours or in the files named with --import, which are run now."""
    if name not in ARCHITECTURES:
        for path in allowed_code():
            run_code(path)
    return name in ARCHITECTURES


def find_architecture(name: str) -> type[Model]:
    """The class that `model.architecture = name` builds."""
    if not is_known(name):
        raise FledgeError(
            f"There is no model.architecture = {name!r:.80}. {nearest(name, ARCHITECTURES)} If it is one of your own, "
            "name the file that registers it: --import FILE.py, or in Python import it first."
        )
    return ARCHITECTURES[name]


def run_code(path: str) -> None:
    """Import a Python file as a module of its own, once. Its classes keep their module's name in every process."""
    name = f"fledge_import_{hashlib.sha256(path.encode()).hexdigest()[:12]}"
    if name in sys.modules or path in {getattr(module, "__file__", None) for module in list(sys.modules.values())}:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FledgeError(f"--import {path} is no Python file: its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FledgeError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise FledgeError(
            f"--import {path} could not be run: {type(error).__name__}: {error} (line {where.lineno})"
        ) from error


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
        note(f"{', '.join(unused)} {verb} no effect on model.architecture = {config.architecture}.")


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
