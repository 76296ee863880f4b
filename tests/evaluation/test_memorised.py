"""A model that repeats its training text is told apart from one that does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fledge.config import ModelConfig, RunConfig, SamplingConfig
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.evaluation.memorised import continued, memorised, training_store, without_leaks
from fledge.model import build_model
from fledge.tokens import write_store
from tests.tokens.helpers import ByteTokenizer

TEXTS = [f"{i} the quick brown fox jumps over the lazy dog, and number {i * i} of them sleeps on." for i in range(40)]


class Parrot(torch.nn.Module):
    """Continues any window with what follows it in the text."""

    context_length = 64

    def __init__(self, text: list[int]) -> None:
        super().__init__()
        self.text, self.weight = bytes(text), torch.nn.Parameter(torch.zeros(1))

    def hidden(self, ids_BT, plan=None, state=None):
        rows = [bytes(row.tolist()) for row in ids_BT]
        after = [self.text[self.text.find(row) + len(row)] for row in rows]
        return torch.nn.functional.one_hot(torch.tensor(after), 260).float()[:, None], None

    def head(self, hidden_BTD):
        return hidden_BTD


@pytest.fixture
def store(tmp_path):
    return write_store(Corpus.from_documents(TEXTS), ByteTokenizer(), tmp_path / "tokens", progress=False)


def test_a_parrot_continues_every_passage_and_an_untrained_model_none(store, monkeypatch):
    """The share of held-out text is that of its phrases, which stand in the training text too."""
    model = build_model(ModelConfig(layers=1, width=32, heads=2), 260, 64)
    found = memorised(model, ByteTokenizer(), store, SamplingConfig(prompt="the"), samples=2)
    assert (found.extracted, found.generated, found.by_heart) == (0, 0, False)
    assert found.held_out > 0.4
    tokens = store.split("train").tokens.tolist()
    parrot = Parrot(tokens)
    starts = [i for i in range(0, 2000, 20) if bytes(tokens).count(bytes(tokens[i : i + 32])) == 1][:3]
    rows = torch.tensor([tokens[i : i + 32] for i in starts])
    assert continued(parrot, rows, 32).tolist() == [tokens[i + 32 : i + 64] for i in starts]
    monkeypatch.setattr("fledge.generation.generate", lambda *_: [])
    assert memorised(parrot, ByteTokenizer(), store, SamplingConfig()).by_heart


def test_the_training_tokens_are_found_beside_a_checkpoint_or_asked_for(store, tmp_path):
    bundle = tmp_path / "checkpoints" / "step-00000001"
    assert training_store(bundle, RunConfig()).folder == tmp_path / "tokens"
    with pytest.raises(FledgeError, match="--store"):
        training_store(tmp_path / "a" / "b" / "c" / "d", RunConfig())


def test_the_loss_is_told_without_the_documents_that_leaked(tmp_path):
    """Of two held-out texts one stands in the training text: only the loss of the other is left."""
    train, held = tmp_path / "train.jsonl", tmp_path / "held.jsonl"
    train.write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS))
    held.write_text(f'{{"text": "{TEXTS[3]}"}}\n{{"text": "entirely other words, which nobody wrote before: xyzzy"}}\n')
    corpus = Corpus.open(train, validation_source=[held])
    store = write_store(corpus, ByteTokenizer(), tmp_path / "tokens", progress=False)
    share, loss = without_leaks(store, np.array([1.0, 5.0]))
    assert (share, loss) == (0.5, 5.0)
    assert without_leaks(store, np.array([1.0]))[1] is None
