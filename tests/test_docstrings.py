"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import fledge

NAMES = sorted(module.name for module in pkgutil.walk_packages(fledge.__path__, "fledge."))
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
NEEDS = {"fledge.web": "fastapi", "fledge.model.kernels": "triton"}
NOT_MODULES = ("fledge._core", "fledge.__main__")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NOT_MODULES)])
def test_docstring_examples(name: str, tmp_path, monkeypatch) -> None:
    for prefix, package in NEEDS.items():
        if name.startswith(prefix) and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0


def test_public_names_load_lazily_and_exist() -> None:
    for name in fledge.__all__:
        assert getattr(fledge, name) is not None
