"""A recipe written as a person would: only what was chosen, each with the sentence that says why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fledge.config import RunConfig, parse
from fledge.files import atomic_write


class Choice(NamedTuple):
    """Settings that were chosen together, by their dotted names, and why."""

    values: dict[str, Any]
    why: str


def config_of(name: str, choices: Sequence[Choice]) -> RunConfig:
    """The configuration that the choices make."""
    values: dict[str, Any] = {"name": name}
    for choice in choices:
        for key, value in choice.values.items():
            group, _, leaf = key.partition(".")
            values.setdefault(group, {})[leaf] = value
    return parse(RunConfig, values)


def with_given(choices: Sequence[Choice], given: Mapping[str, Any]) -> list[Choice]:
    """The choices with what a person set by hand in the place of what was chosen.

    >>> with_given([Choice({"model.layers": 2}, "small")], {"model.layers": 6})
    [Choice(values={'model.layers': 6}, why='set by hand, instead of 2')]
    """
    chosen = {key: value for choice in choices for key, value in choice.values.items()}
    kept = [
        Choice({key: value for key, value in choice.values.items() if key not in given}, choice.why)
        for choice in choices
    ]
    by_hand = [
        Choice({key: value}, f"set by hand, instead of {toml(chosen[key])}" if key in chosen else "set by hand")
        for key, value in given.items()
    ]
    return [choice for choice in kept if choice.values] + by_hand


def recipe_text(name: str, title: str, choices: Sequence[Choice]) -> str:
    """TOML that `fledge train` takes.

    >>> print(recipe_text("birds", "For birds.", [Choice({"model.layers": 2, "model.tied": True}, "small")]))
    # For birds.
    name = "birds"
    <BLANKLINE>
    [model]
    # Small.
    layers = 2
    tied = true
    <BLANKLINE>
    """
    groups: dict[str, list[str]] = {}
    for choice in choices:
        said: set[str] = set()
        for key, value in choice.values.items():
            group, _, leaf = key.partition(".")
            lines = groups.setdefault(group, [])
            if group not in said:
                said.add(group)
                lines += [f"# {line}" for line in wrapped(as_sentence(choice.why))]
            lines.append(f"{leaf} = {toml(value)}")
    parts = [f"[{group}]\n" + "\n".join(lines) for group, lines in groups.items()]
    head = "\n".join(f"# {line}" for line in wrapped(title))
    return "\n\n".join([f"{head}\nname = {toml(name)}", *parts]) + "\n"


def settings_text(config: Mapping[str, Any]) -> str:
    """Every setting by its dotted name.

    >>> print(settings_text({"name": "mine", "model": {"layers": 2, "hidden": None}}))
    name = "mine"
    model.layers = 2
    model.hidden = none
    """
    rows = []
    for group, values in config.items():
        for key, value in values.items() if isinstance(values, Mapping) else (("", values),):
            rows.append(f"{group}{f'.{key}' * bool(key)} = {'none' if value is None else toml(value)}")
    return "\n".join(rows)


def write_recipe(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def toml(value: Any) -> str:
    """
    >>> toml(["a b", 3]), toml(True), toml(0.003)
    ('["a b", 3]', 'true', '0.003')
    """
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
