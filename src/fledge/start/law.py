"""The law of little text: what bits per byte a model reaches, before it is trained.

Counting gives two figures of a text in a second: what a bigram and what a trigram model of its tokens reach. They say
how hard the text is and how much one more token of context is worth in it, and so one law holds for prose, code and
other languages. In logarithms:

    log(bits) = log(bigram) − below + overfitting
    below = log(bigram / trigram) + A − B / size^b + c · log(tokens)
    overfitting = D · (size / tokens of the text)^d · (passes − 1)^e / (1 + E · decay) + F · decay

Size is the parameters between embeddings and head, for what these hold is in the counts. Tokens are those seen, which
count for less when they are seen again (Muennighoff et al. 2023); twice as many take a share off the bits, and no sign
of an end of that was seen. That overfitting adds to the loss, and that decay takes it away, is from Kim et al. 2025 and
Lovelace et al. 2026; here decay has a price, too. A model that has learned little is near the bigram and not above it,
for training may begin there: log(bits) bends smoothly towards log(bigram).

The constants were fitted by tools/fit_law.py to docs/results/little-text.csv: models of 0.1 to 2 million parameters
inside on a CPU, and some of 11 to 49 million on a GPU. Between and beyond them the law is a guess, and its interval is
wider.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MILLION = 1e6
FORGETTING = 15.4
"Muennighoff's constant: text seen R times more counts as much as 15.4 · (1 − e^(−R/15.4)) times as much new text."
SMOOTH = 0.1
"How soon it bends, as a distance in log(bits)."
USUAL_BIGRAM, USUAL_TRIGRAM = 2.4, 2.2
"Bits per byte of English prose, for a text that is too short to be counted."
SIZES, SEEN = (1e5, 5e7), (3e5, 1e8)
"What was measured: parameters inside the models, and tokens that they saw."
ROWS = 0.98
"The share of its bits that a model keeps whose embeddings and head decay: on average, measured on a CPU with 8 passes."
INTERVAL, BEYOND = 0.09, 0.015
"How far off nine in ten forecasts are at most, and how much more for each factor of e beyond what was measured."


class Constants(NamedTuple):
    reach: float = 0.1518
    small: float = 0.1061
    size: float = 0.2914
    tokens: float = 0.07767
    overfitting: float = 0.0004007
    overfitting_size: float = 0.6419
    overfitting_passes: float = 1.517
    overfitting_decay: float = 14.64
    decay_price: float = 0.05051


FITTED = Constants()


class Text(NamedTuple):
    """What the law knows of a text."""

    tokens: int
    "To train on."
    bigram: float = USUAL_BIGRAM
    trigram: float = USUAL_TRIGRAM
    "Bits per byte that counting reaches on held-out text."


def worth(tokens: float, unique: float) -> float:
    """New tokens that are worth as much as `tokens` from a text of `unique` ones.

    >>> round(worth(4e6, 1e6) / 1e6, 2), round(worth(0.5e6, 1e6) / 1e6, 2)
    (3.73, 0.5)
    """
    repeats = max(0.0, tokens / unique - 1)
    return min(tokens, unique * (1 + FORGETTING * (1 - math.exp(-repeats / FORGETTING))))


def expected_bits(text: Text, size: float, tokens: float, decay: float, fitted: Constants = FITTED) -> float:
    """Bits per byte of a model of so many parameters inside, after so many tokens."""
    seen = max(1.0, worth(tokens, text.tokens)) / MILLION
    gap = math.log(text.bigram / min(text.bigram, text.trigram))
    below = gap + fitted.reach - fitted.small / (size / MILLION) ** fitted.size
    below += fitted.tokens * math.log(seen)
    below = SMOOTH * math.log1p(math.exp(min(below / SMOOTH, 500.0)))
    return text.bigram * math.exp(overfitting(text, size, tokens, decay, fitted) - below)


def by_heart(text: Text, size: float, tokens: float, fitted: Constants = FITTED) -> float:
    """What learning the text by heart would add to the logarithm of the bits without a decay."""
    again = max(0.0, tokens / text.tokens - 1)
    crowding = float((size / text.tokens) ** fitted.overfitting_size)
    return fitted.overfitting * crowding * float(again**fitted.overfitting_passes)


def overfitting(text: Text, size: float, tokens: float, decay: float, fitted: Constants = FITTED) -> float:
    """The same with a decay, and what that costs."""
    learned = by_heart(text, size, tokens, fitted)
    return learned / (1 + fitted.overfitting_decay * decay) + fitted.decay_price * decay


def spread(size: float, tokens: float) -> float:
    """The factor between a forecast and the end of its interval, which nine in ten results should be in."""
    ranges = ((size, SIZES), (tokens, SEEN))
    beyond = sum(abs(math.log(value / min(max(value, low), high))) for value, (low, high) in ranges)
    return 1 + INTERVAL + BEYOND * beyond
