"""Whether settings, a tokenizer and a model belong together, and whether scores are of use: one sentence for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.bundle.save import without_places
from fledge.config import RunConfig, setting_changes
from fledge.errors import FledgeError

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle

NOT_FINITE = "The model's scores are not finite: its training went wrong. Use an earlier checkpoint."


def require_fit(
    ids: int,
    vocabulary_size: int,
    tokenizer: str = "The tokenizer",
    advice: str = "Use the tokenizer that the model was trained with.",
) -> None:
    """Refuse a tokenizer of more ids than the model has scores for."""
    if ids > vocabulary_size:
        raise FledgeError(
            f"{tokenizer} has {ids:,} ids and the model has {vocabulary_size:,}: they do not belong together. {advice}"
        )


def require_same_model(config: RunConfig, bundle: Bundle) -> None:
    """Refuse a bundle of another model or tokenizer than the settings say: what it then wrote could not be loaded."""
    differing = setting_changes(without_places(bundle.config), without_places(config))
    fixed = [
        f"{name} is {old!r} there and {new!r} here"
        for name, (old, new) in differing.items()
        if name.startswith(("model.", "tokenizer."))
    ]
    if fixed:
        raise FledgeError(
            f"The model and the tokenizer come from {bundle.source}, and {'; '.join(fixed[:4])}. Do not "
            "change these settings."
        )
    length, longest = config.tokens.context_length, bundle.model.context_length
    if "tokens.context_length" in differing and length > longest:
        raise FledgeError(
            f"tokens.context_length = {length} is not allowed: the model of {bundle.source} sees at most "
            f"{longest} tokens."
        )
