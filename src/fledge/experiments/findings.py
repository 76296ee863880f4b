"""The page of an experiment: the table of its arms with their uncertainty, curves, samples, and its files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fledge.errors import FledgeError
from fledge.experiments.plan import ExperimentPlan, key_of
from fledge.experiments.setup import tokens_seen
from fledge.experiments.statistics import Estimate, apart, estimate, paired_difference
from fledge.experiments.trials import Outcome, by_arm, without_context_notes
from fledge.files import atomic_write
from fledge.plot import COLOURS, Curve, curves
from fledge.reports.memorised import add_memorised_arms, measure_memorised
from fledge.reports.page import Page, cell
from fledge.reports.quality import FINAL as NAMES

MOST_CURVES = len(COLOURS)
SAMPLE = 60
"Tokens of a sample in a report, at most."
METRICS = {"validation_loss": "nats per token", "bits_per_byte": "bits per byte"}
FINAL = {"validation_loss": "test_loss", "bits_per_byte": "test_bits_per_byte"}
"The same on the test part."


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


def add_arms(page: Page, plan: ExperimentPlan, outcomes: Sequence[Outcome], metric: str, reference: str | None) -> None:
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
                " ".join(with_former(change, plan.config) for change in arm.changes) or "as the recipe",
                str(estimate(values)) if values else "–",
                difference_text(found, base, metric) if reference and arm.name != reference else "–",
                f"{len(diverged)} of {len(found)}" if diverged else "none",
                f"{found[0].parameters:,}" if found else "–",
                tokens_seen(found).removesuffix(" tokens") if found else "–",
                f"{sum(speed) / len(speed):,.0f}" if speed else "–",
            )
        )
    page.heading("Result")
    page.table(["arm", "changes", METRICS[metric], "difference", "diverged", "parameters", "tokens", "tokens/s"], rows)
    if len(plan.seeds) > 1:
        page.paragraph(
            f"± is half the 95 % interval of the mean over the {len(plan.seeds)} seeds (Student's t). A difference is "
            f"the arm's loss less that of {reference!r}, seed by seed and before rounding: below zero is better. "
            "Better and worse are said where its interval leaves zero out; that none is shown does not make two arms "
            "equal. The intervals are not corrected for their number: of twenty changes without an effect, about one "
            "would be called better or worse by chance."
        )
    else:
        page.paragraph(
            "One seed: there is no interval, and small differences may be chance. Run with --seeds 3 to know."
        )
    if all(outcome.status == "complete" for outcome in outcomes):
        page.paragraph(f"All {len(outcomes)} trials ran to their last step, and every loss in the table is from there.")
    if final := final_figures(groups, metric):
        page.paragraph(final)
    page.paragraph("Speeds depend on what else the machine did meanwhile: arms are not to be compared by them.")


def final_figures(groups: Mapping[str, Sequence[Outcome]], metric: str) -> str:
    """What arms reach on the test part, lowest first; nothing where the text has no such part.

    >>> end = Outcome("a", 0, "complete", 1, 1, 1, 1.0, test_loss=2.5)
    >>> final_figures({"a": [end]}, "validation_loss")
    'On the test part, which no checkpoint or setting was chosen by, in nats per token: a 2.5000.'
    """
    found = {name: estimate(values) for name, ends in groups.items() if (values := arm_values(ends, FINAL[metric]))}
    told = ", ".join(f"{name} {found[name]}" for name in sorted(found, key=lambda name: found[name].mean))
    return f"On {NAMES['test']}, in {METRICS[metric]}: {told}." if told else ""


def with_former(change: str, config: Mapping[str, Any]) -> str:
    """A change with what the recipe has instead, where that says something.

    >>> with_former("model.norm=none", {"model": {"norm": "rms"}}), with_former("a.b=1", {"a": {"b": None}})
    ('model.norm=none (instead of rms)', 'a.b=1')
    """
    group, _, name = key_of(change).partition(".")
    former = config.get(group, {}).get(name)
    return change if former is None else f"{change} (instead of {former})"


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
    text = with_interval(value)
    if not math.isfinite(value.half_width):
        return text
    return f"{text} ({'worse' if value.mean > 0 else 'better'})" if apart(value) else f"{text} (no difference shown)"


def with_interval(value: Estimate) -> str:
    """
    >>> with_interval(Estimate(0.34, 0.02, 3)), with_interval(Estimate(-0.1, math.inf, 1))
    ('+0.3400 ± 0.0200', '-0.1000')
    """
    return f"{value.mean:+.4f}" + (f" ± {value.half_width:.4f}" if math.isfinite(value.half_width) else "")


def add_curves(page: Page, plan: ExperimentPlan, outcomes: Sequence[Outcome], folder: Path, note: str = "") -> None:
    """Validation loss of the first seed of each arm as it trained; of many arms, those that came furthest down.

    A `note` is said with them.
    """
    from matplotlib import rc_context

    first = [outcome for outcome in outcomes if outcome.seed == plan.seeds[0]]
    found = {o.arm: points for o in first if (points := read_curve(folder / o.folder, "tokens"))[0]}
    if not found:
        return
    best = sorted(found, key=lambda name: min(found[name][1]))[:MOST_CURVES]
    ends = [o.validation_loss for o in first if o.arm in best and o.validation_loss is not None]
    ceiling = 1.1 * max([*found[best[0]][1], *ends])  # a diverged loss would flatten all others

    def drawn(curves_found: Mapping[str, Curve]) -> dict[str, Curve]:
        low = {
            name: [(a, b) for a, b in zip(*line, strict=True) if b <= ceiling] for name, line in curves_found.items()
        }
        return {
            name: ([a for a, _ in low[name]], [b for _, b in low[name]]) for name in low if name in best and low[name]
        }

    lines = drawn(found)
    page.heading("Curves")
    left_out = f" The best {len(best)} of {len(found)} arms." if len(best) < len(found) else ""
    if any(len(lines[name][0]) < len(found[name][0]) for name in lines):
        left_out += f" Losses above {ceiling:.2f} are off the figure."
    if above := [name for name in best if name not in lines]:
        left_out += f" Not shown, for {'they lie' if len(above) > 1 else 'it lies'} above: {', '.join(above)}."
    if any(outcome.status == "pruned" for outcome in first):
        left_out += " A line that ends early is of a trial that was stopped."
    with rc_context({"lines.marker": "o", "lines.markersize": 3}):
        drawing = curves(lines, "tokens", "validation loss, nats per token")
    if len(plan.seeds) > 1:
        note += " The table has the means over all seeds."
    page.figure(drawing, f"Validation loss against tokens, seed {plan.seeds[0]} alone.{note}{left_out}")
    if timed := drawn({o.arm: read_curve(folder / o.folder, "seconds") for o in first}):
        with rc_context({"lines.marker": "o", "lines.markersize": 3}):
            drawing = curves(timed, "seconds", "validation loss, nats per token")
        page.figure(drawing, "The same against seconds, which depend on what else the machine did meanwhile.")


def read_curve(run: Path, x: str) -> Curve:
    from fledge.runs.metrics import read_metrics

    rows = [row for row in read_metrics(run / "metrics.csv") if row["validation_loss"] and row.get(x)]
    return [float(row[x]) for row in rows], [float(row["validation_loss"]) for row in rows]


def add_samples(page: Page, plan: ExperimentPlan, outcomes: Sequence[Outcome], folder: Path, prompt: str) -> None:
    """The same prompt, the same seed, each arm."""
    from fledge.run import load

    whole = [outcome for outcome in outcomes if outcome.seed == plan.seeds[0] and outcome.status == "complete"]
    if not whole:
        return
    start = repr(prompt) if prompt else "nothing (a new document)"
    page.heading("Samples")
    who = "the models" if len(whole) > 1 else "the model"
    page.paragraph(
        f"Written by {who} of seed {plan.seeds[0]} after {start}: up to {SAMPLE} tokens behind the ▸, at temperature "
        "0.7 with seed 0, whatever the recipe's own sampling is."
    )
    memorised = {}
    for outcome in whole:
        try:
            with without_context_notes():
                run = load(folder / outcome.folder)
                text = run.generate([prompt], temperature=0.7, max_tokens=SAMPLE, seed=0)[0].text
            with suppress(FledgeError):  # its tokens may have been removed since
                memorised[outcome.arm] = measure_memorised(run)
        except FledgeError as error:  # a report is worth having without what was since removed
            text = f" (no sample: {error})"
        page.quote(
            f"{outcome.arm}: {prompt}▸{text if text.strip() else ' (it ended at once, or wrote only white space)'}"
        )
    add_memorised_arms(page, memorised)


class Experiment(NamedTuple):
    """What was planned, what came of each trial, and the report on it, which a notebook shows."""

    plan: ExperimentPlan
    outcomes: list[Outcome]
    report: Path

    def _repr_html_(self) -> str:
        return cell(self.report).body


def write_findings(page: Page, outcomes: Sequence[Outcome], folder: Path) -> Path:
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
