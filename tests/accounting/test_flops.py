"""FLOPs: equal to torch's counter, in total and product by product, for every architecture and ablation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fledge.accounting import account
from fledge.accounting.flops import Product, list_products
from fledge.config import ModelConfig
from fledge.config.sizes import padded
from tests.accounting.configurations import configurations
from tests.accounting.counting import Products, build, plain_bdh, torch_flops, torch_products

FUSED = (("q_proj", "k_proj", "v_proj"), ("w1", "w3"))  # one product in memory, several in the account


def as_computed(products: list[Product]) -> Products:
    """The account's products by shape, those that the model joins into one matrix joined."""
    found: Products = Counter()
    by_name = {product.name: product for product in products}
    for names in FUSED:
        parts = [by_name.pop(name) for name in names if name in by_name]
        if len(parts) > 1:
            first = parts[0]
            found[(first.rows, first.inner, sum(part.columns for part in parts))] += first.times
        else:
            by_name.update({part.name: part for part in parts})
    for product in by_name.values():
        found[(product.rows, product.inner, product.columns)] += product.times
    return found


sizes = st.one_of(st.integers(1, 50), st.sampled_from([2_047, 2_048, 2_049, 2_176]))


def padding(config: ModelConfig, vocabulary_size: int, tokens: int) -> list[Product]:
    """The head's columns for ids that no tokenizer has: in memory the vocabulary is a multiple of 8, or of 128."""
    return [Product("padding", "head", tokens, config.width, padded(vocabulary_size) - vocabulary_size)]


@settings(max_examples=60, deadline=None)
@given(configurations(), sizes, st.integers(1, 9))
def test_products_equal_what_torch_multiplies(config: ModelConfig, vocabulary_size: int, tokens: int) -> None:
    """As many and of these shapes, the head's in memory as wide as it is padded to."""
    products = list_products(config, vocabulary_size, tokens)
    wide = [replace(p, columns=padded(vocabulary_size)) if p.name == "lm_head" else p for p in products]
    assert as_computed(wide) == torch_products(config, vocabulary_size, tokens)
    assert [p.columns for p in products if p.name == "lm_head"] == [vocabulary_size]


@settings(max_examples=60, deadline=None)
@given(configurations(), sizes, st.integers(2, 9))
def test_flops_equal_torch_counter(config: ModelConfig, vocabulary_size: int, tokens: int) -> None:
    """Where the vocabulary needs no padding, equal; else less by just the products of the padding."""
    found, extra = account(config, vocabulary_size, tokens), padding(config, vocabulary_size, tokens)
    forward = found.forward_flops + sum(product.flops for product in extra)
    backward = found.backward_flops + sum(product.backward_flops for product in extra)
    assert forward == torch_flops(config, vocabulary_size, tokens, backward=False)
    assert forward + backward == torch_flops(config, vocabulary_size, tokens)
    assert (forward == found.forward_flops) == (vocabulary_size % (128 if vocabulary_size >= 2048 else 8) == 0)


def test_only_the_head_pays_for_padding() -> None:
    """The account counts the vocabulary as it is; in memory the head has up to seven columns more."""
    config = ModelConfig(layers=2, width=16, heads=2)
    counted = torch_flops(config, 51, 8, backward=False)
    assert counted - account(config, 51, 8).forward_flops == 2 * 8 * 16 * (56 - 51)


@pytest.mark.parametrize("architecture", ["rnn", "gru", "lstm"])
def test_a_recurrent_first_step_needs_no_gradient_of_its_state(architecture: str) -> None:
    """The initial state is a constant: one product per layer is missing from the backward pass."""
    config = ModelConfig(architecture=architecture, layers=2, width=8)
    found = account(config, 16, 5)
    memory = next(product for product in found.products if product.name == "weight_hh")
    assert memory.backward_flops == 2 * memory.flops - memory.flops // 5


def test_the_counted_bdh_is_the_model() -> None:
    """The plain equations whose products are counted give what the model gives."""
    model = build(ModelConfig(architecture="bdh", layers=2, width=8, heads=2, multiplier=4), 24, 7)
    inputs = torch.arange(7)[None]
    torch.testing.assert_close(plain_bdh(model, inputs), model.hidden(inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": True, "norm": "layer", "feed_forward": "gelu"},
        {"norm_place": "post"},
        {"norm_place": "post", "norm": "layer"},
        {"norm_place": "post", "norm": "none"},
        {"dropout": 0.1},
        {"dropout": 0.1, "norm_place": "post", "norm": "none"},
    ],
)
def test_recomputation_runs_the_blocks_twice(changes: dict[str, Any]) -> None:
    """Counted by torch: the backward pass does each block again, up to the last thing it needs of it."""
    config = ModelConfig(layers=3, width=16, heads=2, **changes)
    found = account(config, 64, 8, recompute=True)
    model = build(config, 64, 8)
    model.recompute = True
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros((1, 8), dtype=torch.long)).sum().backward()
    assert counter.get_total_flops() == found.forward_flops + found.backward_flops + found.recomputed_flops
    assert found.flops_per_token == account(config, 64, 8).flops_per_token
