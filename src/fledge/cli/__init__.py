"""The command line: one module per verb; each parses, calls the library and prints. No logic lives here.

A module defines either `app`, a Typer group of several commands, or one function named like the module.
Heavy imports belong inside the functions, so that `fledge --help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import sys
import warnings
from typing import Annotated

import typer

from fledge import __version__
from fledge.errors import FledgeError

VERBS = (
    "demo",
    "corpus",
    "tokenizer",
    "tokenize",
    "tokens",
    "train",
    "generate",
    "evaluate",
    "bundle",
    "account",
    "diagram",
    "sweep",
    "ablate",
    "compare",
    "serve",
    "bench",
    "doctor",
)


def build() -> typer.Typer:
    """The whole command line, with every verb in the order in which a person meets them."""
    app = typer.Typer(
        name="fledge",
        help="From raw text to a small language model you can trust.\n\nStart with: fledge demo",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for verb in VERBS:
        module = importlib.import_module(f"fledge.cli.{verb}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(name=verb)(getattr(module, verb))
    return app


def print_version(wanted: bool) -> None:
    if wanted:
        print(f"fledge {__version__}")
        raise typer.Exit()


def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback when something goes wrong.")] = False,
) -> None:
    """The options of every verb; `main` acts on --debug, so that it may stand anywhere on the line."""


def main() -> None:
    """Run the command line; a person's mistake is one sentence and exit code 2, never a traceback."""
    debug = "--debug" in sys.argv
    warnings.showwarning = warn
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        build()(args=arguments, prog_name="fledge")
    except FledgeError as error:
        fail(error, str(error), debug)
    except KeyboardInterrupt as error:
        fail(error, "stopped.", debug, code=130)
    except OSError as error:
        fail(error, os_sentence(error), debug)


def warn(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """A warning as a person reads it: the sentence, without the line of code it came from."""
    print(f"fledge: {message}", file=sys.stderr)


def fail(error: BaseException, sentence: str, debug: bool, code: int = 2) -> None:
    if debug:
        raise error
    print(f"fledge: {sentence}", file=sys.stderr)
    sys.exit(code)


def os_sentence(error: OSError) -> str:
    """What the system refused, as a sentence with a way out."""
    where = f" {error.filename}" if error.filename else ""
    match error.errno:
        case errno.ENOSPC:
            return f"the disk is full{where and ' at'}{where}. What was whole still is; free some space and go on."
        case errno.ENOENT:
            return f"there is no file or folder{where}. Check the path."
        case errno.EACCES | errno.EPERM:
            return f"reading or writing{where} is not permitted. Check the rights of the file and its folder."
        case errno.EISDIR:
            return f"{where.strip()} is a folder, and a file is needed here."
        case errno.ENOTDIR:
            return f"{where.strip()} lies below a file, and a folder is needed here."
        case errno.EPIPE:
            return "the program that read the output went away."
        case _:
            return f"{error.strerror or error}{where and ':'}{where}."
