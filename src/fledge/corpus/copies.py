"""Copies of documents: those with the same bytes, and near-copies, which have most of their word shingles in common.

All of it runs in the native core, on all cores; memory grows with the number of documents, about 200 bytes for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.corpus.batch import DocumentBatch
from fledge.corpus.native import native
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError

ALIKE = 0.6  # of the shingles of two documents are in both: about one word in ten was changed
SHINGLE = 3  # words; shorter ones join texts that only speak of the same, longer ones miss small changes
Numbers = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Copies:
    """For each document of a corpus, the first one that it is a copy of: itself where it is none.

    >>> from fledge.corpus import Corpus
    >>> texts = ["Et tu, Brute? Then fall, Caesar!", "Speak, hands, for me!", "Et tu, Brute? then fall Caesar."]
    >>> copies = find_copies(Corpus.from_documents(texts, validation_fraction=0).batches())
    >>> copies.exact.tolist(), copies.groups.tolist()
    ([0, 1, 2], [0, 1, 0])
    """

    exact: Numbers
    "By their bytes, compared by a hash of 128 bits."
    groups: Numbers
    "Near-copies too; a near-copy of a near-copy is in the same group."
    key: bytes
    "Of `hash`."
    _native: Any

    def similarity(self, left: int, right: int) -> float:
        """The share of word shingles that two documents have in common; from 512 on an estimate."""
        found: float = self._native.similarity(left, right)
        return found

    def hash(self, document: int) -> bytes:
        """A hash of a document's bytes under the key, of 128 bits."""
        found: bytes = self._native.hash(document)
        return found

    @cached_property
    def near(self) -> npt.NDArray[np.bool_]:
        """Which documents are copies of an earlier one."""
        found: npt.NDArray[np.bool_] = self.groups != np.arange(len(self.groups))
        return found


def find_copies(batches: Iterable[DocumentBatch], alike: float = ALIKE, threads: int | None = None) -> Copies:
    """Read documents once, and group those that are copies of each other."""
    kind = native("NearCopies")
    if kind is None:
        raise FledgeError(
            "Finding copies needs the native core, which is not built. Reinstall fledge, or set "
            "corpus.split=document to split near-copies like other documents."
        )
    key = os.urandom(16)
    found = kind(alike, SHINGLE, threads or os.cpu_count() or 1, key)
    for batch in batches:
        found.add(batch.text.buffer, batch.text.starts, batch.text.ends)
    return Copies(found.exact(), found.groups(), key, found)


class Sides:
    """The checksums by which the parts of a corpus are chosen: a near-copy has that of the first of its group.

    Documents that are no near-copies keep their own checksum, and so does the first of each group, so that texts which
    are added at the end move no document, unless they join two groups.
    """

    def __init__(self, batches: Iterable[DocumentBatch]) -> None:
        sums: list[npt.NDArray[np.uint32]] = []

        def listed() -> Iterable[DocumentBatch]:
            for batch in batches:
                sums.append(batch.text.checksums)
                yield batch

        copies = find_copies(listed())
        own = np.concatenate(sums) if sums else np.empty(0, np.uint32)
        moved = np.flatnonzero(own[copies.groups] != own)
        self._checksums = np.unique(own[moved])
        self._firsts = {copies.hash(i): int(own[copies.groups[i]]) for i in moved.tolist()}
        self._key = copies.key

    def checksums(self, text: JoinedText) -> npt.NDArray[np.uint32]:
        """One for each document."""
        sums = text.checksums
        suspects = np.flatnonzero(np.isin(sums, self._checksums)).tolist()
        if not suspects:
            return sums
        sums, views, hashed = sums.copy(), list(text.views()), native("document_hash")
        for i in suspects:
            sums[i] = self._firsts.get(hashed(views[i], self._key), int(sums[i]))
        return sums
