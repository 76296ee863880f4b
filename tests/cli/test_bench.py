"""`fledge bench device` prints a row per device and batch size."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.errors import FledgeError
from fledge.training.device import choose_device

SETTINGS = ["model.layers=1", "model.width=32", "tokens.context_length=16", "training.threads=1"]


def test_the_table_has_a_row_for_each_batch_size() -> None:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    command = ["bench", "device", *changes, "--device", "cpu", "--batch", "2", "--batch", "4", "--seconds", "0.05"]
    outcome = CliRunner().invoke(build(), command, catch_exceptions=False, env={"COLUMNS": "120"})
    assert outcome.exit_code == 0
    rows = [line for line in outcome.output.splitlines() if "cpu" in line]
    assert [row.split()[3] for row in rows] == ["2", "4"]
    assert "tokens/s" in outcome.output


def test_the_table_names_the_device_that_auto_chose() -> None:
    changes = [part for setting in SETTINGS for part in ("--set", setting)]
    command = ["bench", "device", *changes, "--device", "auto", "--batch", "2", "--seconds", "0.05"]
    outcome = CliRunner().invoke(build(), command, catch_exceptions=False, env={"COLUMNS": "120"})
    assert "auto" not in outcome.output
    assert f"│ {choose_device('auto')} " in outcome.output


@pytest.mark.parametrize("seconds", ["1e18", "nan", "0", "-1"])
def test_a_time_that_never_ends_or_never_begins_is_refused(seconds: str) -> None:
    command = ["bench", "device", "--device", "cpu", "--batch", "2", "--seconds", seconds]
    with pytest.raises(FledgeError, match="is not possible: give more than 0"):
        CliRunner().invoke(build(), command, catch_exceptions=False)
