"""The search of a sweep: points become trials, and their outcomes are told to Optuna, whose study is resumable.

The study lies in the experiment's folder as SQLite; a point that was run before is read, not run again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fledge.config import RunConfig, override_config, parse
from fledge.errors import FledgeError
from fledge.experiments.checks import check_arms
from fledge.experiments.engines import Engine, run_trials
from fledge.experiments.plan import Arm, ExperimentPlan, with_length
from fledge.experiments.space import BATCH, MATRIX_RATE, RATE, Axis, Point, grid, label, overrides
from fledge.experiments.trials import Measure, Outcome, Trial, with_rivals

Method = Literal["grid", "random", "tpe"]
ROUND = 4
"Points that random and tpe choose at once, however many run at once: so the points do not depend on it."
DRAWN = 100
"How often a point is drawn until a model can be made of it."
STUDY = "study.db"


class Search:
    """A study under way: points become trials, and their outcomes are told to Optuna."""

    def __init__(
        self,
        plan: ExperimentPlan,
        folder: Path,
        axes: Sequence[Axis],
        method: Method,
        equal_samples: bool,
        prune: bool,
        engine: Engine,
        count: int,
        measure: Measure,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.folder, self.axes, self.engine, self.count = plan, folder, axes, engine, count
        self.method, self.prune, self.measured = method, prune, measure
        self.base = parse(RunConfig, plan.config)
        self.points: dict[str, Point] = {}
        self.losses: dict[str, float | None] = {}
        "Of the points that were run, by their names."
        self.repeated = 0
        self.windows: int | None = None
        if equal_samples:
            sizes = batch_sizes(axes, self.base, method)
            self.windows = equal_windows(self.base.steps, self.base.training.batch_size, sizes)
        self.trials: list[Trial] = []
        self.outcomes: list[Outcome] = []
        self.study: Any = optuna.create_study(
            study_name=plan.kind,
            storage=f"sqlite:///{(folder / STUDY).absolute()}",
            direction="minimize",
            load_if_exists=True,
        )

    def run(self) -> list[Outcome]:
        return self.grid(grid(list(self.axes))) if self.method == "grid" else self.sampled(self.method)

    def grid(self, points: Sequence[Point]) -> list[Outcome]:
        """Every point; the study is told each as it is done."""
        import optuna

        told = {str(trial.params) for trial in self.study.trials if trial.state.is_finished()}
        kinds: dict[str, Any] = {
            axis.key: optuna.distributions.CategoricalDistribution(list(axis.values)) for axis in self.axes
        }
        for point, loss in self.measure(points):
            if str(point) not in told:
                state = optuna.trial.TrialState.PRUNED if loss is None else optuna.trial.TrialState.COMPLETE
                made = optuna.trial.create_trial(params=point, distributions=kinds, value=loss, state=state)
                self.study.add_trial(made)
        return self.outcomes

    def sampled(self, method: Method) -> list[Outcome]:
        """Points that a sampler chooses, some at a time; those of a killed study are taken up first."""
        import optuna

        states = optuna.trial.TrialState
        for trial in self.study.trials:
            if trial.state == states.RUNNING and len(trial.params) < len(self.axes):
                self.study.tell(trial.number, state=states.FAIL)  # killed before all its settings were chosen
        known = [trial for trial in self.study.trials if trial.state != states.FAIL]
        for done in range(0, self.count, ROUND):
            size = min(ROUND, self.count - done)
            chosen = [(trial.number, self.point(trial.params)) for trial in known[done : done + size]]
            while len(chosen) < size:
                chosen.append(self.draw(method, done + len(chosen)))
            open_trials = {trial.number for trial in self.study.trials if trial.state == states.RUNNING}
            new = {label(point): point for _, point in chosen if label(point) not in self.losses}
            self.repeated += size - len(new)
            list(self.measure(list(new.values())))
            for number, point in chosen:
                if number in open_trials:
                    loss = self.losses[label(point)]
                    self.study.tell(number, loss, state=states.PRUNED if loss is None else states.COMPLETE)
        if self.repeated:
            print(f"{self.repeated} of the {self.count} points had been chosen before and were not run again.")
        return self.outcomes

    def draw(self, method: Method, place: int) -> tuple[int, Point]:
        """The point at that place, with its number in the study; one of which no model can be made is drawn again."""
        import optuna

        kind = optuna.samplers.RandomSampler if method == "random" else optuna.samplers.TPESampler
        for attempt in range(DRAWN):
            self.study.sampler = kind(seed=place + attempt * self.count)  # so that a resumed study draws the same
            asked = self.study.ask()
            point = self.point({axis.key: suggest(asked, axis) for axis in self.axes})
            try:
                check_arms(self.base, [Arm(label(point), changes_of(point, self.base))])
            except FledgeError:
                self.study.tell(asked.number, state=optuna.trial.TrialState.FAIL)
                if attempt == DRAWN - 1:
                    raise
            else:
                break
        return asked.number, point

    def repeated_sentence(self) -> str:
        return (
            f"{self.repeated} of the {self.count} points drawn had been drawn before, and were not run again."
            if self.repeated
            else ""
        )

    def point(self, params: Mapping[str, Any]) -> Point:
        return {axis.key: rounded_value(params[axis.key]) for axis in self.axes}

    def measure(self, points: Sequence[Point]) -> Any:
        """Each point with its mean loss over the seeds, or None where a seed diverged or was pruned."""
        trials = [self.trial(point, seed) for point in points for seed in self.plan.seeds]
        if self.prune:
            trials = with_rivals(trials, self.trials)
        done, total = len(self.outcomes), self.count * len(self.plan.seeds)
        self.trials += trials
        found: list[Outcome] = []
        for outcome in run_trials(trials, self.folder, self.engine, done, total):
            found.append(outcome)
            self.outcomes.append(outcome)
            if len(found) % len(self.plan.seeds) == 0:
                losses = [getattr(each, self.measured.metric) for each in found[-len(self.plan.seeds) :]]
                whole = [loss for loss in losses if loss is not None]
                loss = sum(whole) / len(whole) if len(whole) == len(losses) else None
                self.losses[outcome.arm] = loss
                yield points[len(found) // len(self.plan.seeds) - 1], loss

    def trial(self, point: Point, seed: int) -> Trial:
        base = self.base
        self.points[label(point)] = point
        config = override_config(base, [*changes_of(point, base), f"training.seed={seed}"])
        steps = None if self.windows is None else max(1, round(self.windows / config.training.batch_size))
        config = with_length(config, base, point, steps)
        return Trial(label(point), config, alone=self.measured.alone)


def suggest(trial: Any, axis: Axis) -> Any:
    """A value between the ends of a range, or one of a list."""
    if not axis.continuous:
        return trial.suggest_categorical(axis.key, list(axis.values))
    if all(isinstance(value, int) for value in axis.values):
        return trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log)
    return trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log)


def rounded_value(value: Any) -> Any:
    """A number that reads well in names and tables, near enough to the one that was chosen."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def changes_of(point: Point, config: RunConfig) -> tuple[str, ...]:
    """A point as `--set` changes. Muon has a rate for matrices besides, which goes up and down with the other.

    >>> changes_of({RATE: 0.006}, override_config(RunConfig(), ["optimizer.name=muon", f"{RATE}=0.003"]))
    ('optimizer.learning_rate=0.006', 'optimizer.matrix_learning_rate=0.04')
    """
    optimizer = config.optimizer
    own = point.get(MATRIX_RATE) or point.get("optimizer.name", optimizer.name) != "muon"
    if not isinstance(point.get(RATE), (int, float)) or own:
        return tuple(overrides(point))
    rate = optimizer.matrix_learning_rate * point[RATE] / optimizer.learning_rate
    return (*overrides(point), f"{MATRIX_RATE}={rate:g}")


def batch_sizes(axes: Sequence[Axis], config: RunConfig, method: Method) -> list[int]:
    """The batch sizes of a sweep; of a range that is sampled, its largest."""
    axis = next((axis for axis in axes if axis.key == BATCH), None)
    if axis is None:
        return [config.training.batch_size]
    return [int(axis.high)] if method != "grid" and axis.continuous else [int(value) for value in axis.values]


def equal_windows(steps: int, batch: int, sizes: Sequence[int], fewest_steps: int = 1) -> int:
    """Windows that every batch size divides, about as many as so many steps of the recipe's batch see.

    >>> equal_windows(14, 32, [1, 8, 12])
    432
    """
    windows, largest, together = steps * batch, max(sizes), math.lcm(*sizes)
    fewest_steps = min(fewest_steps, steps)  # who asks for three steps gets three
    if windows < fewest_steps * largest:
        raise FledgeError(
            f"--equal-samples: every point sees {windows:,} windows, of which a batch of {largest:,} makes "
            f"{windows // largest} step{'s' * (windows // largest != 1)}, and {fewest_steps} are the fewest that say "
            f"anything. Leave out batch sizes above {windows // fewest_steps:,}, or train longer (--budget or --set "
            "training.steps)."
        )
    if fewest_steps > 1 and windows < together:
        raise FledgeError(
            f"--equal-samples: no number up to the {windows:,} windows of a trial is whole steps of every batch size: "
            f"{', '.join(map(str, sizes))} have {together:,} as their least common multiple. Choose sizes that divide "
            "each other, such as 4, 16, 64."
        )
    return max(1, windows // together) * together


@contextmanager
def study_errors(folder: Path) -> Iterator[None]:
    """What the database of the study cannot do, as a sentence."""
    import optuna
    import sqlalchemy

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = str(getattr(error, "orig", None) or getattr(error.__cause__, "orig", None) or error).splitlines()[0]
        place = folder / STUDY
        if "full" in cause:
            raise FledgeError(
                f"{place} could not be written: {cause}. Free some space; the same command resumes."
            ) from None
        raise FledgeError(
            f"{place} cannot be used ({cause}). Remove it: the trials are stored separately, and the same "
            "command resumes."
        ) from None
