"""The one exception for a person's mistake, what its sentence needs, and notes: what is worth saying and no error."""

from __future__ import annotations

import difflib
import logging
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class FledgeError(ValueError):
    """What was wrong, where, what is allowed, and what to do next. The command line exits with code 2."""


def changed(name: object, how: str = "was changed") -> FledgeError:
    """The refusal of a file that somebody wrote to while it was read.

    >>> print(changed("notes.txt"))
    notes.txt was changed while it was read. Run the command again when nothing writes to it any more.
    """
    return FledgeError(f"{name} {how} while it was read. Run the command again when nothing writes to it any more.")


MOST_NAMES = 40  # told where none is like the one that was given
_LOG = logging.getLogger("fledge")
_quiet = False


_kept: ContextVar[list[str] | None] = ContextVar("_kept", default=None)


def note(sentence: str) -> None:
    """Say what a person should know and is no error: in Python to the log called `fledge`; the commands print it once.

    >>> with notes_kept() as said:
    ...     note("The text is short.")
    >>> said
    ['The text is short.']
    """
    kept = _kept.get()
    if kept is None:
        _LOG.warning("%s", sentence)
    else:
        kept.append(sentence)


@contextmanager
def notes_kept() -> Iterator[list[str]]:
    """Notes from inside are not said, but kept in this list."""
    said: list[str] = []
    before = _kept.set(said)
    try:
        yield said
    finally:
        _kept.reset(before)


def be_quiet(quiet: bool) -> None:
    """Leave out progress and notes in this process from now on, or show them again."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


def short(text: str, most: int = 200) -> str:
    """A value to quote in a sentence: its beginning and its end, where it is long.

    >>> short("a" * 1000, 9)
    'aaaa…aaaa'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the closest of `names`, or all of them (of many, the first).

    >>> nearest("laers", ["layers", "width"])
    'Did you mean layers?'
    >>> nearest("colour", ["layers", "width"])
    'Known: layers, width.'
    >>> nearest("runs", map(str, range(1000)))[-23:]
    ' 132, 133 and 960 more.'
    """
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    more = f" and {len(known) - MOST_NAMES:,} more" if len(known) > MOST_NAMES else ""
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known[:MOST_NAMES])}{more}."


def out_of_memory(error: BaseException) -> bool:
    """Whether there was no room for a tensor: torch says so in several ways, or finds its size beyond all numbers.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes."))
    True
    """
    scarce = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    beyond = ("calculation overflowed", "multiplication overflow")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in (*scarce, *beyond))


def harmless(text: str, keep: str = "") -> str:
    """A stranger's text for a terminal: characters that would steer it, and are not to `keep`, are numbered instead.

    So are those that no encoding has: lone surrogates, but for the bytes of a file's name that are no text.

    >>> harmless("a\\x1b[2Jb\\ud800")
    'a⟨U+001B⟩[2Jb⟨U+D800⟩'
    """

    def steers(character: str) -> bool:
        kind = unicodedata.category(character)
        return kind in ("Cc", "Cf") or (kind == "Cs" and not "\udc80" <= character <= "\udcff")

    return "".join(
        f"⟨U+{ord(character):04X}⟩" if steers(character) and character not in keep else character for character in text
    )


def command(*words: object) -> str:
    """A fledge command to type next, quoted for the shell; by its path where the shell would not find `fledge`.

    >>> command("generate", "my runs/first")
    "fledge generate 'my runs/first'"
    """
    program = "fledge"
    if os.path.basename(sys.argv[0]) == program and shutil.which(program) is None:
        program = os.path.relpath(sys.argv[0])
    # A file's name that begins with a dash would be read as an option.
    safe = [f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word) for word in words]
    return shlex.join([program, *safe])
