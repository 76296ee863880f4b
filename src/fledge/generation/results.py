"""What comes out of the decode loop: whole texts with their probabilities, and pieces of them on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Stopped = Literal["end", "stop", "length"]


class Alternative(NamedTuple):
    """A token the model could have chosen, and its log-probability."""

    id: int
    logprob: float


@dataclass
class Generation:
    """One generated text: what follows the prompt, up to but without the end token or stop text that ended it."""

    prompt: str
    "As it was given; of bytes, those that are no UTF-8 are surrogates, which are printed as the same bytes again."
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    "Log-probability of each id among the tokenizer's, under the model itself: before penalty, temperature and filters."
    alternatives: list[list[Alternative]] = field(default_factory=list)
    "For each id the likeliest tokens at its place, where they were asked for."
    stopped: Stopped = "length"


class Piece(NamedTuple):
    """Text that one row can show now."""

    row: int
    text: str
