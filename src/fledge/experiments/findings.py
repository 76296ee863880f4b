"""The page of an experiment: question, answer with its uncertainty, table, curves, samples, and how to repeat it."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fledge.config import RunConfig, load_recipe, parse, recipe_names, setting_changes
from fledge.config.writing import settings_text
from fledge.errors import FledgeError
from fledge.experiments.places import seen_at_once
from fledge.experiments.plan import NOTES, OF_STEP, TIMING, ExperimentPlan, key_of, with_shared_data
from fledge.experiments.space import BATCH
from fledge.experiments.statistics import Estimate, apart, estimate, paired_difference
from fledge.experiments.trials import LENGTH, Outcome, by_arm, without_context_notes
from fledge.files import atomic_write, readable_bytes
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


def add_setup(
    page: Page,
    plan: ExperimentPlan,
    command: str,
    outcomes: Sequence[Outcome],
    folder: Path,
    varied: Collection[str] = (),
) -> None:
    """What was run and where, for a reader who has only the page, and the command that runs it again.

    Settings that are `varied`, or that every arm changes, are not told as if one value had held for all.
    """
    from fledge import __version__

    config = plan.config
    model, training, tokens, optimizer = (config[group] for group in ("model", "training", "tokens", "optimizer"))
    page.heading("Set-up")
    steps, layers, rate = plan.facts.get("steps", 0), model["layers"], "optimizer.learning_rate"
    by_arms = [{key_of(change) for change in arm.changes} for arm in plan.arms]
    shared = {key for key in by_arms[0] if all(key in keys for keys in by_arms)} | set(varied)
    told = {
        "model.architecture": str(model["architecture"]),
        "model.layers": f"{layers} layer{'s' * (layers != 1)}",
        "model.width": f"width {model['width']}",
        "tokens.context_length": f"context {tokens['context_length']}",
        "training.batch_size": f"batch {training['batch_size']}",
        "training.steps": told_tokens(outcomes)
        if training["tokens"] and outcomes
        else f"{steps:,} steps" + (f" of batch {training['batch_size']}" * ("training.batch_size" in shared)),
        "optimizer.name": f"optimizer {optimizer['name']}",
        rate: f"peak learning rate {optimizer['learning_rate']:g}"
        + f" ({optimizer['matrix_learning_rate']:g} for matrices)" * (optimizer["name"] == "muon"),
    }
    keys = {key for names in (*by_arms, varied) for key in names}
    own_data = any(key.startswith(("corpus.", "tokenizer.", "tokens.")) for key in keys)
    same_order = "; all arms see the same data in the same order" * (not own_data and not keys & {BATCH, *LENGTH})
    page.paragraph(
        f"Recipe {config['name']} on {', '.join(map(source_title, config['corpus']['source']))}: "
        f"{', '.join(text for key, text in told.items() if key not in shared)}. {sizes_sentence(outcomes)}"
        f"Seeds: {', '.join(map(str, plan.seeds))}{same_order}."
    )
    page.paragraph(data_sentences(parse(RunConfig, config), folder, shared=not own_data))
    if own := recipe_changes(parse(RunConfig, config)):
        page.paragraph(f"Changed from the packaged recipe: {own}.")
    for note in plan.facts.get(NOTES, ()) if plan.kind != "compare" else ():  # a comparison tells them with its arms
        page.paragraph(note)
    if plan.facts.get("budget"):
        first = f" of {next(iter(plan.facts['arm_steps']))}" if "arm_steps" in plan.facts else ""
        page.paragraph(
            f"The time budget of {plan.facts['budget']} for all trials together was turned into {steps:,} steps for "
            f"each{first}, once, by measuring this machine; plan.json keeps the number."
        )
    if (at_once := seen_at_once(folder)) > 1:
        page.paragraph(
            f"Up to {at_once} trials ran at once: seconds and tokens/s are of a machine that they shared, not of one "
            "trial alone."
        )
    page.code(command)
    if plan.facts.get("budget"):
        page.paragraph("For as many steps on any machine:")
        page.code(without_budget(command, steps, training["evaluate_windows"]))
    machines = sorted({outcome.machine for outcome in outcomes if outcome.machine})
    page.paragraph("; ".join([f"fledge {__version__}", *machines]) + ".")
    page.code(settings_text(config), "Every setting; arms differ from it by what they name, and seeds by training.seed")


def without_budget(command: str, steps: int, evaluate_windows: int) -> str:
    """The same command with the steps that the budget became in its place; what they replace is left out.

    >>> without_budget("fledge ablate akjv --budget=15m --set training.tokens=900 --seeds 2", 60, 32)
    'fledge ablate akjv --set training.steps=60 --set training.tokens=none --set training.evaluate_windows=32 --seeds 2'
    """
    lengths = {"training.steps": steps, "training.tokens": "none", "training.evaluate_windows": evaluate_windows}
    if "--budget" not in command:
        return command
    words, kept, place = shlex.split(command), [], None
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in ("--budget", "--set"):
            kept.append(name + equals + value)
            continue
        value = value if equals else words.pop(0)
        if name == "--budget":
            place = len(kept)
        elif key_of(value) not in lengths:
            kept += ["--set", value]
    same = [word for key, value in lengths.items() for word in ("--set", f"{key}={value}")]
    return shlex.join(kept if place is None else [*kept[:place], *same, *kept[place:]])


def recipe_changes(config: RunConfig) -> str:
    """What a person has set otherwise than the packaged recipe of this name; lengths and logs are the plan's."""
    if config.name not in recipe_names():
        return ""
    planned = ("training.", "schedule.warmup_steps")
    found = setting_changes(load_recipe(config.name), config)
    own = {key: pair for key, pair in found.items() if not key.startswith(planned) or key == BATCH}
    return ", ".join(f"{key} = {new} ({old} there)" for key, (old, new) in own.items())


def source_title(source: str) -> str:
    return "akjv (the Bible)" if source == "akjv" else source


def sizes_sentence(outcomes: Sequence[Outcome]) -> str:
    """How large the models are."""
    sizes = sorted({outcome.parameters for outcome in outcomes})
    if not sizes:
        return ""
    return f"{sizes[0]:,} parameters. " if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} parameters. "


def data_sentences(config: RunConfig, folder: Path, shared: bool) -> str:
    """The recipe's tokenizer, how much text there is to learn from, and what of the rest a loss is measured on.

    That is `shared` where no arm has tokens or windows of its own.
    """
    from fledge.run import Run

    run = Run(with_shared_data(config, folder.absolute()), folder / TIMING, quiet=True)
    train, held_out = run.tokens.split("train"), run.tokens.split("validation")
    windows = run.windows("validation")
    seen, length = min(config.training.evaluate_windows, len(windows)), config.tokens.context_length
    which = f"{seen:,} of their {len(windows):,} windows" if seen < len(windows) else f"all their {seen:,} windows"
    drawn = ", drawn at random once for each seed" if seen < len(windows) else ""
    return (
        f"Tokenizer {config.tokenizer.kind} with a vocabulary of {run.tokens.vocabulary_size:,}; "
        f"{len(train.tokens):,} tokens to train on ({readable_bytes(train.source_bytes)} of text), "
        f"{len(held_out.tokens):,} held out ({readable_bytes(held_out.source_bytes)}). A validation loss is the mean "
        f"over {which} of {length:,} tokens{drawn}: the same at every evaluation{' and for every arm' * shared}."
    )


def tokens_seen(outcomes: Sequence[Outcome]) -> str:
    """How many tokens the trials were trained on that ran to their end.

    >>> ends = [Outcome(name, 0, "complete", 1, seen, 1, 1.0) for name, seen in (("a", 5120), ("b", 40960))]
    >>> tokens_seen(ends[:1]), tokens_seen(ends)
    ('5,120 tokens', '5,120 to 40,960 tokens')
    """
    seen = sorted({o.tokens for o in outcomes if o.status == "complete"} or {o.tokens for o in outcomes})
    return f"{seen[0]:,} tokens" if len(seen) == 1 else f"{seen[0]:,} to {seen[-1]:,} tokens"


def told_tokens(outcomes: Sequence[Outcome]) -> str:
    """The length of the trials where tokens were set: whole steps of unequal batches come close to it, each in its way.

    >>> ends = [Outcome(name, 0, "complete", 1, seen, 1, 1.0) for name, seen in (("a", 7680), ("b", 7168))]
    >>> told_tokens(ends[:1]), told_tokens(ends)
    ('7,680 tokens for each arm', '7,168 to 7,680 tokens')
    """
    told = tokens_seen(outcomes)
    return told if " to " in told else f"{told} for each arm"


def unequal_tokens(outcomes: Sequence[Outcome], keys: Collection[str], equal_samples: bool = False) -> str:
    """What to say where trials that differ in `keys` were not trained on equally many tokens, and how they would be.

    >>> ends = [Outcome(name, 0, "complete", 1, seen, 1, 1.0) for name, seen in (("a", 5120), ("b", 40960))]
    >>> unequal_tokens(ends, ["tokens.context_length"]).partition(": ")[2]
    'with --set training.tokens=5120 --set training.steps=none, and no --budget, all would see as many.'
    """
    seen = sorted(outcome.tokens for outcome in outcomes if outcome.status == "complete")
    if not seen or seen[-1] <= 1.1 * seen[0] or {*keys} & {*LENGTH}:
        return ""
    told = f"Not all were trained on equally many tokens, but on {seen[0]:,} to {seen[-1]:,}"
    if equal_samples:
        return f"{told}: --equal-samples gives them equally many windows, and these differ in length."
    if {*keys} & {*OF_STEP} == {BATCH}:
        return f"{told}: with --equal-samples all would see as many."
    alike = f"--set training.tokens={seen[0]} --set training.steps=none"
    return f"{told}: with {alike}, and no --budget, all would see as many."


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
    page.table(
        [
            "arm",
            "changes",
            METRICS[metric],
            "difference",
            "diverged",
            "parameters",
            "tokens",
            "tokens/s",
        ],
        rows,
    )
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
