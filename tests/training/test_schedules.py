"""Schedules rise linearly, decay as named, and end where they are told to."""

from __future__ import annotations

import pytest

from fledge.config import ScheduleConfig
from fledge.training import schedule


@pytest.mark.parametrize("name", ["cosine", "stable", "linear", "constant"])
def test_warm_up_is_linear_and_ends_at_the_peak(name: str) -> None:
    config = ScheduleConfig(name=name, warmup_steps=10)
    assert [schedule(config, step, 100) for step in range(10)] == pytest.approx([n / 10 for n in range(1, 11)])
    assert schedule(config, 10, 100) == 1.0


@pytest.mark.parametrize("name", ["cosine", "stable", "linear"])
def test_decay_falls_steadily_to_the_final_fraction(name: str) -> None:
    config = ScheduleConfig(name=name, warmup_steps=10, final_fraction=0.2)
    factors = [schedule(config, step, 100) for step in range(10, 101)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(0.2)


def test_stable_stays_at_the_peak_until_its_decay() -> None:
    config = ScheduleConfig(name="stable", warmup_steps=10, decay_fraction=0.2, final_fraction=0.0)
    assert {schedule(config, step, 100) for step in range(10, 81)} == {1.0}
    assert schedule(config, 90, 100) == pytest.approx(0.5)


def test_cosine_is_half_way_in_the_middle() -> None:
    config = ScheduleConfig(name="cosine", warmup_steps=0, final_fraction=0.0)
    assert schedule(config, 50, 100) == pytest.approx(0.5)


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    config = ScheduleConfig(warmup_steps=100)
    assert [schedule(config, step, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
