"""What a `config.json` of GPT-2 or Llama may say: each key's kind and range, looked at once, before any is used."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fledge.errors import FledgeError

LARGEST = 2**31 - 1


class Allowed(NamedTuple):
    """What a key may hold, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]
    required: bool = False
    nullable: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_SIZE = Allowed(f"a whole number from 1 to {LARGEST:,}", lambda value: type(value) is int and 1 <= value <= LARGEST)
_ABOVE_ZERO = Allowed("a number above 0", lambda value: _is_number(value) and 0 < value <= sys.float_info.max)
_SHARE = Allowed("a number from 0 to below 1", lambda value: _is_number(value) and 0 <= value < 1)
_CHOICE = Allowed("true or false", lambda value: isinstance(value, bool))
_TABLE = Allowed("a table of names and values, or null", lambda value: isinstance(value, dict), nullable=True)
_NEEDED_SIZE = _SIZE._replace(required=True)
_SIZE_OR_NULL = _SIZE._replace(words=f"{_SIZE.words}, or null", nullable=True)
_CHOICE_OR_NULL = _CHOICE._replace(words=f"{_CHOICE.words}, or null", nullable=True)

GPT2 = {
    "n_layer": _NEEDED_SIZE,
    "n_embd": _NEEDED_SIZE,
    "n_head": _NEEDED_SIZE,
    "vocab_size": _NEEDED_SIZE,
    "n_positions": _SIZE,
    "n_inner": _SIZE_OR_NULL,
    "layer_norm_epsilon": _ABOVE_ZERO,
    "tie_word_embeddings": _CHOICE,
    "resid_pdrop": _SHARE,
}
LLAMA = {
    "num_hidden_layers": _NEEDED_SIZE,
    "hidden_size": _NEEDED_SIZE,
    "num_attention_heads": _NEEDED_SIZE,
    "intermediate_size": _NEEDED_SIZE,
    "vocab_size": _NEEDED_SIZE,
    "max_position_embeddings": _SIZE,
    "num_key_value_heads": _SIZE_OR_NULL,
    "head_dim": _SIZE_OR_NULL,
    "rms_norm_eps": _ABOVE_ZERO,
    "rope_theta": _ABOVE_ZERO,
    "rope_parameters": _TABLE,
    "rope_scaling": _TABLE,
    "tie_word_embeddings": _CHOICE,
    "attention_bias": _CHOICE_OR_NULL,
    "mlp_bias": _CHOICE_OR_NULL,
}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a description whose values are of the wrong kind, out of range, or at odds with each other."""
    llama = settings["model_type"] == "llama"
    _check(settings, LLAMA if llama else GPT2)
    for table in ("rope_parameters", "rope_scaling") if llama else ():
        _check(settings.get(table) or {}, {"rope_theta": _ABOVE_ZERO}, f"{table}.")
    width, heads = ("hidden_size", "num_attention_heads") if llama else ("n_embd", "n_head")
    _check_divides(settings, heads, width)
    if llama and settings.get("num_key_value_heads"):
        _check_divides(settings, "num_key_value_heads", heads)
    size = settings[width] // settings[heads]
    if llama and size % 2:
        raise FledgeError(
            f"{width} / {heads} = {settings[width]} / {settings[heads]} = {size} is not allowed: a head's size is an "
            "even number."
        )


def _check(settings: Mapping[str, Any], keys: Mapping[str, Allowed], prefix: str = "") -> None:
    for key, allowed in keys.items():
        if key not in settings:
            if allowed.required:
                raise FledgeError(f"it lacks {key}, which a model of its type has: {allowed.words}.")
            continue
        value = settings[key]
        if not (allowed.holds(value) or (value is None and allowed.nullable)):
            raise FledgeError(f"{prefix}{key} = {json.dumps(value):.40} is not allowed: it is {allowed.words}.")


def _check_divides(settings: Mapping[str, Any], part: str, whole: str) -> None:
    if settings[whole] % settings[part]:
        raise FledgeError(
            f"{part} = {settings[part]} is not allowed: it divides {whole}, which is {settings[whole]} here."
        )
