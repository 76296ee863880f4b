"""Passages that stand more than once, letter by letter, and how much of held-out text stands in the training text.

The text is written to a temporary file and mapped. Memory beside it: what is copied, and about a byte for each byte of
text up to 1 GB, half a byte beyond.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fledge.corpus.native import native
from fledge.corpus.text import JoinedText
from fledge.errors import FledgeError

LENGTHS = (50, 100, 200, 500, 1000)  # bytes by which a leak is told
INSIDE = 0.9  # of a document stands in a larger one: it adds nothing
TWICE = 0.01  # of a document may stand in it twice, and perhaps miss in its share
PASSAGE = 100  # bytes; shorter ones are often but ways of speaking
OPENING = 60  # bytes that a passage is shown by
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Passages:
    """Stretches that stand elsewhere in a text: `text[start:start + length]` is `text[source:source + length]`."""

    text: bytes | mmap.mmap
    bounds: Numbers
    "Where each document begins, and the end of the last."
    starts: Numbers
    sources: Numbers
    lengths: Numbers
    at_least: int
    "Bytes of the shortest that were looked for."
    first: int = 0
    "Of the bytes in which stretches were looked for."

    @property
    def size(self) -> int:
        """Bytes in which stretches were looked for."""
        return int(self.bounds[-1]) - self.first

    def covered(self, at_least: int) -> int:
        """How many bytes belong to a stretch of that length or more."""
        chosen = self.lengths >= at_least
        return int(added_bytes(self.starts[chosen], self.starts[chosen] + self.lengths[chosen]).sum())

    def document(self, place: int) -> int:
        """The number of the document that a byte belongs to."""
        return int(np.searchsorted(self.bounds, place, "right")) - 1

    def shares(self) -> npt.NDArray[np.float64]:
        """For each document the share of its bytes that stands in a larger one, or in an earlier one of its size."""
        sizes = np.diff(self.bounds)
        one = np.searchsorted(self.bounds, self.starts, "right") - 1
        other = np.searchsorted(self.bounds, self.sources, "right") - 1
        into = sizes[one] > sizes[other]  # then it is the source that stands in the larger document
        apart = one != other
        places = np.where(into, self.sources, self.starts)[apart]
        owners, others = np.where(into, other, one)[apart], np.where(into, one, other)[apart]
        lengths = self.lengths[apart]
        # What a document says twice was perhaps found in itself alone, or once where a larger one has it: look again.
        twice = np.bincount(one[~apart], weights=self.lengths[~apart], minlength=len(sizes))
        again = (twice > TWICE * sizes)[owners]
        if again.any():
            more = self._standing(np.unique(owners[again]), np.unique(others[again]))
            owners, places, lengths = map(np.append, (owners, places, lengths), more)
        order = np.argsort(places, kind="stable")
        added = added_bytes(places[order], places[order] + lengths[order])
        found = np.bincount(owners[order], weights=added, minlength=len(sizes))
        shares: npt.NDArray[np.float64] = found / np.maximum(1, sizes)
        return shares

    def _standing(self, inner: Numbers, outer: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """What of some documents stands in larger ones: whose it is, where in the whole text, and how long."""
        parts = [[self.text[self.bounds[n] : self.bounds[n + 1]] for n in some] for some in (outer, inner)]
        found = find_passages([JoinedText.of(parts[0])], [JoinedText.of(parts[1])], self.at_least)
        numbers, sizes = np.append(outer, inner), np.diff(self.bounds)
        pairs = (np.searchsorted(found.bounds, place, "right") - 1 for place in (found.starts, found.sources))
        here, there = (numbers[each] for each in pairs)
        larger = (sizes[there] > sizes[here]) | ((sizes[there] == sizes[here]) & (there < here))
        places = found.starts - found.bounds[np.searchsorted(found.bounds, found.starts, "right") - 1]
        return here[larger], (places + self.bounds[here])[larger], found.lengths[larger]

    def largest(self, count: int) -> list[tuple[str, int, int]]:
        """The openings of the passages that take most bytes, how often each stands there, and its greatest length."""
        times: Counter[bytes] = Counter()
        longest: dict[bytes, int] = {}
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            opening = bytes(self.text[start : start + OPENING])
            times[opening] += 1
            longest[opening] = max(length, longest.get(opening, 0))
        ranked = sorted(times, key=lambda opening: -times[opening] * longest[opening])[:count]
        return [(opening.decode("utf-8", "replace"), times[opening] + 1, longest[opening]) for opening in ranked]


def added_bytes(starts: Numbers, ends: Numbers) -> Numbers:
    """Of stretches by their starts, how many bytes each adds to those before it."""
    if not len(starts):
        return starts
    before = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
    added: Numbers = np.maximum(0, ends - np.maximum(starts, before))
    return added


@contextmanager
def _room_said() -> Iterator[None]:
    """A full disk is named: the temporary folder is not where the text lies."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise FledgeError(
            f"{tempfile.gettempdir()} is full: the text is written there to be looked through. Free as much space as "
            "the text takes, or name another folder with TMPDIR."
        ) from None


def find_passages(
    texts: Iterable[JoinedText],
    held_out: Iterable[JoinedText] | None = None,
    at_least: int = PASSAGE,
) -> Passages:
    """The passages of at least so many bytes that stand earlier in the texts; with `held_out`, those of the held-out
    texts that stand in the texts.

    >>> verse, quoted = b"In the beginning was the Word", b"In the beginning"
    >>> found = find_passages([JoinedText.of([verse])], [JoinedText.of([quoted])], at_least=8)
    >>> found.lengths.tolist(), found.covered(8), found.size
    ([16], 16, 16)
    """
    look = native("find_stretches")
    if look is None:
        raise FledgeError("Finding passages needs the native core, which is not built. Reinstall fledge.")
    sizes: list[Numbers] = [np.zeros(1, np.int64)]
    queries = 0
    with tempfile.TemporaryFile() as file:
        for part in (texts, held_out or ()):
            if part is not texts:
                queries = file.tell() if held_out is not None else 0
            for text in part:
                joined = text.joined()
                with _room_said():
                    file.write(joined.buffer)
                sizes.append(joined.ends - joined.starts)
        with _room_said():
            file.flush()
        size = file.tell()
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    bounds = np.cumsum(np.concatenate(sizes))
    if held_out is not None and not queries:  # nothing to stand in
        found = np.empty((0, 3), np.int64)
        return Passages(mapped, bounds, found[:, 0], found[:, 1], found[:, 2], at_least)
    found = look(mapped, bounds.astype(np.uint64), at_least, queries, os.cpu_count() or 1).astype(np.int64)
    found = found.reshape(-1, 3)
    return Passages(mapped, bounds, found[:, 0], found[:, 1], found[:, 2], at_least, queries)
