"""The memory of this process, now and at its fullest moment, and of the machine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    class _Counters(ctypes.Structure):
        _fields_ = (
            ("cb", wintypes.DWORD),
            ("PageFaultCount", wintypes.DWORD),
            *((name, ctypes.c_size_t) for name in ("PeakWorkingSetSize", "WorkingSetSize")),
            ("Rest", ctypes.c_size_t * 6),
        )

    class _Status(ctypes.Structure):
        _fields_ = (
            ("dwLength", wintypes.DWORD),
            ("dwMemoryLoad", wintypes.DWORD),
            ("ullTotalPhys", ctypes.c_ulonglong),
            ("Rest", ctypes.c_ulonglong * 6),
        )

    def _counters() -> _Counters:
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = wintypes.HANDLE
        kernel.K32GetProcessMemoryInfo.argtypes = (wintypes.HANDLE, ctypes.c_void_p, wintypes.DWORD)
        found = _Counters()
        found.cb = ctypes.sizeof(found)
        kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.cb)
        return found

    def resident() -> int:
        """Bytes now."""
        return int(_counters().WorkingSetSize)

    def peak_memory() -> int:
        """Bytes at the fullest moment since the process began."""
        return int(_counters().PeakWorkingSetSize)

    def total() -> int | None:
        """Bytes of the machine, where the system says."""
        found = _Status()
        found.dwLength = ctypes.sizeof(found)
        return int(found.ullTotalPhys) if ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(found)) else None

else:
    import resource

    def resident() -> int:
        """Bytes now; where the system does not tell, those at the fullest moment so far."""
        try:
            return int((SELF / "statm").read_text().split()[1]) * resource.getpagesize()
        except OSError:
            return peak_memory()

    def peak_memory() -> int:
        """Bytes at the fullest moment since the process began, or since `forget_peak`."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

    def total() -> int | None:
        """Bytes of the machine, where the system says."""
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return None


def forget_peak() -> None:
    """Count the fullest moment from now on. Linux can; elsewhere it stays that of all before."""
    with suppress(OSError):
        (SELF / "clear_refs").write_text("5")
