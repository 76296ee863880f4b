"""The command line, run in the test's own process as a person would type it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from fledge import cli


class Result(NamedTuple):
    code: int
    out: str
    err: str


Fledge = Callable[..., Result]


@pytest.fixture
def fledge(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Fledge:
    """`fledge ARGUMENTS…`; what it prints need not be UTF-8."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["fledge", *map(str, arguments)])
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode("utf-8", "surrogateescape"), err.decode())

    return run
