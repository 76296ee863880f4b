"""The keyed permutation: every number once, another order for every key, and no memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fledge.tokens.windows import keys, permute


@given(count=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_every_number_comes_once(count, key):
    assert sorted(permute(range(count), count, key).tolist()) == list(range(count))


@given(count=st.integers(2, 10**12), key=st.integers(0, 2**64 - 1), data=st.data())
def test_a_place_is_the_same_alone_and_among_others(count, key, data):
    numbers = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    together = permute(numbers, count, key)
    assert ((together >= 0) & (together < count)).all()
    assert together.tolist() == [int(permute([number], count, key)[0]) for number in numbers]


def test_orders_differ_and_look_random():
    count = 10_000
    orders = [permute(range(count), count, key) for key in keys(7, 1, range(4))]
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
        assert (order == np.arange(count)).sum() < 10
    assert (orders[0] == orders[1]).sum() < 10
    assert len({int(key) for seed in range(50) for key in keys(seed, 1, range(50))}) == 2500


def test_places_are_evenly_spread():
    """Over many keys, number 0 goes everywhere equally often."""
    places = permute(np.zeros(20_000, np.int64), 10, keys(1, 2, np.arange(20_000)))
    assert (np.abs(np.bincount(places, minlength=10) - 2000) < 250).all()
