"""The loss on held-out windows while training: in eval mode, spread over the processes, in batches of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fledge.tokens import Batch
from fledge.tokens.batch import MASKED
from fledge.training.objective import Objective
from fledge.training.ranks import Ranks

if TYPE_CHECKING:
    from fledge.tokens import Windows


@torch.no_grad()
def validation_loss(objective: Objective, windows: Windows, count: int, size: int, ranks: Ranks) -> float:
    """The mean loss over the first `count` windows, `size` at once on each process."""
    low, high = ranks.share(count)
    rounds = -(-max(1, -(-count // ranks.world)) // size)
    total, targets = torch.zeros((), device=ranks.device), 0
    objective.eval()
    for number in range(rounds):
        samples = range(min(low + number * size, high), min(low + (number + 1) * size, high))
        part = filled(windows, samples, size)
        targets += int((part.targets_BT != MASKED).sum())
        part = part.to(ranks.device)
        loss, _ = objective(part.inputs_BT, part.targets_BT, objective.model.plan(part))
        total += loss
    objective.train()
    loss_sum, all_targets = ranks.total(float(total), targets)
    return loss_sum / max(all_targets, 1)


def filled(windows: Windows, samples: range, size: int) -> Batch:
    """Some windows, filled up to `size` rows with rows that do not count: one shape for all, nothing recompiles."""
    batch = windows.batch(samples if len(samples) else range(1))
    missing = size - batch.inputs_BT.shape[0]

    def grown(part: Tensor) -> Tensor:
        return torch.cat([part, part[-1:].expand(missing, -1)]) if missing else part

    inputs, targets, positions, documents = batch
    targets = grown(targets)
    targets[len(samples) :] = MASKED
    return Batch(
        grown(inputs),
        targets,
        None if positions is None else grown(positions),
        None if documents is None else grown(documents),
    )
