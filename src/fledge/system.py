"""What Windows does otherwise than Linux and macOS, in one place: locks, reads at a place, flushes, signals, processes.

`mypy --platform win32` finds what is used elsewhere and does not exist there. Memory is in `fledge.memory`.
"""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BINARY: int = getattr(os, "O_BINARY", 0)
"For os.open: without it Windows changes the ends of lines, and more."


class Lock:
    """A file or folder is ours until `close`, or until the process ends, however it does."""

    def __init__(self, number: int) -> None:
        self.number = number
        "What a child may inherit: a descriptor, or a handle on Windows."

    def close(self) -> None:
        if self.number >= 0:
            _close(self.number)
        self.number = -1


if sys.platform == "win32":
    import ctypes
    import hashlib
    import msvcrt
    from ctypes import wintypes

    INTERRUPTS: tuple[int, ...] = (signal.SIGINT, signal.SIGBREAK)
    BUSY, EOF_REACHED, SYNCHRONIZE = 183, 38, 0x00100000
    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateMutexW.restype = _kernel.OpenMutexW.restype = wintypes.HANDLE
    _kernel.CloseHandle.argtypes = (wintypes.HANDLE,)

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("Internal", ctypes.c_void_p),
            ("InternalHigh", ctypes.c_void_p),
            ("Offset", wintypes.DWORD),
            ("OffsetHigh", wintypes.DWORD),
            ("hEvent", wintypes.HANDLE),
        )

    def _name(path: Path | str) -> str:
        """A locked file could not be renamed or removed: what is locked is a name that stands for its path."""
        place = os.path.normcase(os.path.realpath(path))
        return "Global\\fledge-" + hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()

    def lock(path: Path | str, wait: bool = False) -> Lock:
        """Take a file or folder, which must exist; BlockingIOError where another has it and `wait` is not set."""
        os.stat(path)
        while True:
            handle = _kernel.CreateMutexW(None, False, _name(path))
            error = ctypes.get_last_error()
            if handle and error != BUSY:
                return Lock(handle)
            if handle:
                _kernel.CloseHandle(handle)
            if not wait:
                raise BlockingIOError(f"{path} is locked")
            time.sleep(0.01)

    def is_locked(path: Path | str) -> bool | None:
        """Whether anyone has it."""
        handle = _kernel.OpenMutexW(SYNCHRONIZE, False, _name(path))
        if handle:
            _kernel.CloseHandle(handle)
        return bool(handle)

    def _close(number: int) -> None:
        _kernel.CloseHandle(number)

    def read_at(file: int, size: int, start: int) -> bytes:
        """As os.pread, but that the place of the file may move."""
        buffer, done = ctypes.create_string_buffer(size), wintypes.DWORD()
        where = _Overlapped(Offset=start & 0xFFFFFFFF, OffsetHigh=start >> 32)
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(file))
        read = _kernel.ReadFile(handle, buffer, size, ctypes.byref(done), ctypes.byref(where))
        if not read and (error := ctypes.get_last_error()) != EOF_REACHED:
            raise ctypes.WinError(error)
        return buffer.raw[: done.value]

    def sync_file(path: Path) -> None:
        """Flush a file to the disk."""
        with open(path, "r+b") as file:
            os.fsync(file.fileno())

    def sync_folder(path: Path) -> None:
        """Windows gives no way to flush the names in a folder; NTFS keeps a journal of them."""

    def give_back(mapping: Any) -> None:
        """Windows takes back pages of mapped files by itself."""

    def swap(one: Path, other: Path) -> bool:
        """Windows exchanges no names."""
        return False

    def inheriting(locks: tuple[Lock, ...]) -> dict[str, Any]:
        """For subprocess.Popen: the child has these locks too."""
        handles = [held.number for held in locks]
        for handle in handles:
            os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})}

    def apart() -> dict[str, Any]:
        """For subprocess.Popen: Ctrl-C does not reach the child. It ends with the console's window all the same."""
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

    def interrupt(process: int) -> None:
        """As Ctrl-C, for a process that was begun `apart`, and those it began."""
        os.kill(process, signal.CTRL_BREAK_EVENT)

    def ignore_hangup() -> None:
        """Windows has no such signal."""

    def waiting_bytes(descriptor: int) -> int:
        """Bytes that a pipe holds now."""
        count = wintypes.DWORD()
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        _kernel.PeekNamedPipe(handle, None, 0, None, ctypes.byref(count), None)
        return count.value

    def reader_left(*streams: Any) -> bool:
        """Windows does not tell; who asks has met an error of writing."""
        return True

else:
    import ctypes
    import fcntl
    import mmap
    import select
    import termios

    INTERRUPTS: tuple[int, ...] = (signal.SIGINT,)
    AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2; macOS' flag has the same value

    def lock(path: Path | str, wait: bool = False) -> Lock:
        """Take a file or folder, which must exist; BlockingIOError where another has it and `wait` is not set.

        Some network file systems have no locks: another OSError says so.
        """
        held = Lock(os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR))
        try:
            fcntl.flock(held.number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            held.close()
            raise
        return held

    def is_locked(path: Path | str) -> bool | None:
        """Whether anyone has it; None where the file system has no locks."""
        try:
            descriptor = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return False

    def _close(number: int) -> None:
        os.close(number)

    def read_at(file: int, size: int, start: int) -> bytes:
        """As os.pread, but that the place of the file may move."""
        return os.pread(file, size, start)

    def sync_file(path: Path) -> None:
        """Flush a file to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(path: Path) -> None:
        """Flush the names in a folder, so that a rename survives a power cut."""
        sync_file(path)

    def give_back(mapping: mmap.mmap) -> None:
        """Pages of a mapped file need not stay in memory; they are read again when they are asked for."""
        mapping.madvise(mmap.MADV_DONTNEED)

    def swap(one: Path, other: Path) -> bool:
        """Let two folders change their names at once; false where the system or its file system can't."""
        library = ctypes.CDLL(None, use_errno=True)
        names = os.fsencode(one), os.fsencode(other)
        if exchange := getattr(library, "renameat2", None):  # Linux
            return bool(exchange(AT_FDCWD, names[0], AT_FDCWD, names[1], ctypes.c_uint(RENAME_EXCHANGE)) == 0)
        if exchange := getattr(library, "renamex_np", None):  # macOS
            return bool(exchange(*names, ctypes.c_uint(RENAME_EXCHANGE)) == 0)
        return False

    def inheriting(locks: tuple[Lock, ...]) -> dict[str, Any]:
        """For subprocess.Popen: the child has these locks too."""
        return {"pass_fds": [held.number for held in locks]}

    def apart() -> dict[str, Any]:
        """For subprocess.Popen: neither Ctrl-C nor the end of the terminal reaches the child."""
        return {"start_new_session": True}

    def interrupt(process: int) -> None:
        """As Ctrl-C, for a process that was begun `apart`, and those it began."""
        os.killpg(process, signal.SIGINT)

    def ignore_hangup() -> None:
        """The end of the terminal does not end this process."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def waiting_bytes(descriptor: int) -> int:
        """Bytes that a pipe or socket holds now."""
        waiting = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        return waiting[0]

    def reader_left(*streams: Any) -> bool:
        """Whether who read one of these streams is gone."""
        gone = select.poll()
        for stream in streams:
            gone.register(stream.fileno(), 0)  # asks for errors alone
        return bool(gone.poll(0))


STOPS = (*INTERRUPTS, signal.SIGTERM)
"Signals that ask a process to end."
