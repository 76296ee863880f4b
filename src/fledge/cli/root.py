"""The options that stand before any verb, and those that every verb takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from fledge import __version__
from fledge.cli.settings import Fields
from fledge.errors import be_quiet, is_quiet

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result, without progress and notes.")]
Code = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE.py", help="Run this Python file first; it registers your own architecture."),
]


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"fledge {__version__}")
        raise typer.Exit()


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")] = False,
    quiet: Quiet = False,
) -> None:
    """The options of every verb; `main` acts on --debug, so that it may stand anywhere on the line."""
    be_quiet(quiet)


def with_common_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with --quiet and --import, which it need not know of; one with a parameter `quiet` gets its value.

    A parameter marked by `Fields` becomes an option for each of its settings.
    """
    signature, hints = inspect.signature(verb), get_type_hints(verb, include_extras=True)
    named = inspect.Parameter.KEYWORD_ONLY
    marks = ((name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ()))
    groups = {name: mark for name, mark in marks if isinstance(mark, Fields)}
    own = [
        place
        for name, parameter in signature.parameters.items()
        for place in (
            groups[name].parameters() if name in groups else [parameter.replace(annotation=hints[name], kind=named)]
        )
    ]
    more = [] if "quiet" in hints else [inspect.Parameter("quiet", named, default=False, annotation=Quiet)]
    more.append(inspect.Parameter("import_", named, default=None, annotation=Code))

    @wraps(verb)
    def common(*arguments: Any, import_: list[str] | None = None, quiet: bool = False, **values: Any) -> Any:
        be_quiet(quiet or is_quiet())
        if import_:
            from fledge.config import allow_code

            for file in import_:
                allow_code(file)
        values |= {name: fields.given(values) for name, fields in groups.items()}
        return verb(*arguments, **values, **({"quiet": is_quiet()} if "quiet" in hints else {}))

    common.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return common
