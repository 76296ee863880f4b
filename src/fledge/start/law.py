"""The law of little text: what bits per byte a model reaches, before it is trained.

Counting gives two figures of a text in a second: what a bigram and what a trigram model of its tokens reach. They say
how hard the text is and how much one more token of context is worth in it, and so one law holds for prose, code and
other languages. In logarithms:

    log(bits) = log(trigram) + gap · exp(−A · size^a) + B / size^b + C / tokens^c − reach + overfitting
    gap = log(bigram / trigram)
    overfitting = D · (parameters / tokens of the text)^d · (passes − 1) / (1 + E · decay) + F · decay

A small model learns only a part of what a table of triples holds: the term with the gap. The next two are the usual law
(Hoffmann et al. 2022), and `reach` is how far below the trigram an endless model of an endless text would come. Tokens
are those seen, which count for less when they are seen again (Muennighoff et al. 2023). That overfitting adds to the
loss, and that decay takes it away, is from Kim et al. 2025 and Lovelace et al. 2026; here decay has a price, too. A
model that has learned little is near the bigram and not above it, for training may begin there: log(bits) bends
smoothly towards log(bigram).

The constants were fitted by tools/fit_law.py to docs/results/little-text.csv: models of 0.17 to 1 million parameters on
a CPU, and some of 11 to 52 million on a GPU. Between and beyond them the law is a guess, and its interval is wider.
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
PARAMETERS, SEEN = (1.5e5, 1e6), (5e4, 1e6)
"What was measured on texts of several kinds: parameters of the models, and tokens that they saw."
INTERVAL, BEYOND = 0.08, 0.015
"How far off nine in ten forecasts are at most, and how much more for each factor of e beyond what was measured."


class Constants(NamedTuple):
    unlearned: float = 3.855
    unlearned_size: float = 0.7688
    small: float = 0.06599
    size: float = 0.3031
    few: float = 0.5155
    tokens: float = 0.1541
    reach: float = 0.6798
    overfitting: float = 0.004007
    overfitting_size: float = 0.5831
    decay_price: float = 0.03585
    overfitting_decay: float = 64.9


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


def expected_bits(text: Text, parameters: float, tokens: float, decay: float, fitted: Constants = FITTED) -> float:
    """Bits per byte of a model after so many tokens."""
    size, seen = parameters / MILLION, max(1.0, worth(tokens, text.tokens)) / MILLION
    gap = math.log(text.bigram / min(text.bigram, text.trigram))
    unlearned = math.exp(-fitted.unlearned * size**fitted.unlearned_size)
    beyond = fitted.reach - fitted.small / size**fitted.size - fitted.few / seen**fitted.tokens
    below = gap * (1 - unlearned) + beyond
    below = SMOOTH * math.log1p(math.exp(min(below / SMOOTH, 500.0)))
    return text.bigram * math.exp(overfitting(text, parameters, tokens, decay, fitted) - below)


def by_heart(text: Text, parameters: float, tokens: float, fitted: Constants = FITTED) -> float:
    """What learning the text by heart would add to the logarithm of the bits without a decay."""
    again = max(0.0, tokens / text.tokens - 1)
    return float(fitted.overfitting * (parameters / text.tokens) ** fitted.overfitting_size * again)


def overfitting(text: Text, parameters: float, tokens: float, decay: float, fitted: Constants = FITTED) -> float:
    """The same with a decay, and what that costs."""
    learned = by_heart(text, parameters, tokens, fitted)
    return learned / (1 + fitted.overfitting_decay * decay) + fitted.decay_price * decay


def best_decay(text: Text, parameters: float, tokens: float, fitted: Constants = FITTED) -> float:
    """The decay where `overfitting` is least."""
    worth_of_it = by_heart(text, parameters, tokens, fitted) * fitted.overfitting_decay / fitted.decay_price
    return max(0.0, math.sqrt(worth_of_it) - 1) / fitted.overfitting_decay


def spread(parameters: float, tokens: float) -> float:
    """The factor between a forecast and the end of its interval, which nine in ten results should be in."""
    ranges = ((parameters, PARAMETERS), (tokens, SEEN))
    beyond = sum(abs(math.log(value / min(max(value, low), high))) for value, (low, high) in ranges)
    return 1 + INTERVAL + BEYOND * beyond
