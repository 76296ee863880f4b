"""Ids to text as they come: whole characters only, and nothing that may turn out to be the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer


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
