"""A mistyped command line as a sentence: what was wrong, where, what is nearest, and where to read on."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from typing import Any

import typer

from fledge.errors import FledgeError

# Typer's own base of all its refusals; where it comes from differs between Typer's versions.
Refusal: type[Exception] = typer.BadParameter.__mro__[2]


PROGRAM = "fledge"


def invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; what can't be understood raises FledgeError."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        show_names_whole()
    command: Any = typer.main.get_command(app)
    if f"_{PROGRAM}_COMPLETE".upper() in os.environ:  # the shell asks how the line may go on
        command.main(args=[], prog_name=PROGRAM)
    try:
        with command.make_context("fledge", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Refusal as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(end=str(error))  # empty where rich has printed it
            return 2
        raise FledgeError(sentence(error, command, arguments)) from error
    return 0


def show_names_whole() -> None:
    """In help for a narrow terminal, no option's name and no choice is cut: `--no-…` stands below its twin, choices
    break between each other, and other columns wrap.

    Rich narrows every column that may wrap, whatever words are in it; Typer's tables let all of them.
    """
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class WholeNames(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            named = [cell for cell in cells if isinstance(cell, Text) and re.fullmatch(r"(-[\w-]+,?)+", cell.plain)]
            long = [cell for cell in named if cell.plain.startswith("--")]
            if len(long) == 2:
                first, twin = long
                cells = tuple(
                    Text("\n").join(long) if cell is first else "" if cell is twin else cell for cell in cells
                )
            cells = tuple(in_lines(cell) if isinstance(cell, Text) else cell for cell in cells)
            super().add_row(*cells, **options)
            for column, cell in zip(self.columns, cells, strict=False):
                column.no_wrap = column.no_wrap or (isinstance(cell, Text) and cell.plain.startswith("-"))

    setattr(rich_utils, "Table", WholeNames)  # noqa: B010  (a name of Typer's own)


def in_lines(cell: Any, most: int = 18) -> Any:
    """The choices of an option, `<one|two|…>`, in lines that break between them."""
    if len(cell.plain) <= most or not re.fullmatch(r"<[^\s|]+(\|[^\s|]+)+>", cell.plain):
        return cell
    places, start = [], 0
    for choice in re.finditer(r"[^|]+\|?", cell.plain):
        if choice.end() - start > most and choice.start() > start:
            places.append(start := choice.start())
    lines = cell.divide(places)
    return type(cell)("\n").join(lines)


def sentence(error: Any, command: Any, arguments: Sequence[str]) -> str:
    """What `error` says, in our words."""
    path, command = _typed(command, arguments)
    kind, message = type(error).__name__, error.message.removeprefix("Value error, ")
    see = f"See {path} --help."
    param = getattr(error, "param", None)
    if kind == "MissingParameter" and param is not None:
        return f"{path} needs {_name(param)}{_about(param)}. {see}"
    if kind == "NoSuchOption":
        return f"{path} has no option {error.option_name}. {_option_meant(error.option_name, command)}{see}"
    if kind == "BadOptionUsage":
        named = [each for each in command.params if error.option_name in each.opts]
        return f"{error.option_name} needs a value{_about(named[0]) if named else ''}. {see}"
    if kind == "BadParameter" and param is not None:
        value = _given(param, arguments, message)
        said = f"{_name(param)} {value}" if value and value not in message else _name(param)
        return f"{said} is not allowed: {message[:1].lower()}{message[1:].rstrip('.')}. {see}"
    if unknown := re.match(r"No such command '?(.+?)'?\.", message):
        near = difflib.get_close_matches(unknown[1], command.commands, n=1)
        hint = f"Did you mean {path} {near[0]}? " if near else ""
        return f"{path} has no command {unknown[1]}. {hint}{see}"
    if extra := re.search(r"unexpected extra arguments?.*? \((.*)\)", message):
        return f"{path} does not understand {extra[1]!r}: it does not take so many arguments. {see}"
    return f"{path}: {error.format_message().rstrip('.')}. {see}"


def _typed(command: Any, arguments: Sequence[str]) -> tuple[str, Any]:
    """The command that was meant, with the words that lead to it."""
    path = "fledge"
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            if word.startswith("-"):
                continue
            break
        path, command = f"{path} {word}", command.commands[word]
    return path, command


def _name(param: Any) -> str:
    """As a person types it: the long form of an option, or what the help calls an argument."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))


def _about(param: Any) -> str:
    text = (getattr(param, "help", None) or "").strip().rstrip(".")
    return f": {text[:1].lower()}{text[1:]}" if text else ""


def _given(param: Any, arguments: Sequence[str], message: str) -> str:
    """The value of an option that was refused: the one that the message quotes, or the last, which counts.

    For arguments, too many to tell apart: nothing.
    """
    if param.param_type_name == "argument":
        return ""
    values = []
    for place, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in param.opts:
            values.append(value if equals else "".join(arguments[place + 1 : place + 2]))
    quoted = [value for value in values if value and repr(value) in message]
    return (quoted or values or [""])[-1]


def _option_meant(option: str, command: Any) -> str:
    """The nearest option; or, where settings can be given, the setting of that name."""
    from fledge.config import RunConfig, settings_like

    known = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
    long = [name for name in known if name.startswith("--")]
    path = option.strip("-").replace("-", "_").split(".")
    meant = settings_like(path, RunConfig) if "--set" in known and option.startswith("--") else []
    exact = [name for name in meant if name.rpartition(".")[2] == path[-1]]
    near = difflib.get_close_matches(option, long, n=1, cutoff=0.7)
    if near and not exact:
        return f"Did you mean {near[0]}? "
    return f"It is a setting: --set {(exact or meant)[0]}=VALUE. " if meant else ""
