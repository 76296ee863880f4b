"""Files are whole or absent, whatever happens in between."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys

import pytest

from fledge import files, system
from fledge.errors import FledgeError
from fledge.files import atomic_folder, atomic_write, locked, read_json, require_space, sha256, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half of")
        raise RuntimeError
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_a_failed_folder_leaves_nothing(tmp_path) -> None:
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "bundle") as folder:
        (folder / "one").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_left_by_a_killed_writer_does_not_stop_the_next(tmp_path) -> None:
    (tmp_path / "bundle.partial").mkdir()
    (tmp_path / "bundle.partial" / "stale").write_text("old")
    with atomic_folder(tmp_path / "bundle") as folder:
        (folder / "one").write_text("1")
    assert [entry.name for entry in (tmp_path / "bundle").iterdir()] == ["one"]
    assert not (tmp_path / "bundle.partial").exists()


def test_two_writers_of_one_name_do_not_meet(tmp_path) -> None:
    """The one that ends first is there whole, and then the one that ends last; never half of the other."""
    path = tmp_path / "value"
    with atomic_write(path) as late:
        late.write(b"half of")
        late.flush()
        with atomic_write(path) as early:
            early.write(b"early")
        assert path.read_bytes() == b"early"
        late.write(b" late")
    assert path.read_bytes() == b"half of late"
    assert [entry.name for entry in tmp_path.iterdir()] == ["value"]


def test_two_writers_of_one_folder_do_not_meet(tmp_path) -> None:
    with pytest.raises(OSError, match="value"), atomic_folder(tmp_path / "value") as late:
        (late / "late").write_text("1")
        with atomic_folder(tmp_path / "value") as early:
            (early / "early").write_text("1")
        assert [entry.name for entry in late.iterdir()] == ["late"]
    assert [entry.name for entry in tmp_path.rglob("*")] == ["value", "early"]


KILLED = """
import os, pathlib, signal, sys
from fledge.files import atomic_folder, atomic_write
with atomic_write(sys.argv[1]) as file, atomic_folder(sys.argv[2]) as folder:
    file.write(b"half of")
    (folder / "one").write_text("1")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path) -> None:
    """Its temporary names end in the suffix that everybody passes over; what others write is left alone."""
    file, folder = tmp_path / "value", tmp_path / "bundle"
    subprocess.run([sys.executable, "-c", KILLED, file, folder], check=False, env={**os.environ})
    left = sorted(os.listdir(tmp_path))
    assert len(left) == 2
    assert all(re.fullmatch(r"(value|bundle)\.[0-9a-f]{8}\.partial", name) for name in left)
    for name in ("value.partial", "value.gz.partial", "other.01234567.partial"):
        (tmp_path / name).write_text("a download, and what is of other files")
    write_json(file, 1)
    with atomic_folder(folder):
        pass
    others = ["other.01234567.partial", "value.gz.partial", "value.partial"]
    assert sorted(os.listdir(tmp_path)) == ["bundle", *others[:1], "value", *others[1:]]


def test_broken_json_names_the_file(tmp_path) -> None:
    (tmp_path / "broken.json").write_text('{"a": ')
    with pytest.raises(FledgeError, match="broken.json is not valid JSON"):
        read_json(tmp_path / "broken.json")


def test_a_number_of_thousands_of_digits_is_refused(tmp_path) -> None:
    (tmp_path / "long.json").write_text('{"a": ' + "1" * 5000 + "}")
    with pytest.raises(FledgeError, match="long.json is not valid JSON"):
        read_json(tmp_path / "long.json")


def test_the_checksum_is_sha256(tmp_path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_work_that_cannot_fit_is_refused_before_it_starts(tmp_path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_space(tmp_path / "not" / "there" / "yet", free // 2, "the store")
    with pytest.raises(FledgeError, match="the store needs about"):
        require_space(tmp_path, free * 2, "the store")


def test_one_process_at_a_time_has_a_folder(tmp_path) -> None:
    with (
        locked(tmp_path, "It is taken."),
        pytest.raises(FledgeError, match="It is taken"),
        locked(tmp_path, "It is taken."),
    ):
        pass
    with locked(tmp_path, "It is taken."):
        pass


def test_an_error_of_the_work_itself_is_not_taken_for_another_process(tmp_path) -> None:
    """As of a print to a full pipe that does not block."""
    with pytest.raises(BlockingIOError, match="full"), locked(tmp_path, "It is taken."):
        raise BlockingIOError(errno.EAGAIN, "full")


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path, "It is taken."), locked(tmp_path, "It is taken."):
        pass


@pytest.mark.parametrize("at_once", [True, False])
def test_two_folders_change_their_names(tmp_path, monkeypatch, at_once) -> None:
    """At once, or where the file system has no way to, one after the other."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    if not at_once:
        monkeypatch.setattr(system.ctypes, "CDLL", lambda *_, **__: object())
    files.exchange(tmp_path / "one", tmp_path / "other")
    assert [(tmp_path / name / "file").read_text() for name in ("one", "other")] == ["other", "one"]
    assert len(list(tmp_path.iterdir())) == 2
