"""The command line as processes of their own, for what a test can't do in its own: interrupt one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "200",
    "NO_COLOR": "1",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def interrupt(command: list[str], folder: Path, metrics: Path) -> str:
    """Ctrl-C once some steps are logged in `metrics`: what the command prints until it has ended as it should."""
    process = subprocess.Popen(
        command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    for _ in range(1200):
        if metrics.is_file() and len(metrics.read_text().splitlines()) > 3:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    return output
