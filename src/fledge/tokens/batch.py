"""What a model is fed: inputs, targets, and, where windows hold more than plain text, positions and documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

IGNORED = -100  # the target of a place that does not count
PADDING = -1  # the document of a place that holds nothing


class Batch(NamedTuple):
    """Rows of ids and what should follow each. No positions and documents: 0..T-1, one document per row."""

    inputs_BT: Tensor
    targets_BT: Tensor
    positions_BT: Tensor | None = None
    documents_BT: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; from pinned memory the copy does not wait."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies in the background."""
        return self._each(Tensor.pin_memory)

    def split(self, rows: list[int]) -> list[Batch]:
        """Batches of so many rows each: views, nothing is copied."""
        parts = [torch.split(part, rows) for part in self if part is not None]
        return [Batch(*part) for part in zip(*parts, strict=True)]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        inputs, targets, positions, documents = self
        return Batch(
            change(inputs),
            change(targets),
            None if positions is None else change(positions),
            None if documents is None else change(documents),
        )
