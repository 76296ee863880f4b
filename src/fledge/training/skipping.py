"""Windows without some of their samples: those that made training diverge, as far as it was set to leave them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fledge.tokens import Batch, Windows


Numbers = npt.NDArray[np.int64]


def union(ranges: Sequence[tuple[int, int]]) -> Numbers:
    """Ranges [first, after) in order, those that touch as one: a batch's range may enclose an older one.

    >>> union([(6, 8), (1, 2), (5, 9)]).tolist()
    [[1, 2], [5, 9]]
    """
    found: list[tuple[int, int]] = []
    for first, after in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], after))
        else:
            found.append((first, after))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def present(numbers: Numbers, skipped: Numbers) -> Numbers:
    """The n-th sample that is not skipped, for each n, in the samples' own numbers.

    >>> present(np.arange(6), union([(2, 4)])).tolist()
    [0, 1, 4, 5, 6, 7]
    """
    lengths = np.cumsum(skipped[:, 1] - skipped[:, 0])
    begins = skipped[:, 0] - np.append(0, lengths[:-1])[: len(lengths)]  # where each would stand if none were there
    found: Numbers = numbers + np.append(0, lengths)[np.searchsorted(begins, numbers, side="right")]
    return found


class Skipping:
    """The windows behind it, numbered on without the skipped samples."""

    def __init__(self, windows: Windows, skipped: Sequence[tuple[int, int]]) -> None:
        self.windows, self.skipped = windows, union(skipped)
        self.context_length = windows.context_length

    def __len__(self) -> int:
        return len(self.windows)

    def ahead(self, shares: Sequence[range]) -> None:
        """Let the windows find many batches at once, where they can: those that no skipped sample divides."""
        self.windows.ahead([own for own in map(self._own, shares) if isinstance(own, range)])

    def batch(self, samples: range) -> Batch:
        return self.windows.batch(self._own(samples))

    def batches(self, shares: Sequence[range]) -> list[Batch]:
        """A batch for each share; made together by the windows, where no skipped sample lies in one of them."""
        own = [self._own(share) for share in shares]
        ranges = [share for share in own if isinstance(share, range)]
        if len(ranges) < len(own):
            return [self.windows.batch(share) for share in own]
        return self.windows.batches(ranges)

    def _own(self, samples: range) -> range | Numbers:
        """The samples' own numbers: a range too, unless samples within it are skipped."""
        if not len(self.skipped):
            return samples
        first, after = self.range(samples.start, len(samples))
        if after - first == len(samples):
            return range(first, after)
        return present(np.arange(samples.start, samples.stop), self.skipped)

    def range(self, first: int, count: int) -> tuple[int, int]:
        """The samples' own numbers from the first of `count` to after the last."""
        ends = present(np.array([first, first + count - 1]), self.skipped)
        return int(ends[0]), int(ends[1]) + 1
