"""Overfitting one batch: a model that cannot learn a few windows by heart has a mistake in it, or a wrong rate."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fledge.config import RunConfig, override_config
from fledge.model import build_model
from fledge.tokens import Batch
from fledge.tokens.batch import MASKED
from fledge.training.device import reseed
from fledge.training.ranks import join_ranks
from fledge.training.stepper import Stepper

if TYPE_CHECKING:
    from fledge.tokens import Windows

MOST_STEPS = 500
WARM_UP = 10  # steps of rising rate: the first ones of a fresh model are rough
TOLD = 10  # steps between two lines
ENOUGH = 0.1  # nats per token above the lowest possible


class Overfit(NamedTuple):
    """How far the loss on one batch fell."""

    step: int
    first: float
    last: float
    lowest: float
    "What no model can get below: windows that begin alike go on differently."
    tokens: int

    @property
    def learned(self) -> bool:
        return self.last <= self.lowest + ENOUGH

    def sentence(self) -> str:
        fell = (
            f"on one batch of {self.tokens:,} tokens the loss went from {self.first:.3f} to {self.last:.3f} nats per "
            f"token in {self.step:,} steps; {self.lowest:.3f} is the lowest possible."
        )
        if self.learned:
            return f"The model learned it by heart: {fell}"
        return (
            f"The model did not learn it by heart: {fell} Try another optimizer.learning_rate first. If none does it, "
            "the model is too small for the batch, or has a mistake in it."
        )


def overfit_one_batch(
    config: RunConfig,
    vocabulary_size: int,
    windows: Windows,
    tell: Callable[[str], object] = print,
    most_steps: int = MOST_STEPS,
) -> Overfit:
    """Train a fresh model on the first batch of the windows alone, until it knows it; nothing of the model is kept.

    What works against learning by heart is off: dropout, weight decay, label smoothing, and the schedule but for a
    short warm-up.
    """
    off = ("model.dropout=0", "optimizer.weight_decay=0", "training.label_smoothing=0", "training.z_loss=0")
    config = override_config(config, off)
    batch = windows.batch(range(config.training.batch_size))
    lowest = lowest_loss(batch)
    with join_ranks(config.training.device) as ranks:
        reseed(config.training.seed, "weights")
        model = build_model(config.model, vocabulary_size, config.tokens.context_length)
        stepper = Stepper(config, model, ranks)
        losses: list[float] = []
        for step in range(most_steps):
            stepper.optimizer.factor = min(1.0, (step + 1) / WARM_UP)
            losses.append(float(stepper.step(batch)[0]))
            found = Overfit(step + 1, losses[0], losses[-1], lowest, batch.targets_count)
            if step % TOLD == 0:
                tell(f"step {step + 1}: loss {losses[-1]:.4f}")
            if found.learned or not math.isfinite(losses[-1]):
                break
    return found


def lowest_loss(batch: Batch) -> float:
    """Nats per token of the best possible model of these windows, which knows for every beginning what follows it.

    >>> import torch
    >>> ids = torch.tensor([[1, 2, 3], [1, 2, 4]])
    >>> round(lowest_loss(Batch(ids[:, :-1], ids[:, 1:])), 4)  # after 1 2 comes 3 or 4: one bit, in two of four places
    0.3466
    """
    follow: defaultdict[int, Counter[int]] = defaultdict(Counter)
    inputs, targets = batch.inputs_BT.tolist(), batch.targets_BT.tolist()
    documents = inputs if batch.documents_BT is None else batch.documents_BT.tolist()
    for ids, wanted, held in zip(inputs, targets, documents, strict=True):
        seen, document = 0, None
        for token, target, number in zip(ids, wanted, held, strict=True):
            if batch.documents_BT is not None and number != document:
                seen, document = 0, number  # a document begins, and nothing before it is seen
            seen = hash((seen, token))
            if target != MASKED:
                follow[seen][target] += 1
    total = sum(counts.total() for counts in follow.values())
    nats = sum(-count * math.log(count / counts.total()) for counts in follow.values() for count in counts.values())
    return nats / max(total, 1)
