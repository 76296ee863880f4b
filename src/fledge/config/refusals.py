"""What is said of a setting that does not exist or has a value that is not allowed: what is, and what was meant."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fledge.errors import short


def refusal(kind: type[BaseModel], error: Any) -> str:
    path = [str(part) for part in error["loc"]]
    name, value = ".".join(path), error.get("input")
    if error["type"] == "extra_forbidden":
        while isinstance(value, dict) and len(value) == 1:  # the whole name, where the group is unknown already
            path, value = [*path, str(next(iter(value)))], next(iter(value.values()))
        return f"There is no setting {short('.'.join(path))}. {nearest_setting(path, kind)}"
    if error["type"] == "model_type":
        example = next(iter(setting_fields(_group(kind, path), f"{name}." if name else "")))
        return f"{name or 'The whole'} is a group of settings, not a value. Name one of them, such as {example}."
    if error["type"] == "value_error":
        message = short(str(error["ctx"]["error"]), 1000)
        return message if not name or name.split(".")[0] in message else f"{name}: {message}"
    allowed = f"{error['msg'][0].lower()}{error['msg'][1:]}"
    if error["type"].startswith(("greater_than", "less_than")):
        allowed = _range(kind, path) or allowed
    shown = short(str(value).lower() if isinstance(value, bool) else repr(value))  # as it is written in a recipe
    return f"{name} = {shown} is not allowed: {allowed}."


_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _range(kind: type[BaseModel], path: list[str]) -> str:
    """Both ends of the range of a number that has two; a single one is in the message already.

    >>> from fledge.config import RunConfig
    >>> _range(RunConfig, ["sampling", "top_p"])
    'it must be above 0 and at most 1'
    """
    described = _group(kind, path[:-1]).model_json_schema().get("properties", {}).get(path[-1], {})
    for one in described.get("anyOf", [described]):
        bounds = [f"{word} {one[key]}" for key, word in _BOUNDS.items() if key in one]
        if len(bounds) == 2:
            return f"it must be {' and '.join(bounds)}"
    return ""


# What other programs call our settings: a newcomer tries the name that he knows.
ELSEWHERE = {
    "batch": "training.batch_size",
    "block_size": "tokens.context_length",
    "checkpoint_every": "training.save_every",
    "checkpoint_interval": "training.save_every",
    "d_ff": "model.hidden",
    "d_model": "model.width",
    "data": "corpus.source",
    "depth": "model.layers",
    "dim": "model.width",
    "epochs": "training.tokens",
    "eval_every": "training.evaluate_every",
    "eval_interval": "training.evaluate_every",
    "grad_clip": "optimizer.clip_norm",
    "gradient_clip": "optimizer.clip_norm",
    "lr": "optimizer.learning_rate",
    "max_iters": "training.steps",
    "max_steps": "training.steps",
    "n_embd": "model.width",
    "n_head": "model.heads",
    "n_layer": "model.layers",
    "seq_len": "tokens.context_length",
    "sequence_length": "tokens.context_length",
    "vocab_size": "tokenizer.vocabulary_size",
    "warmup": "schedule.warmup_steps",
}


def nearest_setting(path: list[str], kind: type[BaseModel]) -> str:
    """The end of a sentence that refuses the setting at `path`: what was meant, whatever group it is in.

    >>> from fledge.config import RunConfig
    >>> nearest_setting(["training", "learning_rate"], RunConfig)
    'Did you mean optimizer.learning_rate?'
    """
    if meant := settings_like(path, kind):
        return f"Did you mean {' or '.join(meant)}?"
    group = [name for name in setting_fields(kind) if name.rpartition(".")[0] == ".".join(path[:-1])]
    return f"Known: {', '.join(sorted(group if len(path) > 1 and group else kind.model_fields))}."


def settings_like(path: list[str], kind: type[BaseModel]) -> list[str]:
    """The settings that may be meant by a wrong name, at most three: its last part counts most, then its group."""
    known, leaf = list(setting_fields(kind)), path[-1]
    leaves = {name: name.rpartition(".")[2] for name in known}
    group = [name for name in known if name.rpartition(".")[0] == ".".join(path[:-1])]

    def close(names: list[str], cutoff: float) -> list[str]:
        best = difflib.get_close_matches(leaf, [leaves[name] for name in names], n=1, cutoff=cutoff)
        return [name for name in names if best and leaves[name] == best[0]]

    meant = (
        [name for name in known if leaves[name] == leaf]
        or close(group, 0.8)
        or [name for name in known if name == ELSEWHERE.get(leaf)]
        or close(group, 0.7)
        or [name for name in known if leaves[name].startswith(f"{leaf}_") or leaf.startswith(f"{leaves[name]}_")]
        or close(known, 0.7)
    )
    same_group = [name for name in meant if difflib.SequenceMatcher(None, name.split(".")[0], path[0]).ratio() > 0.7]
    return (same_group or meant)[:3]


def _group(kind: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                kind = candidate
                break
    return kind


def setting_fields(kind: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Every leaf setting by its dotted name."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.update(setting_fields(annotation, f"{prefix}{name}."))
        else:
            found[prefix + name] = field
    return found
