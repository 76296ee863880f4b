"""The handbook's page on experiments: every command runs, with a few steps in the place of minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
SMALL = " ".join(
    f"--set {change}"
    for change in (
        "training.steps=3",
        "training.batch_size=2",
        "training.evaluate_windows=4",
        "model.layers=1",
        "model.width=32",
        "tokens.context_length=16",
        "sampling.max_tokens=8",
    )
)


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("pythonbible_akjv")
    ran = run_page(PAGE, tmp_path, replace={"--budget 10m": SMALL}, environment={"OMP_NUM_THREADS": "1"}, timeout=280)
    assert len(ran) == 6
    for name in ("rates", "batches", "parts", "models", "tokenizers"):
        assert (tmp_path / "runs" / name / "report.html").is_file()
