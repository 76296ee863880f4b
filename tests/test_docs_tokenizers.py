"""The handbook's page on tokenizers: every example is run, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import examples, run_page

PAGE = Path(__file__).parents[1] / "docs" / "tokenizers.md"


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    for package in ("pythonbible_akjv", "tokenizers", "transformers", "tiktoken"):
        pytest.importorskip(package)
    ran = run_page(PAGE, tmp_path)
    assert len(ran) > 15


def test_only_what_needs_a_network_is_left_out() -> None:
    reasons = [example.not_run for example in examples(PAGE.read_text()) if example.not_run]
    assert reasons == ["needs a network"]
