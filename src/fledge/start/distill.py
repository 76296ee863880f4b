"""The settings of a student of several models: a recipe, with the teachers' tokenizer and text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.config import RunConfig, load_recipe, override_config
from fledge.errors import FledgeError, note

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.runs.checkpoints import At

SPLIT = ("validation_fraction", "test_fraction", "split", "split_seed")
"What decides, with the text, which part is held out."


def distillation(
    teachers: Sequence[str | Path],
    recipe: str | Path,
    overrides: Sequence[str] = (),
    share: float | None = None,
    at: At = None,
) -> RunConfig:
    """The settings of a student: a recipe's, with the teachers and with their tokenizer and text.

    The text is that of the first teacher that is a run, with its split, so that what was held out from it stays so.
    """
    from fledge.bundle import load_bundle
    from fledge.runs import find_bundle
    from fledge.runs.folder import of_run, store_of
    from fledge.training.objective import require_teachers

    if not teachers:
        raise FledgeError("Name at least one teacher: a run, or a bundle.")
    paths = [Path(teacher).absolute() for teacher in teachers]
    models = paths if at is None else [find_bundle(path, at) for path in paths]
    bundles = [load_bundle(find_bundle(model)) for model in models]
    first = bundles[0]
    taught = [f"training.teachers={json.dumps([str(model) for model in models])}"]
    taught += [] if share is None else [f"training.teachers_share={share}"]
    config = load_recipe(recipe, taught)
    if first.source.is_file():
        raise FledgeError(
            f"{first.source} is packed, and the student needs its tokenizer permanently. Unpack it into a "
            "folder and name the folder first."
        )
    place = paths[0] / "tokenizer" if (paths[0] / "tokenizer").is_dir() else first.path
    own, store = of_run(first.config, paths[0]), store_of(paths[0])
    config = config.model_copy(
        update={
            "corpus": own.corpus,
            "tokenizer": first.config.tokenizer.model_copy(update={"path": str(place)}),
            "tokens": config.tokens.model_copy(update={"store": None if store is None else str(store.absolute())}),
        }
    )
    config = override_config(config, overrides)
    require_teachers(config, first.tokenizer, bundles)
    for sentence in remarks(config, bundles):
        note(sentence)
    return config


def remarks(config: RunConfig, bundles: Sequence[Bundle]) -> Iterator[str]:
    """Sentences on what is allowed and may not be meant."""
    from fledge.accounting import Account

    size = Account(config.model, bundles[0].tokenizer.vocab_size, config.tokens.context_length).parameters.total
    largest = max(bundle.model.parameters_count() for bundle in bundles)
    if size > largest:
        yield (
            f"The student has {size:,} parameters, and its largest teacher {largest:,}: it learns what they know, and "
            "may as well be trained on the text alone."
        )
    if len({tuple(getattr(bundle.config.corpus, name) for name in SPLIT) for bundle in bundles}) > 1:
        yield (
            "The teachers held out different parts of their text: what is held out here may have been learned by some "
            "of them, and figures on it are too good."
        )
    if config.training.label_smoothing:
        yield "training.label_smoothing spreads the text's targets only: the teachers' are spread already."
