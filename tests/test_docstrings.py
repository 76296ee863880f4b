"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import fledge

NAMES = sorted(module.name for module in pkgutil.walk_packages(fledge.__path__, "fledge."))
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
OPTIONAL = ("fastapi", "triton", "optuna", "ray", "lm_eval")
NOT_MODULES = ("fledge._core", "fledge.__main__")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NOT_MODULES)])
def test_docstring_examples(name: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")
    result = doctest.testmod(module, optionflags=OPTIONS)
    assert result.failed == 0


def test_public_names_load_lazily_and_exist() -> None:
    for name in fledge.__all__:
        assert getattr(fledge, name) is not None
