"""How far a run is: the plain numbers that a checkpoint keeps besides the tensors, and the watch over the loss."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.runs.checkpoints import step_of

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.training.ranks import Ranks

RECENT = 0.02  # weight of a new loss in the recent mean
SETTLED = 20  # steps before a spike can be told from the beginning
LATER = {"updates", "averaged"}  # counters that the first checkpoints did not have
GREATEST = 1 << 48  # no counter reaches it, and what counts on from there stays exact everywhere
# Pairs of counters of which the first is never above the second: a step takes a sample at least, and a sample a token.
ORDERED = [
    ("updates", "step"),
    ("interval_steps", "step"),
    ("scaled_steps", "step"),
    ("step", "samples"),
    ("samples", "tokens"),
]


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
    averaged: bool = False
    "Whether the averaged weights did better than the plain ones at the last evaluation: they are the model then."

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def due(self, every: int) -> bool:
        """Whether what is done every so many steps is done after this one; 0 is never."""
        return every > 0 and self.step % every == 0

    @classmethod
    def restore(cls, values: Any, where: str = "The checkpoint's training/state.json") -> Progress:
        """The counters that a checkpoint kept. A stranger may have written them: each is there, in its range, and in
        agreement with the others."""
        if not isinstance(values, Mapping):
            raise _refused(f"{where} is a {type(values).__name__}, not a table of counters")
        kept: dict[str, Any] = {}
        missing = []
        for entry in fields(cls):
            allowed, fits = _RANGES.get(entry.name) or _RANGES[str(entry.type)]
            if entry.name not in values:
                missing.append(entry.name)
            elif fits(values[entry.name]):
                kept[entry.name] = values[entry.name]
            else:
                raise _refused(f"{where} says {entry.name} = {values[entry.name]!r:.40}, which must be {allowed}")
        for less, more in ORDERED:
            if less in kept and more in kept and kept[less] > kept[more]:
                raise _refused(
                    f"{where} says {less} = {kept[less]} and {more} = {kept[more]}, and {less} is never above {more}"
                )
        if left := [name for name in missing if name not in LATER]:
            told = f"{where} has no {left[0]}, without which training can't go on as it was"
            raise _refused(told) if "step" in left else _refused(told, Incomplete)
        kept.setdefault("updates", kept["step"])  # the same but in fp16
        kept["skipped"] = [(start, end) for start, end in kept["skipped"]]
        return cls(**kept)

    @classmethod
    def of(cls, checkpoint: Bundle) -> Progress:
        """How far the run was that saved this checkpoint: its counters, which agree with its manifest."""
        assert checkpoint.training is not None
        where = f"{checkpoint.source}'s training/state.json"
        progress = cls.restore(checkpoint.training.values, where)
        for name in ("step", "tokens"):
            kept, said = getattr(progress, name), checkpoint.metrics.get(name)
            if said is not None and said != kept:
                raise _refused(f"{where} says {name} = {kept}, and bundle.json {name} = {said!r:.40}")
        if step_of(checkpoint.path) not in (None, progress.step):
            raise _refused(f"{where} says step = {progress.step}, and the folder's name another")
        return progress


def total_steps(config: RunConfig, progress: Progress) -> int:
    """A run's last step. Where its length is given in tokens, a changed batch size keeps the tokens, not the steps."""
    settings = config.training
    if settings.tokens is not None and progress.step:
        left = settings.tokens - progress.tokens
        steps = progress.step + max(0, left) // (settings.batch_size * config.tokens.context_length)
    else:
        steps = config.steps
    fewer = settings.tokens is not None and settings.tokens < progress.tokens and config.steps < progress.step
    if steps < progress.step or fewer:
        length = "training.steps" if settings.tokens is None else "training.tokens"
        raise FledgeError(
            f"The run has already done {progress.step} steps, and {config.steps} were requested. Set a larger "
            f"{length}, or go back with --at."
        )
    return steps


class Incomplete(FledgeError):
    """A training state with a step and not all counters, as programs of one's own keep: training can't go on from it,
    and all else is well."""


def _refused(what: str, kind: type[FledgeError] = FledgeError) -> FledgeError:
    return kind(f"{what}: it is not as fledge wrote it. Go on from an earlier checkpoint with --at STEP.")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < GREATEST


def _is_number(value: Any) -> bool:
    """Neither infinite nor NaN; a whole number beyond every float is none either."""
    return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max


def _are_ranges(value: Any) -> bool:
    pairs = isinstance(value, list | tuple) and all(isinstance(e, list | tuple) and len(e) == 2 for e in value)
    return pairs and all(_is_count(start) and _is_count(end) and start <= end for start, end in value)


# What each kind of counter, or one by its name, may be: in words and as a test.
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": (f"a whole number, 0 or more and below {GREATEST:,}", _is_count),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "float": ("a number, 0 or more", lambda value: _is_number(value) and value >= 0),
    "loss_scale": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "float | None": ("a number, or null", lambda value: value is None or _is_number(value)),
    "list[tuple[int, int]]": ("a list of pairs of whole numbers, each pair in order", _are_ranges),
}


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


class LossWatch:
    """Judges the losses of steps, some at a time: a GPU is not waited for after each. All processes hear the same."""

    def __init__(self, progress: Progress, spike: float | None, ranks: Ranks) -> None:
        self.progress, self.spike, self.ranks = progress, spike, ranks
        self.loss: float | None = None
        self.norm: float | None = None
        "Of the newest step that was judged to be well."
        self.setbacks = 0
        "Times that training went back since the newest checkpoint."
        self._pending: list[tuple[int, tuple[int, int], Tensor, Tensor]] = []

    def add(self, samples: tuple[int, int], loss: Tensor, norm: Tensor) -> None:
        """A step that was just taken on this range of samples: this process's share of its loss, and its norm."""
        self._pending.append((self.progress.step, samples, loss, norm))

    def judge(self) -> Trouble | None:
        """Count in the losses since the last look, up to one with which something is wrong."""
        if not self._pending:
            return None
        losses = self.ranks.total(*torch.stack([entry[2] for entry in self._pending]).tolist())
        norms = torch.stack([entry[3] for entry in self._pending]).tolist()
        pending, self._pending = self._pending, []
        for (step, samples, _, _), loss, norm in zip(pending, losses, norms, strict=True):
            if what := self._wrong(step, loss, norm):
                return Trouble(step, *samples, what)
            progress, mean = self.progress, self.progress.mean_loss
            progress.mean_loss = loss if mean is None else mean + RECENT * (loss - mean)
            progress.interval_loss += loss
            progress.interval_steps += 1
            self.loss, self.norm = loss, norm
        return None

    def _wrong(self, step: int, loss: float, norm: float) -> str:
        mean = self.progress.mean_loss
        if not math.isfinite(loss):
            return f"the loss became {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm became {norm}"
        if self.spike is not None and mean is not None and step > SETTLED and loss - mean > self.spike:
            return f"the loss jumped to {loss:.3f}, {loss - mean:.3f} above its recent mean"
        return ""
