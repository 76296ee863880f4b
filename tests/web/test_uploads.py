"""Texts that come from the page: into one folder of the served one, under safe names, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.files import PARTIAL
from fledge.web import uploads
from fledge.web.app import create_app
from fledge.web.uploads import safe_name

TEXT = b"The egg was warm. " * 200
ADDRESS = "http://127.0.0.1:8765"


def client_of(*folders: Path) -> TestClient:
    return TestClient(create_app(list(folders), rate=1e6, waiting=True), base_url=ADDRESS)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    return client_of(tmp_path / "runs")


def add(client: TestClient, upload: str, offset: int, part: bytes) -> Any:
    headers = {"content-type": "application/octet-stream"}
    return client.post("/api/texts/part", params={"upload": upload, "offset": offset}, content=part, headers=headers)


def send(client: TestClient, name: str, text: bytes) -> Any:
    begun = client.post("/api/texts", json={"name": name, "bytes": len(text)})
    assert begun.status_code == 200, begun.text
    return add(client, begun.json()["upload"], 0, text)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("diary.txt", "diary.txt"),
        ("../../etc/passwd", "passwd.txt"),
        ("..\\..\\boot.ini", "boot-ini.txt"),
        ("/etc/cron.d/x", "x.txt"),
        ("..", "text.txt"),
        (".bashrc", "bashrc.txt"),
        ("a\0b\n.txt", "a-b.txt"),
        ("config.json", "config-json.txt"),
        ("-rf.txt", "rf.txt"),
        ("lines.JSONL", "lines.jsonl"),
        ("Ärger 鸡蛋.txt", "Ärger-鸡蛋.txt"),
        ("\u202egpj.txt", "gpj.txt"),
        ("x" * 900 + ".txt", "x" * 80 + ".txt"),
    ],
)
def test_names_are_made_safe(client: TestClient, tmp_path: Path, name: str, kept: str) -> None:
    assert send(client, name, TEXT).json()["text"] == f"texts/{kept}"
    assert files(tmp_path) == {f"runs/texts/{kept}"}
    assert (tmp_path / "runs" / "texts" / kept).read_bytes() == TEXT


@pytest.mark.parametrize(
    ("beginning", "words"),
    [
        (b"%PDF-1.7", "a PDF"),
        (b"PK\x03\x04", "zip"),
        (b"\x89PNG", "picture"),
        (b"text\0", "binary"),
        (b"\xff\xfet", "16"),
    ],
)
def test_what_is_no_text_is_refused_and_not_kept(
    client: TestClient, tmp_path: Path, beginning: bytes, words: str
) -> None:
    answer = send(client, "book.txt", beginning + TEXT)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert files(tmp_path) == set()


def test_a_text_comes_in_parts_and_appears_when_it_is_whole(client: TestClient, tmp_path: Path) -> None:
    upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 30}).json()["upload"]
    assert add(client, upload, 0, b"0123456789").json() == {"upload": upload, "received": 10, "text": None}
    assert [text["name"] for text in client.get("/api/texts").json()["texts"] if not text["corpus"]] == []
    assert add(client, upload, 0, b"0123456789").status_code == 400  # not twice
    assert add(client, upload, 15, b"01234").status_code == 400  # no hole
    assert add(client, upload, 10, b"").status_code in (400, 422)
    assert add(client, upload, 10, b"x" * 20).json()["text"] == "texts/a.txt"
    assert add(client, upload, 30, b"x").status_code == 404
    assert files(tmp_path) == {"runs/texts/a.txt"}


def test_sizes_are_limited(client: TestClient, tmp_path: Path) -> None:
    begun = client.post("/api/texts", json={"name": "a.txt", "bytes": uploads.LARGEST + 1})
    assert begun.status_code == 400
    assert "at most" in begun.json()["error"]["message"]
    upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 5}).json()["upload"]
    assert add(client, upload, 0, b"longer than said").status_code == 400
    upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 6 << 20}).json()["upload"]
    assert add(client, upload, 0, b"x" * (uploads.PART + 1)).status_code == 422
    assert add(client, upload, 0, b"x" * (9 << 20)).status_code == 413
    assert files(tmp_path) == set()


def test_nothing_is_written_over(client: TestClient, tmp_path: Path) -> None:
    assert send(client, "a.txt", b"first" * 9).json()["text"] == "texts/a.txt"
    assert send(client, "a.txt", b"other" * 9).json()["text"] == "texts/a-2.txt"
    assert send(client, "a.txt", b"first" * 9).json()["text"] == "texts/a.txt"  # the same bytes: it is there already
    assert files(tmp_path) == {"runs/texts/a.txt", "runs/texts/a-2.txt"}


def test_two_servers_write_two_files(tmp_path: Path) -> None:
    one, other = client_of(tmp_path / "runs"), client_of(tmp_path / "runs")
    first = one.post("/api/texts", json={"name": "a.txt", "bytes": 10}).json()["upload"]
    second = other.post("/api/texts", json={"name": "a.txt", "bytes": 10}).json()["upload"]
    assert add(other, first, 0, b"x").status_code == 404
    add(one, first, 0, b"11111")
    add(other, second, 0, b"22222")
    assert add(one, first, 5, b"11111").json()["text"] == "texts/a.txt"
    assert add(other, second, 5, b"22222").json()["text"] == "texts/a-2.txt"
    assert {path.read_bytes() for path in (tmp_path / "runs/texts").iterdir()} == {b"1" * 10, b"2" * 10}


def test_those_that_are_given_up_leave_nothing(client: TestClient, tmp_path: Path) -> None:
    for _ in range(uploads.OPEN + 3):
        upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 10}).json()["upload"]
        add(client, upload, 0, b"x")
    assert len(files(tmp_path)) == uploads.OPEN


def test_a_full_disk_is_one_sentence_and_nothing_is_left(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 10}).json()["upload"]
    add(client, upload, 0, b"12345")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        answer = add(client, upload, 5, b"67890")
    assert answer.status_code == 507
    assert "disk is full" in answer.json()["error"]["message"]
    assert files(tmp_path) == set()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10, 10, 0))
    answer = client.post("/api/texts", json={"name": "a.txt", "bytes": 10})
    assert answer.status_code == 400
    assert "only 0 bytes are free" in answer.json()["error"]["message"]


def test_a_text_is_kept_on_a_disk_without_links(client: TestClient, tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert send(client, "a.txt", b"one").json()["text"] == "texts/a.txt"
    assert send(client, "a.txt", b"two").json()["text"] == "texts/a-2.txt"
    assert send(client, "a.txt", b"one").json()["text"] == "texts/a.txt"
    assert files(tmp_path) == {"runs/texts/a.txt", "runs/texts/a-2.txt"}


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_disk_that_is_full_at_the_last_moment_leaves_nothing(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        answer = send(client, "a.txt", b"one")
    assert answer.status_code == 507
    assert files(tmp_path) == set()
    assert send(client, "a.txt", b"one").json()["text"] == "texts/a.txt"


def test_what_a_killed_server_left_is_forgotten_after_a_day(tmp_path: Path) -> None:
    texts = tmp_path / "runs" / "texts"
    texts.mkdir(parents=True)
    mine, old, new = (texts / f"{name}{PARTIAL}" for name in ("mine", "0" * 16, "1" * 16))
    for path in (mine, old, new):
        path.write_bytes(b"half")
    for path in (mine, old):
        os.utime(path, (1, 1))
    send(client_of(tmp_path / "runs"), "a.txt", TEXT)
    assert {path.name for path in texts.iterdir()} == {mine.name, new.name, "a.txt"}


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "texts").write_text("mine")
    answer = client_of(tmp_path / "runs").post("/api/texts", json={"name": "a.txt", "bytes": 10})
    assert answer.status_code == 400
    assert "texts is a file" in answer.json()["error"]["message"]
    assert (tmp_path / "runs" / "texts").read_text() == "mine"


def test_a_part_that_is_too_long_is_told_so(client: TestClient) -> None:
    upload = client.post("/api/texts", json={"name": "a.txt", "bytes": 10 << 20}).json()["upload"]
    answer = add(client, upload, 0, b"x" * (uploads.PART + 1))
    assert answer.status_code == 422
    assert "at most 4194304 bytes" in answer.json()["error"]["message"]


def test_a_link_leads_nowhere_else(tmp_path: Path) -> None:
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    runs.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_bytes(TEXT)
    (runs / "texts").symlink_to(outside)
    (runs / "note.txt").symlink_to(outside / "secret.txt")
    client = client_of(runs)
    assert [text["name"] for text in client.get("/api/texts").json()["texts"] if not text["corpus"]] == []
    assert client.post("/api/texts", json={"name": "a.txt", "bytes": 10}).status_code == 400
    assert files(outside) == {"secret.txt"}


def test_served_texts_are_listed_and_what_fledge_wrote_is_not(tmp_path: Path, world: Path) -> None:
    books = tmp_path / "books"
    (books / "old").mkdir(parents=True)
    (books / "old" / "a.txt").write_bytes(TEXT)
    (books / "b.bin").write_bytes(TEXT)
    (books / ".hidden.txt").write_bytes(TEXT)
    listed = client_of(world / "runs", books).get("/api/texts").json()
    assert [text["name"] for text in listed["texts"] if not text["corpus"]] == ["books/old/a.txt"]
    assert listed["place"] == str(world / "runs" / "texts")


def test_without_a_folder_of_runs_there_is_no_place(world: Path) -> None:
    client = client_of(world / "runs" / "alpha")
    listed = client.get("/api/texts").json()
    assert listed["place"] is None
    assert "fledge serve runs" in listed["note"]
    assert client.post("/api/texts", json={"name": "a.txt", "bytes": 10}).status_code == 400


def test_the_facts_are_those_of_corpus_show(client: TestClient) -> None:
    lines = b"".join(b'{"text": "The egg number %d was warm, and the hen sat on it."}\n' % (n // 2) for n in range(400))
    name = send(client, "eggs.jsonl", lines).json()["text"]
    facts = client.get("/api/texts/facts", params={"text": name}).json()
    assert (facts["documents"], facts["scripts"]) == (400, ["Latin"])
    assert facts["copied"] > 0.4
    assert any("copies" in warning for warning in facts["warnings"])
    for wrong in ("../runs/texts/eggs.jsonl", "/etc/passwd", "https://example.org/a.txt", "-", "*"):
        assert client.get("/api/texts/facts", params={"text": wrong}).status_code == 404


def test_safe_names_have_no_path() -> None:
    for name in ("..//..", "a/b/../c", "\\\\server\\share\\x.txt", "CON", "~root", "$HOME", "%2e%2e%2f"):
        assert "/" not in safe_name(name)
        assert not safe_name(name).startswith(".")
