"""What runs on a GPU only: our kernels against the plain formulas, and whole models against the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from fledge import loss as loss_module
from fledge.config import ModelConfig
from fledge.loss import head_loss
from fledge.model import bdh_layer, build_model
from fledge.model.layers import rotary_frequencies, rotate, rotation

from .cases import Batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
        reason="needs a CUDA device of compute capability 8.0",
    ),
]


def distance(found, wanted) -> float:
    found, wanted = found.double().cpu(), wanted.double().cpu()
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 4, 32), (2, 2, 64), (4, 2, 64), (2, 1, 16)])
@pytest.mark.parametrize("length", [256, 200, 1024])
@pytest.mark.parametrize("rope", [True, False])
def test_short_attention(heads, kv_heads, size, length, rope):
    from fledge.model.short_attention import short_attention

    torch.manual_seed(0)
    qkv = torch.randn(2, length, (heads + 2 * kv_heads) * size, device="cuda").bfloat16().requires_grad_()
    turn = [t.cuda() for t in rotation(torch.arange(length), rotary_frequencies(size, 1e4))] if rope else [None, None]
    q, k, v = torch.split(qkv.double().view(2, length, -1, size), [heads, kv_heads, kv_heads], dim=2)
    if rope:
        q, k = rotate(q, *turn), rotate(k, *turn)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = wanted.transpose(1, 2).flatten(2)
    seed = torch.randn_like(wanted)
    found = short_attention(qkv, *turn, heads, kv_heads)[0]
    assert distance(found, wanted) < 6e-3
    (grad,), (wanted_grad,) = (
        torch.autograd.grad(out, qkv, seed.to(out.dtype), retain_graph=True) for out in (found, wanted)
    )
    assert distance(grad, wanted_grad) < 1e-2


@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 1e-3)])
@pytest.mark.parametrize(("vocabulary", "columns"), [(50257, 50304), (10_000, 10_112), (8192, 8192), (61, 64)])
def test_loss_kernel(smoothing, z_loss, vocabulary, columns):
    logits = (torch.randn(300, columns, device="cuda") * 3).bfloat16()
    targets = torch.randint(vocabulary, (300,), device="cuda")
    targets[::7] = -100
    targets[1], targets[2] = 0, vocabulary - 1
    wanted, slope = loss_module._chunk(logits.double(), targets, vocabulary, smoothing, z_loss, True)
    found, kernel_slope = loss_module._chunk_by_kernel(logits, targets, vocabulary, smoothing, z_loss, True)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert distance(kernel_slope, slope) < 5e-3
    assert kernel_slope[:, vocabulary:].abs().sum() == 0
    assert kernel_slope[::7].abs().sum() == 0


def test_swiglu_kernel():
    from fledge.model.activations import swiglu

    fused = torch.randn(5, 7, 2 * 1344, device="cuda").bfloat16().requires_grad_()
    gate, up = fused.double().chunk(2, dim=-1)
    wanted = functional.silu(gate) * up
    found = swiglu(fused)
    assert distance(found, wanted) < 5e-3
    seed = torch.randn_like(wanted)
    (grad,), (wanted_grad,) = (torch.autograd.grad(out, fused, seed.to(out.dtype)) for out in (found, wanted))
    assert distance(grad, wanted_grad) < 5e-3


@pytest.mark.parametrize("biased", [True, False])
def test_gelu_kernel(biased):
    from fledge.model.activations import _gelu

    x = (torch.randn(5, 77, 300, device="cuda") * 2).bfloat16().requires_grad_()
    bias = torch.randn(300, device="cuda", requires_grad=True) if biased else None
    wanted = functional.gelu(x.double() + (bias.double() if biased else 0.0), approximate="tanh")
    found = _gelu(x, bias)
    assert distance(found, wanted) < 5e-3
    seed, inputs = torch.randn_like(wanted), (x, bias) if biased else (x,)
    grads = (torch.autograd.grad(out, inputs, seed.to(out.dtype)) for out in (found, wanted))
    for grad, wanted_grad in zip(*grads, strict=True):
        assert distance(grad, wanted_grad) < 5e-3


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("documents", [False, True])
def test_bdh_kernels(dropout, keep, documents):
    """All heads at once with Triton's passes against one head at a time in plain torch, in 32 bits."""
    torch.manual_seed(0)
    heads, batch, length, neurons, width = 2, 3, 64, 512, 32
    x, grad = torch.randn(2, batch, length, width, device="cuda")
    weights = tuple(
        torch.randn(*shape, device="cuda") * 0.2
        for shape in ((heads, width, neurons), (heads, width, neurons), (heads, neurons, width))
    )
    angles = torch.rand(length, neurons // 2, device="cuda") * 6
    angles = (angles.cos(), angles.sin())
    allowed = torch.rand(batch, length, length, device="cuda") > 0.3 if documents else None
    seeds = torch.randint(1 << 31, (heads,), device="cuda")
    out, scores, read, u, w = bdh_layer.heads_forward(x, weights, angles, allowed, seeds, dropout)
    single = [tuple(weight[h] for weight in weights) for h in range(heads)]
    plain = [bdh_layer.head_forward(x, single[h], angles, allowed, seeds[h], dropout) for h in range(heads)]
    assert distance(out, sum(part[0] for part in plain)) < 1e-3
    neurons_kept = (u, w) if keep else None
    found = bdh_layer.heads_backward(grad, x, weights, angles, allowed, seeds, dropout, scores, read, neurons_kept)
    wanted = [
        bdh_layer.head_backward(grad, x, single[h], angles, allowed, seeds[h], dropout, scores[h], read[h], None)
        for h in range(heads)
    ]
    assert distance(found[0], sum(part[0] for part in wanted)) < 1e-3
    for number in (1, 2, 3):
        assert distance(found[number], torch.stack([part[number] for part in wanted])) < 1e-3


MODELS = {
    "transformer": {},
    "gpt2": {"norm": "layer", "position": "learned", "feed_forward": "gelu_tanh", "bias": True, "tied": True},
    "grouped": {"kv_heads": 2, "qk_norm": True},
    "bdh": {"architecture": "bdh", "multiplier": 16},
    "lstm": {"architecture": "lstm", "bias": True},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_on_the_gpu_is_the_model_on_the_cpu(name, documents):
    torch.manual_seed(0)
    model = build_model(ModelConfig(layers=2, width=128, **MODELS[name]), 5003, 256)
    twin = copy.deepcopy(model).cuda()
    inputs, targets = torch.randint(5003, (2, 4, 256))
    ids = torch.tensor([[0] * 100 + [1] * 130 + [-1] * 26]).expand(4, -1)
    batch = Batch(inputs, targets, None, ids if documents else None)
    moved = Batch(*(None if field is None else field.cuda() for field in batch))
    hidden, _ = model.hidden(inputs, model.plan(batch))
    wanted, count = head_loss(model, hidden, targets)
    (wanted / count).backward()
    for narrow, near in ((False, 1e-3), (True, 0.08)):
        twin.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=narrow):
            hidden, _ = twin.hidden(moved.inputs_BT, twin.plan(moved))
            found, count = head_loss(twin, hidden, moved.targets_BT)
        (found / count).backward()
        assert float(found) == pytest.approx(float(wanted), rel=1e-3)
        for (part, own), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            assert distance(other.grad, own.grad) < near, part


@pytest.mark.parametrize("name", ["transformer", "gpt2", "bdh"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_compiles_to_one_graph(name):
    model = build_model(ModelConfig(layers=2, width=128, **MODELS[name]), 5003, 256).cuda()
    inputs = torch.randint(5003, (4, 256), device="cuda")

    def loss(inputs):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return head_loss(model, model.hidden(inputs)[0], inputs)[0]

    found = torch.compile(loss, fullgraph=True)(inputs)
    found.backward()
    assert float(found) == pytest.approx(float(loss(inputs)), rel=1e-2)
