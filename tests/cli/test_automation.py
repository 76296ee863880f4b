"""The page about other programs: its examples run, and so does every step of the GitHub Action that it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.documentation import FENCE, run_page

PAGE = Path(__file__).parents[2] / "docs" / "automation.md"
SHORT = ["training.steps=3", "training.batch_size=2", "model.width=32", "tokens.context_length=16"]


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    assert len(run_page(PAGE, tmp_path)) >= 2


@pytest.mark.slow
def test_the_steps_of_the_action_run(tmp_path: Path) -> None:
    """With a shorter training; the actions of GitHub themselves are not run here."""
    (shown,) = [match["code"] for match in FENCE.finditer(PAGE.read_text()) if match["language"] == "yaml"]
    steps = yaml.safe_load(shown)["jobs"]["train"]["steps"]
    runs = [step["run"] for step in steps if "run" in step and not step["run"].startswith("pip ")]
    assert len(runs) == 5
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number}.txt").write_text(f"The earth number {number} was without form, and void. " * 9)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for run in runs:
        line = run.replace("< 4", "< 40")
        if line.startswith("fledge train"):
            line += "".join(f" --set {setting}" for setting in SHORT)
        done = subprocess.run(line, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True)
        assert done.returncode == 0, (line, done.stderr.decode())
    assert (tmp_path / "model.zip").stat().st_size > 10_000
