"""Time, cost and the size that a budget suits."""

from __future__ import annotations

import pytest

from fledge.accounting import SHAPES, account, forecast, optimum
from fledge.accounting.budget import readable_time
from fledge.errors import FledgeError


def test_time_and_cost_follow_from_flops_and_peak() -> None:
    found = account(SHAPES["small"].model, 50_257, 1_024, device="h200")
    time = found.time(1e9, mfu=0.5)
    assert time.seconds == pytest.approx(1e9 * found.flops_per_token / (0.5 * 989.5e12))
    assert time.tokens_per_second == pytest.approx(1e9 / time.seconds)
    assert time.cost(3.6) == pytest.approx(time.seconds / 1000)


def test_a_time_needs_a_device_that_has_the_precision_and_a_share_of_its_peak() -> None:
    found = account(SHAPES["small"].model, 50_257, 1_024)
    with pytest.raises(FledgeError, match="needs a device"):
        found.time(1e9)
    with pytest.raises(FledgeError, match="no units for bf16"):
        found.time(1e9, device="t4")
    with pytest.raises(FledgeError, match=r"mfu = 1\.2"):
        found.time(1e9, mfu=1.2, device="h200")


def test_large_batches_are_bound_by_compute_and_small_ones_by_memory() -> None:
    def bound(batch: int) -> str:
        return account(SHAPES["small"].model, 50_257, 1_024, batch=batch, device="h200").bound().name

    assert bound(64) == "compute"
    tiny = account(SHAPES["xl"].model, 50_257, 8, device="h200").bound()
    assert tiny.name == "memory"


def test_the_optimum_spends_the_budget() -> None:
    best = optimum(1e21)
    assert 6 * best.parameters * best.tokens == pytest.approx(1e21)
    assert best.tokens == pytest.approx(20 * best.parameters)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (40, "40.0 seconds"),
        (7200, "2.0 hours"),
        (86400 * 400, "400.0 days"),
        (1e9, "31.7 years"),
    ],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert readable_time(seconds) == text


def test_a_forecast_is_held_against_what_came() -> None:
    found = forecast(account(SHAPES["small"].model, 50_257, 1_024, batch=32), "NVIDIA H200", 512)
    assert found.step_flops == 512 * 1_024 * account(SHAPES["small"].model, 50_257, 1_024).flops_per_token
    assert "TFLOP a step" in found.sentence()
    assert "tokens/s at 40%" in found.sentence()
    said = found.held_against(1.1 * found.memory, 0.9 * (found.tokens_per_second or 0))
    assert "10% more than expected" in said
    assert "10% less than expected: 36% of the device's peak" in said


def test_a_forecast_for_an_unknown_device_has_no_speed() -> None:
    found = forecast(account(SHAPES["small"].model, 50_257, 1_024), "a toaster", 8)
    assert found.tokens_per_second is None
    assert "tokens/s" not in found.sentence() + found.held_against(1e9, 100.0)
