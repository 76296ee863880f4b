"""The page of an experiment: question, answer with its uncertainty, table, curves, samples, and how to repeat it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from fledge.experiments.page import Page
from fledge.experiments.plan import Plan
from fledge.experiments.statistics import Estimate, apart, estimate, paired_difference
from fledge.experiments.trials import Outcome, by_arm
from fledge.files import atomic_write
from fledge.plot import Curve, curves

MOST_CURVES = 10
METRICS = {"validation_loss": "nats per token", "bits_per_byte": "bits per byte"}


def begin(plan: Plan, answer: str) -> Page:
    """A page with the question as its title and the answer right below it."""
    page = Page(plan.question, answer)
    return page


def add_setup(page: Page, plan: Plan, command: str, outcomes: Sequence[Outcome], parallel: int) -> None:
    """What was run and where, for a reader who has only the page, and the command that runs it again."""
    from fledge import __version__

    config = plan.config
    model, training, tokens = config["model"], config["training"], config["tokens"]
    page.heading("Set-up")
    steps, optimizer = plan.facts.get("steps", 0), config["optimizer"]
    page.paragraph(
        f"Recipe {config['name']} on {', '.join(config['corpus']['source'])}: {model['architecture']}, "
        f"{model['layers']} layers, width {model['width']}, context {tokens['context_length']}, "
        f"batch {training['batch_size']}, {steps:,} steps, optimizer {optimizer['name']}, "
        f"peak learning rate {optimizer['learning_rate']:g}. Seeds: {', '.join(map(str, plan.seeds))}; all arms see "
        "the same data in the same order. Losses are on held-out text, the same windows each time."
    )
    if plan.facts.get("budget"):
        page.paragraph(
            f"The time budget of {plan.facts['budget']} was turned into steps once; the plan keeps the number."
        )
    if parallel > 1:
        page.paragraph(
            f"Up to {parallel} trials ran at once: seconds and tokens/s are of a machine that they shared, not of one "
            "trial alone."
        )
    page.code(command)
    machines = sorted({outcome.machine for outcome in outcomes if outcome.machine})
    page.paragraph("; ".join([f"fledge {__version__}", *machines]) + ".")


def add_given_up(page: Page, outcomes: Sequence[Outcome]) -> None:
    """The trials that were not run to their end, and why: a diverged one is a result, a pruned one a saving."""
    rows = [
        (f"{outcome.arm}, seed {outcome.seed}", outcome.status, f"{outcome.step:,}", outcome.why)
        for outcome in outcomes
        if outcome.status != "complete"
    ]
    if rows:
        page.heading("Not run to the end")
        page.table(["trial", "", "step", "why"], rows)


def arm_values(outcomes: Sequence[Outcome], metric: str) -> list[float]:
    return [value for outcome in outcomes if (value := getattr(outcome, metric)) is not None]


def add_arms(page: Page, plan: Plan, outcomes: Sequence[Outcome], metric: str, reference: str | None) -> None:
    """One row an arm: the mean with its interval, and the difference to the reference arm, seed by seed."""
    groups = by_arm(outcomes)
    base = {outcome.seed: outcome for outcome in groups.get(reference or "", [])}
    rows = []
    for arm in plan.arms:
        found = groups.get(arm.name, [])
        values = arm_values(found, metric)
        diverged = [outcome for outcome in found if outcome.status == "diverged"]
        speed = [outcome.tokens_per_second for outcome in found if outcome.tokens_per_second]
        rows.append(
            (
                arm.name,
                " ".join(arm.changes) or "as the recipe",
                str(estimate(values)) if values else "–",
                difference_text(found, base, metric) if reference and arm.name != reference else "–",
                f"{len(diverged)} of {len(found)}" if diverged else "none",
                f"{found[0].parameters:,}" if found else "–",
                f"{sum(speed) / len(speed):,.0f}" if speed else "–",
            )
        )
    page.heading("Result")
    page.table(
        [
            "arm",
            "changes",
            METRICS[metric],
            f"against {reference or '–'}",
            "diverged",
            "parameters",
            "tokens/s",
        ],
        rows,
    )
    if len(plan.seeds) > 1:
        page.paragraph(
            "± is the 95 % interval of the mean over the seeds (Student's t); differences are taken seed by seed."
        )
    else:
        page.paragraph(
            "One seed: there is no interval, and small differences may be chance. Run with --seeds 3 to know."
        )


def difference(found: Sequence[Outcome], base: dict[int, Outcome], metric: str) -> Estimate | None:
    pairs = [
        (first, second)
        for outcome in found
        if outcome.seed in base
        and (first := getattr(base[outcome.seed], metric)) is not None
        and (second := getattr(outcome, metric)) is not None
    ]
    return paired_difference([a for a, _ in pairs], [b for _, b in pairs]) if pairs else None


def difference_text(found: Sequence[Outcome], base: dict[int, Outcome], metric: str) -> str:
    value = difference(found, base, metric)
    if value is None:
        return "–"
    text = f"{value.mean:+.4f}" + (f" ± {value.half_width:.4f}" if math.isfinite(value.half_width) else "")
    if not math.isfinite(value.half_width):
        return text
    return f"{text} ({'worse' if value.mean > 0 else 'better'})" if apart(value) else f"{text} (no difference shown)"


def add_curves(page: Page, plan: Plan, outcomes: Sequence[Outcome], folder: Path, x: str = "tokens") -> None:
    """Validation loss of the first seed of each arm as it trained; of many arms, those that came furthest down."""
    found = {
        outcome.arm: points
        for outcome in outcomes
        if outcome.seed == plan.seeds[0] and (points := read_curve(folder / outcome.folder, x))[0]
    }
    if not found:
        return
    best = sorted(found, key=lambda name: min(found[name][1]))[:MOST_CURVES]
    ceiling = 1.2 * max(found[best[0]][1])  # a diverged loss would flatten all others
    lines = {
        name: ([a for a, b in zip(xs, ys, strict=True) if b <= ceiling], [b for b in ys if b <= ceiling])
        for name, (xs, ys) in found.items()
        if name in best
    }
    page.heading("Curves")
    left_out = f" The best {len(best)} of {len(found)} arms." if len(best) < len(found) else ""
    page.figure(
        curves(lines, x, "validation loss, nats per token"),
        f"Validation loss against {x}, seed {plan.seeds[0]}.{left_out}",
    )


def read_curve(run: Path, x: str) -> Curve:
    from fledge.training.metrics import read_metrics

    rows = [row for row in read_metrics(run / "metrics.csv") if row["validation_loss"] and row.get(x)]
    return [float(row[x]) for row in rows], [float(row["validation_loss"]) for row in rows]


def add_samples(page: Page, plan: Plan, outcomes: Sequence[Outcome], folder: Path, prompt: str) -> None:
    """The same prompt, the same seed, each arm."""
    from fledge.run import load

    page.heading("Samples")
    page.paragraph(f"Each arm goes on from {prompt!r}, temperature 0.7, seed 0.")
    for outcome in outcomes:
        if outcome.seed == plan.seeds[0] and outcome.status == "complete":
            text = load(folder / outcome.folder).generate([prompt], temperature=0.7, max_tokens=60, seed=0)[0].text
            page.quote(f"{outcome.arm}: {prompt}▸{text}")


def write(page: Page, outcomes: Sequence[Outcome], folder: Path) -> Path:
    """`report.html`, the same as Markdown, and every outcome as CSV."""
    page.write(folder / "report.md")
    names = [name for name in Outcome.__dataclass_fields__ if name != "why"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[getattr(outcome, name) for name in names] for outcome in outcomes])
    with atomic_write(folder / "outcomes.csv") as file:
        file.write(text.getvalue().encode())
    return page.write(folder / "report.html")
