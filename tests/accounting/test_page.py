"""docs/accounting.md: its commands give the numbers and pictures it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import accounting as benchmark
from tests.documentation import run_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_page_shows_what_its_commands_print(tmp_path: Path) -> None:
    ran = run_page(DOCS / "accounting.md", tmp_path)
    assert len(ran) >= 8
    for picture in ("shares.svg", "tinystories.svg", "bdh.svg", "lstm.svg"):
        assert (tmp_path / picture).read_text() == (DOCS / picture).read_text(), f"docs/{picture} is out of date"


def test_the_prediction_is_within_a_tenth_of_every_kept_measurement() -> None:
    if not benchmark.KEPT.is_file():
        pytest.skip("no measurement is kept; run benchmarks/accounting.py on a GPU")
    rows = json.loads(benchmark.KEPT.read_text())
    assert len({row["recipe"] for row in rows}) >= 5
    errors = {row["recipe"]: benchmark.predict(row).memory.total / row["peak"] - 1 for row in rows}
    assert {name: error for name, error in errors.items() if abs(error) > benchmark.TOLERANCE} == {}


def test_the_page_shows_the_kept_measurement() -> None:
    """After a measurement: python benchmarks/accounting.py --kept --page docs/accounting.md"""
    if not benchmark.KEPT.is_file():
        pytest.skip("no measurement is kept; run benchmarks/accounting.py on a GPU")
    text = benchmark.measured_text(json.loads(benchmark.KEPT.read_text()))
    assert f"{benchmark.MARK}\n{text}{benchmark.END}" in (DOCS / "accounting.md").read_text()
