"""An architecture of someone's own: its account comes from building it, without memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from fledge.accounting import account
from fledge.accounting.bars import draw_shares
from fledge.accounting.built import built_activations, built_products
from fledge.accounting.flops import Product
from fledge.config import ModelConfig
from fledge.model import ARCHITECTURES, Model, register
from fledge.model.base import VocabularyMatrix
from fledge.model.plan import Plan
from fledge.model.state import State


class Bigram(Model):
    """Embedding, one matrix, head."""

    def __init__(self, config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
        super().__init__(config, vocabulary_size, context_length)
        self.token_embeddings = VocabularyMatrix(vocabulary_size, config.width)
        self.mix = nn.Linear(config.width, config.width)
        self.lm_head = None

    def hidden(
        self,
        inputs_BT: Tensor,
        plan: Plan | None = None,
        state: State | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        return torch.tanh(self.mix(self.token_embeddings(inputs_BT))), state


@pytest.fixture
def bigram() -> Iterator[ModelConfig]:
    register("bigram", Bigram)
    yield ModelConfig(architecture="bigram", width=16)
    del ARCHITECTURES["bigram"]


def test_a_registered_architecture_has_an_account(bigram: ModelConfig) -> None:
    found = account(bigram, 40, 8, batch=4, device="h200")
    assert found.parameters.total == 40 * 16 + 16 * 16 + 16
    assert [(p.rows, p.inner, p.columns) for p in found.products] == [(8, 16, 16), (8, 16, 40)]
    assert found.backward_flops == 2 * found.forward_flops
    assert found.memory.total > 16 * found.parameters.total
    assert found.time(1e9).seconds > 0


def test_it_can_be_compared_with_all_the_others(bigram: ModelConfig) -> None:
    """Eight kinds of products together: more than there are colours."""
    kinds = {name: ModelConfig(architecture=name, width=16) for name in ("transformer", "bdh", "gru")}
    accounts = {name: account(config, 40, 8) for name, config in {**kinds, "bigram": bigram}.items()}
    assert all(name in draw_shares(accounts, [8, 16]) for name in accounts)


@pytest.mark.parametrize("architecture", ["transformer", "gru"])
def test_watching_agrees_with_the_list_where_there_is_one(architecture: str) -> None:
    config = ModelConfig(architecture=architecture, layers=2, width=16, heads=2)
    watched = sum(Product(*each).flops for each in built_products(config, 64, 8))
    assert watched == account(config, 64, 8).forward_flops
    assert built_activations(config, 8) > 0
