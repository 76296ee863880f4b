"""The native core's own tests and a short fuzzing, as C++ and from Python, under AddressSanitizer and UBSan."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run-sanitized.sh")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sanitized(tmp_path):
    """No memory error, no undefined behaviour, no broken fact: in the tests, in 30 seconds of random texts, and in 30
    of random arguments for every bound function."""
    pytest.importorskip("nanobind")
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler")
    done = subprocess.run(
        [SCRIPT, "30"],
        env={"BUILD": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("no fact broken") == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_windows(tmp_path):
    """The core's own tests pass on Windows' calls, as mingw-w64 compiles them and Wine runs them."""
    if not all(shutil.which(name) for name in ("x86_64-w64-mingw32-g++-posix", "wine")):
        pytest.skip("no mingw-w64 or no Wine")
    done = subprocess.run(
        [SCRIPT.with_name("run-windows.sh")],
        env={"BUILD": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "native tests passed" in done.stdout
