"""Packing: shuffled documents joined by one separator, with document numbers and positions that start again at each.

The order of an epoch's documents and where each begins are kept in memory-mapped arrays, rebuilt from the seed.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fledge.config import TokensConfig
from fledge.tokenizer.base import Roles
from fledge.tokens.gather import GatherPlan, Numbers, Stretches
from fledge.tokens.lines import Lines
from fledge.tokens.scratch import Ascending, chunks, release, scratch_array
from fledge.tokens.store import TokenSplit
from fledge.tokens.windows import Windows, keys, mix_bits, permute

DOCUMENTS = 2  # the purpose of the key that orders documents
OFFSETS = 3  # and of the one that draws position offsets
EPOCHS_KEPT = 2  # a batch may lie across the border of two epochs


class Index(NamedTuple):
    """An epoch's documents, or pieces of them, in packed order: where each begins, and which it is."""

    begins: Ascending  # n + 1: the pair of the packed stream at which piece i begins
    pieces: Numbers  # n: the document
    skips: Numbers | None = None  # n: pairs of the document before the piece
    lead: int = 0  # pairs of the first document that come at the end instead, so that each epoch is cut elsewhere


class Segments(NamedTuple):
    """The stretches of documents in some rows, row by row."""

    rows: Numbers
    documents: Numbers
    skips: Numbers  # pairs of the document before the stretch
    lengths: Numbers
    columns: Numbers  # where the stretch begins in its row
    places: Numbers  # a number of its own for each stretch, to draw its position offset


class PackingWindows(Windows):
    """What both ways of packing share: an index per epoch, and rows filled with stretches of documents."""

    def __init__(self, split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = True) -> None:
        super().__init__(split, config, roles, seed, shuffle)
        self.lines = Lines(split, roles)
        self.opening = self.lines.opening
        self.pairs = sum(int(part.sum()) for part in self.lines.pairs())
        self._indices: dict[int, Index] = {}
        self._building = threading.Lock()

    @abstractmethod
    def _build(self, epoch: int) -> Index:
        """The packed order of one epoch."""

    @abstractmethod
    def _segments(self, index: Index, windows: Numbers) -> Segments:
        """The stretches of documents in some windows of one epoch."""

    def index(self, epoch: int) -> Index:
        """The index of an epoch: kept for the current one and its neighbour, rebuilt from the seed otherwise."""
        epoch = epoch if self.shuffle else 0
        with self._building:  # loaders ask from several threads
            if epoch not in self._indices:
                while len(self._indices) >= EPOCHS_KEPT:
                    del self._indices[min(self._indices)]
                self._indices[epoch] = self._build(epoch)
            return self._indices[epoch]

    def order(self, epoch: int) -> Iterator[Numbers]:
        """The documents of an epoch in their order, some at a time."""
        count, key = len(self.lines), keys(self.seed, DOCUMENTS, [epoch])
        for low, high in chunks(count):
            numbers = np.arange(low, high)
            yield permute(numbers, count, key) if self.shuffle else numbers

    def _release(self) -> None:
        super()._release()
        for index in list(self._indices.values()):  # another thread may build the next epoch's
            for array in (index.begins.array, index.pieces, index.skips):
                if array is not None:
                    release(array)

    def _find(self, windows: Numbers, epochs: Numbers) -> GatherPlan:
        owners: list[Numbers] = []  # the row of each stretch
        parts: list[Stretches] = []
        for epoch in np.unique(epochs).tolist() or [0]:  # a batch may lie across the border of two epochs
            own = np.flatnonzero(epochs == epoch)
            found = self._segments(self.index(epoch), windows[own])
            owners.append(own[found.rows])
            parts.append(self._stretches(found, owners[-1], epoch))
        owner, stretches = owners[0], parts[0]
        if len(parts) > 1:
            owner = np.concatenate(owners)
            order = np.argsort(owner, kind="stable")
            owner = owner[order]
            stretches = Stretches(*(np.concatenate(same)[order] for same in zip(*parts, strict=True)))  # type: ignore[arg-type]
        firsts = np.searchsorted(owner, np.arange(len(windows) + 1))
        return GatherPlan(stretches, len(windows), self.context_length, firsts)

    def _stretches(self, found: Segments, rows: Numbers, epoch: int) -> Stretches:
        first, _ = self.lines.find(found.documents)
        return Stretches(
            rows * self.context_length + found.columns,
            first + found.skips,
            found.lengths,
            self._position_offsets(found, epoch),
            np.arange(len(found.rows)) - np.searchsorted(found.rows, found.rows),
        )

    def _position_offsets(self, found: Segments, epoch: int) -> Numbers:
        """A random start for the positions of each stretch, such that they stay below the context length."""
        if not self.config.position_offset:
            return np.zeros_like(found.lengths)
        room = np.minimum(self.config.position_offset, self.context_length - found.lengths)
        drawn = mix_bits(found.places.astype(np.uint64) ^ keys(self.seed, OFFSETS, [epoch]))
        return (drawn % (room + 1).astype(np.uint64)).astype(np.int64)

    @property
    def waste(self) -> float:
        """The share of places that hold padding."""
        return 1 - self.pairs / max(1, len(self) * self.context_length)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"documents": len(self.lines), "waste": self.waste}


class PackedWindows(PackingWindows):
    """The documents of an epoch end to end, cut into windows side by side; the last is padded.

    Every epoch but the first begins inside its first document and ends with the part before, so that long documents
    are cut at other places each time.
    """

    def __len__(self) -> int:
        return (self.pairs + self.context_length - 1) // self.context_length

    def _build(self, epoch: int) -> Index:
        folder, count = self.split.token_file.path.parent, len(self.lines)
        lead = self._lead(epoch)
        order = chain(self.order(epoch), [next(self.order(epoch))[:1]] if lead else [])
        count += bool(lead)
        pieces = scratch_array(order, count, folder)

        def lengths() -> Iterator[Numbers]:
            for low, high in chunks(count):
                pairs = self.lines.find(pieces[low:high])[1].copy()
                if lead and low == 0:
                    pairs[0] -= lead
                if lead and high == count:
                    pairs[-1] = lead
                yield pairs

        return Index(Ascending(scratch_array(begins_of(lengths()), count + 1, folder)), pieces, lead=lead)

    def _lead(self, epoch: int) -> int:
        """Pairs of the epoch's first document to begin after: fewer than it has, and than a window has."""
        if not self.shuffle or not epoch or not len(self.lines):
            return 0
        first = next(self.order(epoch))[:1]
        return int(self.offsets(np.array([epoch]))[0]) % max(1, int(self.lines.find(first)[1][0]))

    def _segments(self, index: Index, windows: Numbers) -> Segments:
        begin = windows * self.context_length
        end = np.minimum(begin + self.context_length, self.pairs)
        first, last = index.begins.find(begin), index.begins.find(end - 1)
        counts = last - first + 1
        rows = np.repeat(np.arange(len(windows)), counts)
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        edges = index.begins.array
        starts = edges[slots]
        low = np.maximum(starts, begin[rows])
        high = np.minimum(edges[slots + 1], end[rows])
        kept = high > low  # documents without a pair have no place of their own
        rows, slots, low, high, starts = rows[kept], slots[kept], low[kept], high[kept], starts[kept]
        skips = low - starts + np.where(slots == 0, index.lead, 0)
        return Segments(rows, index.pieces[slots], skips, high - low, low - begin[rows], low)


class BestFitWindows(PackingWindows):
    """Documents whole wherever they fit: each goes where it leaves the least room, the longest first.

    Documents longer than the context are cut into windows, and their last part is packed like the others.
    """

    def __init__(self, split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = True) -> None:
        super().__init__(split, config, roles, seed, shuffle)
        counts = np.zeros(self.context_length + 1, np.int64)
        for pairs in self.lines.pairs():
            whole, rest = np.divmod(pairs, self.context_length)
            counts[self.context_length] += int(whole.sum())
            counts += np.bincount(rest, minlength=self.context_length + 1)
        counts[0] = 0
        folder = split.token_file.path.parent
        self._fit = Fit(
            *(scratch_array([part], len(part), folder) for part in plan_best_fit(counts, self.context_length))
        )
        self._rows = len(self._fit.row_ends)

    def __len__(self) -> int:
        return self._rows

    def _build(self, epoch: int) -> Index:
        """Give each place of the plan, which asks for a length, the next piece of that length in the epoch's order."""
        documents, skips, lengths = self._pieces(epoch)
        by_length = np.argsort(-lengths, kind="stable")  # pieces of equal length stay in the epoch's shuffled order
        count = len(by_length)
        places = np.empty(count, np.int64)
        places[self._fit.place_of_piece] = by_length
        folder = self.split.token_file.path.parent

        def placed(values: Numbers) -> Iterator[Numbers]:
            return (values[places[low:high]] for low, high in chunks(count))

        return Index(
            Ascending(scratch_array(begins_of(placed(lengths)), count + 1, folder)),
            scratch_array(placed(documents), count, folder),
            scratch_array(placed(skips), count, folder),
        )

    def _pieces(self, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
        documents, skips, lengths = [], [], []
        width = self.context_length
        for numbers in self.order(epoch):
            _, pairs = self.lines.find(numbers)
            counts = -(-pairs // width)
            owner = np.repeat(np.arange(len(numbers)), counts)
            skip = (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)) * width
            documents.append(numbers[owner])
            skips.append(skip)
            lengths.append(np.minimum(pairs[owner] - skip, width))
        return np.concatenate(documents), np.concatenate(skips), np.concatenate(lengths)

    def _release(self) -> None:
        super()._release()
        for part in self._fit:
            release(part)

    def _segments(self, index: Index, windows: Numbers) -> Segments:
        assert index.skips is not None
        ends = self._fit.row_ends
        first = np.where(windows > 0, ends[windows - 1], 0)
        counts = ends[windows] - first
        rows = np.repeat(np.arange(len(windows)), counts)
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        edges = index.begins.array
        begins = edges[slots]
        columns = begins - edges[first][rows]
        lengths = edges[slots + 1] - begins
        return Segments(rows, index.pieces[slots], index.skips[slots], lengths, columns, begins)


def begins_of(lengths: Iterable[Numbers]) -> Iterator[Numbers]:
    """Where stretches of these lengths, side by side, begin, and where the last one ends; some at a time."""
    end = 0
    yield np.zeros(1, np.int64)
    for part in lengths:
        ends = end + np.cumsum(part)
        end = int(ends[-1])
        yield ends


class Fit(NamedTuple):
    """Where pieces go, by their lengths alone: the same for every epoch."""

    place_of_piece: Numbers  # for the pieces from the longest to the shortest: the place in row order
    row_ends: Numbers  # the place after each row's last piece


def plan_best_fit(counts: Numbers, width: int) -> Fit:
    """Best fit decreasing for `counts[l]` pieces of each length l.

    Rows with equal room are treated together, so the steps depend on the width and not on the number of pieces.
    """
    rows_with_room: list[list[Numbers]] = [[] for _ in range(width + 1)]
    taken: list[Numbers] = [np.empty(0, np.int64)]  # the row of each piece, from the longest piece to the shortest
    rows = 0
    for length in range(width, 0, -1):
        left, room = int(counts[length]), length
        while left and room <= width:
            if not rows_with_room[room]:
                room += 1
                continue
            group = rows_with_room[room].pop()
            used, spare = group[:left], group[left:]
            if spare.size:
                rows_with_room[room].append(spare)
            taken.append(used)
            left -= len(used)
            rows_with_room[room - length].append(used)
            if room - length >= length:
                room -= length  # what is left of these rows is the best fit for the next piece
        for new, each in ((left // (width // length), width // length), (1, left % (width // length))):
            if new and each:
                fresh = np.arange(rows, rows + new)
                rows += new
                taken.append(np.repeat(fresh, each))
                rows_with_room[width - each * length].append(fresh)
    row_of_piece = np.concatenate(taken)
    order = np.argsort(row_of_piece, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Fit(place, np.cumsum(np.bincount(row_of_piece, minlength=rows)))
