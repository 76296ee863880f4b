"""Yardsticks without a neural network: unigram and interpolated Kneser–Ney models on arrays of ids.

They say what a validation loss means: a model that does not beat the bigram has learned less than a table of pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fledge.errors import FledgeError

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]


class Baselines(NamedTuple):
    """Cross-entropy of the validation ids in nats per token, under models counted on the training ids."""

    unigram: float
    bigram: float
    trigram: float
    tokens: int


class Order(NamedTuple):
    """The n-grams of one length: their counts, and for each context its total and its number of distinct successors."""

    grams: Keys
    counts: Counts
    contexts: Keys
    totals: Counts
    successors: Counts
    discount: float


class KneserNey:
    """An interpolated Kneser–Ney model with one discount per order, over ids below `vocabulary_size`.

    The longest order counts occurrences; shorter ones count in how many different contexts an n-gram was seen. Below
    the single ids lies the uniform distribution, so that every id has a probability and they sum to one.

    >>> model = KneserNey(np.array([0, 1, 0, 1, 2]), vocabulary_size=3, order=2)
    >>> round(float(model.probabilities(np.array([[0, 0], [0, 1], [0, 2]])).sum()), 6)
    1.0
    """

    def __init__(self, tokens: NDArray[np.integer], vocabulary_size: int, order: int) -> None:
        if float(vocabulary_size) ** order >= 2.0**64:
            raise FledgeError(f"A vocabulary of {vocabulary_size:,} is too large for n-grams of length {order}.")
        if len(tokens) < order:
            raise FledgeError(f"{len(tokens)} training tokens are too few for n-grams of length {order}.")
        if int(tokens.max()) >= vocabulary_size:
            raise FledgeError(f"Token {int(tokens.max())} is outside the vocabulary of {vocabulary_size:,} ids.")
        self.base = np.uint64(vocabulary_size)
        self.length = order
        grams, counts = np.unique(self.keys(windows(tokens, order)), return_counts=True)
        self.orders = [self.order_of(grams, counts)]
        for remaining in range(order - 1, 0, -1):
            # An n-gram's count of contexts is the number of distinct longer n-grams that end in it.
            suffixes = grams % self.base ** np.uint64(remaining)
            grams, counts = np.unique(suffixes, return_counts=True)
            self.orders.insert(0, self.order_of(grams, counts))

    def keys(self, grams: NDArray[np.integer]) -> Keys:
        """One number per row of ids, the last id varying fastest, so that a context is a quotient."""
        keys = np.zeros(len(grams), dtype=np.uint64)
        for column in range(grams.shape[1]):
            keys = keys * self.base + grams[:, column].astype(np.uint64)
        return keys

    def order_of(self, grams: Keys, counts: Counts) -> Order:
        contexts, first, successors = np.unique(grams // self.base, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        discount = once / (once + 2 * twice) if once and twice else 0.5
        return Order(grams, counts, contexts, totals, successors, discount)

    def probabilities(self, grams: NDArray[np.integer]) -> NDArray[np.float64]:
        """For each row of ids, the probability of the last one after the ones before it (at most `order` ids a row)."""
        probability = np.full(len(grams), 1.0 / float(self.base))
        for width, order in enumerate(self.orders[: grams.shape[1]], start=1):
            keys = self.keys(grams[:, grams.shape[1] - width :])
            counts = look_up(order.grams, order.counts, keys)
            totals = look_up(order.contexts, order.totals, keys // self.base)
            successors = look_up(order.contexts, order.successors, keys // self.base)
            seen = np.maximum(totals, 1)
            discounted = (np.maximum(counts - order.discount, 0) + order.discount * successors * probability) / seen
            probability = np.where(totals > 0, discounted, probability)
        return probability

    def loss(self, tokens: NDArray[np.integer], skip: int | None = None) -> float:
        """Nats per token of `tokens` after the first `skip` (by default `order` − 1), each after the ones before it."""
        skip = self.length - 1 if skip is None else skip
        grams = windows(tokens, self.length)[skip - self.length + 1 :]
        if not len(grams):
            raise FledgeError(f"{len(tokens)} validation tokens are too few for n-grams of length {self.length}.")
        return float(-np.log(self.probabilities(grams)).mean())


def baselines(train: NDArray[np.integer], validation: NDArray[np.integer], vocabulary_size: int) -> Baselines:
    """All three yardsticks on the same tokens: every validation id from the third on.

    >>> ids = np.arange(3000) % 3
    >>> baselines(ids, ids, 3).bigram < 0.01 < baselines(ids, ids, 3).unigram
    True
    """
    skip = 2
    unigram, bigram, trigram = (KneserNey(train, vocabulary_size, order).loss(validation, skip) for order in (1, 2, 3))
    return Baselines(unigram, bigram, trigram, len(validation) - skip)


def windows(tokens: NDArray[np.integer], length: int) -> NDArray[np.integer]:
    if len(tokens) < length:
        return np.empty((0, length), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(tokens, length)


def look_up(keys: Keys, values: Counts, wanted: Keys) -> Counts:
    """The value of each wanted key in a sorted table, 0 where it is absent."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
