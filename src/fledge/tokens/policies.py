"""The policies by which windows lie on documents, and the windows of a split under one of them.

A new policy is a name in `Policy` of config/settings.py and a line here, with its class.
"""

from __future__ import annotations

from typing import NamedTuple

from fledge.config import TokensConfig
from fledge.errors import FledgeError
from fledge.tokenizer.base import Roles
from fledge.tokens.lines import AlignedWindows, FullWindows, LongestWindows, SlideInWindows, SlideThroughWindows
from fledge.tokens.packing import BestFitWindows, PackedWindows
from fledge.tokens.store import TokenSplit
from fledge.tokens.windows import LaneWindows, StreamWindows, Windows


class Laid(NamedTuple):
    """The windows of a policy, and how they lie on documents, in words."""

    kind: type[Windows]
    how: str


POLICIES = {
    "stream": Laid(StreamWindows, "end to end through the whole text, over the ends of documents"),
    "packed": Laid(PackedWindows, "documents end to end, each seen by itself: no token looks into another document"),
    "slide-in": Laid(
        SlideInWindows,
        "one for every token of a document: all its beginnings, padded on the left, then every full window",
    ),
    "slide-through": Laid(
        SlideThroughWindows, "the same, and on until only the last token is left, padded on the right"
    ),
    "full": Laid(FullWindows, "every full window of a document; shorter documents are padded"),
    "aligned": Laid(
        AlignedWindows,
        "from a document's beginning in steps of the context; the rest is padded, or cut (tokens.remainder)",
    ),
    "longest": Laid(LongestWindows, "whole documents, each batch as wide as its longest"),
}


def make_windows(
    split: TokenSplit, config: TokensConfig, roles: Roles, seed: int, shuffle: bool = True, lanes: int | None = None
) -> Windows:
    """The windows of a split under `config.policy`; without `shuffle`, in the order in which they lie.

    `lanes`, for the policy of that name, is their number in the place of the settings': the size of the global batch.
    """
    windows: Windows
    if config.policy == "lanes":
        lanes = lanes or config.lanes
        if lanes is None:
            raise FledgeError("tokens.policy = lanes needs their number: set tokens.lanes to training.batch_size.")
        windows = LaneWindows(split, config, roles, seed, lanes=lanes)
    else:
        kind = BestFitWindows if config.policy == "packed" and config.best_fit else POLICIES[config.policy].kind
        windows = kind(split, config, roles, seed, shuffle)
    if not len(windows):
        wanted = f"{lanes} lanes of" if config.policy == "lanes" else "one window of"
        raise FledgeError(
            f"The {split.name} split has {len(split.tokens):,} tokens in {len(split.documents):,} documents: not "
            f"{wanted} tokens.context_length = {config.context_length}. Set it lower, or give more text."
        )
    return windows
