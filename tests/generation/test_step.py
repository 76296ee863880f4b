"""The short way through a model gives the model's own scores, for every ablation and past the context."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.generation.prepare import prepare
from fledge.generation.step import NativeProduct, NativeStep
from fledge.model import build_model

SHAPES = [
    {},
    {"kv_heads": 2},
    {"head_size": 40, "kv_heads": 2, "qk_norm": True},
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
        native, state = NativeStep.make(model), model.init_state(3)
        assert native is not None
        for place in range(length):
            scores = native(state, ids[:, place])
            torch.testing.assert_close(scores, expected[place], rtol=1e-4, atol=1e-4)
        assert state.longest == length
        assert state.lengths.tolist() == [length] * 3


@pytest.mark.parametrize("prepared", [False, True])
def test_bdh_equals_the_model_for_rows_of_unequal_length(prepared: bool) -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(architecture="bdh", layers=3, width=48, heads=2, multiplier=64), 300, 12).eval()
    ids, lengths = torch.randint(0, 300, (3, 24)), torch.tensor([4, 2, 5])
    with torch.inference_mode():
        _, reference = model.hidden(ids[:, :5], state=model.init_state(3), lengths=lengths)
        state = reference.clone()
        if prepared:
            prepare(model)
        native = NativeStep.make(model)
        assert native is not None
        for place in range(5, 24):
            hidden, reference = model.hidden(ids[:, place : place + 1], state=reference)
            assert native.fits(state)
            scores = native(state, ids[:, place])
            torch.testing.assert_close(scores, model.head(hidden[:, -1]), rtol=1e-4, atol=1e-4)
        assert state.lengths.tolist() == (lengths + 19).tolist()
        for name, synapses in state.tensors.items():
            torch.testing.assert_close(synapses, reference.tensors[name], rtol=1e-4, atol=1e-4)


def test_a_long_text_moves_to_large_pages_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelConfig(layers=2, width=32, heads=2), 50, 16).eval()
    native = NativeStep.make(model)
    assert native is not None
    with torch.inference_mode():
        scores = []
        for far in (4, 1000):
            monkeypatch.setattr("fledge.generation.step.FAR", far)
            monkeypatch.setattr("fledge.generation.step.LARGE_STATE", 0)
            state = model.init_state(2)
            scores.append([native(state, torch.tensor([place, 7])) for place in range(16)])
        for moved, unmoved in zip(*scores, strict=True):
            assert torch.equal(moved, unmoved)


def test_states_that_the_native_core_cannot_read_go_through_the_model() -> None:
    for architecture in ("transformer", "bdh"):
        model = build_model(ModelConfig(architecture=architecture, layers=1, width=32, heads=2), 50, 8).eval()
        native, state = NativeStep.make(model), model.init_state(2)
        assert native is not None
        assert native.fits(state)
        assert not native.fits(model.init_state(2, dtype=torch.bfloat16))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not native.fits(state)
        name = next(iter(state.tensors))
        state.tensors[name] = state.tensors[name].mT.contiguous().mT
        assert not native.fits(state)
        model.head_weight.data = model.head_weight.data.bfloat16()  # the model casts it; native code would not
        assert NativeStep.make(model) is None
        assert NativeStep.make(model.to(torch.bfloat16)) is None


@pytest.mark.parametrize("rows", range(1, 9))
def test_products_of_a_few_rows(rows: int) -> None:
    torch.manual_seed(rows)
    weight, bias, x, residual = (torch.randn(*shape) for shape in ((301, 77), (301,), (rows, 77), (rows, 301)))
    ours, theirs = NativeProduct(weight, bias)(x, residual), functional.linear(x, weight, bias) + residual
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    every_other = torch.randn(rows, 154)[:, ::2]  # what does not lie in one piece
    torch.testing.assert_close(
        NativeProduct(weight)(every_other), functional.linear(every_other, weight), rtol=1e-5, atol=1e-5
    )


def test_more_rows_than_the_native_products_take_go_through_the_model() -> None:
    model = build_model(ModelConfig(layers=1, width=32, heads=2), 50, 8).eval()
    native = NativeStep.make(model)
    assert native is not None
    assert native.fits(model.init_state(8))
    assert not native.fits(model.init_state(9))
    with pytest.raises(ValueError, match="1 to 8 rows"):
        NativeProduct(torch.randn(4, 4))(torch.randn(9, 4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_and_forks() -> None:
    """Products on several Python threads at once, and in a child that has none of its parent's threads."""
    weight, x = torch.randn(600, 400), torch.randn(1, 400)
    product, wanted = NativeProduct(weight), functional.linear(x, weight)
    product.threads = 2

    def right() -> bool:
        return all(torch.allclose(product(x), wanted, atol=1e-4) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: right(), range(4)))
    child = os.fork()
    if child == 0:
        os._exit(0 if right() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_other_architectures_take_their_own_way() -> None:
    model = build_model(ModelConfig(architecture="gru", width=16, layers=1), 10, 8)
    assert NativeStep.make(model) is None


@pytest.mark.parametrize("architecture", ["transformer", "gru", "bdh"])
def test_preparing_changes_no_value_and_no_saved_tensor(architecture: str) -> None:
    model = build_model(ModelConfig(architecture=architecture, layers=1, width=128, heads=4, multiplier=4), 1024, 16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    address = model.head_weight.data_ptr()
    prepare(model)
    assert model.head_weight.data_ptr() != address  # moved, or laid out anew
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
