"""How far a run is: the plain numbers that a checkpoint keeps besides the tensors, and the watch over the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from fledge.errors import FledgeError

RECENT = 0.02  # weight of a new loss in the recent mean
SETTLED = 20  # steps before a spike can be told from the beginning


@dataclass
class Progress:
    """Counters that go on across restarts. All are exact: a resumed run writes the same numbers as an unbroken one."""

    step: int = 0
    samples: int = 0
    "The number of the next sample, skipped ones left out; the order is the same for any batch size and processes."
    tokens: int = 0
    updates: int = 0
    "Times the weights were moved: the steps, less those that fp16 left out."
    skipped: list[tuple[int, int]] = field(default_factory=list)
    "Ranges of samples left out after a divergence."
    micro_batch: int = 0
    seconds: float = 0.0
    interval_loss: float = 0.0
    "Sum of the losses since the last logged row, and how many they are."
    interval_steps: int = 0
    mean_loss: float | None = None
    "The recent mean that a spike is measured against."
    loss_scale: float = 65536.0
    scaled_steps: int = 0
    "fp16: steps since the scale was last lowered."

    def values(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, values: Mapping[str, Any]) -> Progress:
        names = {entry.name for entry in fields(cls)}
        try:
            progress = cls(**{name: value for name, value in values.items() if name in names})
            progress.skipped = [(int(start), int(end)) for start, end in progress.skipped]
            progress.step, progress.samples = int(progress.step), int(progress.samples)
        except (TypeError, ValueError):
            raise FledgeError(
                "The checkpoint's training state is not one of fledge: go back to an earlier one."
            ) from None
        return progress


class Trouble(NamedTuple):
    """A step after which training must not simply go on."""

    step: int
    first: int
    after: int
    what: str


class Diverged(FledgeError):
    """Training stopped because the loss was no longer a number, or jumped."""

    def __init__(self, sentence: str, step: int) -> None:
        super().__init__(sentence)
        self.step = step


class Outcome(NamedTuple):
    """What a step gave, once the device has told."""

    step: int
    first: int
    after: int
    loss: float
    norm: float


def judge(outcome: Outcome, progress: Progress, spike: float | None) -> Trouble | None:
    """Count a step's loss in, or say what is wrong with it."""
    what = None
    if not math.isfinite(outcome.loss):
        what = f"the loss became {outcome.loss}"
    elif not math.isfinite(outcome.norm):
        what = f"the gradient's norm became {outcome.norm}"
    elif spike is not None and progress.mean_loss is not None and outcome.step > SETTLED:
        above = outcome.loss - progress.mean_loss
        if above > spike:
            what = f"the loss jumped to {outcome.loss:.3f}, {above:.3f} above its recent mean"
    if what is not None:
        return Trouble(outcome.step, outcome.first, outcome.after, what)
    mean = progress.mean_loss
    progress.mean_loss = outcome.loss if mean is None else mean + RECENT * (outcome.loss - mean)
    progress.interval_loss += outcome.loss
    progress.interval_steps += 1
    return None
