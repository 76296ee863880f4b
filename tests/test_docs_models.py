"""The handbook's page on models: every example is run, the toy architecture included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import run_page

PAGE = Path(__file__).parents[1] / "docs" / "models.md"


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    from fledge.model import ARCHITECTURES

    try:
        assert len(run_page(PAGE, tmp_path)) > 10
        assert "average" in ARCHITECTURES
    finally:
        for name in ("average", "quick-average"):  # the page's own: gone again for the tests that follow
            ARCHITECTURES.pop(name, None)


def test_a_transformer_of_the_pieces_learns(tmp_path: Path) -> None:
    assert len(run_page(PAGE.with_name("pieces.md"), tmp_path)) == 11


def test_every_model_setting_is_on_the_page() -> None:
    from fledge.config import ModelConfig

    text = PAGE.read_text()
    left_out = {"norm_epsilon", "rope_theta"}
    assert [name for name in ModelConfig.model_fields if name not in text and name not in left_out] == []
