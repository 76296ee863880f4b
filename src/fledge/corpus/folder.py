"""The text files of a folder, links to other folders followed; whatever is left out is said."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NoReturn

from fledge.errors import FledgeError, note
from fledge.files import COMPRESSED, documents_format

HEAD = 4096  # bytes of a file that show what it is
# What fledge writes itself: a folder that holds all names of a group, or a file that begins like this.
GROUPS = (
    {"tokenizer.json", "tokenizer_config.json"},
    {"config.json", "metrics.csv"},
    {"config.json", "checkpoints"},
    {"plan.json", "trials"},
)
BEGINNINGS = {
    "store.json": re.compile(rb'\{\s*"format": "fledge-tokens"'),
    "bundle.json": re.compile(rb'\{\s*"format": "fledge-bundle"'),
    "journal.jsonl": re.compile(rb"[0-9a-f]{8} \{|[0-9a-f]{0,8} ?\Z"),  # its first line may be cut short
}


def text_files(folder: str) -> list[str]:
    """Every file below a folder, sorted, but hidden ones, and those that are left out with a warning: what is no text,
    and what fledge wrote there itself.
    """
    names, written = _walk(folder)
    if not names:
        raise FledgeError(f"The folder {folder} holds no files. Put text files into it, or name another one.")
    kept: list[str] = []
    binary: list[str] = []
    pipes: list[str] = []
    for name in sorted(names):
        if not stat.S_ISREG(os.stat(name).st_mode):
            pipes.append(name)
        elif documents_format(name) or name.lower().endswith(COMPRESSED) or b"\0" not in _head(name):
            kept.append(name)
        else:
            binary.append(name)
    _leave_out(folder, written, "written by fledge itself")
    _leave_out(folder, pipes, "a pipe or a device")
    _leave_out(folder, binary, "not text (zero bytes near the start)")
    if not kept:
        raise FledgeError(f"The folder {folder} holds no text files: all {len(names)} files in it look binary.")
    return kept


def _walk(folder: str) -> tuple[list[str], list[str]]:
    """The files below a folder, and the folders that fledge wrote. No folder is entered twice, so links in a circle
    do no harm; what is reached without a link is reached that way.
    """
    files: list[str] = []
    written: list[str] = []
    entered: set[str] = set()
    waiting = [folder]
    for start in waiting:  # which grows by the links that are found
        for place, folders, names in os.walk(start, onerror=_refuse):
            if (real := os.path.realpath(place)) in entered:
                folders.clear()
                continue
            entered.add(real)
            if place != folder and _is_ours(place, {*folders, *names}):
                written.append(place)
                folders.clear()
                continue
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = [os.path.join(place, name) for name in folders]
            waiting += filter(os.path.islink, paths)
            files += [os.path.join(place, name) for name in names if not name.startswith(".")]
    return files, sorted(written)


def _refuse(error: OSError) -> NoReturn:
    raise FledgeError(
        f"The folder {error.filename} can't be read ({error.strerror}), and its texts would be missing. Change its "
        "permissions, or name the files and folders to be read without it."
    )


def _is_ours(place: str, names: set[str]) -> bool:
    """Whether a folder is a token store, finished or not, a tokenizer, a bundle, a run or an experiment of fledge's."""
    files = {name: os.path.join(place, name) for name in BEGINNINGS if name in names}
    return any(group <= names for group in GROUPS) or any(
        os.path.isfile(path) and BEGINNINGS[name].match(_head(path)) for name, path in files.items()
    )


def _head(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read(HEAD)


def _leave_out(folder: str, names: Sequence[str], why: str) -> None:
    if names:
        shown = ", ".join(os.path.relpath(name, folder) for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        note(f"{folder}: left out {shown}{more}: {why}.")
