"""Every verb that prints a table prints the same facts as JSON; and the habits of a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import fledge.cli
from fledge import __version__
from fledge.bundle import save_bundle
from fledge.bundle.manifest import Manifest
from fledge.cli.values import json_text
from fledge.corpus import Corpus
from fledge.tokens import write_store
from tests.bundle.conftest import small_config, small_model
from tests.bundle.conftest import tokenizer as tokenizer

from .conftest import Fledge

TEXT = "In the beginning God created the heaven and the earth.<|endoftext|>And the earth was without form.<|endoftext|>"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A folder with a text, a tokenizer, a store and two bundles."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "text.txt").write_text(TEXT * 30)
    tokenizer.save(folder / "tokenizer")
    write_store(Corpus.open(str(folder / "text.txt"), split="document"), tokenizer, folder / "store", progress=False)
    for name, seed in (("one", 1), ("two", 2)):
        config = small_config()
        save_bundle(folder / name, config, tokenizer, small_model(config, tokenizer, seed), metrics={"step": seed})
    return folder


COMMANDS: dict[str, list[str]] = {
    "bundle show": ["one"],
    "bundle diff": ["one", "two"],
    "corpus show": ["text.txt"],
    "corpus leak": ["text.txt", "--in", "text.txt"],
    "corpus fetch": ["list"],
    "tokens show": ["store"],
    "tokenizer show": ["an egg", "-t", "tokenizer"],
    "tokenizer inspect": ["tokenizer", "--corpus", "text.txt"],
    "tokenizer compare": ["text.txt", "-t", "tokenizer"],
    "tokenizer contrast": ["tokenizer", "one"],
    "tokenizer unicode": ["é"],
    "evaluate": ["one", "--text", "text.txt"],
    "generate": ["one", "--prompt", "In", "--max-tokens", "2"],
    "account show": ["small"],
    "account compare": ["small", "xl"],
    "account devices": [],
    "bench device": ["akjv-demo", "--batch", "1", "--seconds", "0.05", "--device", "cpu", "--set", "model.width=32"],
    "doctor": [],
}
"What prints JSON when it is asked to, each with words that work."


def commands(command: Any, path: str = "") -> dict[str, Any]:
    """All commands by the words that name them."""
    if not hasattr(command, "commands"):
        return {path.strip(): command}
    return {k: v for name, each in command.commands.items() for k, v in commands(each, f"{path} {name}").items()}


@pytest.mark.parametrize("words", COMMANDS)
def test_json_is_all_that_is_printed(place: Path, fledge: Fledge, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(place)
    found = fledge(*words.split(), *COMMANDS[words], "--json", "--quiet")
    assert found.code == 0, found.err

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(found.out, parse_constant=refuse)


def test_every_command_that_builds_a_table_takes_json() -> None:
    """`tokenizer train` and `tokens import` make something; their tables are a by-product."""
    known = commands(typer.main.get_command(fledge.cli.build()))
    takes = {name for name, command in known.items() if any("--json" in each.opts for each in command.params)}
    assert takes == set(COMMANDS)


def test_the_facts_are_values_and_not_their_looks(place: Path, fledge: Fledge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    shown = json.loads(fledge("bundle", "show", "one", "--json").out)
    assert {"path", "wrong_files", *Manifest.model_fields} <= shown.keys()
    assert shown["model"]["parameters"] > 10_000
    assert shown["wrong_files"] == {}
    corpus = json.loads(fledge("corpus", "show", "text.txt", "--json").out)
    assert sum(corpus["documents"].values()) == 60
    assert corpus["duplicates"] == 58
    tokens = json.loads(fledge("tokens", "show", "store", "--json").out)
    assert tokens["bits"] == 16
    assert tokens["splits"]["train"]["tokens"] > 100
    differing = json.loads(fledge("bundle", "diff", "one", "two", "--json").out)
    (step,) = [row for row in differing if "step" in row["name"]]
    assert (step["one"], step["two"]) == ("1", "2")


def test_json_is_strict() -> None:
    assert json.loads(json_text({"a": np.float32(0.5), "b": [np.nan, b"\xff"]})) == {"a": 0.5, "b": [None, "\\xff"]}
    with pytest.raises(ValueError, match="Out of range"):
        json_text(float("inf"))


def test_python_runs_fledge_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "fledge", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fledge {__version__}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [("fledge bun", ["bundle"]), ("fledge bundle ex", ["export"]), ("fledge train akj", ["akjv", "akjv-demo"])],
)
def test_a_shell_completes_verbs_and_recipes(line: str, expected: list[str]) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_FLEDGE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "fledge"], capture_output=True, text=True, env={**os.environ, **asked}, check=True
    )
    assert set(expected) <= set(done.stdout.split())
    assert all(word.startswith(line.split()[-1]) for word in done.stdout.split())
