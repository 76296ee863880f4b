"""What a training may be given: paths, a corpus or texts; told apart so that no name of a file is learned as text."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.errors import FledgeError
from fledge.files import COMPRESSED, DOCUMENTS, documents_format, to_bytes
from fledge.tokenizer.checks import as_path

if TYPE_CHECKING:
    from fledge.corpus import Corpus

GATHER = 1 << 24  # bytes of texts that are handed to native code at once
PLAIN = (".txt", ".text", ".md", ".en")
LONGEST_PATH = 4096
LOOKED_AT = 1000  # strings of a list that are looked for on disk, to tell names of files from texts


def document_bytes(text: Any) -> bytes:
    if not isinstance(text, (str, bytes)):
        paths = "; put paths into a list" if isinstance(text, os.PathLike) else ""
        raise FledgeError(f"a text to train on is a {type(text).__name__}; texts are str or bytes{paths}.")
    return to_bytes(text)


def documents_of(block: Any) -> Iterator[bytes]:
    bounds = block.offsets.tolist()
    for start, end in itertools.pairwise(bounds):
        yield bytes(block.buffer[start:end])


def texts_of_source(source: Any, paths: Sequence[Path] | None) -> Iterable[Any]:
    if paths is not None:
        return itertools.chain.from_iterable(map(_texts_of, paths))
    if hasattr(source, "blocks"):
        return source.blocks()  # type: ignore[no-any-return]
    if isinstance(source, (bytes, bytearray, memoryview)):
        raise FledgeError(f"a {type(source).__name__} is one text; give a list of texts, or a path as a string.")
    if not isinstance(source, Iterable):
        raise FledgeError(f"a {type(source).__name__} is no text to train on; give a path, paths, a Corpus or texts.")
    return source


def _texts_of(path: Path) -> Iterable[Any]:
    """What is in one file, for a pattern that needs each text whole."""
    if documents_format(path.name):
        return corpus_of(path).blocks()
    return [b"".join(unpacked(path))]


def corpus_of(path: Path) -> Corpus:
    from fledge.corpus import Corpus

    return Corpus.open(path, validation_fraction=0.0)


def as_paths(source: Any) -> list[Path] | None:
    """The files that `source` names, or None where it holds the texts themselves.

    Strings in a list are names of files if one of them is a file, or if all of them look like names of files.
    """
    if isinstance(source, (str, os.PathLike)):
        return [_file(Path(source))]
    if not isinstance(source, (list, tuple)) or not source:
        return None
    if any(isinstance(item, os.PathLike) for item in source):
        return [_file(as_path(item)) for item in source]
    if not all(isinstance(item, str) for item in source):
        return None
    first = source[:LOOKED_AT]
    if any(len(item) < LONGEST_PATH and os.path.isfile(item) for item in first) or all(map(_looks_like_a_path, first)):
        for item in source:
            if not os.path.exists(item):
                raise FledgeError(
                    f"{item:.200} does not exist, and the list it is in looks like names of files. "
                    "To train on such texts themselves, give them as bytes."
                )
        return [_file(Path(item)) for item in source]
    return None


def _looks_like_a_path(text: str) -> bool:
    """One line that ends as files of text do, or whose folder is there."""
    if len(text) >= LONGEST_PATH or len(text.splitlines()) != 1:
        return False
    if os.path.splitext(text)[1].lower() in (*PLAIN, *COMPRESSED, *DOCUMENTS):
        return True
    folder = os.path.dirname(text)
    return folder != "/" and os.path.isdir(folder)


def _file(path: Path) -> Path:
    if os.path.isdir(path):
        raise FledgeError(f"{path} is a folder. Name its files, or open it with Corpus.open({str(path)!r}).")
    if not os.path.exists(path):  # which knows names that are too long to be one
        raise FledgeError(f"{path!s:.200} does not exist. To train on texts in memory, give a list of them.")
    if not os.path.isfile(path):
        raise FledgeError(f"{path} is a pipe or a device. Read it yourself, and give its texts as a list.")
    if not os.access(path, os.R_OK):
        raise FledgeError(f"{path} can't be read: its permissions forbid it.")
    return path


def unpacked(path: Path, size: int = GATHER) -> Iterator[bytes]:
    """The bytes of a file in blocks, decompressed where its name says that they are compressed."""
    from fledge.corpus.sources import Source

    found = path.stat()
    known = (found.st_size, str(found.st_mtime_ns)) if path.is_file() else ()  # a pipe has neither
    with Source(str(path), "text", *known).open() as stream:
        while block := stream.read(size):
            yield block
