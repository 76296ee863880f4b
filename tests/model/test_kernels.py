"""Our Triton kernels for training against the plain formulas: on a GPU in bf16, by the interpreter in 32 bits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fledge import loss as loss_module
from fledge.config import ModelConfig
from fledge.model import attention, bdh_layer
from fledge.model.layers import rotary_frequencies, rotate, rotation
from tests.kernels import DEVICE, INTERPRETED, NARROW, distance, near, on_gpu_or_interpreted

pytestmark = on_gpu_or_interpreted
ROWS = 30 if INTERPRETED else 300


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 4, 32), (2, 2, 64), (4, 2, 64), (2, 1, 16)])
@pytest.mark.parametrize("length", [128, 80] if INTERPRETED else [256, 200, 1024])
@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_short_attention(heads, kv_heads, size, length, rope, norm):
    from fledge.model.short_attention import short_attention

    torch.manual_seed(0)
    qkv = torch.randn(2, length, (heads + 2 * kv_heads) * size, device=DEVICE).to(NARROW).requires_grad_()
    turn = (
        [t.to(DEVICE) for t in rotation(torch.arange(length), rotary_frequencies(size, 1e4))] if rope else [None, None]
    )
    gains = (torch.rand(2, size, device=DEVICE) + 0.5).requires_grad_() if norm else None
    q, k, v = torch.split(qkv.double().view(2, length, -1, size), [heads, kv_heads, kv_heads], dim=2)
    if norm:
        q, k = (functional.rms_norm(x, [size], gain, 1e-2) for x, gain in zip((q, k), gains.double(), strict=True))
    if rope:
        q, k = rotate(q, *turn), rotate(k, *turn)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = wanted.transpose(1, 2).flatten(2)
    seed = torch.randn_like(wanted)
    found = short_attention(qkv, gains, *turn, heads, kv_heads, 1e-2)[0]
    assert distance(found, wanted) < near(6e-3)
    inputs = [qkv] if gains is None else [qkv, gains]
    grads, wanted_grads = (
        torch.autograd.grad(out, inputs, seed.to(out.dtype), retain_graph=True) for out in (found, wanted)
    )
    for grad, wanted_grad in zip(grads, wanted_grads, strict=True):
        assert distance(grad, wanted_grad) < near(1.5e-2)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_short_attention_takes_the_place_of_the_general_one(size, qk_norm, monkeypatch):
    torch.manual_seed(0)
    config = ModelConfig(width=4 * size, heads=4, kv_heads=2, qk_norm=qk_norm)
    module = attention.Attention(config).to(DEVICE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    turn = tuple(t.to(DEVICE) for t in rotation(torch.arange(80), rotary_frequencies(size, 1e4)))
    x = torch.randn(2, 80, 4 * size, device=DEVICE)
    outputs, gradients = [], []
    for short in (True, False):
        monkeypatch.setattr(attention, "is_short", lambda *_, short=short: short)
        module.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=not INTERPRETED):
            outputs.append(module(x, turn, None, None, 0))
        outputs[-1].float().square().sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in module.parameters()]))
    assert distance(*outputs) < near(1e-2)
    assert distance(*gradients) < near(3e-2)


@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 1e-3)])
@pytest.mark.parametrize(("vocabulary", "columns"), [(50257, 50304), (10_000, 10_112), (8192, 8192), (61, 64)])
def test_loss_kernel(smoothing, z_loss, vocabulary, columns):
    logits = (torch.randn(ROWS, columns, device=DEVICE) * 3).to(NARROW)
    targets = torch.randint(vocabulary, (ROWS,), device=DEVICE)
    targets[::7] = -100
    targets[1], targets[2] = 0, vocabulary - 1
    wanted, slope = loss_module._chunk(logits.double(), targets, vocabulary, smoothing, z_loss, True)
    found, kernel_slope = loss_module._chunk_by_kernel(logits, targets, vocabulary, smoothing, z_loss, True)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert distance(kernel_slope, slope) < near(5e-3)
    assert kernel_slope[:, vocabulary:].abs().sum() == 0
    assert kernel_slope[::7].abs().sum() == 0


def test_swiglu_kernel():
    from fledge.model.activations import swiglu

    fused = torch.randn(5, 7, 2 * 1344, device=DEVICE).to(NARROW).requires_grad_()
    gate, up = fused.double().chunk(2, dim=-1)
    wanted = functional.silu(gate) * up
    found = swiglu(fused)
    assert distance(found, wanted) < near(5e-3)
    seed = torch.randn_like(wanted)
    (grad,), (wanted_grad,) = (torch.autograd.grad(out, fused, seed.to(out.dtype)) for out in (found, wanted))
    assert distance(grad, wanted_grad) < near(5e-3)


@pytest.mark.parametrize("biased", [True, False])
def test_gelu_kernel(biased):
    from fledge.model.activations import _gelu

    x = (torch.randn(5, 77, 300, device=DEVICE) * 2).to(NARROW).requires_grad_()
    bias = torch.randn(300, device=DEVICE, requires_grad=True) if biased else None
    wanted = functional.gelu(x.double() + (bias.double() if biased else 0.0), approximate="tanh")
    found = _gelu(x, bias)
    assert distance(found, wanted) < near(5e-3)
    seed, inputs = torch.randn_like(wanted), (x, bias) if biased else (x,)
    grads = (torch.autograd.grad(out, inputs, seed.to(out.dtype)) for out in (found, wanted))
    for grad, wanted_grad in zip(*grads, strict=True):
        assert distance(grad, wanted_grad) < near(5e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("documents", [False, True])
def test_bdh_kernels(dropout, keep, documents):
    """All heads at once with Triton's passes against one head at a time in plain torch, in 32 bits."""
    torch.manual_seed(0)
    heads, batch, length, neurons, width = 2, 3, 64, 512, 32
    x, grad = torch.randn(2, batch, length, width, device=DEVICE)
    weights = tuple(
        torch.randn(*shape, device=DEVICE) * 0.2
        for shape in ((heads, width, neurons), (heads, width, neurons), (heads, neurons, width))
    )
    angles = torch.rand(length, neurons // 2, device=DEVICE) * 6
    angles = (angles.cos(), angles.sin())
    allowed = torch.rand(batch, length, length, device=DEVICE) > 0.3 if documents else None
    seeds = torch.randint(1 << 31, (heads,), device=DEVICE)
    out, scores, read, u, w = bdh_layer.heads_forward(x, weights, angles, allowed, seeds, dropout)
    single = [tuple(weight[h] for weight in weights) for h in range(heads)]
    plain = [bdh_layer.head_forward(x, single[h], angles, allowed, seeds[h], dropout) for h in range(heads)]
    assert distance(out, sum(part[0] for part in plain)) < near(1e-3)
    neurons_kept = (u, w) if keep else None
    found = bdh_layer.heads_backward(grad, x, weights, angles, allowed, seeds, dropout, scores, read, neurons_kept)
    wanted = [
        bdh_layer.head_backward(grad, x, single[h], angles, allowed, seeds[h], dropout, scores[h], read[h], None)
        for h in range(heads)
    ]
    assert distance(found[0], sum(part[0] for part in wanted)) < near(1e-3)
    for number in (1, 2, 3):
        assert distance(found[number], torch.stack([part[number] for part in wanted])) < near(1e-3)
