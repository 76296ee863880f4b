"""Compressors as yardsticks: what they need for a text that follows another."""

from __future__ import annotations

import bz2
import lzma

import numpy as np
import pytest

from fledge.evaluation import compression as room
from fledge.evaluation.compression import compression


def test_noise_costs_eight_bits_and_a_repetition_next_to_none() -> None:
    """And the training text counts: the same noise after itself costs xz almost nothing."""
    noise = np.random.default_rng(0).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
    fresh = compression(noise[:20_000], noise[20_000:])
    assert fresh is not None
    assert all(bits == pytest.approx(8, abs=0.2) for bits in fresh.bits.values())
    again = compression(noise[:20_000], noise[:20_000])
    assert again is not None
    assert again.bits["xz"] < 0.2


def test_texts_are_cut_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TRAINING", 100)
    monkeypatch.setattr(room, "HELD_OUT", 50)
    training, held_out = bytes(range(256)) * 4, bytes(range(255, -1, -1))
    found = compression(training, held_out)
    assert found is not None
    assert (found.training, found.held_out) == (100, 50)
    for name, compress in (("xz", lzma.compress), ("bz2", bz2.compress)):
        both, alone = (len(compress(data)) for data in (training[-100:] + held_out[:50], training[-100:]))
        assert found.bits[name] == 8 * (both - alone) / 50
    assert compression(training, b"") is None
