"""`fledge corpus`, `fledge tokenize` and `fledge tokens` as a person types them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fledge import cli, train_bpe
from fledge.tokens import TokenStore

TEXTS = [f"Story {i}: once upon a time there were {i} cats, and they sat on a mat.\n" for i in range(120)]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Fledge = Callable[..., Result]


@pytest.fixture
def fledge(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Fledge:
    """Run the command line in this process."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["fledge", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>".join(TEXTS))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path, text: Path) -> Path:
    folder = tmp_path / "tokenizer"
    train_bpe(text, 300, ["<|endoftext|>"]).save(folder)
    return folder


def test_corpus_show(fledge, text):
    shown = fledge("corpus", "show", text)
    assert shown.code == 0
    assert "train" in shown.out
    assert "Story 0: once upon a time" in shown.out
    assert "warning" not in shown.out
    wrong = fledge("corpus", "show", text.parent / "nothing.txt")
    assert wrong.code == 2
    assert wrong.err.startswith("fledge: There is no file or folder")
    assert "Traceback" not in wrong.err


def test_corpus_fetch_knows_its_names(fledge):
    assert "tinystories" in fledge("corpus", "fetch", "list").out
    assert fledge("corpus", "fetch", "tinystorys").err.strip().endswith("Did you mean tinystories?")


def test_tokenize_and_look(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    made = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    assert made.code == 0, made.err
    assert f"{store} is whole" in made.out
    opened = TokenStore.open(store)
    count = sum(len(opened.split(name).documents) for name in ("train", "validation"))
    assert count == 120
    again = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    assert again.out == made.out
    assert "is sound" in fledge("tokens", "check", store).out
    assert "windows of 64 tokens in train (packed)" in fledge("tokens", "show", store).out
    window = fledge("tokens", "show", store, "--window", 0, "--context-length", 48)
    assert "<|endoftext|>Story" in window.out
    assert "── document 1" in window.out
    assert "█" in window.out
    picture = tmp_path / "mask.svg"
    assert fledge("tokens", "show", store, "--window", 2, "--mask", picture).code == 0
    assert picture.read_text().startswith("<?xml")
    assert "There is no window" in fledge("tokens", "show", store, "--window", 10**9).err
    assert "policy" in fledge("tokens", "show", store, "--policy", "sideways").err


@pytest.mark.parametrize("policy", ["stream", "slide-in", "slide-through", "full", "aligned", "longest", "lanes"])
def test_every_policy_can_be_shown(fledge, text, tokenizer, tmp_path, policy):
    store = tmp_path / "store"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    shown = fledge("tokens", "show", store, "--window", 1, "--policy", policy, "--context-length", 16)
    assert shown.code == 0, shown.err
    assert "── document 0" in shown.out


def test_a_changed_source_is_refused_until_restart(fledge, text, tokenizer, tmp_path):
    command = ("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    assert fledge(*command).code == 0
    text.write_text("<|endoftext|>".join(TEXTS[:60]))
    refused = fledge(*command)
    assert refused.code == 2
    assert "the source has changed" in refused.err
    assert fledge(*command, "--restart").code == 0


def test_bad_lines(fledge, tokenizer, tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join([*(json.dumps({"text": text}) for text in TEXTS), "{broken"]))
    command = ("tokenize", path, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    refused = fledge(*command)
    assert refused.code == 2
    assert "line 121" in refused.err
    made = fledge(*command, "--skip-bad", "--restart")
    assert "1 bad lines skipped" in made.out


def test_import(fledge, text, tokenizer, tmp_path):
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "store", "--quiet")
    train = tmp_path / "store" / "train.bin"
    made = fledge("tokens", "import", train, "--tokenizer", tokenizer, "--out", tmp_path / "adopted", "--quiet")
    assert made.code == 0, made.err
    adopted = TokenStore.open(tmp_path / "adopted")
    assert np.array_equal(adopted.split("train").tokens, np.fromfile(train, np.uint16))
    wrong = fledge("tokens", "import", train, "--tokenizer", tokenizer, "--out", tmp_path / "b", "--width", 3)
    assert "--width 3" in wrong.err


def test_damage_is_one_sentence(fledge, text, tokenizer, tmp_path):
    store = tmp_path / "store"
    fledge("tokenize", text, "--tokenizer", tokenizer, "--out", store, "--quiet")
    data = bytearray((store / "train.bin").read_bytes())
    data[7] ^= 1
    (store / "train.bin").write_bytes(data)
    found = fledge("tokens", "check", store)
    assert found.code == 2
    assert "do not match their checksum" in found.err
    assert "Traceback" not in found.err


def test_an_unknown_engine(fledge, text, tokenizer, tmp_path):
    refused = fledge("tokenize", text, "--tokenizer", tokenizer, "--out", tmp_path / "s", "--engine", "rey")
    assert refused.code == 2
    assert "Did you mean ray?" in refused.err


def test_an_empty_source_leaves_nothing_behind(fledge, text, tokenizer, tmp_path):
    (tmp_path / "empty.txt").touch()
    store = tmp_path / "store"
    for more in ([], ["--validation-fraction", "0"]):
        refused = fledge("tokenize", tmp_path / "empty.txt", "--tokenizer", tokenizer, "-o", store, *more)
        assert refused.code == 2
        assert "holds no documents" in refused.err
        assert not store.exists()
    assert fledge("tokenize", text, "--tokenizer", tokenizer, "-o", store, "--quiet").code == 0
    wrong = fledge("tokenize", text, "--tokenizer", text, "-o", tmp_path / "other")
    assert wrong.code == 2
    assert "--tokenizer" in wrong.err
    assert "a tokenizer was expected there" in wrong.err
