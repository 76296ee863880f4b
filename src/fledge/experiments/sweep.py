"""Sweeps: one or several settings over a range, to the edge where training diverges. Through Optuna, resumable.

The study lies in the experiment's folder as SQLite; a point that was run before is read, not run again. Diverged points
are results: the edge of divergence is part of the answer. Hopeless ones are stopped early, and said to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fledge.config import RunConfig, override_config, parse
from fledge.errors import FledgeError
from fledge.experiments import findings, landscape
from fledge.experiments.engines import ONE_BY_ONE, Engine, run_trials
from fledge.experiments.largest import Largest, largest_batch
from fledge.experiments.plan import Arm, Plan, make_plan
from fledge.experiments.space import MAX, Axis, Point, grid, label, overrides
from fledge.experiments.timing import EVALUATIONS, Clock, Cost, pacer
from fledge.experiments.trials import Outcome, Trial, with_rivals

Method = Literal["grid", "random", "tpe"]
ROUND = 4
"Points that random and tpe choose at once, however many run at once: so the points do not depend on it."


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
) -> tuple[Plan, list[Outcome], Path]:
    """Run the points that the method chooses, every seed of each, and write the report.

    With `equal_samples` a larger batch takes fewer steps, so that every point sees the same number of windows.
    """
    points = grid(list(axes)) if method == "grid" else []
    count = len(points) if method == "grid" else (trials or 20)
    for point in points:
        override_config(config, [text for text in overrides(point) if not text.endswith(f"={MAX}")])
    seconds_each = engine.parallel * budget / (count * seeds) if budget else None
    axes, largest = with_largest(config, folder, axes, seconds_each)
    points = grid(list(axes)) if method == "grid" else []
    arms = [Arm(label(point), tuple(overrides(point))) for point in points]
    base_batch = config.training.batch_size if equal_samples else None

    def costs(settings: RunConfig, clock: Clock) -> list[Cost]:
        changed = [override_config(settings, arm.changes) for arm in arms] or [settings] * count
        return [clock.cost(each, base_batch) for each in changed] * seeds

    question = f"Which {' and '.join(axis.key for axis in axes)} is best for {config.name}?"
    pace = pacer(budget, budget_text, engine.parallel, folder, costs)
    plan = make_plan(
        "sweep", question, config, arms or [Arm(method)], seeds, folder, pace, budget_text, engine.parallel
    )
    search = Search(plan, folder, axes, equal_samples, prune, engine, count)
    outcomes = search.grid(points) if method == "grid" else search.sampled(method)
    page = findings.begin(plan, landscape.answer(outcomes, axes))
    landscape.add_points(page, outcomes)
    if largest is not None:
        page.paragraph(largest.sentence())
    landscape.add_landscape(page, outcomes, axes)
    findings.add_curves(page, plan, outcomes, folder)
    findings.add_given_up(page, outcomes)
    findings.add_setup(page, plan, command, outcomes, engine.parallel)
    if equal_samples:
        page.paragraph(
            "Every point saw the same number of windows: a larger batch took fewer steps. The steps above are those of "
            "the recipe's batch."
        )
    return plan, outcomes, findings.write(page, outcomes, folder)


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
        plan: Plan,
        folder: Path,
        axes: Sequence[Axis],
        equal_samples: bool,
        prune: bool,
        engine: Engine,
        count: int,
    ) -> None:
        try:
            import optuna
        except ImportError:
            raise FledgeError("Sweeps need Optuna: pip install 'fledge[sweep]'.") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.plan, self.folder, self.axes, self.engine, self.count = plan, folder, axes, engine, count
        self.equal_samples, self.prune = equal_samples, prune
        self.base = parse(RunConfig, plan.config)
        self.trials: list[Trial] = []
        self.outcomes: list[Outcome] = []
        self.study: Any = optuna.create_study(
            study_name=plan.kind,
            storage=f"sqlite:///{(folder / 'study.db').absolute()}",
            direction="minimize",
            load_if_exists=True,
        )

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
        while len(self.outcomes) < self.count * len(self.plan.seeds):
            done = len(self.outcomes) // len(self.plan.seeds)
            size = min(ROUND, self.count - done)
            chosen = [(trial.number, trial.params) for trial in known[done : done + size]]
            while len(chosen) < size:
                number = done + len(chosen)  # a seed for each point, so that a resumed study chooses the same ones
                kind = optuna.samplers.RandomSampler if method == "random" else optuna.samplers.TPESampler
                self.study.sampler = kind(seed=number)
                asked = self.study.ask()
                chosen.append((asked.number, {axis.key: suggest(asked, axis) for axis in self.axes}))
            open_trials = {trial.number for trial in self.study.trials if trial.state == states.RUNNING}
            points = [{axis.key: rounded(params[axis.key]) for axis in self.axes} for _, params in chosen]
            for (number, _), (_, loss) in zip(chosen, self.measure(points), strict=True):
                if number in open_trials:
                    self.study.tell(number, loss, state=states.PRUNED if loss is None else states.COMPLETE)
        return self.outcomes

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
                losses = [each.validation_loss for each in found[-len(self.plan.seeds) :]]
                whole = [loss for loss in losses if loss is not None]
                loss = sum(whole) / len(whole) if len(whole) == len(losses) else None
                yield points[len(found) // len(self.plan.seeds) - 1], loss

    def trial(self, point: Point, seed: int) -> Trial:
        base = self.base
        config = override_config(base, [*overrides(point), f"training.seed={seed}"])
        if self.equal_samples and config.training.batch_size != base.training.batch_size:
            steps = max(1, base.steps * base.training.batch_size // config.training.batch_size)
            length = {
                "training.steps": steps,
                "training.evaluate_every": max(1, steps // EVALUATIONS),
                "training.log_every": max(1, steps // 100),
                "schedule.warmup_steps": round(steps * base.schedule.warmup_steps / base.steps),
            }
            config = override_config(config, [f"{key}={value}" for key, value in length.items()])
        return Trial(label(point), config)


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
