"""A model that repeats its training text is told apart from one that does not."""

from __future__ import annotations

import json
from itertools import islice
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from fledge.cli import main
from fledge.config import ModelConfig, RunConfig, SamplingConfig, parse
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.evaluation.memorised import continued, memorised, training_store, without_leaks
from fledge.model import build_model
from fledge.reports.memorised import add_memorised, add_memorised_arms, measure_memorised
from fledge.reports.page import Page
from fledge.run import Run
from fledge.tokens import write_store
from fledge.tokens.index import PassageIndex
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
    assert (found.extracted, found.generated, found.continued, found.by_heart) == (0, 0, 0, False)
    assert found.held_out > 0.4
    tokens = store.split("train").tokens.tolist()
    parrot = Parrot(tokens)
    starts = [i for i in range(0, 2000, 20) if bytes(tokens).count(bytes(tokens[i : i + 32])) == 1][:3]
    rows = torch.tensor([tokens[i : i + 32] for i in starts])
    assert continued(parrot, rows, 32).tolist() == [tokens[i + 32 : i + 64] for i in starts]
    monkeypatch.setattr("fledge.generation.generate", lambda *_: [])
    repeated = memorised(parrot, ByteTokenizer(), store, SamplingConfig())
    assert repeated.by_heart
    assert repeated.continued == 1
    page = Page("", "")
    add_memorised_arms(page, {"small": found, "parrot": repeated, "removed": None})
    rows = [line.split("|")[1:-1] for line in page.markdown().splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in (row[0], *row[3:])] for row in rows[1:]] == [
        ["small", "0.0%", "0.0%", "no"],
        ["parrot", "100.0%", f"{repeated.extracted:.1%}", "yes"],
    ]


def test_a_text_too_long_for_an_index_in_a_report_is_said(store, monkeypatch):
    monkeypatch.setattr("fledge.reports.memorised.INDEXED", 0)
    page = Page("", "")
    add_memorised(page, SimpleNamespace(tokens=store), None)
    assert "Not measured" in page.markdown()
    PassageIndex.of(store)
    monkeypatch.setattr("fledge.evaluation.memorised.memorised", lambda *_: "measured")
    assert measure_memorised(MagicMock(tokens=store)) == "measured"


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


def test_a_model_that_learned_its_text_by_heart_is_called_that_and_shows_its_source(tmp_path, monkeypatch, capsys):
    """Trained until it repeats eight verses of Genesis: from the words of one it goes on with that verse."""
    verses = [verse.decode() for verse in islice(Corpus.open("akjv", validation_fraction=0).documents(), 4, 12)]
    source = tmp_path / "text.jsonl"
    source.write_text("".join(json.dumps({"text": verse}) + "\n" for verse in verses))
    given = {
        "corpus": {"source": [str(source)], "validation_fraction": 0},
        "tokenizer": {"kind": "word"},
        "tokens": {"context_length": 32},
        "model": {"layers": 1, "width": 64, "heads": 2},
        "optimizer": {"learning_rate": 1e-2},
        "schedule": {"warmup_steps": 10},
        "training": {"steps": 100, "batch_size": 8, "threads": 1},
    }
    run = Run(parse(RunConfig, given), tmp_path / "run", quiet=True)
    run.train()
    assert measure_memorised(run).by_heart
    (result,) = run.generate(["And God said, Let the waters"], temperature=0, max_tokens=60)
    index = PassageIndex.of(training_store(tmp_path / "run", run.config))
    found = max(index.sources(result.ids, run.tokenizer), key=lambda one: one.length)
    assert found.length >= 20
    assert found.text in result.text
    assert found.text.strip(" .,") in verses[found.document]
    words = "--prompt", "And God said, Let the waters", "--temperature", "0", "--max-tokens", "60", "--sources"
    monkeypatch.setattr("sys.argv", ["fledge", "generate", str(tmp_path / "run"), *words])
    with pytest.raises(SystemExit):
        main()
    assert f"{found.length} tokens stand in the training text: document {found.document}" in capsys.readouterr().out
