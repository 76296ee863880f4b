"""A prompt to type into, again and again, with earlier ones at hand and settings that can be changed on the way."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import SamplingConfig, parse, parse_value
from fledge.errors import FledgeError
from fledge.generation.generate import generate
from fledge.progress import streaming

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer

HELP = """Type a text and press Enter: the model goes on from it. An empty line begins a new document.
  :set temperature=0.5   change a sampling setting      :show   print them
  :again                 the same prompt, another seed  :quit   or Ctrl-D to leave"""


def converse(model: Model, tokenizer: Tokenizer, settings: SamplingConfig) -> None:
    """Ask and answer until the person leaves. Ctrl-C stops an answer, not the conversation."""
    print(HELP)
    last = settings.prompt
    with _history():
        while True:
            try:
                line = input("\n> ")
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if line.startswith(":"):
                command, _, rest = line[1:].partition(" ")
                if command in ("q", "quit"):
                    return
                if command == "again":
                    settings = settings.model_copy(update={"seed": (settings.seed + 1) % (1 << 63)})
                else:
                    settings = _obey(command, rest, settings)
                    continue
            else:
                last = line
            _answer(model, tokenizer, last, settings)


def _answer(model: Model, tokenizer: Tokenizer, prompt: str, settings: SamplingConfig) -> None:
    with streaming() as show:
        show(prompt)
        one = settings.model_copy(update={"samples": 1})
        try:
            generate(model, tokenizer, [prompt], one, lambda piece: show(piece.text))
        except FledgeError as error:
            show(f"fledge: {error}")
        except KeyboardInterrupt:
            pass
    print()


def _obey(command: str, rest: str, settings: SamplingConfig) -> SamplingConfig:
    """`:set name=value`, `:show`, or help for anything else."""
    if command == "show":
        for name, value in settings.model_dump().items():
            print(f"  {name} = {value!r}")
    elif command == "set" and "=" in rest:
        name, text = (part.strip() for part in rest.split("=", 1))
        if name in ("samples", "prompt"):
            print(f"fledge: {name} has no effect here: you type each prompt, and it gets one text.")
            return settings
        try:
            return parse(SamplingConfig, {**settings.model_dump(), name: parse_value(text, name, SamplingConfig)})
        except FledgeError as error:
            print(f"fledge: {error}")
    else:
        print(HELP)
    return settings


@contextlib.contextmanager
def _history():  # type: ignore[no-untyped-def]
    """Arrow keys and earlier prompts, where the terminal has them; kept in the user's own state folder."""
    try:
        readline: Any = importlib.import_module("readline")
    except ImportError:
        yield
        return
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    kept = Path(base) / "fledge" / "prompts"
    with contextlib.suppress(OSError):
        readline.read_history_file(kept)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(kept)
