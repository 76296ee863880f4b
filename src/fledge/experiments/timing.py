"""A time budget as steps: real steps of every arm are measured on this machine, once, and their costs added up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.experiments.plan import EVALUATIONS, TIMING, with_shared_data

if TYPE_CHECKING:
    from fledge.experiments.engines import Engine

WARM_STEPS, TIMED_STEPS = 3, 5
TIMED_SECONDS, TIMED_SHARE = 1.0, 1 / 200  # at least, and of a time budget: a longer look sees more of the slow moments
LOOKED = 0.05  # of a time budget, after which a look is as short as may be
FORWARD = 0.4  # of a step's time for a window that is only evaluated
SHARE = 0.65  # of the time that is planned for; the rest starts trials, saves them and bears a machine that gets slower
SLOW = 0.75  # the share of timed steps that a plan's step is no faster than: on a shared machine some are slower
EVALUATED = 0.15  # of the time that may go to evaluations
FEWEST_WINDOWS, FEWEST_STEPS = 32, 10
MOST_REPEATS = 100


class Cost(NamedTuple):
    """What one trial takes: seconds for a step of the plan, and for the evaluation of one window."""

    step: float
    window: float


class Pace(NamedTuple):
    """What fits: steps of the plan, and windows of each evaluation."""

    steps: int
    evaluate_windows: int


def step_seconds(config: RunConfig, folder: Path, least: float = TIMED_SECONDS) -> float:
    """The time of a slow optimizer step as training takes it, data and all; nothing is written but the shared data.

    Steps are timed for `least` seconds.
    """
    from fledge.loss import MASKED
    from fledge.run import Run
    from fledge.training import join_ranks
    from fledge.training.device import choose_precision, prepare
    from fledge.training.progress import Progress
    from fledge.training.stepper import Stepper

    run = Run(with_shared_data(config, folder), folder / TIMING, quiet=True)
    windows, size = run.windows("train"), config.training.batch_size
    with join_ranks(config.training.device) as ranks:
        precision = choose_precision(config.training.precision, ranks.device)
        prepare(ranks.device, precision, config.training.threads)
        stepper = Stepper(run.config, run.model, ranks, precision, Progress())
        stepper.plain.train()
        seconds: list[float] = []
        while len(seconds) < WARM_STEPS + TIMED_STEPS or sum(seconds[WARM_STEPS:]) < least:
            started, first = time.perf_counter(), len(seconds) * size
            batch = windows.batch(range(first, first + size))
            stepper.accumulate(batch, int((batch.targets_BT != MASKED).sum()))
            float(stepper.update())
            seconds.append(time.perf_counter() - started)
        timed = sorted(seconds[WARM_STEPS:])
        return timed[int(SLOW * len(timed))]


class Clock:
    """Measures each distinct cost once; the longer, the more time there is to plan."""

    def __init__(self, folder: Path, budget: float = 0.0) -> None:
        self.folder, self.budget = folder, budget
        self.began = time.monotonic()
        self.known: dict[str, float] = {}

    def least(self) -> float:
        """Seconds for the next look: there may be hundreds."""
        spent = time.monotonic() - self.began
        return max(TIMED_SECONDS, TIMED_SHARE * self.budget) if spent < LOOKED * self.budget else TIMED_SECONDS

    def cost(self, config: RunConfig, base_batch: int | None = None) -> Cost:
        """Of a step; with `base_batch`, of as many windows as a step of that size has."""
        of_steps = {"batch_size", "micro_batch", "device", "threads", "precision", "compile", "recompute"}
        training = config.training.model_dump(include=of_steps)
        key = repr((config.corpus, config.tokenizer, config.tokens, config.model, training, config.optimizer.name))
        if key not in self.known:
            self.known[key] = step_seconds(config, self.folder, self.least())
        per_window = self.known[key] / config.training.batch_size
        return Cost(self.known[key] if base_batch is None else per_window * base_batch, FORWARD * per_window)


def fit(costs: Sequence[Cost], seconds: float, budget_text: str, evaluate_windows: int, gain: float = 1.0) -> Pace:
    """Steps that all trials together take in the time, of which several at once make `gain` times as much.

    >>> fit([Cost(step=0.1, window=0.001)] * 2, 60, "1m", 512)
    Pace(steps=150, evaluate_windows=450)
    """
    step, window = sum(cost.step for cost in costs) / gain, sum(cost.window for cost in costs) / gain
    most = int(EVALUATED * seconds / (EVALUATIONS * window))
    windows = min(evaluate_windows, max(FEWEST_WINDOWS, most))
    steps = int((SHARE * seconds - EVALUATIONS * windows * window) / step)
    if steps < FEWEST_STEPS:
        needed = (5 * FEWEST_STEPS * step + EVALUATIONS * FEWEST_WINDOWS * window) / SHARE / 60
        raise FledgeError(
            f"--budget {budget_text} is too short for {len(costs)} trials: each would have {max(0, steps)} steps. "
            f"Give about {max(1, round(needed + 0.5))}m, or plan fewer trials or a smaller model."
        )
    return Pace(steps, windows)


def pacer(
    seconds: float | None,
    text: str,
    began: float,
    engine: Engine,
    folder: Path,
    costs: Callable[[RunConfig, Clock], list[Cost]],
    at_once: int | None = None,
) -> Callable[[RunConfig], Pace] | None:
    """What `make_plan` asks for steps: `costs` lists those of all trials, of which at most `at_once` can run so.

    The time runs from `began` on: tokenizing and measuring take from it, too.
    """
    if seconds is None:
        return None

    def pace(config: RunConfig) -> Pace:
        print("Measuring steps on this machine, to turn the time into steps.", flush=True)
        found = costs(config, Clock(folder, seconds))
        left = seconds - (time.monotonic() - began)
        more = gain(engine, config, min(len(found), at_once or len(found)))
        return fit(found, left, text, config.training.evaluate_windows, more)

    return pace


def gain(engine: Engine, config: RunConfig, trials: int) -> float:
    """How many times the work of one process is done by those that run at once.

    They share the memory's bandwidth, which one that is measured alone has for itself; and no more help than there are
    trials, and cores or GPUs.
    """
    from fledge.experiments.engines import places

    at_once = min(engine.parallel, trials, places(engine, config))
    return 1.0 if at_once == 1 else 0.9 * at_once


def check_corpus(config: RunConfig, steps: int, folder: Path) -> None:
    """Refuse a text that gives nothing to measure on, or that the time would repeat beyond sense."""
    from fledge.run import Run

    run = Run(with_shared_data(config, folder), folder / TIMING, quiet=True)
    source = ", ".join(config.corpus.source)
    windows = len(run.windows("train"))
    run.windows("validation")  # a text that has none is refused there
    if (repeats := steps * config.training.batch_size / windows) > MOST_REPEATS:
        raise FledgeError(
            f"{source} is too small for this length of training: its {windows:,} windows would be seen {repeats:,.0f} "
            f"times each, and {MOST_REPEATS} is the most that says anything. Give more text or less time."
        )
