"""Settings as options: `--set`, `--model.layers 6`, and options of a verb's own whose type, help and default are those
of a setting."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_origin

import typer
from typer.core import TyperCommand

from fledge.errors import FledgeError

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting, such as model.layers=6; or --model.layers 6."),
]
SHAPE = ("tokenizer", "tokens", "model")
COST = (*SHAPE, "optimizer", "training")
READ = {"account show": COST, "account compare": COST, "bench device": COST, "diagram": SHAPE}
"The groups of settings that a command reads, where these are not all."


class Verb(TyperCommand):
    """A command that takes every setting as an option of its own where it has `--set`, and lists them in its help."""

    @property
    def takes_settings(self) -> bool:
        return any("--set" in param.opts for param in self.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(with_set(args)) if self.takes_settings else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.takes_settings:
            self.epilog = listed(READ.get(ctx.command_path.partition(" ")[2]))
        super().format_help(ctx, formatter)


def with_set(arguments: Sequence[str]) -> Iterator[str]:
    """
    >>> list(with_set(["akjv", "--model.layers", "6", "--model.width=64"]))
    ['akjv', '--set', 'model.layers=6', '--set', 'model.width=64']
    """
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            yield from (word, *rest)
        elif not re.match(r"--[a-z_]+\.", word):
            yield word
        else:
            name, equals, value = word[2:].partition("=")
            if not equals and (value := next(rest, "--")).startswith("--"):
                raise FledgeError(f"--{name} needs a value, as in --{name}=VALUE.")
            yield from ("--set", f"{name}={value}")


def listed(groups: Sequence[str] | None) -> str:
    """The names of the settings, a paragraph for each group."""
    from fledge.config import RunConfig

    kinds: dict[str, Any] = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    rows = [
        f"[bold]{group}[/bold]  {' '.join(kinds[group].model_fields)}"
        for group in groups or kinds
        if hasattr(kinds[group], "model_fields")
    ]
    return "\n\n".join(["Settings, as --GROUP.NAME VALUE (docs/settings.md explains each):", *rows])


class Fields(NamedTuple):
    """Marks a parameter of a verb that takes settings of one group, each as an option of its own; it gets the values of
    those that were given."""

    group: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    defaults: Mapping[str, Any] | None = MappingProxyType({})
    "Of the verb, where they differ from the settings' own; none where they are known later, with the limits."

    @property
    def kind(self) -> Any:
        from fledge.config import RunConfig

        return RunConfig.model_fields[self.group].annotation

    @property
    def names(self) -> list[str]:
        return [name for name in self.only or self.kind.model_fields if name not in self.without]

    def parameters(self) -> list[inspect.Parameter]:
        fields, schema = self.kind.model_fields, self.kind.model_json_schema()["properties"]
        hints = {name: self._option(name, fields[name], schema[name]) for name in self.names}
        named = inspect.Parameter.KEYWORD_ONLY
        return [inspect.Parameter(name, named, default=None, annotation=hint) for name, hint in hints.items()]

    def given(self, values: dict[str, Any]) -> dict[str, Any]:
        """Take what was given out of the values of a command line."""
        found = {name: values.pop(name) for name in self.names}
        return {**(self.defaults or {}), **{name: value for name, value in found.items() if value is not None}}

    def _option(self, name: str, field: Any, schema: Mapping[str, Any]) -> Any:
        from fledge.config.settings import types_of

        kinds = types_of(field.annotation)
        kind = next(one for one in kinds if get_origin(one) is Literal or one in (bool, int, float, str))
        several = any(get_origin(one) is tuple for one in kinds)
        limits = next((one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"), schema)
        limits = {} if self.defaults is None else limits
        default = None if self.defaults is None or kind is bool else self.defaults.get(name, field.default)
        words = [field.description, "Can be repeated." * several]
        words.append("" if default in (None, ()) else f"Default: {default}.")
        return Annotated[
            (list[str] if several else kind) | None,  # type: ignore[valid-type]
            typer.Option(
                *() if kind is bool else (f"--{name.removesuffix('_source').replace('_', '-')}",),
                min=limits.get("minimum"),
                max=limits.get("maximum") if kind is float else None,  # of integers a guard, too large to be told
                help=" ".join(filter(None, words)),
            ),
        ]
