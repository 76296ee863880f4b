"""What systems do in their own ways: locks, reads at a place, signals to other processes, memory."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fledge import memory, system
from fledge.system import BINARY, apart, inheriting, interrupt, is_locked, lock, read_at, waiting_bytes

SOURCE = Path(system.__file__).parent
OWN_WAYS = {"fcntl", "resource", "termios", "pwd", "grp", "msvcrt", "winreg", "_winapi", "readline"}


@pytest.mark.parametrize("folder", [False, True])
def test_a_lock_is_one_persons_until_it_is_closed(tmp_path: Path, folder: bool) -> None:
    place = tmp_path / "é and more"
    place.mkdir() if folder else place.touch()
    held = lock(place)
    with pytest.raises(BlockingIOError):
        lock(place)
    held.close()
    held.close()
    lock(place, wait=True).close()
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "missing")


def test_a_lock_ends_with_its_process_and_with_those_that_inherit_it(tmp_path: Path) -> None:
    place = tmp_path / "lock"
    place.touch()
    child = "import sys; print('here', flush=True); sys.stdin.read()"
    held = lock(place)
    process = subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **inheriting((held,))
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"here"
    held.close()
    assert is_locked(place), "the child has it still"
    process.kill()
    process.communicate()
    assert not is_locked(place)
    assert not is_locked(tmp_path / "missing")


def test_bytes_are_read_at_any_place(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 100 + b"\r\n\x1a\n")
    file = os.open(path, os.O_RDONLY | BINARY)
    try:
        assert read_at(file, 4, 300) == bytes(range(44, 48))
        assert read_at(file, 100, 25_600) == b"\r\n\x1a\n"
        assert read_at(file, 100, 30_000) == b""
    finally:
        os.close(file)


def test_a_pipe_says_how_much_waits() -> None:
    read, write = os.pipe()
    try:
        assert waiting_bytes(read) == 0
        os.write(write, b"five.")
        assert waiting_bytes(read) == 5
    finally:
        os.close(read)
        os.close(write)


def test_a_process_of_its_own_is_asked_to_stop() -> None:
    lines = [
        "import signal, sys, time",
        "from fledge.system import STOPS",
        "for number in STOPS: signal.signal(number, lambda number, _: sys.exit(7))",
        "print('here', flush=True)",
        "while True: time.sleep(0.01)",
    ]
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, **apart())
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"here"
    interrupt(process.pid)
    assert process.wait(30) == 7
    process.stdout.close()


def test_memory_is_known() -> None:
    total = memory.total()
    assert total is not None
    assert 1 << 20 < memory.resident() <= memory.peak_memory() * 1.1 < total * 1.1


def test_one_module_knows_systems() -> None:
    """What is imported elsewhere exists everywhere: `fledge` begins on Windows too."""
    for path in SOURCE.rglob("*.py"):
        if path.name not in ("system.py", "memory.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
            found |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
            assert not found & OWN_WAYS, path
