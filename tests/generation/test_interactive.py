"""The prompt that is typed into: what was typed before is at hand, in the next conversation too."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.config import SamplingConfig
from fledge.generation.interactive import converse
from fledge.model import Model
from fledge.tokenizer import Tokenizer


def test_earlier_prompts_are_kept_in_the_state_folder(
    rope: Model, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    at_hand: list[list[str]] = []

    def talk(*lines: str) -> None:
        """Another process has typed none of what this one has."""
        readline.clear_history()
        typed = iter(lines)

        def enter(prompt: str) -> str:
            at_hand.append([readline.get_history_item(n + 1) for n in range(readline.get_current_history_length())])
            readline.add_history(line := next(typed))
            return line

        monkeypatch.setattr("builtins.input", enter)
        converse(rope, tokenizer, SamplingConfig(max_tokens=1))

    try:
        talk("And the earth", ":quit")
        talk("void", ":quit")
    finally:
        readline.clear_history()
    first = ["And the earth", ":quit"]
    assert at_hand == [[], first[:1], first, [*first, "void"]]
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()] == [Path("fledge/prompts")]


def test_settings_without_effect_are_refused(
    rope: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter([":set samples=3", ":set prompt=hello", ":set seed=5", ":show", ":quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    converse(rope, tokenizer, SamplingConfig(max_tokens=1))
    out = capsys.readouterr().out
    assert "samples has no effect here" in out
    assert "prompt has no effect here" in out
    assert "samples = 1" in out
    assert "seed = 5" in out
