"""Every strategy against the distribution it promises, by a chi-square test over many draws."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.config import RunConfig, SamplingConfig, parse
from fledge.errors import FledgeError
from fledge.generation.sampling import candidates, choose, draw, penalise, uniforms

DRAWS = 40_000
LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.9, -3.0, 0.0, 1.0, -0.5, 0.49, -8.0])


def expected(logits: torch.Tensor, config: SamplingConfig) -> np.ndarray:
    """The filtered distribution, by the definition of each filter on plain lists."""
    probabilities = torch.softmax(logits.double() / config.temperature, -1).tolist()
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    if config.top_k:
        order = order[: config.top_k]
    if config.top_p:
        scale, kept, reached = sum(probabilities[i] for i in order), [], 0.0
        for i in order:
            if reached >= config.top_p * scale:
                break
            kept.append(i)
            reached += probabilities[i]
        order = kept
    if config.min_p:
        order = [i for i in order if probabilities[i] >= config.min_p * probabilities[order[0]]]
    result = np.zeros(len(probabilities))
    result[order] = [probabilities[i] for i in order]
    return result / result.sum()


def chi_square_accepts(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Within the 1 − 1e-6 quantile of the chi-square distribution (Wilson and Hilferty's approximation)."""
    possible = probabilities > 0
    if counts[~possible].any():
        return False
    wanted = probabilities[possible] * counts.sum()
    rare = wanted < 5
    counts, wanted = counts[possible], wanted
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        wanted = np.append(wanted[~rare], wanted[rare].sum())
    freedom = max(len(counts) - 1, 1)
    statistic = ((counts - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))) ** 3
    return bool(statistic <= max(limit, 25))


def draw_many(logits: torch.Tensor, config: SamplingConfig, seed: int) -> np.ndarray:
    """How often each id is drawn; all at once, since `choose` takes a row at a time."""
    drawn = draw(candidates(logits.expand(DRAWS, -1), config), uniforms(seed, 1, 0, DRAWS)[0])
    return np.bincount(drawn.numpy(), minlength=len(logits))


@pytest.mark.parametrize("filters", [{}, {"top_k": 40}, {"top_p": 0.9}, {"top_k": 900, "top_p": 0.9}, {"min_p": 0.01}])
def test_a_choice_does_not_depend_on_its_neighbours(filters: dict[str, float]) -> None:
    """Also among equal scores, of which bfloat16 has many, beside a row that needs more than the shortlist."""
    row = 4 * torch.randn(1, 2000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    config = SamplingConfig(temperature=1.0, **filters)
    for number in uniforms(5, 1, 0, 200)[0]:
        alone = choose(row, config, number[None])
        together = choose(torch.cat([row, torch.zeros(1, 2000)]), config, number.repeat(2))
        assert alone[0] == together[0]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 999},
        {"temperature": 1.0, "top_p": 0.75},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_p": 1e-46},
        {"temperature": 1.0, "top_p": 1.0},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_draws_follow_the_filtered_distribution(options: dict[str, float]) -> None:
    config = SamplingConfig(**options)
    counts = draw_many(LOGITS, config, seed=11)
    assert chi_square_accepts(counts, expected(LOGITS, config))


def test_the_test_itself_notices_a_wrong_temperature() -> None:
    counts = draw_many(LOGITS, SamplingConfig(temperature=1.05), seed=11)
    assert not chi_square_accepts(counts, expected(LOGITS, SamplingConfig(temperature=1.0)))


def test_repetition_penalty_changes_the_distribution_as_defined() -> None:
    seen = torch.zeros(10, dtype=torch.bool)
    seen[[0, 1]] = True
    config = SamplingConfig(temperature=1.0, repetition_penalty=1.5)
    penalised = LOGITS.clone()
    penalised[0], penalised[1] = 2.0 / 1.5, -1.0 * 1.5
    assert torch.equal(penalise(LOGITS, seen, 1.5), penalised)
    counts = draw_many(penalised, config, seed=3)
    assert chi_square_accepts(counts, expected(penalised, SamplingConfig(temperature=1.0)))
    numbers = uniforms(3, 1, 0, 500)[0]
    assert torch.equal(
        choose(LOGITS.expand(500, -1), config, numbers, seen.expand(500, -1)),
        draw(candidates(penalised.expand(500, -1), config), numbers),
    )


def test_temperature_zero_takes_the_likeliest() -> None:
    rows = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    config = SamplingConfig(temperature=0, top_p=0.5)
    assert torch.equal(choose(rows, config, torch.rand(50)), rows.argmax(-1))


@pytest.mark.parametrize("temperature", [1e-29, 1e-31, 1e-38, 1e-45, 1e-300])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_temperature_next_to_zero_takes_the_likeliest(temperature: float, filters: dict[str, float]) -> None:
    """Scores divided by so little would be infinite, and nothing could be drawn from them."""
    rows = 1e4 * torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    config = SamplingConfig(temperature=temperature, **filters)
    numbers = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    assert torch.equal(choose(rows, config, numbers), rows.argmax(-1))


def test_a_flat_nucleus_needs_more_than_the_shortlist() -> None:
    logits = torch.zeros(1, 2000)
    kept = candidates(logits, SamplingConfig(temperature=1.0, top_p=0.5)).scores.isfinite().sum()
    assert int(kept) in (1000, 1001)  # the sum of a thousand rounded halves may fall just short


@given(st.integers(0, 2**63), st.integers(0, 40), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_uniform_numbers_belong_to_their_position(seed: int, start: int, count: int) -> None:
    whole = uniforms(seed, 3, 0, start + count)
    assert torch.equal(uniforms(seed, 3, start, count), whole[:, start:])
    assert torch.equal(uniforms(seed, 1, 0, start + count), whole[:1])
    assert ((whole >= 0) & (whole < 1)).all()


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=20), st.floats(0, 1, exclude_max=True))
@settings(max_examples=100, deadline=None)
def test_a_draw_never_leaves_the_candidates(logits: list[float], number: float) -> None:
    config = SamplingConfig(temperature=0.7, top_k=5, top_p=0.8, min_p=0.05)
    row = torch.tensor([logits], dtype=torch.float32)
    drawn = int(choose(row, config, torch.tensor([number], dtype=torch.float64)))
    found = candidates(row, config)
    assert found.ids is not None
    allowed = found.ids[0][found.scores[0].isfinite()].tolist()
    assert drawn in allowed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 0),
        ("min_p", 2),
        ("repetition_penalty", 0.5),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(FledgeError, match=name):
        parse(SamplingConfig, {name: value})


@pytest.mark.parametrize("share", [1e-30, 1e-46, 1e-300])
def test_the_likeliest_stays_however_small_the_share(share: float) -> None:
    """Also where a float rounds the share to nothing; and it alone."""
    for logits in (LOGITS[None], torch.randn(3, 1000)):
        found = candidates(logits, SamplingConfig(temperature=1.0, top_p=share))
        assert found.ids is not None
        assert found.scores.isfinite().sum(dim=-1).tolist() == [1] * len(logits)
        assert found.ids[:, 0].tolist() == logits.argmax(dim=-1).tolist()


def test_every_seed_that_is_allowed_has_numbers_of_its_own() -> None:
    """The largest included, on which a conversion by way of a float would fail."""
    seeds = [0, 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {tuple(uniforms(seed, 1, 0, 4)[0].tolist()) for seed in seeds}
        uniforms(2**64 - 1, 2, 0, 4)
    assert len(found) == len(seeds)
    for group in ("training", "sampling"):
        with pytest.raises(FledgeError, match="seed = 9223372036854775808 is not allowed"):
            parse(RunConfig, {group: {"seed": 2**63}})
