"""Schedules rise linearly, decay as named, and end where they are told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fledge.config import ScheduleConfig
from fledge.training import schedule
from fledge.training.schedules import decay_share

from .support import run, settings


@pytest.mark.parametrize("name", ["cosine", "stable", "linear", "constant"])
def test_warm_up_is_linear_and_ends_at_the_peak(name: str) -> None:
    config = ScheduleConfig(name=name, warmup_steps=10)
    assert [schedule(config, step, 100) for step in range(10)] == pytest.approx([n / 10 for n in range(1, 11)])
    assert schedule(config, 10, 100) == 1.0


@pytest.mark.parametrize("name", ["cosine", "stable", "linear"])
def test_decay_falls_steadily_to_the_final_fraction(name: str) -> None:
    config = ScheduleConfig(name=name, warmup_steps=10, final_fraction=0.2)
    factors = [schedule(config, step, 100) for step in range(10, 100)]
    assert factors == sorted(factors, reverse=True)
    assert 0.2 < factors[-1] < 0.25, "the last step still moves the weights; the one after it would have the fraction"
    assert schedule(config, 100, 100) == pytest.approx(0.2)


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


def test_weight_decay_goes_to_its_end_on_a_line_and_training_follows_it(tmp_path: Path, monkeypatch: Any) -> None:
    from fledge.training.optimizers import AdamW

    config = ScheduleConfig(final_weight_decay_factor=3.0)
    assert [decay_share(config, step, 5) for step in range(5)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])
    assert decay_share(config, 0, 1) == 1.0
    assert {decay_share(ScheduleConfig(), step, 5) for step in range(5)} == {1.0}
    seen: list[float] = []
    original = AdamW.begin
    monkeypatch.setattr(AdamW, "begin", lambda self: (seen.append(self.decay_factor), original(self)))
    run(settings(schedule={"final_weight_decay_factor": 0.0}, training={"steps": 5}), tmp_path / "run")
    assert seen == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
