"""What a person may give, and one sentence for what they may not: numbers, texts, paths, words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from fledge.errors import FledgeError, nearest

SPECIAL_MODES = ("recognise", "text", "refuse")
MOST = (1 << 63) - 1
MOST_IDS = 1 << 24
"An id beyond this is a broken or hostile file: an embedding of that many rows fills any memory."
MOST_THREADS = 4096
LONGEST_STRETCH = 1 << 28
"Bytes of a stream without a place to cut that are gathered: a small file may unpack to any number of them."
LONGEST_NAME = 255  # bytes of a file's name, on every file system in wide use


def check_special(special: str) -> None:
    """Refuse a word that is not one of the three ways to treat special tokens."""
    if special not in SPECIAL_MODES:
        known = nearest(str(special), SPECIAL_MODES)
        raise FledgeError(f"special = {special!r} is not a way to treat special tokens. {known}")


def check_whole(name: str, value: object, least: int = 1, most: int = MOST) -> None:
    """Refuse what is no whole number from `least` to `most`; `name` is what the person called it.

    >>> check_whole("threads", 0)
    Traceback (most recent call last):
    ...
    fledge.errors.FledgeError: threads = 0 must be a whole number, 1 or more.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise FledgeError(f"{name} = {brief(value)} must be a whole number, {least} or more.")
    if value > most:
        raise FledgeError(f"{name} = {brief(value)} must be a whole number from {least} to {most:,}.")


def check_stretch(size: int) -> None:
    """Refuse to gather more of a stream in which words do not end."""
    if size > LONGEST_STRETCH:
        raise FledgeError(
            f"the text goes on for {LONGEST_STRETCH:,} bytes without a place where words end, and would not fit in "
            "memory. Is it text? A plain file that is not compressed is read whatever is in it."
        )


def check_threads(threads: int | None) -> None:
    if threads is not None:
        check_whole("threads", threads, 1, MOST_THREADS)


def thread_count(threads: int | None) -> int:
    """As many as were asked for; else as there are cores that this process may use."""
    check_threads(threads)
    if threads is not None:
        return int(threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_texts(texts: object) -> None:
    """Refuse what is not several texts: one text alone would be taken for its characters."""
    if isinstance(texts, (str, bytes)):
        raise FledgeError(f"a {type(texts).__name__} is one text; give a list of texts.")
    if not isinstance(texts, Iterable):
        raise FledgeError(f"a {type(texts).__name__} is no list of texts; texts are str or bytes.")


def check_utf8(what: str, text: str) -> None:
    """Refuse lone surrogates in what is written to files, which are UTF-8; a shell's bytes come as such, too.

    >>> check_utf8("the pattern", "a\\ud800")
    Traceback (most recent call last):
    ...
    fledge.errors.FledgeError: the pattern 'a\\ud800' is not text: character 1 is half of a UTF-16 pair. Leave it out.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = "\udc80" <= text[error.start] <= "\udcff"
        reason = "a byte that is not UTF-8" if byte else "half of a UTF-16 pair"
        raise FledgeError(
            f"{what} {brief(text)} is not text: character {error.start} is {reason}. Leave it out."
        ) from None


def as_path(value: str | PathLike[str]) -> Path:
    """The path that a person gave; what can't be one is refused before a system call fails on it."""
    try:
        raw = os.fsencode(value)
        if isinstance(value, bytes):
            raise TypeError
    except (TypeError, UnicodeEncodeError):
        raise FledgeError(f"{brief(value)} is not a path; give a string or a pathlib.Path.") from None
    if b"\0" in raw or max(map(len, raw.split(b"/"))) > LONGEST_NAME:
        raise FledgeError(
            f"{brief(os.fspath(value))} can't be a path: names have at most {LONGEST_NAME} bytes, and none is zero."
        )
    return Path(value)


def brief(value: object) -> str:
    """What was given, short enough for a sentence, even where Python refuses to print it."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # a number of more digits than Python turns into text
        return "a number of thousands of digits"
