"""FLOPs: equal to torch's counter, in total and product by product, for every architecture and ablation."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fledge.accounting import account
from fledge.accounting.flops import Product, list_products
from fledge.config import ModelConfig
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


sizes = st.integers(1, 6).map(lambda size: 8 * size)  # the model pads its vocabulary to a multiple of 8


@settings(max_examples=60, deadline=None)
@given(configurations(), sizes, st.integers(1, 9))
def test_products_equal_what_torch_multiplies(config: ModelConfig, vocabulary_size: int, tokens: int) -> None:
    assert as_computed(list_products(config, vocabulary_size, tokens)) == torch_products(
        config, vocabulary_size, tokens
    )


@settings(max_examples=60, deadline=None)
@given(configurations(), sizes, st.integers(2, 9))
def test_flops_equal_torch_counter(config: ModelConfig, vocabulary_size: int, tokens: int) -> None:
    found = account(config, vocabulary_size, tokens)
    assert found.forward_flops == torch_flops(config, vocabulary_size, tokens, backward=False)
    assert found.forward_flops + found.backward_flops == torch_flops(config, vocabulary_size, tokens)


def test_only_the_head_pays_for_padding() -> None:
    """The account counts the vocabulary as it is; in memory the head has up to seven columns more."""
    config = ModelConfig(layers=2, width=16, heads=2)
    padded = torch_flops(config, 51, 8, backward=False)
    assert padded - account(config, 51, 8).forward_flops == 2 * 8 * 16 * (56 - 51)


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


def test_recomputation_runs_the_blocks_twice() -> None:
    """Counted by torch: the backward pass does each block again, up to its last product."""
    config = ModelConfig(layers=3, width=16, heads=2)
    found = account(config, 64, 8, recompute=True)
    model = build(config, 64, 8)
    model.recompute = True
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros((1, 8), dtype=torch.long)).sum().backward()
    assert counter.get_total_flops() == found.forward_flops + found.backward_flops + found.recomputed_flops
    assert found.flops_per_token == account(config, 64, 8).flops_per_token
