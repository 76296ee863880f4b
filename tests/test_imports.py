"""`import fledge` and the tokenizer are light: neither torch nor matplotlib is loaded until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["fledge", "fledge.tokenizer", "fledge.corpus", "fledge.config", "fledge.cli"])
def test_light_imports_load_neither_torch_nor_matplotlib(module: str) -> None:
    program = f"import sys, {module}; print([m for m in ('torch', 'matplotlib', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["--help"], ["account", "small"]])
def test_what_needs_no_torch_answers_without_it(words: list[str]) -> None:
    lines = [
        "import sys",
        "from fledge import cli",
        f"sys.argv = ['fledge', *{words}]",
        "try: cli.main()",
        "except SystemExit: print('torch' in sys.modules)",
    ]
    program = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
