"""Every form of a Transformer's formula takes an activation of the one table, and none takes it for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from fledge.config import ModelConfig, SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import burst, decode_step
from fledge.generation.block import BlockShape
from fledge.generation.step import NativeStep
from fledge.model import build_model
from fledge.model.activations import ACTIVATIONS
from fledge.model.transformer import Transformer

MISH = ModelConfig(layers=1, width=32, heads=2).model_copy(update={"feed_forward": "mish"})


def small(config: ModelConfig) -> Transformer:
    torch.manual_seed(0)
    model = build_model(config, 50, 8).eval()
    assert isinstance(model, Transformer)
    return model


def bursts(model: Transformer) -> burst.Bursts:
    return burst.Bursts(model, model.init_state(2), SamplingConfig(temperature=0), torch.zeros(2, 4), 50)


def test_an_unknown_activation_is_refused_by_every_form() -> None:
    model = small(MISH.model_copy(update={"feed_forward": "gelu"}))
    model.config = MISH
    forms: list[Callable[[], object]] = [
        lambda: build_model(MISH, 50, 8),
        lambda: NativeStep.make(model),
        lambda: bursts(model).step(),
        lambda: decode_step.DecodeStep(
            model, model.init_state(1), BlockShape.of(MISH), [], decode_step.NO_NORM, 50, early=False
        ),
    ]
    for form in forms:
        with pytest.raises(FledgeError, match=r"no form of model\.feed_forward = mish"):
            form()


@pytest.mark.parametrize(("setting", "kind"), [("norm", "rsm"), ("position", "ropes")])
def test_an_unknown_norm_or_position_is_refused(setting: str, kind: str) -> None:
    with pytest.raises(FledgeError, match=rf"no form of model\.{setting} = {kind}"):
        small(ModelConfig(layers=1, width=32, heads=2).model_copy(update={setting: kind}))


def test_a_new_activation_is_the_same_in_every_form_and_none_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels leave it to the plain formula, which has it from the table."""
    monkeypatch.setitem(ACTIVATIONS, "mish", functional.mish)
    with torch.inference_mode():
        model, known = small(MISH), small(MISH.model_copy(update={"feed_forward": "silu"}))
        with monkeypatch.context() as on_gpu:
            on_gpu.setattr(burst, "capability", lambda _: (9, 0))
            on_gpu.setattr(burst, "_has_triton", lambda: True)
            assert burst.has_decode_kernels(known, known.init_state(1))
            assert not burst.has_decode_kernels(model, model.init_state(1))
            assert burst.has_attention_kernel(model, model.init_state(1))
        native, ids = NativeStep.make(model), torch.tensor([3, 4])
        assert native is not None
        expected = model(ids[:, None])[:, 0]
        torch.testing.assert_close(native(model.init_state(2), ids), expected, rtol=1e-4, atol=1e-4)
        plain = bursts(model)
        plain.tokens_B.copy_(ids)
        torch.testing.assert_close(plain._scores(), expected, rtol=1e-4, atol=1e-4)
