"""Our dropout on the CPU against torch's: the share dropped, the expectation kept, the seed obeyed, attention equal."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.model import build_model
from fledge.model.dropout import Dropout, RowDropout, TokenDropout, attention_with_dropout, kept_factor


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9])
def test_drops_the_share_and_keeps_the_expectation(share):
    torch.manual_seed(0)
    x = torch.ones(400, 1001, requires_grad=True)
    out = Dropout(share)(x)
    dropped = float((out == 0).double().mean())
    spread = (share * (1 - share) / x.numel()) ** 0.5
    assert abs(dropped - share) < 5 * spread + 2**-16
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1.0).mul(1 / (1 - share)).item()}
    assert float(out.detach().mean()) == pytest.approx(1, abs=6 * spread / (1 - share) + 2**-16 / (1 - share))
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())  # the gradient goes where the values went


def test_rows_and_columns_are_dropped_independently():
    """A random number serves four neighbours: they must not be dropped together."""
    torch.manual_seed(0)
    dropped = (kept_factor(torch.empty(20_000, 64), 0.5) == 0).double()
    together = torch.corrcoef(dropped.T) - torch.eye(64)
    assert float(together.abs().max()) < 5 / 20_000**0.5


def test_the_seed_decides_and_evaluation_drops_nothing():
    x = torch.randn(3, 5, 7)
    layer = Dropout(0.3)
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(first, layer(x))
    assert not torch.equal(first, layer(x))
    assert layer.eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_torch_where_nothing_is_dropped(kv_heads, masked):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, heads, 9, 8, dtype=torch.float64) for heads in (4, kv_heads, kv_heads))
    mask = None
    if masked:
        allowed = torch.ones(2, 1, 9, 9).tril().bool()
        allowed[:, :, 5:, :5] = False
        mask = torch.zeros(2, 1, 9, 9, dtype=torch.float64).masked_fill(~allowed, -torch.inf)
    ours = attention_with_dropout(q, k, v, mask, 1e-9)  # rounds to no value at all
    theirs = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_attention_keeps_its_expectation():
    torch.manual_seed(2)
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    many = attention_with_dropout(*(x.expand(20_000, 1, 6, 4) for x in (q, k, v)), None, 0.2)
    whole = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(many.mean(0, keepdim=True), whole, rtol=0, atol=0.03)


def test_row_dropout_leaves_out_whole_rows_and_keeps_the_expectation():
    torch.manual_seed(0)
    x = torch.ones(20_000, 3, 2)
    out = RowDropout(0.2)(x)
    assert set(out.unique().tolist()) == {0.0, 1.25}
    assert (out == out[:, :1, :1]).all()
    assert float((out == 0).double().mean()) == pytest.approx(0.2, abs=0.015)
    assert RowDropout(0.2).eval()(x) is x
    assert RowDropout(0.0)(x) is x


def test_token_dropout_draws_a_share_for_each_row():
    torch.manual_seed(0)
    x = torch.ones(4_000, 200, 2)
    out = TokenDropout(0.4)(x)
    assert set(out.unique().tolist()) == {0.0, 1.0}
    assert (out[..., 0] == out[..., 1]).all()
    shares = (out[..., 0] == 0).double().mean(1)
    assert float(shares.mean()) == pytest.approx(0.2, abs=0.01)
    assert float(shares.std()) == pytest.approx(0.4 / 12**0.5, abs=0.01)
    assert TokenDropout(0.4).eval()(x) is x


def test_layers_are_left_out_more_often_the_deeper_they_are():
    """A row for which a layer is left out passes it unchanged; attention's own share is a setting of its own."""
    config = ModelConfig(layers=4, width=16, heads=2, layer_dropout=0.8, dropout=0.1, attention_dropout=0.0)
    model = build_model(config, 11, 8).train()
    shares = [module.share for block in model.layers for module in block.modules() if isinstance(module, RowDropout)]
    assert shares == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert {block.attn.dropout for block in model.layers} == {0.0}
    torch.manual_seed(0)
    block = build_model(config.model_copy(update={"dropout": 0.0}), 11, 8).train().layers[3]
    x = torch.randn(64, 8, 16)
    passed = (block(x, None, None, None, 3) == x).flatten(1).all(1)
    assert float(passed.double().mean()) == pytest.approx(0.64, abs=0.2)


def test_every_kind_of_dropout_ends_with_training():
    config = ModelConfig(layers=2, width=16, heads=2)
    torch.manual_seed(0)
    plain = build_model(config, 11, 8)
    torch.manual_seed(0)
    shares = {"attention_dropout": 0.3, "layer_dropout": 0.3, "token_dropout": 0.3}
    dropping = build_model(config.model_copy(update=shares), 11, 8)
    ids = torch.arange(8)[None]
    assert torch.equal(plain.eval()(ids), dropping.eval()(ids))
    assert not torch.equal(dropping.train()(ids), plain(ids))
