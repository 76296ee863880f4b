"""The one exception for a person's mistake: its message is a sentence that the command line prints as it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FledgeError(ValueError):
    """What was wrong, where, what is allowed, and what to do next. The command line exits with code 2."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the closest of `names`, or all of them.

    >>> nearest("laers", ["layers", "width"])
    'Did you mean layers?'
    >>> nearest("colour", ["layers", "width"])
    'Known: layers, width.'
    """
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known)}."
