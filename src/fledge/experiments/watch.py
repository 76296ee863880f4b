"""Which trials are not worth their end: those that diverged, and those that half of the earlier ones were ahead of.

A trial is looked at after each of its evaluations. Rivals are the earlier trials of the same seed, looked at where they
had done the same share of their steps; a trial waits for those that run beside it to get there. So what is pruned
depends on the order of the trials alone, never on how many run at once or how fast.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fledge.files import read_json
from fledge.runs.layout import CONFIG, METRICS

OUTCOME = "outcome.json"
STOPPING = "stopping"
"A file among the trials that says: whoever waits for another trial, stop."
FEWEST_RIVALS = 4
"Trials that run to their end before one is held against others."
EARLIEST = 0.3
"Share of the steps that every trial is given before it can be pruned."
RISEN = 0.1
"Nats above an earlier loss of its own at which a loss counts as risen, and not as moved by chance."
ABOVE_START = 1.0
"Nats above the loss of the very first batch, which may be one of a few tokens, at which training went wrong."
POLL = 0.1  # seconds between looks at a rival that is still under way


class GivenUp(Exception):
    """A trial that is not worth its end, and why."""

    def __init__(self, status: Literal["diverged", "pruned"], step: int, loss: float, why: str) -> None:
        super().__init__(why)
        self.status: Literal["diverged", "pruned"] = status
        self.step, self.loss, self.why = step, loss, why


@dataclass(frozen=True)
class Watch:
    """The `on_evaluation` of one trial. Without rivals it looks for divergence alone."""

    place: Path
    steps: int
    warmup: int
    unigram: float
    rivals: tuple[Path, ...] = ()

    def __call__(self, step: int, loss: float) -> None:
        if why := self.divergence(step, loss):
            raise GivenUp("diverged", step, loss, why)
        if why := self.hopelessness(step, loss):
            raise GivenUp("pruned", step, loss, why)

    def divergence(self, step: int, loss: float) -> str | None:
        """Not a number; or, after warm-up, worse than at the start, or risen again above what counting tokens gives."""
        if not math.isfinite(loss):
            return f"the validation loss became {loss}"
        if step <= self.warmup:
            return None
        from fledge.runs.metrics import column, read_metrics

        rows = read_metrics(self.place / METRICS)
        start = next(iter(column(rows, "loss")), math.inf)
        if loss > start + ABOVE_START:
            return f"after warm-up the validation loss was {loss:.3f}, above the {start:.3f} that training began with"
        best = min(column(rows, "validation_loss"), default=math.inf)
        if loss > max(self.unigram, best + RISEN):
            return f"the loss rose from {best:.3f} to {loss:.3f}, above the {self.unigram:.3f} of counting tokens"
        return None

    def hopelessness(self, step: int, loss: float) -> str | None:
        """Above the median of the rivals at the same share of their steps: the best of all so far never is."""
        share = step / self.steps
        if len(self.rivals) < FEWEST_RIVALS or not EARLIEST <= share < 1:
            return None
        median = statistics.median(level(rival, share) for rival in self.rivals)
        if loss <= median:
            return None
        before = f"the {len(self.rivals)} trials run before it"
        return f"a loss of {loss:.3f}, above {median:.3f}, the median of {before} at the same step"


def level(rival: Path, share: float) -> float:
    """A rival's loss when it had done this share: its last one where it was pruned before, infinite where it diverged.

    Waits while the rival is under way and has not come so far.
    """
    while True:
        over = (rival / OUTCOME).is_file()  # looked at before the losses, so that none can be missed
        found = losses_by_share(rival)
        further = [loss for done, loss in found if done >= share - 1e-9]
        if further or over:
            break
        if (rival.parent / STOPPING).exists():
            raise KeyboardInterrupt
        time.sleep(POLL)
    reached = [loss for done, loss in found if done <= share + 1e-9]
    if not reached or (not further and read_json(rival / OUTCOME)["status"] == "diverged"):
        return math.inf
    return reached[-1]


def losses_by_share(run: Path) -> list[tuple[float, float]]:
    """The share of the steps done, and the validation loss, at each evaluation so far."""
    from fledge.runs.metrics import read_metrics

    if not (run / CONFIG).is_file() or not (run / METRICS).is_file():
        return []
    steps = read_json(run / CONFIG)["training"]["steps"]
    rows = read_metrics(run / METRICS)
    return [(int(row["step"]) / steps, float(row["validation_loss"])) for row in rows if row["validation_loss"]]
