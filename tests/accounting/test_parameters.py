"""Parameters: equal to the built model's, tensor by tensor, for every architecture and ablation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.accounting import SHAPES, account
from fledge.accounting.parameters import list_parameters
from fledge.config import ModelConfig, load_recipe, recipe_names
from fledge.errors import FledgeError
from tests.accounting.configurations import configurations, transformers
from tests.accounting.counting import build


def expanded(config: ModelConfig, vocabulary_size: int, context_length: int) -> dict[str, tuple[int, ...]]:
    """Every tensor by its full name: the layer's number put in for N."""
    found = {}
    for tensor in list_parameters(config, vocabulary_size, context_length).tensors:
        repeated = tensor.name.startswith("layers.") or tensor.name.endswith("_lN")
        for number in range(config.layers if repeated else 1):
            found[tensor.name.replace("N", str(number)) if repeated else tensor.name] = tensor.shape
    return found


@settings(max_examples=60, deadline=None)
@given(configurations(), st.integers(1, 70), st.integers(1, 12))
def test_parameters_equal_the_built_model(config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
    model = build(config, vocabulary_size, context_length, device="meta")
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert expanded(config, vocabulary_size, context_length) == state
    assert list_parameters(config, vocabulary_size, context_length).total == model.parameters_count()


@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes_equal_the_built_model(name: str) -> None:
    """Up to 2.1 billion parameters: built on the meta device, where tensors have no memory."""
    shape = SHAPES[name]
    model = build(shape.model, shape.vocabulary_size, shape.context_length, device="meta")
    assert list_parameters(shape.model, shape.vocabulary_size, shape.context_length).total == model.parameters_count()


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_equal_the_built_model(name: str) -> None:
    run = load_recipe(name)
    size = run.tokenizer.vocabulary_size or 1000
    model = build(run.model, size, run.tokens.context_length, device="meta")
    assert account(run.model, size, run.tokens.context_length).parameters.total == model.parameters_count()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_published_counts(name: str, count: int) -> None:
    run = load_recipe(name)
    assert account(run.model, 50_257, run.tokens.context_length).parameters.total == count


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(FledgeError, match="'mamba'"):
        account(ModelConfig(architecture="mamba"), 100, 16).parameters  # noqa: B018


@settings(max_examples=40, deadline=None)
@given(transformers())
def test_the_inner_size_is_the_settings_own(config: ModelConfig) -> None:
    """One rule for the model and for its account."""
    model = build(config, 16, 8, device="meta")
    assert model.layers[0].ffn.w2.weight.shape == (config.width, config.inner_size)
