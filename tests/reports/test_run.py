"""The report of a run: of which checkpoint it is, and the yardsticks on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fledge.reports import reference
from fledge.reports.run import report_folder
from fledge.run import Run, load
from fledge.runs.checkpoints import checkpoints
from tests.small import SMALL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of a moment, with a checkpoint for each of its last steps and a test part."""
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>".join(f"verse {i} of book {i * i}" for i in range(400)))
    settings = [*SMALL, f"corpus.source={text}", "corpus.test_fraction=0.1", "training.steps=4"]
    Run("akjv-demo", tmp_path / "run", overrides=[*settings, "training.save_every=2"], quiet=True).train()
    return tmp_path / "run"


@pytest.mark.filterwarnings("ignore")
def test_a_report_is_of_the_checkpoint_that_was_asked_for(folder: Path) -> None:
    found = report_folder(folder, at=2)
    assert found.evaluation.loss == load(folder, at=2).evaluate(split="test").loss
    assert found.evaluation.loss != load(folder, at="last").evaluate(split="test").loss
    page = found.path.read_text()
    assert "This page is about that of step 2, which was asked for." in page
    assert f"fledge generate {folder} --at 2" in page
    page = report_folder(folder).path.read_text()
    assert "which was asked for" not in page
    assert "--at" not in page


@pytest.mark.filterwarnings("ignore")
def test_the_reference_recipe_is_trained_once_and_measured_on_the_same_part(folder: Path, monkeypatch) -> None:
    assert "reference recipe" not in report_folder(folder).path.read_text()
    monkeypatch.setattr(reference, "SETTINGS", [*SMALL, "model.norm=layer", "training.steps=3"])
    page = report_folder(folder, train_reference=True).path.read_text()
    trained = load(folder / "reference")
    assert trained.model.config.norm == "layer"
    assert Run.open(folder / "reference").tokens.folder == (folder / "tokens").absolute()
    loss = trained.evaluate(split="test").loss
    assert re.search(f"the reference recipe</td><td[^>]*>{loss:.3f}<", page)
    assert "as nanoGPT&#x27;s README trains" in page
    last = checkpoints(folder / "reference")[-1].stat().st_mtime_ns
    assert "the reference recipe" in report_folder(folder).path.read_text()
    report_folder(folder, train_reference=True)
    assert checkpoints(folder / "reference")[-1].stat().st_mtime_ns == last, "finished, it is not trained again"
