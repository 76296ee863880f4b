"""A tokenizer's files on disk: their names, read with care, and written whole or not at all, also on a full disk."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fledge.errors import FledgeError
from fledge.files import atomic_folder, atomic_write, readable_bytes, require_space

VOCABULARY, CONFIGURATION = "tokenizer.json", "tokenizer_config.json"
FORMAT = 1
MOST_BYTES = 512_000_000

# What Hugging Face's tokenizer_config.json calls the roles.
ROLE_NAMES = {"unknown": "unk_token", "start": "bos_token", "end": "eos_token", "pad": "pad_token"}


def bytes_of(path: Path) -> bytes:
    """All of a file that is not too large to be a tokenizer."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise FledgeError(f"{path} has {readable_bytes(size)}, far too much for a tokenizer.")
    return path.read_bytes()


def text_of(path: Path) -> str:
    try:
        return bytes_of(path).decode()
    except UnicodeDecodeError as error:
        raise FledgeError(f"{path} is not text in UTF-8 (byte {error.start}): the file was cut or changed.") from None


def json_of(path: Path) -> Any:
    """The JSON in a file; a name that is there twice is refused, for one of the two values would be lost."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = dict(pairs)
        if len(names) < len(pairs):
            raise FledgeError(f"{path} holds a name twice in one place.")
        return names

    try:
        return json.loads(bytes_of(path), object_pairs_hook=unique)
    except FledgeError:
        raise
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        if path.suffix != ".json":
            raise FledgeError(
                f"{path} is not valid JSON. fledge reads a tokenizer.json, vocab.json with merges.txt beside it, and "
                "ranks whose name ends in .tiktoken."
            ) from None
        raise FledgeError(f"{path} is not valid JSON ({error}): the file was cut or changed.") from None


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """These files in a folder: all of them or none. A new folder appears when it is whole."""
    if folder.exists():
        write_together(folder, files)
    else:
        write_new_folder(folder, files)


class TakenError(FledgeError):
    """The folder to be made is there already."""


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    _require_room(folder, files)
    taken = TakenError(f"{folder} was made meanwhile by another process. Choose another name.")
    if os.path.lexists(folder):
        raise taken
    try:
        with atomic_folder(folder) as work:
            for name, content in files.items():
                (work / name).write_bytes(content)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not os.path.lexists(folder):
            raise
        raise taken from None


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """These files in a folder that may hold others: none takes its name before all are safe on disk."""
    _require_room(folder, files)
    with ExitStack() as stack:
        for name, content in files.items():
            file = stack.enter_context(atomic_write(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _require_room(folder: Path, files: Mapping[str, bytes]) -> None:
    require_space(folder, sum(map(len, files.values())), "The tokenizer")


def written_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
