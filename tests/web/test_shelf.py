"""Facts about what is kept open: the last few things, read one at a time, and read again when their files change."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fledge.web.shelf import Recent


def make_files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def test_what_is_open_is_given_while_another_is_read(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(path: Path) -> str:
        if path.name == "slow":
            begun.set()
            assert go_on.wait(10)
        return path.read_text()

    recent = Recent(2, read)
    quick, slow = make_files(tmp_path, "quick", "slow")
    recent.get(quick)
    with ThreadPoolExecutor() as pool:
        try:
            waiting = pool.submit(recent.get, slow)
            assert begun.wait(10)
            assert pool.submit(recent.get, quick).result(timeout=5) == "quick"
        finally:
            go_on.set()
        assert waiting.result(timeout=10) == "slow"


def test_two_who_ask_at_once_cost_one_reading(tmp_path: Path) -> None:
    together, reads = threading.Barrier(4), []
    [path] = make_files(tmp_path, "one")

    def read(path: Path) -> str:
        reads.append(path)
        return path.read_text()

    recent = Recent(2, read)

    def ask() -> str:
        together.wait(10)
        return recent.get(path)

    with ThreadPoolExecutor(4) as pool:
        assert [answer.result() for answer in [pool.submit(ask) for _ in range(4)]] == ["one"] * 4
    assert reads == [path]


def test_the_least_recently_used_goes_and_what_changed_is_read_again(tmp_path: Path) -> None:
    reads = []
    recent = Recent(2, lambda path: reads.append(path.name) or path.read_text())
    first, second, third = make_files(tmp_path, "a", "b", "c")
    for path in (first, second, first, third, first):
        recent.get(path)
    assert reads == ["a", "b", "c"]
    recent.get(second)
    assert reads == ["a", "b", "c", "b"]
    os.utime(second, (1, 1))
    recent.get(second)
    assert reads == ["a", "b", "c", "b", "b"]
