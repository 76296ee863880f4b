"""Windows over a split: sample n is a pure function of (seed, n), counting on across epochs.

Nothing is stored: the n-th window is found by arithmetic, or by binary search on cumulative counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.config import TokensConfig
from fledge.tokenizer.base import Roles
from fledge.tokens.batch import Batch
from fledge.tokens.gather import GatherPlan, Numbers, Stretches, gather
from fledge.tokens.store import TokenSplit, end_token

Words = npt.NDArray[np.uint64]
ROUNDS = 6  # of the permutation
ORDER = 1  # the purpose of the key that orders windows
OFFSET = 4  # of the one that draws how far an epoch's cuts are moved
START = 5  # and of the one that draws where in the text it begins
AHEAD = 4096  # samples whose order is computed at a time
RELEASE_EVERY = 4096  # windows between two releases of mapped pages


class Windows(ABC):
    """All windows of a split under one policy. Each epoch visits every window once, in an order of its own."""

    uniform = True  # rows are as wide whatever rows stand beside them, so many batches can be planned together

    def __init__(self, split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = True) -> None:
        self.split, self.config, self.roles = split, config, roles
        self.seed, self.shuffle = seed, shuffle
        self.context_length = config.context_length
        self.padding = padding_token(roles)
        self.opening: int | None = None  # the input before the very first token of the file
        self._since_release = 0
        self._ahead: dict[range, tuple[GatherPlan, int]] = {}
        self._fresh: dict[range, tuple[GatherPlan, int]] = {}
        self._before: dict[range, tuple[GatherPlan, int]] = {}
        self._order: tuple[int, Numbers] = (-1, np.empty(0, np.int64))

    @abstractmethod
    def __len__(self) -> int:
        """Samples per epoch."""

    def offsets(self, epochs: Numbers) -> Numbers:
        """How far into a window each epoch's cuts are moved: 0 for the first, and all others as long as there are."""
        rounds, places = np.divmod(epochs, self.context_length)
        key = keys(self.seed, OFFSET, rounds)
        drawn = permute(places, self.context_length, key) - permute(places * 0, self.context_length, key)
        moved: Numbers = drawn % self.context_length
        return moved

    @abstractmethod
    def _find(self, windows: Numbers, epochs: Numbers) -> GatherPlan:
        """Where the windows of these numbers lie, in this order."""

    def plan(self, samples: Sequence[int] | Numbers) -> GatherPlan:
        """Where the samples of these numbers come from."""
        numbers = np.asarray(samples, np.int64)
        return self._find(self.ordered(numbers), numbers // max(1, len(self)))

    def ahead(self, shares: Sequence[range]) -> None:
        """Find in one go where the samples of many batches come from: `batch` will be asked for each of them soon."""
        if self.uniform and shares:
            plan = self.plan(np.concatenate([np.arange(share.start, share.stop) for share in shares]))
            lows = np.cumsum([0, *map(len, shares)]).tolist()
            fresh = {share: (plan, low) for share, low in zip(shares, lows, strict=False)}
            self._ahead = self._before | self._fresh | fresh  # a loader finds some while the last two are still made
            self._before, self._fresh = self._fresh, fresh

    def batch(self, samples: Sequence[int] | Numbers) -> Batch:
        """The samples of these numbers (a range, or any list of them) as one batch."""
        known = self._ahead.get(samples) if isinstance(samples, range) else None
        plan, low = known or (self.plan(samples), 0)
        return self._gather(plan, low, len(samples))

    def batches(self, shares: Sequence[range]) -> list[Batch]:
        """A batch for each share. Those that `ahead` found side by side are filled in one go, in one memory."""
        rows = [len(share) for share in shares]
        known = [self._ahead.get(share) for share in shares]
        plan, first = known[0] or (None, 0)
        lows = accumulate(rows[:-1], initial=first)
        beside = all(entry and entry[0] is plan and entry[1] == low for entry, low in zip(known, lows, strict=True))
        if plan is None or not beside:
            return [self.batch(share) for share in shares]
        return self._gather(plan, first, sum(rows)).split(rows)

    def _gather(self, plan: GatherPlan, low: int, rows: int) -> Batch:
        found = gather(self.split, plan.part(low, low + rows), rows, plan.width, self.padding, self.opening)
        self._since_release += rows
        if self._since_release >= RELEASE_EVERY:
            self._since_release = 0
            self._release()
        return found

    def ordered(self, samples: Numbers) -> Numbers:
        """The window that each sample is: its place in the permutation of its epoch."""
        count = len(self)
        if not self.shuffle:
            return samples % count
        if not samples.size:
            return samples
        first, order = self._order
        low, high = int(samples.min()), int(samples.max())
        if low < first or high >= first + len(order):  # the cost of a permutation is mostly per call: do many at once
            if high - low >= AHEAD:
                return permute(samples % count, count, keys(self.seed, ORDER, samples // count))
            ahead = np.arange(low, low + AHEAD)
            order = permute(ahead % count, count, keys(self.seed, ORDER, ahead // count))
            first = low
            self._order = first, order
        return order[samples - first]

    def _release(self) -> None:
        self.split.token_file.release()
        self.split.document_file.release()

    def describe(self) -> dict[str, Any]:
        """What a person may want to know: the windows of an epoch, and what share of their places is padding."""
        return {"policy": self.config.policy, "windows": len(self), "context_length": self.context_length}


class StreamWindows(Windows):
    """The split as one continuous text, cut into windows side by side.

    The first epoch is cut from the first token on. Each later epoch begins at a place of its own and continues from the
    end of the text at its beginning, so that it is cut elsewhere.
    """

    def __len__(self) -> int:
        return max(0, self.pairs // self.context_length)

    @property
    def pairs(self) -> int:
        """Tokens that have one before them: what there is to predict."""
        return len(self.split.tokens) - 1

    def _find(self, windows: Numbers, epochs: Numbers) -> GatherPlan:
        return self._cut((windows * self.context_length + self._starts(epochs)) % self.pairs)

    def _starts(self, epochs: Numbers) -> Numbers:
        """The place in the text from which each epoch is cut: in its first window, and then that many windows on."""
        found, places = np.unique(epochs, return_inverse=True)
        windows = keys(self.seed, START, found) % np.uint64(len(self))
        starts = self.offsets(found) + np.where(found > 0, windows.astype(np.int64), 0) * self.context_length
        each: Numbers = starts[places] if self.shuffle else np.zeros_like(epochs)
        return each

    def _cut(self, starts: Numbers) -> GatherPlan:
        """Rows from these places on; one that reaches the end of the text goes on at its beginning."""
        rows, width = len(starts), self.context_length
        begins, lengths = np.arange(rows) * width, np.minimum(width, self.pairs - starts)
        split = np.flatnonzero(lengths < width)
        if not split.size:
            return GatherPlan(Stretches(begins, starts + 1, lengths), rows, width)
        owners = np.concatenate((np.arange(rows), split))
        order = np.argsort(owners, kind="stable")
        stretches = Stretches(
            np.concatenate((begins, begins[split] + lengths[split]))[order],
            np.concatenate((starts + 1, np.ones_like(split)))[order],
            np.concatenate((lengths, width - lengths[split]))[order],
        )
        return GatherPlan(stretches, rows, width, np.searchsorted(owners[order], np.arange(rows + 1)))


class LaneWindows(StreamWindows):
    """Contiguous lanes: row i of a batch goes on where row i of the batch before it stopped, so state can be carried.

    Sample n is step n // lanes of lane n % lanes. The order is the text's own; nothing is shuffled.
    """

    def __init__(
        self, split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = False, lanes: int = 1
    ) -> None:
        super().__init__(split, config, roles, seed, shuffle=False)
        self.lanes = lanes
        self.steps = super().__len__() // lanes

    def __len__(self) -> int:
        return self.steps * self.lanes

    def _find(self, windows: Numbers, epochs: Numbers) -> GatherPlan:
        steps, lanes = np.divmod(windows, self.lanes)
        return self._cut((lanes * self.steps + steps) * self.context_length)


def padding_token(roles: Roles) -> int:
    """What stands in padded inputs; no target counts it and no place attends to it, so any id will do."""
    found = roles.pad if roles.pad is not None else end_token(roles)
    return found if found is not None else 0


# -- the order: where does number i go in epoch e? ------------------------------------------------------------------
# A Feistel network over a rectangle of a×b ≥ n cells, with additions modulo a and b; what falls outside n is sent
# through again (cycle walking), which is rare because a·b is hardly greater than n. It takes no memory.


def mix_bits(values: Words) -> Words:
    """64 bits in, 64 well-spread bits out (the finaliser of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys(seed: int, purpose: int, epochs: npt.ArrayLike) -> Words:
    """One key for each epoch, different for every seed and purpose."""
    start = mix_bits(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64)) + np.uint64(purpose)
    return mix_bits(mix_bits(start) + np.asarray(epochs, np.uint64))


def permute(indices: npt.ArrayLike, count: int, key: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The place of each index in the permutation of `count` numbers that `key` names (one key, or one per index).

    >>> sorted(permute(range(5), 5, 7).tolist())
    [0, 1, 2, 3, 4]
    """
    wide = max(1, math.isqrt(max(count - 1, 0)) + 1)  # the ceiling of the root
    high = -(-count // wide)
    values = np.asarray(indices).astype(np.uint64)
    spread = np.broadcast_to(np.asarray(key, np.uint64), values.shape)
    values = _rounds(values, wide, high, spread)
    while (outside := np.flatnonzero(values >= np.uint64(count))).size:
        values[outside] = _rounds(values[outside], wide, high, spread[outside])
    return values.astype(np.int64)


def _rounds(values: Words, wide: int, high: int, key: Words) -> Words:
    a, b = np.uint64(wide), np.uint64(high)
    left, right = values % a, values // a
    for number in range(ROUNDS):
        shift = key + np.uint64(number * 0x9FB21C651E98DF25 & 0xFFFFFFFFFFFFFFFF)
        if number % 2:
            right = (right + mix_bits(left ^ shift) % b) % b
        else:
            left = (left + mix_bits(right ^ shift) % a) % a
    return right * a + left
