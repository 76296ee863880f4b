"""What was run and where, on the page of an experiment: text, tokens, model, seeds, and the command to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from fledge.config import RunConfig, load_recipe, parse, recipe_names, setting_changes
from fledge.config.writing import settings_text
from fledge.experiments.places import seen_at_once
from fledge.experiments.plan import NOTES, OF_STEP, TIMING, ExperimentPlan, key_of, with_shared_data
from fledge.experiments.space import BATCH
from fledge.experiments.trials import LENGTH, Outcome
from fledge.files import readable_bytes
from fledge.reports.page import Page


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
