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
