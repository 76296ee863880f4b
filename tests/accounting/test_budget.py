"""Time, cost and the size that a budget suits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from fledge.accounting import SHAPES, Account, account, optimum
from fledge.accounting.budget import readable_share
from fledge.config import ModelConfig, OptimizerConfig
from fledge.errors import FledgeError
from fledge.progress import readable_time
from fledge.training.optimizers import build_optimizer
from tests.accounting.counting import build


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
    with pytest.raises(FledgeError, match="does not support bf16"):
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
        (1e9, "11,574.1 days (31.7 years)"),
    ],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert readable_time(seconds) == text


def test_small_shares_are_not_nothing() -> None:
    assert [readable_share(share) for share in (0.4, 0.01, 0.0042, 1e-5)] == ["40%", "1%", "0.42%", "0.001%"]


def test_recomputation_takes_time() -> None:
    """Its products are done at the same share of the peak as the others."""
    plain = account(SHAPES["small"].model, 50_257, 1_024, batch=64, device="h200")
    again = account(SHAPES["small"].model, 50_257, 1_024, batch=64, device="h200", recompute=True)
    more = (again.forward_flops + again.backward_flops + again.recomputed_flops) / (3 * again.forward_flops)
    assert again.time(1e9).seconds == pytest.approx(more * plain.time(1e9).seconds)
    assert again.flops_per_token == plain.flops_per_token


def test_no_time_is_shorter_than_the_memory_allows() -> None:
    """One short window a step: weights and moments travel for eight tokens, and no share of the peak helps."""
    tiny = account(SHAPES["xl"].model, 50_257, 8, device="h200")
    time = tiny.time(1e6, mfu=1.0)
    assert time.bound == "memory"
    assert time.seconds == pytest.approx(1e6 / 8 * tiny.bound().traffic_seconds)
    assert tiny.time(1e6, mfu=0.9).seconds == time.seconds
    accumulated = replace(tiny, step_batch=512)
    assert accumulated.time(1e6, mfu=1.0).seconds < time.seconds  # one update for 512 windows


def test_what_does_not_fit_is_known() -> None:
    assert not account(SHAPES["xl"].model, 50_257, 1_024, device="t4", precision="fp16").fits
    assert account(SHAPES["small"].model, 50_257, 1_024, device="h200").fits


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 2, "width": 32, "heads": 4},
        {"layers": 3, "width": 32, "heads": 4, "kv_heads": 2, "feed_forward": "gelu", "tied": True, "bias": True},
        {"architecture": "bdh", "layers": 2, "width": 16, "heads": 2, "multiplier": 8},
        {"architecture": "gru", "layers": 2, "width": 16},
    ],
)
def test_the_optimizers_products_are_those_that_torch_counts(optimizer: str, changes: dict[str, Any]) -> None:
    config = ModelConfig(**changes)
    model = build(config, 64, 16)
    built = build_optimizer(model, OptimizerConfig(name=optimizer))  # type: ignore[arg-type]
    with FlopCounterMode(display=False) as counter:
        built.step()
    found = account(config, 64, 16, optimizer=optimizer)
    assert found.optimizer_product_flops == counter.get_total_flops()
    assert (found.optimizer_product_flops > 0) == (optimizer == "muon")


def test_every_optimizer_has_its_own_arithmetic() -> None:
    def found(optimizer: str) -> Account:
        return account(SHAPES["small"].model, 50_257, 1_024, optimizer=optimizer, device="h200")

    adamw, sgd, muon = (found(name) for name in ("adamw", "sgd", "muon"))
    assert adamw.optimizer_flops == 14 * adamw.parameters.total
    assert sgd.optimizer_flops == 8 * sgd.parameters.total
    assert muon.optimizer_flops > 100 * adamw.optimizer_flops
    assert muon.time(1e9).seconds > adamw.time(1e9).seconds == sgd.time(1e9).seconds


@pytest.mark.parametrize("tokens", [0, -1, float("inf"), float("nan")])
def test_tokens_and_prices_are_numbers(tokens: float) -> None:
    found = account(SHAPES["small"].model, 50_257, 1_024, device="h200")
    with pytest.raises(FledgeError, match="tokens = "):
        found.time(tokens)
    if tokens != 0:
        with pytest.raises(FledgeError, match="price = "):
            found.time(1e9).cost(tokens)


@pytest.mark.parametrize("name", ["vocabulary_size", "context_length", "batch", "step_batch", "shards", "positions"])
@pytest.mark.parametrize("value", [0, -3, 2.5, True, "8"])
def test_sizes_are_whole_numbers(name: str, value: Any) -> None:
    sizes = {"vocabulary_size": 100, "context_length": 16, name: value}
    with pytest.raises(FledgeError, match=f"{name} = .*whole number"):
        Account(ModelConfig(), **sizes)


def test_wrong_words_are_refused_when_the_account_is_opened() -> None:
    with pytest.raises(FledgeError, match=r"precision = 'bf61'.*bf16"):
        account(ModelConfig(), 256, 16, precision="bf61")
    with pytest.raises(FledgeError, match=r"optimizer = 'adam'.*adamw"):
        account(ModelConfig(), 256, 16, optimizer="adam")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1, "1e9", None, True, 10**400])
def test_times_and_costs_need_numbers(value: Any) -> None:
    """A sentence for what Python would stumble over, and for what no time can be."""
    found = account(SHAPES["small"].model, 50_257, 1_024, device="h200")
    with pytest.raises(FledgeError, match="tokens = .* is not allowed"):
        found.time(value)
    if value is not True:  # which is no number, but 1 is a share
        with pytest.raises(FledgeError, match="mfu = .* is not allowed"):
            found.time(1e9, mfu=value)
    if value != 0:
        with pytest.raises(FledgeError, match="price = .* is not allowed"):
            found.time(1e9).cost(value)
    with pytest.raises(FledgeError, match="processes = .* is not allowed"):
        found.bound(processes=value if value != 10**400 else 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": "8"},
        {"batch": 8.0},
        {"batch": float("nan")},
        {"vocabulary_size": None},
        {"context_length": "1024"},
        {"precision": 16},
        {"precision": ["bf16"]},
        {"optimizer": None},
        {"recompute": "yes"},
        {"flash": 1},
        {"device": 5},
        {"config": "small"},
        {"config": None},
    ],
)
def test_an_account_of_the_wrong_kinds_of_values_is_refused_in_a_sentence(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"config": ModelConfig(), "vocabulary_size": 256, "context_length": 16, **wrong}
    with pytest.raises(FledgeError, match=f"{next(iter(wrong))} = .* is not allowed"):
        account(**arguments)
