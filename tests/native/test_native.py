"""The native core's own tests and a short fuzzing, under AddressSanitizer and UBSan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run-sanitized.sh")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sanitized(tmp_path):
    """No memory error, no undefined behaviour, no broken fact, in the tests and in 30 seconds of random texts."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler")
    done = subprocess.run(
        [SCRIPT, "30"], env={"BUILD": str(tmp_path), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "no fact broken" in done.stdout
