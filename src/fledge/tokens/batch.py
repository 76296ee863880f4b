"""What a model is fed: inputs, targets, and, where windows hold more than plain text, positions and documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fledge.errors import FledgeError

MASKED = -100  # the target of a place that does not count
PADDING = -1  # the document of a place that holds nothing


class Batch(NamedTuple):
    """Rows of ids and what should follow each. No positions and documents: 0..T-1, one document per row."""

    inputs_BT: Tensor
    targets_BT: Tensor
    positions_BT: Tensor | None = None
    documents_BT: Tensor | None = None

    @property
    def targets_count(self) -> int:
        """How many targets count."""
        return int((self.targets_BT != MASKED).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; from pinned memory the copy does not wait."""
        return self.each(lambda part: part.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies in the background."""
        return self.each(Tensor.pin_memory)

    def split(self, rows: list[int]) -> list[Batch]:
        """Batches of so many rows each: views, nothing is copied."""
        parts = [torch.split(part, rows) for part in self if part is not None]
        return [Batch(*part) for part in zip(*parts, strict=True)]

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with each of its tensors changed."""
        inputs, targets, positions, documents = self
        return Batch(
            change(inputs),
            change(targets),
            None if positions is None else change(positions),
            None if documents is None else change(documents),
        )


def get_batch(
    ids: Sequence[int] | npt.NDArray[Any] | Tensor,
    batch_size: int,
    context_length: int,
    seed: int = 0,
    step: int = 0,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Windows from random places of ids in memory or in a `numpy.memmap`, and the ids that follow each of them.

    A function of the seed and the step. Training reads a token store instead, where no place is left out.

    >>> inputs, targets = get_batch(range(100), batch_size=2, context_length=4)
    >>> inputs.shape, bool((targets == inputs + 1).all())
    (torch.Size([2, 4]), True)
    """
    places = len(ids) - context_length
    if batch_size < 1 or context_length < 1 or places < 1:
        raise FledgeError(
            f"{len(ids):,} ids give no {batch_size} windows of {context_length} with the id that follows them. Give "
            f"at least {context_length + 1:,} ids, or a smaller context_length."
        )
    starts = np.random.default_rng((seed, step)).integers(places, size=batch_size)
    rows = np.stack([np.asarray(ids[start : start + context_length + 1], np.int64) for start in starts.tolist()])
    window_BT = torch.from_numpy(rows).to(device)
    return window_BT[:, :-1], window_BT[:, 1:]
