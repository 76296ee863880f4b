"""The command line: one module per verb; each parses, calls the library and prints. No logic lives here.

A module defines either `app`, a Typer group of several commands, or one function named like the module.
Heavy imports belong inside the functions, so that `fledge --help` answers at once, and so that a Ctrl-C in the first
moments finds `main` at work and is answered like any other.
"""

from __future__ import annotations

import codecs
import errno
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fledge.errors import FledgeError, harmless, is_quiet, out_of_memory, short
from fledge.files import did_you_mean, finished_name
from fledge.system import reader_left

if TYPE_CHECKING:
    import typer

VERBS = (
    "demo",
    "start",
    "corpus",
    "tokenizer",
    "tokenize",
    "tokens",
    "train",
    "distill",
    "generate",
    "evaluate",
    "report",
    "bundle",
    "account",
    "diagram",
    "sweep",
    "ablate",
    "compare",
    "workbook",
    "kaggle",
    "serve",
    "bench",
    "doctor",
)

MODEL_OUT_OF_MEMORY = (
    "out of memory: the model, the batch or the context is too large for this machine. Lower model.width, "
    "training.batch_size or tokens.context_length; fledge account shows what a recipe needs."
)
TEXTS_OUT_OF_MEMORY = (
    "out of memory: the model, or the texts generated at once, are too large for this machine. Give fewer "
    "prompts or samples, or a smaller --max-tokens."
)
TEXT_OUT_OF_MEMORY = (
    "out of memory: the text, or one of its documents, is too large for this machine. Give a smaller text."
)
OUT_OF_MEMORY = {
    **dict.fromkeys(("corpus", "tokenizer", "tokenize"), TEXT_OUT_OF_MEMORY),
    "generate": TEXTS_OUT_OF_MEMORY,
}
STOPPED = "stopped. Complete files are kept. The same command resumes where it can, and otherwise starts again."


def build() -> typer.Typer:
    """The whole command line, with every verb in the order in which a person meets them."""
    import typer

    from fledge.cli.root import root, with_common_options
    from fledge.cli.settings import Verb

    app = typer.Typer(
        name="fledge",
        help="From raw text to a small language model you can trust.\n\nStart with: fledge demo",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for verb in VERBS:
        module = importlib.import_module(f"fledge.cli.{verb}")
        if hasattr(module, "app"):
            group = copy(module.app)
            group.registered_commands = [copy(known) for known in group.registered_commands]
            for known in group.registered_commands:
                known.callback, known.cls = with_common_options(known.callback), Verb
            app.add_typer(group, name=verb)
        else:
            app.command(name=verb, cls=Verb)(with_common_options(getattr(module, verb)))
    return app


class Notes(logging.Handler):
    """What the library says beside its results: each sentence once, as a note."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def say(self, sentence: str) -> None:
        if sentence not in self.said and not is_quiet():
            self.said.add(sentence)
            print(f"note: {harmless(sentence)}", file=sys.stderr)


NOTES = Notes()


@contextmanager
def notes_printed() -> Iterator[None]:
    """Print what the library notes while a command runs."""
    NOTES.said.clear()
    logging.getLogger("fledge").addHandler(NOTES)
    try:
        yield
    finally:
        logging.getLogger("fledge").removeHandler(NOTES)


@notes_printed()
def main() -> None:
    """Run the command line; a person's mistake is one sentence and exit code 2, never a traceback."""
    debug = "--debug" in sys.argv
    warnings.showwarning = warn
    prepare_streams()
    prepare_threads()
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        from fledge.cli.usage import invoke

        code = invoke(build(), arguments)
        sys.stdout.flush()
    except FledgeError as error:
        fail(error, str(error), debug)
    except KeyboardInterrupt as error:
        fail(error, str(error) or STOPPED, debug, code=130)
    except EOFError as error:
        fail(error, "the input ended before it was complete.", debug)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        fail(error, OUT_OF_MEMORY.get(next(iter(arguments), ""), MODEL_OUT_OF_MEMORY), debug)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and nobody_reads():
            sys.exit(141)  # as every program does whose reader is gone
        fail(error, os_sentence(error), debug)
    sys.exit(code)


def prepare_streams() -> None:
    """Printing never fails: what an encoding lacks is spelled out, and a stream that was closed leads nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it lives as long as the process
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            # Names of files may hold bytes that are no text: in UTF-8 these go out as given.
            utf8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def prepare_threads() -> None:
    """OpenMP's threads wait for each other awake, and for long: beside two busy programs on two cores, a step took half
    as long again. So few turns cost nothing alone; what a person has set stands. Read when torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def warn(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """A warning of another library as a person reads it: the sentence, without the line of code it came from."""
    NOTES.say(str(message))


def fail(error: BaseException, sentence: str, debug: bool, code: int = 2) -> NoReturn:
    if debug:
        import traceback

        traceback.print_exception(error)
    sentence = re.sub(r"\S{1000,}", lambda word: short(word[0]), sentence)  # a value as it was typed
    print(f"fledge: {harmless(sentence, keep=chr(10))}", file=sys.stderr)
    sys.exit(code)


def nobody_reads() -> bool:
    """Whether who read the output is gone, as with `| head`; if so, nothing more is written, not even at the end."""
    if not reader_left(sys.stdout, sys.stderr):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return True


def os_sentence(error: OSError) -> str:
    """What the system refused, as a sentence with a way out."""
    where = f" {short(finished_name(str(error.filename)))}" if error.filename else ""
    match error.errno:
        case errno.EROFS:
            return f"{where.strip()} can't be written: the file system is read-only. Choose another place."
        case errno.ENOSPC:
            return (
                f"the disk is full{where and ' at'}{where}. Complete files are kept. Free some space and run the "
                "command again."
            )
        case errno.ENOENT:
            meant = did_you_mean(Path(str(error.filename))) if error.filename else ""
            return f"there is no file or folder{where}.{meant or ' Check the path.'}"
        case errno.EACCES | errno.EPERM:
            return f"reading or writing{where} is not permitted. Check the permissions of the file and its folder."
        case errno.EEXIST:
            return f"{where.strip()} exists already. Choose another name."
        case errno.EISDIR:
            return f"{where.strip()} is a folder, and a file is needed here."
        case errno.ENOTDIR:
            return f"{where.strip()} is inside a file, where a folder is needed."
        case errno.EIO:
            what = f"{where.strip()} could not be read or written" if where else "a file could not be read or written"
            return f"{what}: the disk or the network drive reports an error. Check it, or use a copy elsewhere."
        case _:
            return f"{error.strerror or error}{where and ':'}{where}."
