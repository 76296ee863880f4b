"""Sweeps: one or several settings over a range, to the edge where training diverges.

Diverged points are results: the edge of divergence is part of the answer. Hopeless ones are stopped early, and said to
be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError
from fledge.experiments import findings, landscape
from fledge.experiments.checks import check_arms, check_effects
from fledge.experiments.engines import ONE_BY_ONE, Engine, alone_in
from fledge.experiments.findings import Experiment
from fledge.experiments.largest import FEWEST_STEPS, KEPT, Largest, largest_batch
from fledge.experiments.plan import (
    DATA,
    PLAN,
    Arm,
    Pace,
    check_folder,
    make_plan,
    tokens_differ,
    with_threads,
    with_windows,
)
from fledge.experiments.search import ROUND, Method, Search, batch_sizes, changes_of, equal_windows, study_errors
from fledge.experiments.setup import add_setup
from fledge.experiments.space import LARGEST_GRID, MATRIX_RATE, MAX, RATE, Axis, Point, check_once, grid, label
from fledge.experiments.timing import Cost, CostClock, pacer
from fledge.experiments.trials import Measure, Outcome
from fledge.extras import missing


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
        new, keys = not (folder / PLAN).is_file(), [axis.key for axis in axes]
        points = Points(config, folder, axes, method, trials or 20, equal_samples)
        runs, shared = points.count * seeds, with_threads(config, engine.sharing(config))
        if new:
            (folder / DATA / KEPT).unlink(missing_ok=True)  # of a sweep that was refused, with other settings or time
            if budget is not None and any(MAX in axis.values for axis in axes):
                # A budget that would not do for the recipe's own batch is refused before `max` is looked for.
                first = pacer(budget, budget_text, began, engine, folder, lambda s, clock: [clock.cost(s)] * runs)
                assert first is not None
                first(shared)
        points.find_largest(config, engine.planned(config) * budget / runs if budget else None)
        at_once = runs if method == "grid" else ROUND * seeds
        timer = pacer(
            budget, budget_text, began, engine, folder, lambda s, clock: points.costs(s, clock) * seeds, at_once
        )
        timed = points.pace(shared, timer, fewest_steps) if new else None
        arms, measure = points.arms(), Measure.of(keys)
        with_windows(config, arms, [arm.name for arm in arms], folder)
        plan = make_plan(
            "sweep",
            f"Which {' and '.join(keys)} is best for {config.name}?",
            config,
            arms or [Arm(method)],
            seeds,
            folder,
            (lambda settings: timed) if timer and timed else None,
            budget_text,
            engine.sharing(config),
            asked={
                "over": [axis.text() for axis in points.axes],
                "points": points.count,
                "equal_samples": equal_samples,
                "prune": prune,
            },
            tokens_hold=tokens_differ(config, keys, budget is not None or equal_samples),
        )
        if prune and not measure.plain:
            print(
                "No point is pruned, because losses are not comparable between different tokens or windows.", flush=True
            )
        prune = prune and measure.plain
        search = Search(
            plan, folder, points.axes, method, equal_samples, prune, engine, len(arms) or points.count, measure
        )
        outcomes = search.run()
        whole = method == "grid"
        page = landscape.sweep_page(plan, outcomes, points.axes, search.points, folder, measure, whole, equal_samples)
        for told in (
            matrix_rates(config, axes),
            points.largest and points.largest.sentence(),
            search.repeated_sentence(),
        ):
            if told:
                page.paragraph(told)
        add_setup(page, plan, command, outcomes, folder, keys)
        if equal_samples:
            page.paragraph(samples_sentence(outcomes))
        return Experiment(plan, outcomes, findings.write_findings(page, outcomes, folder))


class Points:
    """The points of a sweep while it is planned. `max` among its batch sizes becomes the largest that fits, and a
    smaller one where that would leave too few steps."""

    def __init__(
        self, config: RunConfig, folder: Path, axes: Sequence[Axis], method: Method, drawn: int, equal_samples: bool
    ) -> None:
        self.config, self.folder, self.asked, self.axes = config, folder, axes, axes
        self.method, self.equal_samples = method, equal_samples
        self.count = len(grid(list(axes))) if method == "grid" else drawn
        self.largest: Largest | None = None

    def find_largest(self, config: RunConfig, seconds: float | None) -> None:
        self.axes, self.largest = with_largest(config, self.folder, self.asked, seconds)

    def arms(self) -> list[Arm]:
        """All points of a grid; none where points are drawn."""
        points = grid(list(self.axes)) if self.method == "grid" else []
        return [Arm(label(point), changes_of(point, self.config)) for point in points]

    def costs(self, settings: RunConfig, clock: CostClock) -> list[Cost]:
        """Of one seed of every point; of points that are drawn, as if they lay at the ends of their ranges."""
        drawn = [ends(self.axes)[number % 2] for number in range(self.count)]
        points = grid(list(self.axes)) if self.method == "grid" else drawn
        changed = [override_config(settings, changes_of(point, settings)) for point in points]
        base_batch = self.config.training.batch_size if self.equal_samples else None
        return [clock.cost(each, base_batch) for each in changed]

    def pace(self, settings: RunConfig, timer: Callable[[RunConfig], Pace] | None, fewest_steps: int) -> Pace:
        """What fits, once it is sure that every batch size has its steps; the largest is lowered to that."""
        found = timer(settings) if timer else Pace(settings.steps, settings.training.evaluate_windows)
        if not self.equal_samples:
            return found
        batch = settings.training.batch_size
        if timer and self.largest and found.steps * batch < FEWEST_STEPS * self.largest.batch_size:
            (self.folder / DATA / KEPT).unlink()
            steps = max(1, int(0.8 * found.steps))  # smaller batches take longer, and fewer windows fit
            self.find_largest(override_config(settings, ["training.tokens=none", f"training.steps={steps}"]), None)
            found = timer(settings)
        equal_windows(found.steps, batch, batch_sizes(self.axes, settings, self.method), fewest_steps)
        return found


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
