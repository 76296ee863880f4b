"""`fledge workbook`: a mistake is a sentence, and Ctrl-C says how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.errors import FledgeError


def test_a_mistake_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    result = CliRunner().invoke(build(), ["workbook", "--budget", "much", "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, FledgeError)
    assert "not a duration" in str(result.exception)


def test_interrupted_it_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_workbook(*arguments: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("fledge.workbook.write_workbook", write_workbook)
    monkeypatch.setattr("sys.argv", ["fledge", "workbook", "-o", str(tmp_path)])
    from fledge.cli.workbook import workbook

    with pytest.raises(KeyboardInterrupt, match=f"to resume: fledge workbook -o {tmp_path}"):
        workbook(out=tmp_path)
