"""What is refused before the first trial is run: arms without a name, settings of no model, and those of no effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fledge.config import RunConfig, override_config, unmet
from fledge.errors import FledgeError, notes_kept
from fledge.experiments.plan import Arm, key_of
from fledge.experiments.trials import LENGTH, trial_folder


def check_arms(config: RunConfig, arms: Sequence[Arm], planned: bool = False) -> None:
    """Refuse, before anything is written, arms without a name of their own and settings of which no model is made.

    So are settings refused that the experiment sets itself: the seed, and where steps are `planned` the length.
    """
    from fledge.training.device import choose_device

    known: dict[str, str] = {}
    for arm in arms:
        for key in map(key_of, arm.changes):
            if key == "training.seed":
                raise FledgeError(f"{arm.name!r} changes {key}, which is set for every trial: give --seeds instead.")
            if planned and key in LENGTH:
                raise FledgeError(
                    f"{arm.name!r} changes {key}, which --budget and --equal-samples decide for every trial. Leave "
                    "those out, or this."
                )
        if not arm.name.strip():
            raise FledgeError(
                f"An arm has no name: give it one before the colon, as in 'mine: {' '.join(arm.changes)}'."
            )
        folder = trial_folder(arm.name, 0).lower()  # some file systems take capitals for small letters
        if other := known.get(folder):
            alike = f" and {arm.name!r} differ too little" if other != arm.name else " is the name of two arms"
            raise FledgeError(f"{other!r}{alike}: give every arm a name of its own.")
        known[folder] = arm.name
        settings = override_config(config, arm.changes)
        choose_device(settings.training.device)
        check_model(settings)


def check_model(config: RunConfig) -> None:
    """Refuse settings of which no model is made, without making it."""
    import torch

    from fledge.model import build_model

    with notes_kept(), torch.device("meta"):  # training will say it
        build_model(config.model, config.tokenizer.vocabulary_size or 256, config.tokens.context_length)


def check_effects(config: RunConfig, keys: Iterable[str]) -> None:
    """Refuse to vary what no result depends on."""
    from fledge.model.registry import find_architecture

    keys = list(keys)
    used = find_architecture(config.model.architecture).settings
    for key in keys:
        group, _, name = key.partition(".")
        if key == "name":
            raise FledgeError("name is the name of a run: no result depends on it.")
        if group == "model" and name not in {"architecture", *used} and "model.architecture" not in keys:
            raise FledgeError(f"{key} has no effect on model.architecture = {config.model.architecture}.")
        if sentence := unmet(key, config, keys):
            raise FledgeError(sentence)
