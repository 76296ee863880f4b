"""One batch is learned by heart, or it is said that it was not."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fledge.cli import build
from fledge.config import load_recipe
from fledge.errors import FledgeError
from fledge.run import Run
from fledge.tokens import Batch
from fledge.training.overfit import lowest_loss, overfit_one_batch
from tests.small import SMALL


@pytest.fixture
def text(tmp_path: Path) -> str:
    lines = (f"the {number}th line of {number * number} words" for number in range(200))
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines))
    return f"corpus.source={tmp_path / 'text.txt'}"


def test_a_model_learns_one_batch_by_heart_and_one_with_no_rate_does_not(text: str, tmp_path: Path) -> None:
    told: list[str] = []
    config = load_recipe("akjv-demo", [*SMALL, text, "model.dropout=0.2"])
    run = Run(config, tmp_path / "run", quiet=True)
    found = overfit_one_batch(config, 300, run.windows("train"), told.append)
    assert found.learned
    assert found.step < 200
    assert found.first > 4
    assert "learned it by heart" in found.sentence()
    assert told[0].startswith("step 1: loss ")
    assert not (tmp_path / "run" / "checkpoints").exists()
    slow = load_recipe("akjv-demo", [*SMALL, text, "optimizer.name=sgd", "optimizer.learning_rate=1e-9"])
    found = overfit_one_batch(slow, 300, run.windows("train"), told.append, most_steps=5)
    assert not found.learned
    assert "Try another optimizer.learning_rate first" in found.sentence()


def test_the_lowest_loss_is_that_of_counting_whole_beginnings() -> None:
    """The same two tokens at the start of two windows, and in one document after the end of another."""
    inputs, targets = torch.tensor([[1, 2, 5], [1, 2, 1]]), torch.tensor([[2, 3, 6], [2, 4, -100]])
    assert lowest_loss(Batch(inputs, targets)) == pytest.approx(2 * math.log(2) / 5)
    documents = torch.tensor([[0, 0, 0], [0, 1, 1]])
    assert lowest_loss(Batch(inputs, targets, None, documents)) == 0, "2 begins a document of its own"


def test_the_command_line_ends_as_the_check_did(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [part for change in (*SMALL, text) for part in ("--set", change)]
    command = ["train", "akjv-demo", "--overfit-one-batch", *changes, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(build(), command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "learned it by heart" in done.output
    monkeypatch.setattr(sys.modules["fledge.training.overfit"], "ENOUGH", -10.0)
    monkeypatch.setattr(sys.modules["fledge.training.overfit"].overfit_one_batch, "__defaults__", (print, 2))
    done = CliRunner().invoke(build(), command, catch_exceptions=False)
    assert done.exit_code == 1
    with pytest.raises(FledgeError, match="leave out --resume"):
        CliRunner().invoke(build(), [*command, "--time-limit", "1m"], catch_exceptions=False)
