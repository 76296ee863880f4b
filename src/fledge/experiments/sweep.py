"""Sweeps: one or several settings over a range, to the edge where training diverges. Through Optuna, resumable.

The study lies in the experiment's folder as SQLite; a point that was run before is read, not run again. Diverged points
are results: the edge of divergence is part of the answer. Hopeless ones are stopped early where asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError
from fledge.experiments import findings
from fledge.experiments.page import Page
from fledge.experiments.plan import Arm, Plan, make_plan
from fledge.experiments.space import Axis, Point, grid, label, overrides
from fledge.experiments.statistics import estimate
from fledge.experiments.trials import Outcome, by_arm, describe, run_trial
from fledge.plot import curves

Method = Literal["grid", "random", "tpe"]
METRIC = "validation_loss"


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
) -> tuple[Plan, list[Outcome], Path]:
    """Run the points that the method chooses, every seed of each, and write the report.

    With `equal_samples` a larger batch takes fewer steps, so that every point sees the same number of windows.
    """
    points = grid(list(axes)) if method == "grid" else []
    count = len(points) if method == "grid" else (trials or 20)
    arms = [Arm(label(point), tuple(overrides(point))) for point in points]
    for arm in arms:
        override_config(config, arm.changes)
    question = f"Which {' and '.join(axis.key for axis in axes)} is best for {config.name}?"
    seconds = budget / (count * seeds) if budget else None
    plan = make_plan("sweep", question, config, arms or [Arm(method)], seeds, seconds, budget_text, folder)
    outcomes = _search(plan, folder, list(axes), method, count, points, equal_samples)
    page = findings.begin(plan, answer(outcomes, axes))
    add_points(page, outcomes)
    add_landscape(page, outcomes, axes)
    findings.add_setup(page, plan, command)
    return plan, outcomes, findings.write(page, outcomes, folder)


def _search(
    plan: Plan, folder: Path, axes: list[Axis], method: Method, count: int, points: list[Point], equal_samples: bool
) -> list[Outcome]:
    try:
        import optuna
    except ImportError:
        raise FledgeError("Sweeps need Optuna: pip install 'fledge[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers: dict[Method, Any] = {
        "grid": lambda: optuna.samplers.GridSampler({axis.key: list(axis.values) for axis in axes}, seed=0),
        "random": lambda: optuna.samplers.RandomSampler(seed=0),
        "tpe": lambda: optuna.samplers.TPESampler(seed=0),
    }
    study = optuna.create_study(
        study_name=plan.kind,
        storage=f"sqlite:///{(folder / 'study.db').absolute()}",
        sampler=samplers[method](),
        direction="minimize",
        load_if_exists=True,
    )
    base = RunConfig.model_validate(plan.config)
    outcomes: list[Outcome] = []

    def measure(point: Point) -> float | None:
        """The mean over the seeds, or None where one diverged."""
        found = []
        for seed in plan.seeds:
            config = override_config(base, [*overrides(point), f"training.seed={seed}"])
            if equal_samples:
                windows = base.steps * base.training.batch_size
                config = override_config(config, [f"training.steps={max(1, windows // config.training.batch_size)}"])
            outcome = run_trial(label(point), config, folder)
            outcomes.append(outcome)
            found.append(outcome.validation_loss)
            print(f"{len(outcomes)}/{count * len(plan.seeds)} {describe(outcome)}", flush=True)
        losses = [loss for loss in found if loss is not None]
        return sum(losses) / len(losses) if len(losses) == len(found) else None

    finished = {str(trial.params): trial for trial in study.trials if trial.state.is_finished()}
    if method == "grid":
        for point in points:
            loss = measure(point)
            if str(point) not in finished:
                _record(study, axes, point, loss)
        return outcomes
    for trial in finished.values():
        measure(dict(trial.params))
    for _ in range(count - len(finished)):
        asked = study.ask()
        point = {axis.key: suggest(asked, axis) for axis in axes}
        loss = measure(point)
        state = optuna.trial.TrialState.PRUNED if loss is None else optuna.trial.TrialState.COMPLETE
        study.tell(asked, loss, state=state)
    return outcomes


def _record(study: Any, axes: list[Axis], point: Point, loss: float | None) -> None:
    import optuna

    distributions: dict[str, Any] = {
        axis.key: optuna.distributions.CategoricalDistribution(list(axis.values)) for axis in axes
    }
    state = optuna.trial.TrialState.PRUNED if loss is None else optuna.trial.TrialState.COMPLETE
    study.add_trial(optuna.trial.create_trial(params=point, distributions=distributions, value=loss, state=state))


def suggest(trial: Any, axis: Axis) -> Any:
    """A value between the ends of a range, or one of a list."""
    if not axis.continuous:
        return trial.suggest_categorical(axis.key, list(axis.values))
    if all(isinstance(value, int) for value in axis.values):
        return trial.suggest_int(axis.key, int(axis.low), int(axis.high), log=axis.log)
    return float(f"{trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log):.4g}")


def answer(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> str:
    """The best point, and where training stops being possible."""
    groups = by_arm(outcomes)
    losses = {
        name: values
        for name, found in groups.items()
        if len(values := findings.arm_values(found, METRIC)) == len(found)
    }
    diverged = [name for name in groups if name not in losses]
    if not losses:
        return "Every point diverged: no answer. Begin the range lower."
    best = min(losses, key=lambda name: sum(losses[name]) / len(losses[name]))
    edge = (
        f" Training diverged at {'; '.join(diverged)}." if diverged else " No point diverged: the edge lies further up."
    )
    border = ""
    if len(axes) == 1 and axes[0].continuous and len(losses) > 2:
        ends = {label({axes[0].key: value}) for value in (axes[0].values[0], axes[0].values[-1])}
        border = " The best lies at the end of the range: widen it." if best in ends else ""
    return f"Best: {best}, with a validation loss of {estimate(losses[best])} nats per token.{edge}{border}"


def add_points(page: Page, outcomes: Sequence[Outcome]) -> None:
    page.heading("Result")
    rows = []
    for name, found in by_arm(outcomes).items():
        values = findings.arm_values(found, METRIC)
        diverged = [outcome for outcome in found if outcome.status == "diverged"]
        result = f"diverged at step {diverged[0].step}" if diverged else str(estimate(values))
        speeds = [outcome.tokens_per_second for outcome in found if outcome.tokens_per_second]
        rows.append((name, result, f"{found[0].tokens:,}", f"{sum(speeds) / len(speeds):,.0f}" if speeds else "–"))
    page.table(["point", "validation loss (nats per token)", "tokens", "tokens/s"], rows)


def add_landscape(page: Page, outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> None:
    """The loss over the first numeric setting, one curve for each value of the others."""
    first = next((axis for axis in axes if all(isinstance(v, (int, float)) for v in axis.values)), None)
    if first is None:
        return
    lines: dict[str, dict[float, list[float]]] = {}
    for outcome in outcomes:
        if outcome.validation_loss is None:
            continue
        values = dict(part.split("=", 1) for part in outcome.arm.split(" "))
        x = float(values.pop(first.key.rpartition(".")[2]))
        name = " ".join(f"{key}={value}" for key, value in values.items()) or "validation loss"
        lines.setdefault(name, {}).setdefault(x, []).append(outcome.validation_loss)
    if not lines:
        return
    drawn = {
        name: (sorted(points), [sum(points[x]) / len(points[x]) for x in sorted(points)])
        for name, points in lines.items()
    }
    page.heading("Landscape")
    page.figure(
        curves(
            drawn,
            first.key,
            "validation loss, nats per token",
            log_x=first.log or first.low > 0 < first.high / first.low - 20,
        ),
        f"Final validation loss over {first.key}; diverged points have none.",
    )
