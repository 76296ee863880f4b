"""Whether a run may go on from a checkpoint with the settings it has now, and what is worth saying of the changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fledge.bundle.save import without_places
from fledge.config import RunConfig, changed
from fledge.errors import FledgeError
from fledge.runs.checkpoints import step_of
from fledge.training.averaging import Average
from fledge.training.optimizers import build_optimizer
from fledge.training.progress import Progress

if TYPE_CHECKING:
    from fledge.bundle import Bundle

LENGTH = ("training.steps", "training.tokens")


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
        for name, (old, new) in changed(without_places(resume.config), without_places(config)).items()
        if name.startswith(fixed)
    ]
    if differing:
        raise FledgeError(
            f"{resume.path} was trained with another model or tokenizer: {'; '.join(differing)}. "
            "Leave these settings as they were, or start a new run."
        )


def notable_changes(config: RunConfig, resume: Bundle, asked: Iterable[str], back: bool) -> list[str]:
    """Sentences on settings that are not those of the checkpoint; `asked` are the names that were set just now.

    Whoever goes `back` to a step may not know which settings came after it.
    """
    asked = set(asked)
    found = changed(without_places(resume.config), without_places(config))
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
