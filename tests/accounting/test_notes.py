"""The answers that the notes give, and those they skipped, from our own account."""

from __future__ import annotations

import pytest

from fledge.accounting import SHAPES, account
from fledge.accounting.textbook import textbook
from fledge.config import ModelConfig, load_recipe

XL = SHAPES["xl"].model
L, D, T, V = 48, 1600, 1024, 50_257


def test_gpt2_xl_shape() -> None:
    found = account(XL, V, T)
    assert found.parameters.total == 2_127_057_600
    assert found.parameters.total * 4 == 8_508_230_400
    assert found.forward_flops == 4_513_336_524_800


def test_gpt2_xl_shape_at_sixteen_times_the_context() -> None:
    """Products with weights grow 16 times, scores and values 256 times."""
    short, long = account(XL, V, T).flops_by_component, account(XL, V, 16 * T).flops_by_component
    assert account(XL, V, 16 * T).forward_flops == 149_522_795_724_800
    assert {name: long[name] / short[name] for name in short} == {
        "attention projections": 16,
        "attention scores": 256,
        "attention values": 256,
        "feed-forward": 16,
        "head": 16,
    }


def test_the_feed_forward_takes_the_most_and_the_head_less_and_less() -> None:
    shares = []
    for name in ("small", "medium", "large", "xl"):
        shape = SHAPES[name]
        found = account(shape.model, shape.vocabulary_size, shape.context_length)
        parts = {k: v / found.forward_flops for k, v in found.flops_by_component.items()}
        assert max(parts, key=lambda part: parts[part]) == "feed-forward"
        shares.append(parts)
    assert [round(parts["head"], 3) for parts in shares] == [0.226, 0.102, 0.058, 0.036]
    assert [round(parts["feed-forward"], 3) for parts in shares] == [0.498, 0.599, 0.642, 0.669]


def test_tinystories_shape() -> None:
    run = load_recipe("tinystories")
    found = account(run.model, 10_000, run.tokens.context_length)
    assert found.parameters.total == 22_696_448
    assert found.forward_flops == pytest.approx(9.53e9, rel=1e-3)


def test_tied_gpt2_xl_with_a_two_matrix_feed_forward() -> None:
    """About 1.55 billion parameters, 6.2 GB in fp32, L·(24·T·d² + 4·T²·d) + 2·T·d·V FLOPs."""
    config = ModelConfig(layers=L, width=D, heads=25, feed_forward="gelu", tied=True)
    found = account(config, V, T)
    assert found.parameters.total == pytest.approx(1.55e9, rel=0.005)
    assert found.parameters.total * 4 == pytest.approx(6.2e9, rel=0.005)
    assert found.forward_flops == L * (24 * T * D**2 + 4 * T**2 * D) + 2 * T * D * V


def test_adamw_memory_by_hand() -> None:
    """The notes' list for XL: 15.31 GB for each window and 24.88 GB besides, so three windows in 80 GB."""
    notes = textbook(XL, V, T)
    assert notes.parameters == L * (12 * D**2 + 2 * D) + D + D * V == 1_555_126_400
    assert notes.activations == L * (16 * T * D + 2 * 25 * T**2) + T * D + T * V + T == 3_827_976_192
    memory = notes.memory()
    assert (memory.slope, memory.intercept) == (15_311_904_768, 24_882_022_400)
    assert memory.largest_batch(80e9) == 3
    assert "15,311,904,768·batch + 24,882,022,400" in notes.formula


def test_adamw_memory_of_our_training() -> None:
    """What fusing, flash attention and bf16 make of it: more windows in the same 80 GB, of a larger model."""
    found = account(XL, V, T).memory
    assert found.largest_batch(80e9) >= 5
    assert account(XL, V, T, recompute=True).memory.largest_batch(80e9) > 4 * found.largest_batch(80e9)


def test_one_step_of_adamw() -> None:
    """14 operations for each parameter, beside which the products of a single window are 450 times more."""
    found = account(XL, V, T)
    assert found.optimizer_flops == 14 * 2_127_057_600
    assert found.step_flops / found.optimizer_flops > 400


def test_training_flops_are_about_six_per_parameter_and_token() -> None:
    found = account(XL, V, T)
    assert found.flops_per_token == pytest.approx(6 * found.parameters.total, rel=0.04)


def test_days_of_training_on_one_a100() -> None:
    """400,000 steps of 1,024 windows at half of 19.5 TFLOP/s: 18 years with three matrices, 14 with two."""
    tokens = 400_000 * 1024 * T
    ours = account(XL, V, T, precision="fp32", device="a100").time(tokens, mfu=0.5)
    assert ours.peak == 19.5e12
    assert ours.days == pytest.approx(6_583, rel=1e-3)
    tied = ModelConfig(layers=L, width=D, heads=25, feed_forward="gelu", tied=True)
    assert account(tied, V, T, precision="fp32", device="a100").time(tokens, mfu=0.5).days == pytest.approx(
        5_115, rel=1e-3
    )
