"""What a sweep found: the best point, the edge of divergence, and the loss over the settings."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.experiments import findings
from fledge.experiments.page import Page
from fledge.experiments.space import BATCH, Axis, label
from fledge.experiments.statistics import estimate
from fledge.experiments.trials import Outcome, by_arm
from fledge.plot import curves

METRIC = "validation_loss"
RATE = "optimizer.learning_rate"


def answer(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> str:
    """The best point, and where training stops being possible."""
    groups = by_arm(outcomes)
    losses = {
        name: values
        for name, found in groups.items()
        if len(values := findings.arm_values(found, METRIC)) == len(found)
    }
    diverged = [name for name, found in groups.items() if any(outcome.status == "diverged" for outcome in found)]
    if not losses:
        return "Every point diverged: no answer. Begin the range lower."
    best = min(losses, key=lambda name: sum(losses[name]) / len(losses[name]))
    edge = (
        f" Training diverged at {'; '.join(diverged)}." if diverged else " No point diverged: the edge lies further up."
    )
    pruned = len(groups) - len(losses) - len(diverged)
    stopped = f" {pruned} of {len(groups)} points were stopped early as hopeless." if pruned else ""
    border = ""
    if len(axes) == 1 and axes[0].continuous and len(losses) > 2:
        ends = {label({axes[0].key: value}) for value in (axes[0].values[0], axes[0].values[-1])}
        border = " The best lies at the end of the range: widen it." if best in ends else ""
    best_loss = f"Best: {best}, with a validation loss of {estimate(losses[best])} nats per token."
    return f"{best_loss}{edge}{stopped}{border}{rates_by_batch(losses, axes)}"


def rates_by_batch(losses: dict[str, list[float]], axes: Sequence[Axis]) -> str:
    """Whether a larger batch wants a larger rate: the best rate of each batch size, where both were varied.

    >>> found = {"learning_rate=0.001 batch_size=1": [2.0], "learning_rate=0.01 batch_size=8": [1.5]}
    >>> axes = [Axis(RATE, (0.001, 0.01)), Axis(BATCH, (1, 8))]
    >>> rates_by_batch(found, axes)
    ' Best rate by batch size: 0.001 at 1, 0.01 at 8: 8 times the batch took 10 times the rate.'
    """
    if {axis.key for axis in axes} != {RATE, BATCH}:
        return ""
    best: dict[int, tuple[float, float]] = {}
    for name, values in losses.items():
        parts = dict(part.split("=", 1) for part in name.split(" "))
        batch, found = int(parts["batch_size"]), (sum(values) / len(values), float(parts["learning_rate"]))
        best[batch] = min(best.get(batch, found), found)
    sizes = sorted(best)
    rates = ", ".join(f"{best[size][1]:g} at {size:,}" for size in sizes)
    if len(sizes) < 2:
        return ""
    times, factor = sizes[-1] / sizes[0], best[sizes[-1]][1] / best[sizes[0]][1]
    return f" Best rate by batch size: {rates}: {times:,.3g} times the batch took {factor:.3g} times the rate."


def add_points(page: Page, outcomes: Sequence[Outcome]) -> None:
    page.heading("Result")
    rows = []
    for name, found in by_arm(outcomes).items():
        values = findings.arm_values(found, METRIC)
        ended = [outcome for outcome in found if outcome.status != "complete"]
        result = f"{ended[0].status} at step {ended[0].step:,}" if ended else str(estimate(values))
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
        f"Final validation loss over {first.key}; diverged and pruned points have none.",
    )
