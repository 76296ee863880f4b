"""A time budget as steps: real steps of every arm are measured on this machine, once, and their costs added up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.experiments.engines import Engine, places
from fledge.experiments.places import window_flops
from fledge.experiments.plan import EVALUATIONS, TIMING, Pace, with_shared_data

WARM_STEPS, TIMED_STEPS = 3, 5
TIMED_SECONDS, TIMED_SHARE = 1.0, 1 / 200  # at least, and of a time budget: a longer look sees more of the slow moments
LOOKED = 0.05  # of a time budget, after which a look is as short as may be
REFUSED = (
    0.1  # of a time budget, after which it is known whether it can be met; what is not measured by then is reckoned
)
MEASURED = 0.25  # of a time budget, after which what was reckoned stays so
LONGEST_LOOK = 1 / 40  # of a time budget, at one kind of step: slow ones are timed once or twice
FORWARD = 0.4  # of a step's time for a window that is only evaluated
SHARE = 0.65  # of the time that is planned for; the rest starts trials, saves them and bears a machine that gets slower
SLOW = 0.75  # the share of timed steps that a plan's step is no faster than: on a shared machine some are slower
EVALUATED = 0.15  # of the time that may go to evaluations
FEWEST_WINDOWS, FEWEST_STEPS = 32, 10


class Cost(NamedTuple):
    """What one trial takes: seconds for a step of the plan, and for the evaluation of one window."""

    step: float
    window: float


class TooShort(FledgeError):
    """A time budget that no trial's fewest steps fit into; `needed` are the seconds that would do."""

    def __init__(self, sentence: str, needed: float) -> None:
        super().__init__(sentence)
        self.needed = needed


def step_seconds(config: RunConfig, folder: Path, least: float = TIMED_SECONDS, most: float = math.inf) -> float:
    """The time of a slow optimizer step as training takes it, data and all; nothing is written but the shared data.

    Steps are timed for `least` seconds, and fewer of them where they take longer than `most`.
    """
    from fledge.run import Run
    from fledge.training import join_ranks
    from fledge.training.stepper import Stepper

    run = Run(with_shared_data(config, folder), folder / TIMING, quiet=True)
    windows, size = run.windows("train"), config.training.batch_size
    with join_ranks(config.training.device) as ranks:
        stepper = Stepper(run.config, run.model, ranks)
        seconds: list[float] = []
        while not _timed_enough(seconds, least, most):
            started, first = time.perf_counter(), len(seconds) * size
            float(stepper.step(windows.batch(range(first, first + size)))[1])
            seconds.append(time.perf_counter() - started)
        timed = sorted(seconds[min(WARM_STEPS, len(seconds) - 1) :])
        return timed[int(SLOW * len(timed))]


def _timed_enough(seconds: Sequence[float], least: float, most: float) -> bool:
    """The first step, which compiles, counts for nothing.

    >>> _timed_enough([9, 1], 1, 20), _timed_enough([9, 30], 1, 20), _timed_enough([1] * 8, 1, 20)
    (False, True, True)
    """
    if len(seconds) >= WARM_STEPS + TIMED_STEPS and sum(seconds[WARM_STEPS:]) >= least:
        return True
    return len(seconds) > 1 and sum(seconds[1:]) >= most


class CostClock:
    """Measures each distinct cost once; the longer, the more time there is to plan.

    With a `budget`, it measures for a share of it at most, and reckons the rest from what was measured by then.
    """

    def __init__(self, folder: Path, budget: float = 0.0, began: float | None = None) -> None:
        self.folder, self.budget = folder, budget
        self.began = time.monotonic() if began is None else began
        self.share = REFUSED
        self.known: dict[str, float] = {}
        self.reckoned: set[str] = set()
        self.speeds: dict[float, float] = {}
        "FLOPs a second by the FLOPs of a window."

    def least(self) -> float:
        """Seconds for the next look: there may be hundreds."""
        spent = time.monotonic() - self.began
        return max(TIMED_SECONDS, TIMED_SHARE * self.budget) if spent < LOOKED * self.budget else TIMED_SECONDS

    def cost(self, config: RunConfig, base_batch: int | None = None) -> Cost:
        """Of a step; with `base_batch`, of as many windows as a step of that size has."""
        of_steps = {"batch_size", "micro_batch", "device", "threads", "precision", "compile", "recompute"}
        training = config.training.model_dump(include=of_steps)
        key = repr((config.corpus, config.tokenizer, config.tokens, config.model, training, config.optimizer.name))
        seconds = self.known.get(key) or self.look(key, config)
        per_window = seconds / config.training.batch_size
        return Cost(seconds if base_batch is None else per_window * base_batch, FORWARD * per_window)

    def look(self, key: str, config: RunConfig) -> float:
        """Measure a step; where the time to measure is over, reckon it from one that was."""
        flops = window_flops(config) * config.training.batch_size
        if self.speeds and self.budget and time.monotonic() - self.began > self.share * self.budget:
            self.reckoned.add(key)
            return flops / self.speeds[min(self.speeds, key=lambda near: abs(math.log(near / flops)))]
        most = max(TIMED_SECONDS, LONGEST_LOOK * self.budget) if self.budget else math.inf
        seconds = self.known[key] = step_seconds(config, self.folder, self.least(), most)
        self.speeds[flops] = flops / seconds
        return seconds


def steps_that_fit(
    costs: Sequence[Cost],
    seconds: float,
    budget_text: str,
    evaluate_windows: int,
    gain: float = 1.0,
    spent: float = 0.0,
) -> Pace:
    """Steps that all trials together take in the time, of which several at once make `gain` times as much.

    `spent` seconds of the budget are gone already.

    >>> steps_that_fit([Cost(step=0.1, window=0.001)] * 2, 60, "1m", 512)
    Pace(steps=150, evaluate_windows=450)
    """
    step, window = sum(cost.step for cost in costs) / gain, sum(cost.window for cost in costs) / gain
    most = int(EVALUATED * seconds / (EVALUATIONS * window))
    windows = min(evaluate_windows, max(FEWEST_WINDOWS, most))
    steps = int((SHARE * seconds - EVALUATIONS * windows * window) / step)
    if steps < FEWEST_STEPS:
        # Twice the fewest steps: what is measured next time may be slower.
        needed = (2 * FEWEST_STEPS * step + EVALUATIONS * FEWEST_WINDOWS * window) / SHARE + 2 * spent
        raise TooShort(
            f"--budget {budget_text} is too short for {len(costs)} trials: each would have {max(0, steps)} steps, and "
            f"{FEWEST_STEPS} are the fewest that say anything. Give about {minutes(needed)}, or plan fewer trials "
            "(points, arms or seeds) or a smaller model.",
            needed,
        )
    return Pace(steps, windows)


def minutes(seconds: float) -> str:
    """As --budget takes it, rounded up.

    >>> minutes(12), minutes(61), minutes(9540)
    ('1m', '2m', '159m')
    """
    return f"{max(1, math.ceil(seconds / 60))}m"


def pacer(
    seconds: float | None,
    text: str,
    began: float,
    engine: Engine,
    folder: Path,
    costs: Callable[[RunConfig, CostClock], list[Cost]],
    at_once: int | None = None,
) -> Callable[[RunConfig], Pace] | None:
    """What `make_plan` asks for steps: `costs` lists those of all trials, of which at most `at_once` can run so.

    The time runs from `began` on: tokenizing and measuring take from it, too. One that is too short is refused in its
    first tenth, but for the tokenizing and for steps that take longer than that.
    """
    if seconds is None:
        return None

    def pace(config: RunConfig) -> Pace:
        print("Measuring steps on this machine to convert the time budget to steps.", flush=True)
        clock, windows = CostClock(folder, seconds, began), config.training.evaluate_windows

        def fitted() -> Pace:
            found, spent = costs(config, clock), time.monotonic() - began
            more = gain(engine, config, min(len(found), at_once or len(found)))
            return steps_that_fit(found, seconds - spent, text, windows, more, spent)

        pace = fitted()
        if clock.reckoned:  # it can be met, so there is time to measure what was not
            clock.share = MEASURED
            pace = fitted()
        return pace

    return pace


def gain(engine: Engine, config: RunConfig, trials: int) -> float:
    """How many times the work of one process is done by those that run at once.

    They share the memory's bandwidth, which one that is measured alone has for itself; and no more help than there are
    trials, and cores or GPUs.
    """
    at_once = min(engine.planned(config), trials, places(engine, config))
    return 1.0 if at_once == 1 else 0.9 * at_once
