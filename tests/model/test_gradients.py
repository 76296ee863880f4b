"""Gradients of whole models by finite differences, in 64 bits."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from fledge.config import ModelConfig
from fledge.model import build_model

from .cases import Batch

TINY = {
    "transformer": {"qk_norm": True, "kv_heads": 1, "head_size": 4},
    "gpt2": {"norm": "layer", "position": "learned", "feed_forward": "gelu_tanh", "bias": True, "tied": True},
    "post-norm": {"norm_place": "post", "position": "sinusoidal", "feed_forward": "silu"},
    "bdh": {"architecture": "bdh", "multiplier": 2},
    "gru": {"architecture": "gru"},
    "lstm": {"architecture": "lstm", "bias": True},
}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("documents", [False, True])
def test_gradcheck(name, documents):
    torch.manual_seed(0)
    values = {"layers": 1, "width": 4, "heads": 2, "hidden": 3} | TINY[name]
    if "architecture" in values:
        values.pop("hidden")
    if values.get("architecture") in ("gru", "lstm"):
        values.pop("heads")
    model = build_model(ModelConfig(**values), 5, 4).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    inputs = torch.tensor([[0, 3, 1, 4]])
    batch = Batch(inputs, None, torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 0, 1, 1]]))
    plan = model.plan(batch) if documents else None
    names = list(dict(model.named_parameters()))

    def logits(*tensors):
        return functional_call(model, dict(zip(names, tensors, strict=True)), (inputs, plan))

    assert torch.autograd.gradcheck(logits, tuple(model.parameters()), fast_mode=True)


def test_attention_in_bfloat16_on_a_cpu_has_the_gradients_of_float32():
    """It takes the long way round torch's slow backward pass there, and stays as precise as bfloat16 is."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(layers=2, width=64, heads=2), 64, 32).train()
    inputs, pull = torch.randint(64, (4, 32)), torch.randn(4, 32, 64)
    found = []
    for narrow in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            hidden, _ = model.hidden(inputs)
        model.zero_grad()
        (hidden.float() * pull).sum().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for exact, rounded in zip(*found, strict=True):
        assert torch.nn.functional.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0) > 0.99
