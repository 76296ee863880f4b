"""Where generated text stands word for word in the training text: an index of a token store, for every tokenizer.

A suffix array of the training tokens, 4 bytes each, in segments that bound the memory of building and overlap by as
much as the order is deep. It lies in the store's folder, is mapped when asked, and holds for any tokenizer's ids.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fledge.corpus.native import crc32, native
from fledge.errors import FledgeError
from fledge.files import atomic_folder, read_json, require_space, write_json
from fledge.progress import progress_bar
from fledge.tokens.checked import Checked
from fledge.tokens.store import PASSAGES
from fledge.tokens.work import GrowingFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fledge.tokenizer import Tokenizer
    from fledge.tokens.store import TokenStore

MANIFEST, ORDER = "passages.json", "order.bin"
FORMAT, VERSION = "fledge-passages", 1
SEGMENT = 1 << 25  # tokens that are put in order at once: 128 MB of order, and up to as much of keys
DEPTH = 256  # tokens by which they are; longer matches are followed from there
COPIED = 20  # tokens; shorter stretches are often but ways of speaking
Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CopiedPassage:
    """A stretch of generated tokens that stands in the training text."""

    start: int
    "Its first token in the generated text."
    length: int
    "Tokens."
    text: str
    document: int
    "The number of the training document, from 0."
    place: int
    "Where in that document it begins, in tokens."
    opening: str
    "How the document begins."


class PassageIndex:
    """The training tokens of a store in the order of what follows each of them."""

    def __init__(self, store: TokenStore) -> None:
        """Open the index of a store; make one with `PassageIndex.of`."""
        self.store, folder = store, store.folder / PASSAGES
        manifest = read_json(folder / MANIFEST)
        try:
            whole = manifest["format"] == FORMAT and manifest["store"] == _identity(store)
            self.segment, self.depth = int(manifest["segment"]), int(manifest["depth"])
            # A damaged order only finds less: what it finds is compared with the tokens.
            self._order = Checked(folder / ORDER, np.dtype("<u4"), manifest["tokens"], manifest["checksums"])
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole or manifest["version"] > VERSION or self.segment < 1 or self.depth < 1:
            raise FledgeError(
                f"{folder} is not the index of the tokens next to it. Remove that folder and run the command "
                "again: it is rebuilt."
            )
        self.tokens = store.split("train").tokens

    @classmethod
    def of(cls, store: TokenStore, threads: int | None = None, progress: bool = False) -> PassageIndex:
        """The index of a store, made now and kept beside its tokens if there is none."""
        if not (store.folder / PASSAGES / MANIFEST).is_file():
            with suppress(FileExistsError):  # another process made it meanwhile: it is the same
                _build(store, threads or os.cpu_count() or 1, progress)
        return cls(store)

    def longest(self, ids: Sequence[int] | npt.NDArray[Any], threads: int = 1) -> tuple[Lengths, Lengths]:
        """For each token the length of the longest stretch from it on that stands in the training text, and where."""
        given = np.asarray(ids)
        inside = given < np.iinfo(self.tokens.dtype).max  # what no token has is found nowhere
        sought = np.where(inside, given, np.iinfo(self.tokens.dtype).max).astype(self.tokens.dtype)
        lengths, places = np.zeros(len(sought), np.int64), np.full(len(sought), -1, np.int64)
        look = native("longest_matches")
        for first in range(0, len(self.tokens), self.segment):
            part = self.tokens[first : first + self.segment + self.depth]
            order = self._order.array[first : first + self.segment]
            look(part, order, self.depth, sought, first, lengths, places, threads)
        return lengths, places

    def copied(
        self, ids: Sequence[int] | npt.NDArray[Any], at_least: int = COPIED, threads: int = 1
    ) -> npt.NDArray[np.bool_]:
        """Which tokens lie inside a stretch of at least so many tokens that stands in the training text."""
        return covered(self.longest(ids, threads)[0], at_least)

    def sources(self, ids: Sequence[int], tokenizer: Tokenizer, at_least: int = COPIED) -> list[CopiedPassage]:
        """The longest stretches of generated tokens that stand in the training text, none inside another."""
        lengths, places = self.longest(ids)
        documents, found, end = self.store.split("train").documents, [], 0
        for start, (length, place) in enumerate(zip(lengths.tolist(), places.tolist(), strict=True)):
            if length < at_least or start + length <= end:
                continue
            end = start + length
            document = int(np.searchsorted(documents, place, "right")) - 1
            first = int(documents[document])
            opening = tokenizer.decode(self.tokens[first : first + 16].tolist())
            text = tokenizer.decode(list(ids[start:end]))
            found.append(CopiedPassage(start, length, text, document, place - first, opening))
        return found


def covered(lengths: Lengths, at_least: int) -> npt.NDArray[np.bool_]:
    """Which tokens lie inside a stretch of at least so many, by the length of the longest that begins at each.

    >>> covered(np.array([1, 3, 2, 1, 0]), 3).tolist()
    [False, True, True, True, False]
    """
    change = np.zeros(len(lengths) + 1, np.int64)
    starts = np.flatnonzero(lengths >= at_least)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + lengths[starts], -1)
    found: npt.NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
    return found


def _identity(store: TokenStore) -> dict[str, Any]:
    """What an index is of: other tokens have other checksums."""
    facts = store.manifest["splits"]["train"]
    return {"tokens": facts["tokens"], "checksum": crc32("".join(facts["checksums"]["tokens"]).encode())}


def _build(store: TokenStore, threads: int, progress: bool) -> None:
    sort = native("sort_suffixes")
    if sort is None:
        raise FledgeError("The index of passages needs the native core, which is not built. Reinstall fledge.")
    split = store.split("train").verify()
    tokens = split.tokens
    require_space(store.folder, 4 * len(tokens), "The index of passages")
    with atomic_folder(store.folder / PASSAGES) as folder:
        file = GrowingFile(folder / ORDER, None)
        try:
            with progress_bar("indexing passages", len(tokens), shown=progress) as bar:
                for first in range(0, len(tokens), SEGMENT):
                    order = np.empty(min(SEGMENT, len(tokens) - first), np.uint32)
                    sort(np.asarray(tokens[first : first + SEGMENT + DEPTH]), order, DEPTH, threads)
                    file.append(order.astype("<u4", copy=False))
                    bar.advance(len(order))
        finally:
            os.close(file.descriptor)
        values = {"format": FORMAT, "version": VERSION, "segment": SEGMENT, "depth": DEPTH, "tokens": len(tokens)}
        write_json(folder / MANIFEST, {**values, "store": _identity(store), "checksums": file.all_checksums()})
