"""Averaged weights: a second set that follows the trained one, in 32 bits, over about the last share of the steps.

The average often predicts held-out text better than the weights it follows, above all while the learning rate is high.
Training itself never sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from fledge.errors import FledgeError
from fledge.training.layout import Layout

AVERAGE, PLAIN = "average", "plain"
"What the names of saved tensors begin with: the average, or the plain weights where the average is the model."
BLOCK = 1 << 22  # weights exchanged at a time


class Average:
    """The average of a layout's weights. After step t the newest weights count 1/(span·t), so that the average reaches
    back over the same share of the run however long it has been."""

    @torch.no_grad()
    def __init__(self, layout: Layout, span: float) -> None:
        self.span = span
        self._groups = [group for rule in layout.rules for group in layout.groups(rule)]
        self.weights = [group.weights.clone() for group in self._groups]

    def share(self, step: int) -> float:
        """How much the weights after the step of this number count, from 1."""
        return min(1.0, 1 / (self.span * step))

    @torch.no_grad()
    def update(self, share: float | Tensor) -> None:
        """Take in the weights as they are now, which count this much."""
        for average, group in zip(self.weights, self._groups, strict=True):
            average.lerp_(group.weights, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model's weights are the average within this context, and the plain ones again after it."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """The average of each parameter, whole and in its own shape."""
        for group, average in zip(self._groups, self.weights, strict=True):
            yield from group.split(average)

    def named_plain(self) -> Iterator[tuple[str, Tensor]]:
        """A copy of the plain weights of each parameter, whole."""
        for group in self._groups:
            for name, weights in group.split(group.weights):
                yield name, weights.clone()

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what a checkpoint kept beside its model's weights, which the model holds already: the average, or,
        where the model is the average, the plain weights. With neither, the average begins anew."""
        kept = next((kind for kind in (PLAIN, AVERAGE) if any(name.startswith(f"{kind}/") for name in tensors)), None)
        self.weights = [group.weights.clone() for group in self._groups]
        if kept is None:
            return
        for group, average in zip(self._groups, self.weights, strict=True):
            target = group.weights if kept == PLAIN else average
            for name, shape in group.shapes.items():
                saved = tensors.get(f"{kept}/{name}")
                if saved is None or tuple(saved.shape) != tuple(shape) or not saved.isfinite().all():
                    raise FledgeError(
                        f"The checkpoint's {kept} weights of {name} are missing, have another shape or are "
                        "not finite: another model wrote it. Resume from an earlier checkpoint with --at "
                        "STEP."
                    )
                group.fill(target, name, saved)

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange the plain and the averaged weights, some at a time: there is no room for a third set."""
        for average, group in zip(self.weights, self._groups, strict=True):
            sets = (torch.split(weights.view(-1), BLOCK) for weights in (average, group.weights))
            for averaged, plain in zip(*sets, strict=True):
                kept = averaged.clone()
                averaged.copy_(plain)
                plain.copy_(kept)
