"""Whole models on a GPU: equal to those on the CPU, and compiled to one graph."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from fledge.config import ModelConfig
from fledge.loss import head_loss
from fledge.model import build_model
from tests.kernels import distance, on_gpu

from .cases import Batch

pytestmark = on_gpu

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


PADDED = """
import torch
from fledge.config import ModelConfig
from fledge.model import build_model
model = build_model(ModelConfig(layers=1, width=32, heads=2), 61, 16).cuda()
print("whole", model(torch.tensor([[60]]).cuda()).isfinite().all().item(), flush=True)
print(model(torch.tensor([[61]]).cuda()).sum().item())
"""


def test_an_id_of_the_padding_fails_on_the_device():
    """As any id outside the matrix does; in a process of its own, which is good for nothing afterwards."""
    done = subprocess.run([sys.executable, "-c", PADDED], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stdout == "whole True\n"
    assert "device-side assert" in done.stderr


@pytest.mark.parametrize("name", ["transformer", "gpt2", "grouped", "bdh"])
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
