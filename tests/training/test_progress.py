"""The counters of a checkpoint: they come back as they were kept, and a stranger's are refused with a sentence."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.errors import FledgeError
from fledge.training.progress import Incomplete, Progress
from fledge.training.skipping import present, union

KEPT = Progress(step=7, samples=28, tokens=448, updates=6, skipped=[(4, 8)], mean_loss=3.5, seconds=1.25)


def test_what_was_kept_comes_back_equal() -> None:
    assert Progress.restore(json.loads(json.dumps(KEPT.values()))) == KEPT
    assert Progress.restore({**KEPT.values(), "from a later fledge": 1}) == KEPT


def test_a_state_from_before_updates_were_counted_goes_on_with_its_steps() -> None:
    older = {name: value for name, value in KEPT.values().items() if name != "updates"}
    assert Progress.restore(older).updates == KEPT.step


@pytest.mark.parametrize("values", [[1], None, 3, "step", [["step", 5]]])
def test_what_is_no_table_is_refused(values: Any) -> None:
    with pytest.raises(FledgeError, match="not a table of counters.*Go on from an earlier checkpoint"):
        Progress.restore(values)


def test_a_counter_that_is_not_there_is_refused_by_its_name() -> None:
    for name in KEPT.values().keys() - {"updates", "averaged"}:
        with pytest.raises(FledgeError, match=f"has no {name}, .*Go on from an earlier checkpoint"):
            Progress.restore({key: value for key, value in KEPT.values().items() if key != name})


COUNT = "a whole number, 0 or more and below 281,474,976,710,656"
WRONG: dict[str, tuple[str, list[Any]]] = {
    **{name: (COUNT, [-5, 1.5, "7", None, True, 2**48, 10**30]) for name in ("step", "samples", "tokens", "updates")},
    **{name: (COUNT, [-1, 0.5]) for name in ("micro_batch", "interval_steps", "scaled_steps")},
    "seconds": ("a number, 0 or more", [-1.0, float("nan"), float("inf"), "1", 10**400]),
    "loss_scale": ("a number above 0", [0, -1.0, None]),
    "mean_loss": ("a number, or null", [float("nan"), "3", []]),
    "averaged": ("true or false", [1, None, "yes"]),
    "skipped": ("a list of pairs", [3, [1], [[1]], [[1, 2, 3]], [[5, 4]], [[-1, 2]], [[0, 2**48]], {"1": 2}]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_counter_out_of_its_range_is_refused(name: str) -> None:
    allowed, values = WRONG[name]
    for value in values:
        with pytest.raises(FledgeError, match=f"says {name} = .*, which must be {allowed}"):
            Progress.restore({**KEPT.values(), name: value})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"step": 29}, "step = 29 and samples = 28"),
        ({"samples": 449}, "samples = 449 and tokens = 448"),
        ({"updates": 8}, "updates = 8 and step = 7"),
        ({"interval_steps": 8}, "interval_steps = 8 and step = 7"),
        ({"scaled_steps": 8}, "scaled_steps = 8 and step = 7"),
    ],
)
def test_counters_that_contradict_each_other_are_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(FledgeError, match=f"{words}, and .* is never above .*Go on from an earlier checkpoint"):
        Progress.restore({**KEPT.values(), **values})


def test_a_state_of_another_program_is_told_from_a_forged_one() -> None:
    with pytest.raises(Incomplete, match="has no samples"):
        Progress.restore({"step": 7})
    for forged in ({}, {"step": -5}, {"step": 7, "samples": 3}):
        with pytest.raises(FledgeError) as refused:
            Progress.restore(forged)
        assert not isinstance(refused.value, Incomplete)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=8), st.integers(0, 30))
def test_skipped_samples_are_left_out_and_no_others(pairs: list[tuple[int, int]], count: int) -> None:
    """In any order, and where one range lies in another, as when a batch that spanned an older one is left out."""
    ranges = [(first, first + length) for first, length in pairs]
    kept = [n for n in range(200) if not any(first <= n < after for first, after in ranges)][:count]
    assert present(np.arange(count), union(ranges)).tolist() == kept


def test_many_ranges_cost_no_time() -> None:
    ranges = union([(2 * n, 2 * n + 1) for n in range(200_000)])
    start = time.monotonic()
    for number in range(100):
        assert present(np.array([number]), ranges).tolist() == [2 * number + 1]
    assert time.monotonic() - start < 5
