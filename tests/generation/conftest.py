"""Small models of every architecture with a tokenizer, to generate from."""

from __future__ import annotations

import pytest
import torch

from fledge.config import ModelConfig
from fledge.model import Model, build_model
from fledge.tokenizer import CharacterTokenizer, Tokenizer, train_bpe

TEXT = b"In the beginning God created the heaven and the earth. And the earth was without form, and void. "
CONTEXT = 24

SHAPES: dict[str, dict[str, object]] = {
    "rope": {},
    "learned": {"position": "learned", "norm": "layer", "bias": True, "feed_forward": "gelu_tanh", "tied": True},
    "sinusoidal": {"position": "sinusoidal", "kv_heads": 2},
    "bdh": {"architecture": "bdh", "multiplier": 4},
    "rnn": {"architecture": "rnn"},
    "gru": {"architecture": "gru"},
    "lstm": {"architecture": "lstm"},
}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT * 4], 280, ["<|endoftext|>"])


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    return CharacterTokenizer.train(["naïve café"])


def small_model(name: str, tokenizer: Tokenizer, seed: int = 0) -> Model:
    """Random weights, scaled up until the distribution has a shape worth sampling from."""
    torch.manual_seed(seed)
    config = ModelConfig(**{"layers": 2, "width": 32, "heads": 4, **SHAPES[name]})
    model = build_model(config, tokenizer.vocab_size, CONTEXT).eval()
    with torch.no_grad():
        model.head_weight.mul_(3)
    return model


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Model:
    return small_model(request.param, tokenizer)


@pytest.fixture
def rope(tokenizer: Tokenizer) -> Model:
    return small_model("rope", tokenizer)
