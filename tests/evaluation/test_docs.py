"""The handbook's page on evaluation: every example is run, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

from tests.bundle.verses import make_run
from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert len(run_page(PAGE, tmp_path)) >= 3
