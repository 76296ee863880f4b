"""A keyed permutation of 0..n-1 in constant memory: where does number i go in epoch e?

A Feistel network over a rectangle of a×b ≥ n cells, with additions modulo a and b; what falls outside n is
sent through again (cycle walking), which is rare because a·b is hardly greater than n.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]
ROUNDS = 6


def mix(values: Numbers) -> Numbers:
    """64 bits in, 64 well-spread bits out (the finaliser of splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keys(seed: int, purpose: int, epochs: npt.ArrayLike) -> Numbers:
    """One key for each epoch, different for every seed and purpose."""
    start = mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64)) + np.uint64(purpose)
    return mix(mix(start) + np.asarray(epochs, np.uint64))


def permute(indices: npt.ArrayLike, count: int, key: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The place of each index in the permutation of `count` numbers that `key` names (one key, or one per index).

    >>> sorted(permute(range(5), 5, 7).tolist())
    [0, 1, 2, 3, 4]
    """
    wide = max(1, math.isqrt(max(count - 1, 0)) + 1)  # the ceiling of the root
    high = -(-count // wide)
    values = np.asarray(indices).astype(np.uint64)
    spread = np.broadcast_to(np.asarray(key, np.uint64), values.shape)
    values = _rounds(values, wide, high, spread)
    while (outside := np.flatnonzero(values >= np.uint64(count))).size:
        values[outside] = _rounds(values[outside], wide, high, spread[outside])
    return values.astype(np.int64)


def _rounds(values: Numbers, wide: int, high: int, key: Numbers) -> Numbers:
    a, b = np.uint64(wide), np.uint64(high)
    left, right = values % a, values // a
    for number in range(ROUNDS):
        shift = key + np.uint64(number * 0x9FB21C651E98DF25 & 0xFFFFFFFFFFFFFFFF)
        if number % 2:
            right = (right + mix(left ^ shift) % b) % b
        else:
            left = (left + mix(right ^ shift) % a) % a
    return right * a + left
