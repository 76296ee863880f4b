"""Brackets in names are letters: whatever a file, a folder or a run is called, it is printed as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fledge.bundle import save_bundle
from fledge.config import ModelConfig, RunConfig
from fledge.model import build_model
from fledge.tokenizer import train_bpe
from tests.cli.conftest import Fledge

TEXT = "".join(f"the cat sat on the mat {number} and the cat sat.<|endoftext|>" for number in range(400))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose path ends a style that nobody began: `x[/b]`."""
    monkeypatch.chdir(tmp_path)
    place = Path("x[", "b]")
    place.mkdir(parents=True)
    (place / "text.txt").write_text(TEXT)
    tokenizer = train_bpe([TEXT], 270, special_tokens=["<|endoftext|>"])
    tokenizer.save(place / "tokenizer")
    for name, layers in (("one", 1), ("two", 2)):
        config = RunConfig(model=ModelConfig(layers=layers, width=16, heads=2), tokens={"context_length": 16})
        model = build_model(config.model, tokenizer.vocab_size, 16)
        save_bundle(place / name, config, tokenizer, model)
    return place


def shown(fledge: Fledge, *arguments: Any) -> str:
    result = fledge(*arguments)
    assert result.code == 0, result.err
    return "".join(result.out.split())


def test_bundles_are_shown_and_compared(fledge: Fledge, place: Path) -> None:
    assert str(place / "one") in shown(fledge, "bundle", "show", place / "one")
    assert str(place / "two") in shown(fledge, "bundle", "diff", place / "one", place / "two")


def test_texts_tokenizers_and_tokens_are_shown(fledge: Fledge, place: Path) -> None:
    source, tokenizer = place / "text.txt", place / "tokenizer"
    assert "text.txt" in shown(fledge, "corpus", "show", source)
    new = place / "[bold]new"
    assert str(new) in shown(fledge, "tokenizer", "train", source, "--vocab-size", "270", "-o", new)
    assert "[bold]new" in shown(fledge, "tokenizer", "compare", source, "-t", tokenizer, "-t", new)
    shown(fledge, "tokenize", source, "--tokenizer", tokenizer, "-o", place / "tokens")
    assert str(place / "tokens") in shown(fledge, "tokens", "show", place / "tokens", "--context-length", "16")


def test_an_evaluation_names_what_it_is_of(fledge: Fledge, place: Path) -> None:
    assert str(place / "one") in shown(fledge, "evaluate", place / "one", "--text", place / "text.txt")
