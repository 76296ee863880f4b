"""Files are whole or absent, whatever happens in between."""

from __future__ import annotations

import shutil

import pytest

from fledge.errors import FledgeError
from fledge.files import atomic_folder, atomic_write, read_json, require_space, sha256, write_json


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


def test_broken_json_names_the_file(tmp_path) -> None:
    (tmp_path / "broken.json").write_text('{"a": ')
    with pytest.raises(FledgeError, match="broken.json is not valid JSON"):
        read_json(tmp_path / "broken.json")


def test_the_checksum_is_sha256(tmp_path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_work_that_cannot_fit_is_refused_before_it_starts(tmp_path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_space(tmp_path / "not" / "there" / "yet", free // 2, "the store")
    with pytest.raises(FledgeError, match="the store needs about"):
        require_space(tmp_path, free * 2, "the store")
