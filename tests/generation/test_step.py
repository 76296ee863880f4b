"""The short way through a Transformer gives the model's own scores, for every ablation and past the context."""

from __future__ import annotations

import pytest
import torch

from fledge.config import ModelConfig
from fledge.generation.prepare import prepare
from fledge.generation.step import Stepper
from fledge.model import build_model

SHAPES = [
    {},
    {"kv_heads": 2},
    {"qk_norm": True},
    {"norm": "layer", "bias": True, "position": "learned", "feed_forward": "gelu_tanh", "tied": True},
    {"norm": "layer", "position": "sinusoidal", "feed_forward": "relu2"},
    {"norm": "none", "position": "none", "feed_forward": "silu"},
    {"norm_place": "post", "feed_forward": "gelu", "bias": True},
    {"qk_norm": True, "kv_heads": 1, "bias": True},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
@pytest.mark.parametrize("prepared", [False, True])
def test_equal_to_the_model(shape: dict[str, object], prepared: bool) -> None:
    torch.manual_seed(0)
    config = ModelConfig(layers=2, width=64, heads=4, **shape)
    model = build_model(config, vocabulary_size=2000, context_length=12).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    ids = torch.randint(0, 2000, (3, 20))
    length = 12 if config.position == "learned" else 20
    with torch.inference_mode():
        reference, expected = model.init_state(3), []
        for place in range(length):
            hidden, reference = model.hidden(ids[:, place : place + 1], state=reference)
            expected.append(model.head(hidden[:, -1]))
        if prepared:
            prepare(model)
        stepper, state = Stepper.make(model), model.init_state(3)
        assert stepper is not None
        for place in range(length):
            scores = stepper(state, ids[:, place])
            torch.testing.assert_close(scores, expected[place], rtol=1e-4, atol=1e-4)
        assert state.longest == length
        assert state.lengths.tolist() == [length] * 3


def test_other_architectures_take_their_own_way() -> None:
    model = build_model(ModelConfig(architecture="gru", width=16, layers=1), 10, 8)
    assert Stepper.make(model) is None


def test_preparing_changes_no_value_and_no_saved_tensor() -> None:
    model = build_model(ModelConfig(layers=1, width=128, heads=4), 1024, 16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prepare(model)
    assert not model.head_weight.is_contiguous()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
