"""An architecture of one's own, known to every verb; and code that a recipe names, which never runs unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fledge.config import load_recipe
from fledge.config.reading import CODE
from fledge.errors import FledgeError
from fledge.model import ARCHITECTURES
from fledge.model.registry import find_architecture
from tests.cli.conftest import Fledge
from tests.small import SMALL

MINE = """
from pathlib import Path

from fledge.model import register
from fledge.model.transformer import Transformer


class Mine(Transformer):
    pass


Path("ran").write_text("yes")
register("mine", Mine)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CODE, "")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "text.txt").write_text("A line of text to learn from, and then another one.\n" * 400)
    yield tmp_path / "mine.py"
    ARCHITECTURES.pop("mine", None)


def test_a_mistyped_import_is_answered_with_the_nearest(fledge: Fledge, code: Path) -> None:
    assert fledge("train", "akjv-demo", "--import", "mne.py").err.rstrip().endswith("Did you mean mine.py?")


def test_import_makes_an_architecture_known_to_every_verb(fledge: Fledge, code: Path) -> None:
    changes = [f"--set={change}" for change in [*SMALL, "corpus.source=text.txt", "model.architecture=mine"]]
    unknown = fledge("train", "akjv-demo", *changes)
    assert unknown.code == 2
    assert "--import FILE.py" in unknown.err
    assert fledge("train", "akjv-demo", *changes, "--import", "mine.py", "--out", "runs/a").code == 0
    generated = fledge("generate", "runs/a", "--prompt", "A line", "--import", code, "--max-tokens", "4")
    assert (generated.code, generated.err) == (0, "")
    assert fledge("account", "show", "akjv-demo", *changes, "--import", "mine.py").code == 0
    assert fledge("account", "show", "akjv-demo", *changes, "--import", "other.py").err.startswith(
        "fledge: --import other.py: there is no such file"
    )


def test_a_process_that_is_started_knows_it_too(code: Path) -> None:
    ask = "from fledge.model.registry import find_architecture; print(find_architecture('mine').__name__)"
    done = subprocess.run(
        [sys.executable, "-c", ask], env={**os.environ, CODE: str(code)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Mine\n"


def test_code_that_a_recipe_names_runs_only_where_it_is_allowed(fledge: Fledge, code: Path) -> None:
    Path("mine.toml").write_text('imports = ["mine.py"]\n[model]\narchitecture = "mine"\n')
    with pytest.raises(FledgeError, match=r"wants to run the Python file mine\.py.* --import mine\.py"):
        load_recipe("mine.toml")
    for words in (("train", "mine.toml"), ("account", "show", "mine.toml"), ("kaggle", "mine.toml")):
        refused = fledge(*words)
        assert (refused.code, "--import mine.py" in refused.err) == (2, True)
    assert not Path("ran").exists()
    shown = fledge("account", "show", "mine.toml", "--import", "mine.py", "--set", "model.layers=1")
    assert shown.code == 0, shown.err
    assert Path("ran").exists()
    assert load_recipe("mine.toml").imports == ("mine.py",)


def test_a_run_from_elsewhere_runs_no_code(fledge: Fledge, code: Path) -> None:
    """Its settings name the file, and it lies there: still nothing runs until the person says so."""
    changes = [f"--set={change}" for change in [*SMALL, "corpus.source=text.txt", 'imports=["mine.py"]']]
    assert fledge("train", "akjv-demo", *changes, "--import", "mine.py", "--out", "runs/a").code == 0
    settings = Path("runs/a/checkpoints/step-00000006/bundle.json")
    assert '"mine.py"' in settings.read_text()
    Path("ran").unlink(missing_ok=True)
    os.environ[CODE] = ""
    assert fledge("generate", "runs/a", "--prompt", "A", "--max-tokens", "2").code == 0
    assert not Path("ran").exists()


def test_a_file_that_cannot_be_run_is_a_sentence(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code.write_text("x = 1\nnothing.here\n")
    monkeypatch.setenv(CODE, str(code))
    with pytest.raises(FledgeError, match=r"could not be run: NameError: name 'nothing' is not defined \(line 2\)"):
        find_architecture("nobody's")


def test_quiet_leaves_out_progress_and_notes_of_every_verb(fledge: Fledge, code: Path) -> None:
    changes = [f"--set={change}" for change in [*SMALL, "corpus.source=text.txt"]]
    loud = fledge("train", "akjv-demo", *changes, "--out", "runs/loud")
    assert "note: There is no token store" in loud.err
    for words in (["-q", "train"], ["train", "--quiet"], ["train", "-q"]):
        quiet = fledge(*words, "akjv-demo", *changes, "--out", f"runs/{len(words[0])}{words[-1]}")
        assert (quiet.code, quiet.err) == (0, "")
    assert fledge("corpus", "show", "text.txt", "-q").err == ""
