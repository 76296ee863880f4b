"""The hidden state that contiguous lanes of text hand on from batch to batch; a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from fledge.training.ranks import Ranks

if TYPE_CHECKING:
    from fledge.model import Model, State

PREFIX = "carried/"
LENGTHS = "lengths"


class Carry:
    """One row of state per lane of this process."""

    def __init__(self, model: Model, rows: int, ranks: Ranks) -> None:
        self.model, self.rows, self.ranks = model, rows, ranks
        self.state: State = model.init_state(rows, ranks.device)

    def part(self, start: int, size: int) -> State:
        """A copy of the state of some rows, for one micro-batch."""
        return self.state.select(list(range(start, min(start + size, self.rows))))

    def keep(self, parts: list[State]) -> None:
        """Go on from the states that the micro-batches ended with, cut off from their graphs."""
        parts = [part.detach() for part in parts]
        first = parts[0]
        tensors = {name: torch.cat([part.tensors[name] for part in parts]) for name in first.tensors}
        self.state = self.state.load(tensors, torch.cat([part.lengths for part in parts]))

    def tensors(self) -> dict[str, Tensor]:
        """The state of all lanes, for a checkpoint; every process takes part."""
        named = {**self.state.tensors, LENGTHS: self.state.lengths}
        return {PREFIX + name: self._whole(tensor) for name, tensor in named.items()}

    def _whole(self, tensor: Tensor) -> Tensor:
        if self.ranks.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.ranks.world)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def load(self, tensors: Mapping[str, Tensor]) -> bool:
        """Take up a saved state, if it is one of as many lanes; otherwise the lanes begin anew."""
        low, high = self.ranks.rank * self.rows, (self.ranks.rank + 1) * self.rows
        saved = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        if LENGTHS not in saved or len(saved[LENGTHS]) != self.rows * self.ranks.world:
            return False
        lengths = saved.pop(LENGTHS)
        self.state = self.state.load({name: tensor[low:high] for name, tensor in saved.items()}, lengths[low:high])
        return True
