"""What a sweep found: the best point, the edge of divergence, and the loss over the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fledge.experiments import findings
from fledge.experiments.plan import ExperimentPlan
from fledge.experiments.setup import unequal_tokens
from fledge.experiments.space import BATCH, RATE, Axis, Point
from fledge.experiments.statistics import estimate
from fledge.experiments.trials import Measure, Metric, Outcome, by_arm
from fledge.plot import curves
from fledge.reports.page import Page


def sweep_page(
    plan: ExperimentPlan,
    outcomes: Sequence[Outcome],
    axes: Sequence[Axis],
    points: Mapping[str, Point],
    folder: Path,
    measure: Measure,
    whole: bool,
    equal_samples: bool = False,
) -> Page:
    """The page of a sweep, all but its set-up; `points` are the settings behind each arm's name, of the `whole` grid or
    of some that were drawn."""
    metric = measure.metric
    page = Page(plan.question, sweep_answer(outcomes, axes, points, metric, whole, equal_samples))
    add_points(page, outcomes, metric)
    add_landscape(page, outcomes, axes, points, metric)
    findings.add_curves(page, plan, outcomes, folder, measure.note)
    findings.add_given_up(page, outcomes)
    if losses := whole_losses(outcomes, metric):
        best = best_arm(losses)
        prompt = str(plan.config["sampling"]["prompt"])
        findings.add_samples(page, plan, [o for o in outcomes if o.arm == best], folder, prompt)
    return page


def whole_losses(outcomes: Sequence[Outcome], metric: Metric) -> dict[str, list[float]]:
    """The losses of the points whose every seed ran to its end."""
    return {
        name: values
        for name, found in by_arm(outcomes).items()
        if len(values := findings.arm_values(found, metric)) == len(found)
    }


def best_arm(losses: Mapping[str, Sequence[float]]) -> str:
    return min(losses, key=lambda name: sum(losses[name]) / len(losses[name]))


def sweep_answer(
    outcomes: Sequence[Outcome],
    axes: Sequence[Axis],
    points: Mapping[str, Point],
    metric: Metric,
    whole: bool,
    equal_samples: bool = False,
) -> str:
    """The best point, where training stops being possible, and how far this can be trusted."""
    groups, losses = by_arm(outcomes), whole_losses(outcomes, metric)
    diverged = [name for name, found in groups.items() if any(outcome.status == "diverged" for outcome in found)]
    if not losses:
        all_of = "" if all(outcome.status == "diverged" for outcome in outcomes) else " with one seed or more"
        return f"Every point diverged{all_of}: no answer. Begin the range lower."
    best = best_arm(losses)
    once = len(groups[best]) == 1
    lowest = estimate(losses[best])
    near = [name for name in losses if name != best and estimate(losses[name]).overlaps(lowest)]
    which = "Lowest of one run each" if once else "Lowest" if near else "Best"
    unit, tokens = findings.METRICS[metric], groups[best][0].tokens
    parts = [f"{which}: {best}, with a validation loss of {lowest} {unit} after {tokens:,} tokens."]
    if final := findings.final_figures({best: groups[best]}, metric):
        parts.append(final)
    if once:
        parts.append(
            "One seed shows no uncertainty: near points may change places. --seeds 3 shows how far chance goes (a "
            "--budget is shared by all trials: give three times as much)."
        )
    elif near:
        others = f" and {len(near) - 3} more" * (len(near) > 3)
        parts.append(f"Its interval overlaps with that of {', '.join(near[:3])}{others}: they are not told apart.")
    parts.append(f"Training diverged at {'; '.join(diverged)}." if diverged else "No point diverged.")
    if pruned := len(groups) - len(losses) - len(diverged):
        parts.append(
            f"{pruned} of {len(groups)} points were stopped early, each when at least half of those run before it were "
            "better at the same step: how they would have ended is not known."
        )
        parts += [said for axis in axes if (said := unfinished_beside(axis, best, points, losses, diverged))]
    parts += [end for axis in axes if (end := at_end(axis, points[best][axis.key]))]
    if unequal := unequal_tokens(outcomes, [axis.key for axis in axes], equal_samples):
        parts.append(unequal)
    if whole and not pruned:
        # Elsewhere a batch size may have lost, or never been given, the rate that would have been its best.
        parts += rates_by_batch({name: sum(values) / len(values) for name, values in losses.items()}, axes, points)
    return " ".join(parts)


def numeric(axis: Axis) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in axis.values)


def at_end(axis: Axis, value: Any) -> str:
    """What to say where the best value is the first or the last of those tried.

    >>> at_end(Axis("model.layers", (1, 2, 4)), 4), at_end(Axis("model.layers", (1, 2, 4)), 1)
    ('The best layers is the largest tried: a better one may lie beyond.', '')
    """
    if not numeric(axis) or axis.low == axis.high or axis.low < value < axis.high or value == 1 == axis.low:
        return ""
    which = "largest" if value >= axis.high else "smallest"
    return f"The best {axis.key.rpartition('.')[2]} is the {which} tried: a better one may lie beyond."


def unfinished_beside(
    axis: Axis, best: str, points: Mapping[str, Point], losses: Mapping[str, Any], diverged: Sequence[str]
) -> str:
    """What to say where the value next to the best one was stopped early: then the best is not between two others.

    >>> axis, points = Axis("model.layers", (1, 2, 4)), {str(n): {"model.layers": n} for n in (1, 2, 4)}
    >>> unfinished_beside(axis, "2", points, {"1": 3.0, "2": 2.0}, [])
    'The next layers up, 4, was among these, so a better one may lie there: --no-prune runs all to their end.'
    """
    if not numeric(axis):
        return ""
    value, key = points[best][axis.key], axis.key
    others = {k: v for k, v in points[best].items() if k != key}
    line = {p[key]: name for name, p in points.items() if {k: v for k, v in p.items() if k != key} == others}
    for way, beyond in (("up", min), ("down", max)):
        further = [other for other in line if (other > value if way == "up" else other < value)]
        if further and (name := line[near := beyond(further)]) not in losses and name not in diverged:
            return (
                f"The next {key.rpartition('.')[2]} {way}, {near:g}, was among these, so a better one may lie there: "
                "--no-prune runs all to their end."
            )
    return ""


def rates_by_batch(losses: Mapping[str, float], axes: Sequence[Axis], points: Mapping[str, Point]) -> list[str]:
    """Whether a larger batch wants a larger rate: the best rate of each batch size, where both were varied.

    >>> axes = [Axis(RATE, (0.001, 0.01, 0.1)), Axis(BATCH, (1, 8))]
    >>> points = {"a": {RATE: 0.001, BATCH: 1}, "b": {RATE: 0.01, BATCH: 1}, "c": {RATE: 0.1, BATCH: 8}}
    >>> rates_by_batch({"a": 2.0, "b": 1.8, "c": 1.5}, axes, points)[0]
    'Best rate by batch size: 0.01 at 1, 0.1 at 8.'
    """
    if {axis.key for axis in axes} != {RATE, BATCH}:
        return []
    best: dict[int, tuple[float, float]] = {}
    for name, loss in losses.items():
        batch, found = int(points[name][BATCH]), (loss, float(points[name][RATE]))
        best[batch] = min(best.get(batch, found), found)
    sizes = sorted(best)
    if len(sizes) < 2:
        return []
    tried = next(axis for axis in axes if axis.key == RATE)
    said = [f"Best rate by batch size: {', '.join(f'{best[size][1]:g} at {size:,}' for size in sizes)}."]
    ends = [size for size in (sizes[0], sizes[-1]) if best[size][1] in (tried.low, tried.high)]
    if ends:
        where = " and ".join(f"{size:,}" for size in ends)
        said.append(
            f"At batch {where} that is an end of the rates tried, so how the best rate grows with the batch is not "
            "shown: widen the range."
        )
    else:
        times, factor = sizes[-1] / sizes[0], best[sizes[-1]][1] / best[sizes[0]][1]
        said.append(f"{times:,.3g} times the batch took {factor:.3g} times the rate, as near as the rates tried lie.")
    return said


def add_points(page: Page, outcomes: Sequence[Outcome], metric: Metric) -> None:
    page.heading("Result")
    rows = []
    for name, found in by_arm(outcomes).items():
        values = findings.arm_values(found, metric)
        ended = [outcome for outcome in found if outcome.status != "complete"]
        result = until(ended[0]) if ended else str(estimate(values))
        speeds = [outcome.tokens_per_second for outcome in found if outcome.tokens_per_second]
        rows.append((name, result, f"{found[0].tokens:,}", f"{sum(speeds) / len(speeds):,.0f}" if speeds else "–"))
    page.table(["point", f"validation loss ({findings.METRICS[metric]})", "tokens", "tokens/s"], rows)
    if any(outcome.status == "pruned" for outcome in outcomes):
        page.paragraph("A point that was stopped early is not thereby worse than every one that ran to its end.")
    page.paragraph("Speeds depend on what else the machine did meanwhile.")
    if len({outcome.seed for outcome in outcomes}) > 1:
        page.paragraph("± is half the 95 % interval of the mean over the seeds (Student's t).")


def until(outcome: Outcome) -> str:
    """How far a trial came that was not run to its end.

    >>> until(Outcome("a", 0, "pruned", 280, 1, 1, 1.0, reached=4.2))
    '4.2000 at step 280, then pruned'
    """
    if outcome.status == "diverged" or outcome.reached is None:
        return f"{outcome.status} at step {outcome.step:,}"
    return f"{outcome.reached:.4f} at step {outcome.step:,}, then {outcome.status}"


def add_landscape(
    page: Page, outcomes: Sequence[Outcome], axes: Sequence[Axis], points: Mapping[str, Point], metric: Metric
) -> None:
    """The loss over the first numeric setting, one curve for each value of the others; × where training diverged."""
    from cycler import cycler
    from matplotlib import rc_context

    first = next((axis for axis in axes if numeric(axis)), None)
    lines: dict[str, dict[float, list[float]]] = {}
    diverged = set()
    for outcome in outcomes if first else ():
        values = dict(points[outcome.arm])
        x = float(values.pop(first.key)) if first else 0.0
        if outcome.status == "diverged":
            diverged.add(x)
        if (loss := getattr(outcome, metric)) is not None:
            name = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items()) or "validation loss"
            lines.setdefault(name, {}).setdefault(x, []).append(loss)
    if first is None or not lines:
        return
    drawn = {
        name: (sorted(found), [sum(found[x]) / len(found[x]) for x in sorted(found)]) for name, found in lines.items()
    }
    styles = cycler(marker=["o"] * len(drawn), linestyle=["-"] * len(drawn))
    if diverged:
        losses = [loss for _, ys in drawn.values() for loss in ys]
        top = max(losses) + 0.1 * (max(losses) - min(losses) or 1)
        drawn["diverged"] = (sorted(diverged), [top] * len(diverged))
        styles = styles.concat(cycler(marker=["x"], linestyle=["none"]))
    page.heading("Landscape")
    with rc_context({"axes.prop_cycle": styles, "lines.markersize": 5}):
        drawing = curves(
            drawn,
            first.key,
            f"validation loss, {findings.METRICS[metric]}",
            log_x=first.low > 0 and (first.log or first.high / first.low >= 10),
        )
    marked = " × at the top: training diverged there, to a loss too high to draw." if diverged else ""
    stopped = sorted({float(points[o.arm][first.key]) for o in outcomes if o.status == "pruned"})
    pruned = f" Not drawn, because stopped early: {', '.join(f'{x:g}' for x in stopped)}." if stopped else ""
    page.figure(drawing, f"Final validation loss over {first.key}.{marked}{pruned}")
