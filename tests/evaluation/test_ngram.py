"""The n-gram yardsticks against a naive twin made of dictionaries and loops."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.errors import FledgeError
from fledge.evaluation.ngram import KneserNey, baselines


class NaiveKneserNey:
    """The definition, term by term."""

    def __init__(self, tokens: list[int], vocabulary_size: int, order: int) -> None:
        self.vocabulary_size = vocabulary_size
        counts = Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))
        self.counts = {order: counts}
        for length in range(order - 1, 0, -1):
            counts = Counter(gram[1:] for gram in self.counts[length + 1])
            self.counts[length] = counts

    def discount(self, length: int) -> float:
        values = list(self.counts[length].values())
        once, twice = values.count(1), values.count(2)
        return once / (once + 2 * twice) if once and twice else 0.5

    def probability(self, gram: tuple[int, ...]) -> float:
        if not gram:
            return 1 / self.vocabulary_size
        table, discount = self.counts[len(gram)], self.discount(len(gram))
        after = {g: c for g, c in table.items() if g[:-1] == gram[:-1]}
        shorter = self.probability(gram[1:])
        if not after:
            return shorter
        return (max(table[gram] - discount, 0) + discount * len(after) * shorter) / sum(after.values())


@given(st.lists(st.integers(0, 4), min_size=4, max_size=60), st.lists(st.integers(0, 4), min_size=3, max_size=12))
@settings(max_examples=60, deadline=None)
def test_probabilities_equal_the_definition(train: list[int], text: list[int]) -> None:
    for order in (1, 2, 3):
        model, naive = KneserNey(np.array(train), 5, order), NaiveKneserNey(train, 5, order)
        grams = [tuple(text[i : i + order]) for i in range(len(text) - order + 1)]
        expected = [naive.probability(gram) for gram in grams]
        np.testing.assert_allclose(model.probabilities(np.array(grams)), expected, rtol=1e-12)
        assert model.loss(np.array(text)) == pytest.approx(-np.mean(np.log(expected)))


@given(st.lists(st.integers(0, 6), min_size=4, max_size=200), st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_probabilities_sum_to_one_after_any_context(train: list[int], first: int, second: int) -> None:
    grams = np.array([[first, second, last] for last in range(7)])
    for order in (1, 2, 3):
        probabilities = KneserNey(np.array(train), 7, order).probabilities(grams[:, 3 - order :])
        assert probabilities.min() > 0
        assert probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_longer_context_helps_where_there_is_structure() -> None:
    generator = np.random.default_rng(0)
    steps = generator.integers(1, 3, size=20_000)
    tokens = np.cumsum(np.repeat(steps, 2)) % 51  # each step is repeated: two tokens tell the next but one
    result = baselines(tokens[:30_000].astype(np.uint16), tokens[30_000:].astype(np.uint16), 51)
    assert result.unigram == pytest.approx(math.log(51), abs=0.01)
    assert result.bigram == pytest.approx(math.log(2), abs=0.05)
    assert result.trigram < result.bigram - 0.1
    assert result.tokens == 10_000 - 2


def test_refusals() -> None:
    with pytest.raises(FledgeError, match="outside the vocabulary"):
        KneserNey(np.array([1, 2, 3]), 3, 2)
    with pytest.raises(FledgeError, match="too few"):
        KneserNey(np.array([1]), 3, 2)
    with pytest.raises(FledgeError, match="too few"):
        KneserNey(np.array([1, 2, 1]), 3, 2).loss(np.array([1]))
    with pytest.raises(FledgeError, match="too large"):
        KneserNey(np.array([1, 2, 1]), 2**22, 3)
