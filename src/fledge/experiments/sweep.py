"""Sweeps: one or several settings over a range, to the edge where training diverges. Through Optuna, resumable.

The study lies in the experiment's folder as SQLite; a point that was run before is read, not run again. Diverged points
are results: the edge of divergence is part of the answer. Hopeless ones are stopped early, and said to be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from fledge.config import RunConfig, override_config, parse
from fledge.errors import FledgeError
from fledge.experiments import findings, landscape
from fledge.experiments.engines import ONE_BY_ONE, Engine, alone_in, run_trials
from fledge.experiments.findings import Experiment
from fledge.experiments.largest import FEWEST_STEPS, KEPT, Largest, largest_batch
from fledge.experiments.plan import (
    DATA,
    PLAN,
    Arm,
    ExperimentPlan,
    Pace,
    check_folder,
    make_plan,
    tokens_differ,
    with_length,
    with_threads,
    with_windows,
)
from fledge.experiments.space import (
    BATCH,
    LARGEST_GRID,
    MATRIX_RATE,
    MAX,
    RATE,
    Axis,
    Point,
    check_once,
    grid,
    label,
    overrides,
)
from fledge.experiments.timing import Cost, CostClock, pacer
from fledge.experiments.trials import Measure, Outcome, Trial, check_arms, check_effects, with_rivals
from fledge.extras import missing

Method = Literal["grid", "random", "tpe"]
ROUND = 4
"Points that random and tpe choose at once, however many run at once: so the points do not depend on it."
DRAWN = 100
"How often a point is drawn until a model can be made of it."
STUDY = "study.db"


def sweep(
    config: RunConfig,
    folder: Path,
    axes: Sequence[Axis],
    method: Method = "grid",
    trials: int | None = None,
    seeds: int = 1,
    budget: float | None = None,
    equal_samples: bool = False,
    command: str = "",
    budget_text: str = "",
    engine: Engine = ONE_BY_ONE,
    prune: bool = True,
    fewest_steps: int = 1,
) -> Experiment:
    """Run the points that the method chooses, every seed of each, and write the report.

    With `equal_samples` a larger batch takes fewer steps, so that every point sees the same number of windows; one that
    would take fewer than `fewest_steps` is refused.
    """
    began = time.monotonic()
    if method == "grid" and trials is not None:
        raise FledgeError("--trials is for --method random or tpe: a grid always has all combinations of its values.")
    if trials is not None and trials > LARGEST_GRID:
        raise FledgeError(f"--trials {trials:,}: at most {LARGEST_GRID:,} are run.")
    check_points(config, axes, method, planned=budget is not None or equal_samples)
    check_folder(folder)
    with alone_in(folder), study_errors(folder):
        if not (folder / PLAN).is_file():
            (folder / DATA / KEPT).unlink(missing_ok=True)  # of a sweep that was refused, with other settings or time
        count = len(grid(list(axes))) if method == "grid" else trials or 20
        seconds_each = engine.planned(config) * budget / (count * seeds) if budget else None
        given = axes
        if budget is not None and not (folder / PLAN).is_file() and any(MAX in axis.values for axis in axes):
            first_look(config, folder, budget, budget_text, began, engine, count * seeds)
        axes, largest = with_largest(config, folder, given, seconds_each)
        base_batch = config.training.batch_size if equal_samples else None

        def arms() -> list[Arm]:
            points = grid(list(axes)) if method == "grid" else []
            return [Arm(label(point), changes_of(point, config)) for point in points]

        def costs(settings: RunConfig, clock: CostClock) -> list[Cost]:
            points = grid(list(axes)) if method == "grid" else [ends(axes)[number % 2] for number in range(count)]
            changed = [override_config(settings, changes_of(point, settings)) for point in points]
            return [clock.cost(each, base_batch) for each in changed] * seeds

        at_once = count * seeds if method == "grid" else ROUND * seeds
        timer = pacer(budget, budget_text, began, engine, folder, costs, at_once)

        def pace(settings: RunConfig) -> Pace:
            """What fits, once it is sure that every batch size has its steps; the largest is lowered to that."""
            nonlocal axes, largest
            found = timer(settings) if timer else Pace(settings.steps, settings.training.evaluate_windows)
            if not equal_samples:
                return found
            if timer and largest and found.steps * settings.training.batch_size < FEWEST_STEPS * largest.batch_size:
                (folder / DATA / KEPT).unlink()
                steps = max(1, int(0.8 * found.steps))  # smaller batches take longer, and fewer windows fit
                shorter = override_config(settings, ["training.tokens=none", f"training.steps={steps}"])
                axes, largest = with_largest(shorter, folder, given, None)
                found = timer(settings)
            sizes = batch_sizes(axes, settings, method)
            equal_windows(found.steps, settings.training.batch_size, sizes, fewest_steps)
            return found

        timed = None
        if not (folder / PLAN).is_file():
            timed = pace(with_threads(config, engine.sharing(config)))
        asked = {
            "over": [axis.text() for axis in axes],
            "points": count,
            "equal_samples": equal_samples,
            "prune": prune,
        }
        measure = Measure.of(axis.key for axis in axes)
        with_windows(config, arms(), [arm.name for arm in arms()], folder)
        plan = make_plan(
            "sweep",
            f"Which {' and '.join(axis.key for axis in axes)} is best for {config.name}?",
            config,
            arms() or [Arm(method)],
            seeds,
            folder,
            (lambda settings: timed) if timer and timed else None,
            budget_text,
            engine.sharing(config),
            asked=asked,
            tokens_hold=tokens_differ(config, [axis.key for axis in axes], budget is not None or equal_samples),
        )
        if prune and not measure.plain:
            print(
                "No point is pruned, because losses are not comparable between different tokens or windows.", flush=True
            )
        prune = prune and measure.plain
        search = Search(plan, folder, axes, method, equal_samples, prune, engine, len(arms()) or count, measure)
        outcomes = search.run()
        whole = method == "grid"
        page = landscape.sweep_page(plan, outcomes, axes, search.points, folder, measure, whole, equal_samples)
        if scaled := matrix_rates(config, axes):
            page.paragraph(scaled)
        if largest is not None:
            page.paragraph(largest.sentence())
        if search.repeated:
            page.paragraph(
                f"{search.repeated} of the {count} points drawn had been drawn before, and were not run again."
            )
        findings.add_setup(page, plan, command, outcomes, folder, [axis.key for axis in axes])
        if equal_samples:
            page.paragraph(samples_sentence(outcomes))
        return Experiment(plan, outcomes, findings.write(page, outcomes, folder))


def first_look(
    config: RunConfig, folder: Path, budget: float, text: str, began: float, engine: Engine, trials: int
) -> None:
    """Refuse a budget that would not do for so many trials of the recipe's own batch, before `max` is looked for."""
    pace = pacer(budget, text, began, engine, folder, lambda settings, clock: [clock.cost(settings)] * trials)
    assert pace is not None
    pace(with_threads(config, engine.sharing(config)))


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


def matrix_rates(config: RunConfig, axes: Sequence[Axis]) -> str:
    """What a report says of Muon's second rate, where it went with the first."""
    values, optimizer = {axis.key: axis.values for axis in axes}, config.optimizer
    if RATE not in values or MATRIX_RATE in values or "muon" not in values.get("optimizer.name", (optimizer.name,)):
        return ""
    factor = optimizer.matrix_learning_rate / optimizer.learning_rate
    return (
        f"Muon has a rate of its own for matrices, {MATRIX_RATE}: it is {factor:.3g} times {RATE} at every "
        "point, as in the settings."
    )


def ends(axes: Sequence[Axis]) -> tuple[Point, Point]:
    """The first value of every axis, and the last: between them lies what is sampled.

    >>> ends([Axis("model.layers", (1, 2, 4))])
    ({'model.layers': 1}, {'model.layers': 4})
    """
    return {axis.key: axis.values[0] for axis in axes}, {axis.key: axis.values[-1] for axis in axes}


def check_points(config: RunConfig, axes: Sequence[Axis], method: Method, planned: bool) -> None:
    """Refuse what no trial could be made of, before anything is written."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise missing("fledge sweep", "optuna", "sweep") from None
    check_once(axes)
    check_effects(config, [axis.key for axis in axes])
    every = grid(list(axes)) if method == "grid" else [{axis.key: value} for axis in axes for value in axis.values]
    check_arms(
        config,
        [
            Arm(label(point), tuple(text for text in changes_of(point, config) if not text.endswith(f"={MAX}")))
            for point in every
        ],
        planned,
    )


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


def samples_sentence(outcomes: Sequence[Outcome]) -> str:
    """Whether the points saw equally much, as it came out."""
    seen = sorted({outcome.tokens for outcome in outcomes if outcome.status == "complete"})
    if len(seen) > 1:
        return (
            f"Points that ran to their end saw between {seen[0]:,} and {seen[-1]:,} tokens: as near to equal as whole "
            "steps of their batch sizes are."
        )
    much = f"{seen[0]:,}" if seen else "number of"
    return f"Every point that ran to its end saw the same {much} tokens: a larger batch took fewer steps."


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


def with_largest(
    config: RunConfig, folder: Path, axes: Sequence[Axis], seconds: float | None
) -> tuple[list[Axis], Largest | None]:
    """The axes with `max` replaced by the largest batch that this machine takes, and smaller ones left as they are."""
    if not any(MAX in axis.values for axis in axes):
        return list(axes), None
    largest = largest_batch(config, folder, seconds)
    found = []
    for axis in axes:
        if MAX in axis.values:
            given = [value for value in axis.values if value != MAX]
            if too_large := [value for value in given if value > largest.batch_size]:
                raise FledgeError(
                    f"--over {axis.key}: {too_large[0]:,} is more than max. {largest.sentence()} Leave it out."
                )
            axis = Axis(axis.key, tuple(dict.fromkeys([*given, largest.batch_size])), axis.log, axis.continuous)
        found.append(axis)
    return found, largest


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

    def point(self, params: Mapping[str, Any]) -> Point:
        return {axis.key: rounded(params[axis.key]) for axis in self.axes}

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


def rounded(value: Any) -> Any:
    """A number that reads well in names and tables, near enough to the one that was chosen."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
