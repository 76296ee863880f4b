"""What comes out of the decode loop: whole texts with their probabilities, and pieces of them on the way: whole
characters only, and nothing that may turn out to be the beginning of a stop text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal, NamedTuple

from fledge.notebook import FONT, SMALL, SURPRISE, TEXT, element, shaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fledge.tokenizer import Tokenizer

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


class Generations(list[Generation]):
    """Generated texts. A notebook shows each with its prompt, every token the deeper, the less likely it was."""

    def __init__(self, texts: Iterable[Generation], tokenizer: Tokenizer) -> None:
        super().__init__(texts)
        self.tokenizer = tokenizer

    def _repr_html_(self) -> str:
        note = "The deeper a shade, the less likely the model found the token."
        texts = [element("div", element("b", escape(one.prompt)) + self._shaded(one), TEXT) for one in self]
        return element("div", "<hr>".join(texts) + element("div", note, SMALL), f"{FONT};max-width:60em")

    def _shaded(self, one: Generation) -> str:
        """Its tokens, as much of each as stands in the text."""
        decoder, left, parts = self.tokenizer.decoder(), one.text, []
        for token, logprob in zip(one.ids, one.logprobs, strict=False):
            piece = decoder.push(token)[: len(left)]
            if not left.startswith(piece):  # a text that is not just its tokens
                return escape(one.text)
            left = left[len(piece) :]
            parts.append(shaded(piece, -logprob / SURPRISE, title=f"{math.exp(logprob):.1%}"))
        return "".join(parts) + escape(left)


class Piece(NamedTuple):
    """Text that one row can show now."""

    row: int
    text: str


def as_text(prompt: str | bytes) -> str:
    """A prompt to show. Bytes that are no UTF-8 become surrogates, from which Python makes the same bytes again.

    >>> as_text(b"bad \\xff").encode("utf-8", "surrogateescape")
    b'bad \\xff'
    """
    return prompt.decode("utf-8", "surrogateescape") if isinstance(prompt, bytes) else prompt


class TextStream:
    """The text of one row. `push` and `finish` give out what is certain; `text` is all of it so far."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._decoder = tokenizer.decoder()
        self._stops = tuple(stops)
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """What this id makes certain. After a stop text was completed, `stopped` is true and nothing more comes out."""
        if self.stopped:
            return ""
        return self._give(self._decoder.push(token), last=False)

    def finish(self) -> str:
        """What was held back, once no more ids come."""
        return "" if self.stopped else self._give(self._decoder.finish(), last=True)

    def _give(self, fresh: str, last: bool) -> str:
        self._held += fresh
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            certain, self._held = self._held[: min(places)], ""
        else:
            kept = 0 if last else longest_beginning(self._held, self._stops)
            certain = self._held[: len(self._held) - kept]
            self._held = self._held[len(certain) :]
        self.text += certain
        return certain


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` begin one of the stop texts.

    >>> longest_beginning("to be or n", ["nothing", "or not"])
    4
    """
    for length in range(min(len(text), max(map(len, stops), default=1) - 1), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
