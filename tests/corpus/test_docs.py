"""The handbook's page on trust: its commands print what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    ran = run_page(PAGE, tmp_path, environment={"OMP_NUM_THREADS": "1"})
    assert len(ran) == 4
    assert (tmp_path / "tokens" / "passages" / "order.bin").is_file()
