"""Beginning from weights that exist: whether a run may resume with the settings it has now, and fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.bundle import load_bundle
from fledge.bundle.save import without_places
from fledge.config import RunConfig, load_recipe, setting_changes
from fledge.config.reading import names_of
from fledge.errors import FledgeError, command, note
from fledge.runs.checkpoints import LAST, At, find_bundle, step_of
from fledge.runs.folder import of_run
from fledge.training.averaging import Average
from fledge.training.optimizers import build_optimizer
from fledge.training.progress import Progress, total_steps

if TYPE_CHECKING:
    from fledge.bundle import Bundle

LENGTH = ("training.steps", "training.tokens")
TUNING = "finetune"
"The recipe of a fine-tuning that names none."


def check_training_state(checkpoint: Bundle) -> None:
    """Hold a checkpoint's counters and the optimizer's tensors against its model and settings, as resuming does."""
    assert checkpoint.training is not None
    progress = Progress.of(checkpoint)
    optimizer = build_optimizer(checkpoint.model.float(), checkpoint.config.optimizer)
    optimizer.load_state(checkpoint.training.tensors, progress.updates)
    Average(optimizer.layout, 1.0).load(checkpoint.training.tensors)


def check_same_model(config: RunConfig, resume: Bundle) -> None:
    """A run goes on with the model and the tokenizer it began with; what differs is named."""
    fixed = ("model.", "tokenizer.", "tokens.context_length")
    differing = [
        f"{name} is {old} there and {new} now"
        for name, (old, new) in setting_changes(without_places(resume.config), without_places(config)).items()
        if name.startswith(fixed)
    ]
    if differing:
        raise FledgeError(
            f"{resume.path} was trained with another model or tokenizer: {'; '.join(differing)}. "
            "Leave these settings as they were, or start a new run."
        )


def resumed(config: RunConfig, checkpoint: Bundle, overrides: Iterable[str], at: At) -> None:
    """Refuse settings that the checkpoint at `at` does not fit, and say which others are not its own."""
    check_same_model(config, checkpoint)
    for sentence in notable_changes(config, checkpoint, set(names_of(overrides)), back=at not in (None, LAST)):
        note(sentence)


def complete(config: RunConfig, checkpoint: Bundle, folder: Path) -> str:
    """The sentence that a run has no step left, and how it gets more; empty where it has some."""
    progress, tokens = Progress.of(checkpoint), config.training.tokens
    if progress.step < total_steps(config, progress):
        return ""
    longer = f"training.steps={2 * progress.step}" if tokens is None else f"training.tokens={2 * tokens}"
    again = command("train", "--resume", folder, "--set", longer)
    return f"{folder} is complete already. To train it further: {again}"


def fine_tuned(
    source: Path, recipe: str | Path | None, at: At, overrides: Iterable[str], quiet: bool
) -> tuple[RunConfig, Bundle]:
    """The settings of a run that starts from the weights at `source`, before its overrides, and the bundle there."""
    bundle = load_bundle(find_bundle(source, at))
    if recipe is not None:
        config = load_recipe(recipe)
    else:
        own = of_run(bundle.config, source)
        same = {"corpus": own.corpus, "tokens": own.tokens, "sampling": own.sampling}
        config = load_recipe(TUNING).model_copy(update=same)
    if config.name != TUNING and not set(names_of(overrides)) & {"optimizer.learning_rate", "optimizer.name"}:
        note(
            f"The learning rate of {config.name} is meant for a new model, and may undo what this one has learned. "
            f"{command('train', TUNING, '--from', source)} begins at one for fine-tuning."
        )
    length, model = min(config.tokens.context_length, bundle.model.context_length), bundle.config.model
    tokens = config.tokens.model_copy(update={"context_length": length})
    config = config.model_copy(update={"model": model, "tokenizer": bundle.config.tokenizer, "tokens": tokens})
    if not quiet:
        instead = f" instead of {config.name}'s" if recipe is not None and config.name != TUNING else ""
        note(
            f"From {source}: the weights, the model ({model.architecture}, {model.layers} layers × {model.width}), the "
            f"tokenizer ({bundle.tokenizer.vocab_size:,} ids) and its context of {length} tokens{instead}. Text, "
            f"learning rate and length are those of {config.name}."
        )
    return config, bundle


def notable_changes(config: RunConfig, resume: Bundle, asked: Iterable[str], back: bool) -> list[str]:
    """Sentences on settings that are not those of the checkpoint; `asked` are the names that were set just now.

    Whoever goes `back` to a step may not know which settings came after it.
    """
    asked = set(asked)
    found = setting_changes(without_places(resume.config), without_places(config))
    order = ("training.seed", "tokens.", *(("training.batch_size",) if config.tokens.policy == "lanes" else ()))
    sentences = [
        f"{name} is {old} there and {new} now: from here on the samples are not those that would have followed."
        for name, (old, new) in found.items()
        if name.startswith(order) and name != "tokens.store"
    ]
    if back:
        later = {name: pair for name, pair in found.items() if name not in {"name", *LENGTH, *asked}}
        told = ", ".join(f"{name} = {old} (now {new})" for name, (old, new) in later.items())
        if later:
            step = step_of(resume.path)
            sentences.append(f"{resume.path if step is None else f'Step {step}'} was trained with {told}.")
    return sentences
