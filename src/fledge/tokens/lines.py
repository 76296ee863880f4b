"""Policies that look at each document, or line, alone: windows slide over it, and what sticks out is padding.

A line is a document with what bounds it. Its pairs are (token, next token); a window is a row of pairs,
found from its number by binary search on the cumulative counts of windows per line.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from fledge.config import TokensConfig
from fledge.errors import FledgeError, note
from fledge.tokenizer.base import Roles
from fledge.tokens.gather import GatherPlan, Numbers, Stretches
from fledge.tokens.scratch import Ascending, chunks, release, scratch_array
from fledge.tokens.store import TokenSplit, end_token
from fledge.tokens.windows import Windows


class Lines:
    """The pairs of every document of a split.

    Where documents are followed by a separator, one stands before each of them too: the first token of a
    document is predicted from it, and the separator from the last token.
    """

    def __init__(self, split: TokenSplit, roles: Roles) -> None:
        self.split = split
        self.lead = int(split.layout == "separated")
        self.opening = end_token(roles) if self.lead else None

    def __len__(self) -> int:
        return len(self.split.documents)

    def find(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """For each document, the place of its first target among the tokens, and its number of pairs."""
        starts, count = self.split.documents, len(self)
        self.split.document_file.check(documents, documents + 1)
        first = starts[documents].astype(np.int64)
        following = starts[np.minimum(documents + 1, count - 1)].astype(np.int64)
        ends = np.where(documents + 1 < count, following, len(self.split.tokens))
        first += 1 - self.lead
        return first, np.maximum(ends - first, 0)

    def pairs(self) -> Iterator[Numbers]:
        """The number of pairs of every document, some at a time."""
        for low, high in chunks(len(self)):
            yield self.find(np.arange(low, high))[1]

    @cached_property
    def longest(self) -> int:
        return max((int(part.max()) for part in self.pairs()), default=0)


class LineWindows(Windows):
    """A window is a line and an offset: column c holds pair offset + c of the line, or padding outside it."""

    def __init__(self, split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = True) -> None:
        super().__init__(split, config, roles, seed, shuffle)
        self.lines = Lines(split, roles)
        self.opening = self.lines.opening
        self._total = 0
        self._check()
        counts = scratch_array(self._counts(), len(self.lines) + 1, split.token_file.path.parent)
        self._cumulative = Ascending(counts)

    def _check(self) -> None:
        """Say what is strange about this policy on these lines."""

    @abstractmethod
    def windows_of(self, pairs: Numbers) -> Numbers:
        """How many windows lines of so many pairs have."""

    @abstractmethod
    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        """The offset of each line's window of the given number."""

    def _counts(self) -> Iterator[Numbers]:
        yield np.zeros(1, np.int64)
        for pairs in self.lines.pairs():
            sums = self._total + np.cumsum(np.where(pairs > 0, self.windows_of(pairs), 0))
            self._total = int(sums[-1])
            yield sums

    def __len__(self) -> int:
        return self._total

    def _release(self) -> None:
        super()._release()
        release(self._cumulative.array)

    def _find(self, windows: Numbers, epochs: Numbers) -> GatherPlan:
        lines = self._cumulative.find(windows)
        first, pairs = self.lines.find(lines)
        offsets = self.offset(windows - self._cumulative.array[lines], pairs)
        return self._cut(first, pairs, offsets, self.context_length)

    def _cut(self, first: Numbers, pairs: Numbers, offsets: Numbers, width: int) -> GatherPlan:
        low, high = np.maximum(0, -offsets), np.minimum(width, pairs - offsets)
        rows, nought = len(first), np.zeros_like(first)
        begins = np.arange(rows) * width + low
        found = Stretches(begins, first + offsets + low, high - low, nought, nought)
        return GatherPlan(found, rows, width)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"lines": len(self.lines), "longest_line": self.lines.longest}


class SlideInWindows(LineWindows):
    """From the line's first pair in the last column, padded on the left, to its last pair in the last column."""

    def windows_of(self, pairs: Numbers) -> Numbers:
        return pairs

    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        return windows - (self.context_length - 1)


class SlideThroughWindows(LineWindows):
    """As sliding in, and on until only the last pair is left, in the first column, padded on the right."""

    def windows_of(self, pairs: Numbers) -> Numbers:
        return pairs + self.context_length - 1

    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        return windows - (self.context_length - 1)


class FullWindows(LineWindows):
    """Full windows only; a line too short for one slides from the right edge to the left without leaving the window."""

    def _check(self) -> None:
        if 0 < self.lines.longest < self.context_length:
            raise FledgeError(
                f"tokens.policy = full finds no full window in the {self.split.name} split: its longest document has "
                f"{self.lines.longest:,} tokens, and tokens.context_length is {self.context_length:,}. Set it lower, "
                "or choose the policy packed or stream."
            )

    def windows_of(self, pairs: Numbers) -> Numbers:
        return np.abs(pairs - self.context_length) + 1

    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        return windows + np.minimum(pairs - self.context_length, 0)


class AlignedWindows(LineWindows):
    """From the line's start in steps of the context; what is left over is cut, or padded once on the right."""

    def windows_of(self, pairs: Numbers) -> Numbers:
        if self.config.remainder == "cut":
            return pairs // self.context_length
        return -(-pairs // self.context_length)

    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        return windows * self.context_length

    def _cut(self, first: Numbers, pairs: Numbers, offsets: Numbers, width: int) -> GatherPlan:
        plan = super()._cut(first, pairs, offsets, width)
        if self.config.remainder != "cut":
            return plan
        # With the remainder cut, every window is full: no masks are needed, and the fast path stays open.
        return plan._replace(stretches=plan.stretches._replace(positions=None, documents=None))


class LongestWindows(LineWindows):
    """Whole lines, one per row, and each batch as wide as its longest; longer lines than the context are cut there."""

    uniform = False

    def _check(self) -> None:
        if self.lines.longest > self.context_length:
            note(
                f"tokens.policy = longest: the longest document of the {self.split.name} split has "
                f"{self.lines.longest:,} tokens; documents are cut at tokens.context_length = {self.context_length:,}."
            )

    def windows_of(self, pairs: Numbers) -> Numbers:
        return np.ones_like(pairs)

    def offset(self, windows: Numbers, pairs: Numbers) -> Numbers:
        return np.zeros_like(pairs)

    def _cut(self, first: Numbers, pairs: Numbers, offsets: Numbers, width: int) -> GatherPlan:
        return super()._cut(first, pairs, offsets, min(width, int(pairs.max(initial=1))))
