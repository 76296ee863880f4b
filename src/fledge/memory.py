"""The memory of this process: now, and at its fullest moment."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")


def resident() -> int:
    """Bytes now; where the system does not tell, those at the fullest moment so far."""
    try:
        return int((SELF / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """Bytes at the fullest moment since the process began, or since `forget_peak`."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_peak() -> None:
    """Count the fullest moment from now on. Linux can; elsewhere it stays that of all before."""
    with suppress(OSError):
        (SELF / "clear_refs").write_text("5")
