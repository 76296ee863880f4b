"""Batches out of stretches of the token file: natively where the core is built, by numpy elsewhere, with equal bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fledge.corpus.native import native
from fledge.tokens.batch import MASKED, PADDING, Batch
from fledge.tokens.scratch import Pool
from fledge.tokens.store import TokenSplit

Numbers = npt.NDArray[np.int64]
POOL = Pool()


class Stretches(NamedTuple):
    """Runs of consecutive tokens, in the order of their places in the batch."""

    begins: Numbers  # the place of the first target in the flat batch
    sources: Numbers  # that target's place in the token file; its input is the token before it
    lengths: Numbers
    positions: Numbers | None = None  # of the first token in its document
    documents: Numbers | None = None  # the number of the document in its row

    def part(self, first: int, last: int, origin: int) -> Stretches:
        """Some of the stretches, for a batch whose first place was place `origin`."""
        positions, documents = self.positions, self.documents
        return Stretches(
            self.begins[first:last] - origin,
            self.sources[first:last],
            self.lengths[first:last],
            None if positions is None else positions[first:last],
            None if documents is None else documents[first:last],
        )


class GatherPlan(NamedTuple):
    """Where the rows of many batches come from, found in one go: finding costs mostly per call."""

    stretches: Stretches
    rows: int
    width: int
    firsts: Numbers | None = None  # rows + 1: the first stretch of each row, unless each row is one stretch

    def part(self, low: int, high: int) -> Stretches:
        """The stretches of some rows, as those of a batch of their own."""
        if (low, high) == (0, self.rows):
            return self.stretches
        first, last = (low, high) if self.firsts is None else (int(self.firsts[low]), int(self.firsts[high]))
        return self.stretches.part(first, last, low * self.width)


def gather(split: TokenSplit, found: Stretches, rows: int, width: int, padding: int, opening: int | None) -> Batch:
    """A batch of `rows` × `width`: the stretches, and padding where there are none.

    `opening` is the input before the very first token of the file. Without documents, the batch has no positions.
    """
    split.token_file.check(np.maximum(found.sources - 1, 0), found.sources + found.lengths - 1)
    plain = found.documents is None
    parts, size = (2 if plain else 4), rows * width
    flat = POOL.take(parts * size, np.int64).reshape(parts, size)
    fill = native("gather")
    if fill is None:
        _fill(split.tokens, found, padding, opening or 0, flat)
    else:
        file, bytes_each = split.token_file.descriptor, split.token_file.dtype.itemsize
        places = (flat[0], flat[1], None, None) if plain else (flat[0], flat[1], flat[2], flat[3])
        try:
            fill(file, bytes_each, *found, opening or 0, padding, *places)
        except RuntimeError:  # where the file ends before a window does, it is named
            split.token_file.require_whole()
            raise
    return Batch(*torch.from_numpy(flat.reshape(len(flat), rows, width)).unbind())


def _fill(tokens: npt.NDArray[Any], found: Stretches, padding: int, opening: int, flat: Numbers) -> None:
    inputs, targets = flat[:2]
    ends = np.cumsum(found.lengths)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - found.lengths, found.lengths)
    held = np.repeat(found.begins, found.lengths) + within
    places = np.repeat(found.sources, found.lengths) + within
    inputs.fill(padding)
    targets.fill(MASKED)
    targets[held] = tokens[places]
    inputs[held] = tokens[places - 1]
    inputs[found.begins[(found.sources == 0) & (found.lengths > 0)]] = opening
    if found.positions is not None and found.documents is not None:
        positions, documents = flat[2:]
        positions.fill(0)
        documents.fill(PADDING)
        positions[held] = np.repeat(found.positions, found.lengths) + within
        documents[held] = np.repeat(found.documents, found.lengths)
