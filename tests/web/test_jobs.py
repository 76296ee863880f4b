"""Trainings as processes of their own: a queue per device, found again by another server, stopped, killed, failed."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fledge.errors import FledgeError
from fledge.files import read_json, write_json
from fledge.web import launch
from fledge.web.jobs import Jobs, said_last
from fledge.web.launch import JOB, LOCK, LOG, STATE
from fledge.web.library import NotFound


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "runs").mkdir()
    (tmp_path / "empty").mkdir()
    jobs = Jobs(tmp_path / "runs")
    yield tmp_path / "runs"
    for job in jobs.all():  # nothing outlives a test
        if job.state in ("waiting", "running"):
            os.killpg(read_json(jobs.folder / job.id / STATE)["pid"], signal.SIGKILL)


def lasting(home: Path) -> list[list[str]]:
    """An ordinary command that ends when it is told to."""
    return [["serve", str(home.parent / "empty"), "--port", "0", "--no-open"]]


def until(jobs: Jobs, name: str, *states: str, seconds: float = 40) -> Any:
    deadline = time.monotonic() + seconds
    while (job := jobs.one(name)).state not in states:
        assert time.monotonic() < deadline, f"still {job.state}: {jobs.log(name)}"
        time.sleep(0.05)
    return job


def opened(jobs: Jobs, name: str) -> None:
    """Wait until the command itself is at work, and so hears Ctrl-C."""
    deadline = time.monotonic() + 40
    while "The workshop is open" not in jobs.log(name):
        assert time.monotonic() < deadline, jobs.log(name)
        time.sleep(0.05)


def test_one_trains_and_the_other_waits_until_it_was_stopped(home: Path) -> None:
    jobs = Jobs(home)
    first = jobs.begin("train", "one", "cpu", lasting(home))
    second = jobs.begin("train", "two", "cpu", lasting(home))
    elsewhere = jobs.begin("train", "three", "cuda-0", [["--version"]])
    until(jobs, first.id, "running")
    assert until(jobs, elsewhere.id, "finished")  # another device does not wait
    assert until(jobs, second.id, "waiting").ahead == 1
    opened(jobs, first.id)
    other = Jobs(home)  # as a second server sees it
    other.stop(first.id)
    assert until(jobs, first.id, "stopped").ended
    until(other, second.id, "running")
    opened(jobs, second.id)
    jobs.stop(second.id)
    until(jobs, second.id, "stopped")
    with pytest.raises(FledgeError, match="nothing to stop"):
        jobs.stop(second.id)


def test_who_waits_can_leave_the_queue(home: Path) -> None:
    jobs = Jobs(home)
    first = jobs.begin("train", "one", "cpu", lasting(home))
    second = jobs.begin("train", "two", "cpu", lasting(home))
    until(jobs, first.id, "running")
    jobs.stop(second.id)
    assert until(jobs, second.id, "stopped").started is None
    assert jobs.one(first.id).state == "running"
    opened(jobs, first.id)
    jobs.stop(first.id)


def test_a_killed_one_is_known_by_its_lock(home: Path) -> None:
    jobs = Jobs(home)
    job = jobs.begin("train", "one", "cpu", lasting(home))
    until(jobs, job.id, "running")
    os.killpg(read_json(jobs.folder / job.id / STATE)["pid"], signal.SIGKILL)
    assert until(jobs, job.id, "killed").problem is None


def test_the_command_goes_on_without_the_process_that_began_it(home: Path) -> None:
    """The locks are the command's, too: nothing else begins, and it can still be stopped."""
    jobs = Jobs(home)
    job = jobs.begin("train", "one", "cpu", lasting(home))
    until(jobs, job.id, "running")
    opened(jobs, job.id)
    os.kill(read_json(jobs.folder / job.id / STATE)["pid"], signal.SIGKILL)
    second = jobs.begin("train", "two", "cpu", [["--version"]])
    time.sleep(0.7)
    assert (jobs.one(job.id).state, jobs.one(second.id).state) == ("running", "waiting")
    jobs.stop(job.id)
    until(jobs, job.id, "killed")
    until(jobs, second.id, "finished")


def test_one_that_fails_says_why_and_what_follows_it_is_left(home: Path) -> None:
    jobs = Jobs(home)
    job = jobs.begin("train", "one", "cpu", [["train", "no-such-recipe"], ["--version"]])
    failed = until(jobs, job.id, "failed")
    assert failed.problem.startswith("There is no recipe")
    assert "--version" not in jobs.log(job.id)


def test_how_it_ended_is_kept_on_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for another file, and the one that is there holds the end."""
    folder = home / ".jobs" / "one"
    folder.mkdir(parents=True)
    write_json(folder / JOB, {"kind": "train", "run": "a", "device": "cpu", "commands": [["--version"]], "created": 0})
    (folder / LOCK).touch()
    (folder / LOG).write_text("fledge: The bundle needs 2 MB, and only 0 bytes are free.\n")
    job = launch.Launch(folder)
    job.keep(state="running", started=1.0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "write_json", full)
    job.keep(state="ended", ended=2.0, code=2, stopped=False)
    found = Jobs(home).one("one")
    assert (found.state, found.problem) == ("failed", "The bundle needs 2 MB, and only 0 bytes are free.")


def test_a_run_is_trained_once_at_a_time(home: Path) -> None:
    jobs = Jobs(home)
    job = jobs.begin("train", "one", "cpu", lasting(home))
    with pytest.raises(FledgeError, match="trained already"):
        jobs.begin("train", "one", "cpu", lasting(home))
    until(jobs, job.id, "running")
    opened(jobs, job.id)
    jobs.stop(job.id)


@pytest.mark.parametrize("name", ["..", "../runs", "", "nothing", "/etc"])
def test_no_name_reaches_another_folder(home: Path, name: str) -> None:
    for call in (Jobs(home).log, Jobs(home).stop):
        with pytest.raises(NotFound):
            call(name)


def test_what_is_broken_is_left_out(home: Path) -> None:
    jobs = Jobs(home)
    for name, text in (("0", "{"), ("1", "[]"), ("2", '{"kind": "plan"}')):
        folder = jobs.folder / name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(text)
        (folder / LOCK).touch()
    (home / "link").symlink_to("/")
    assert jobs.all() == []


def test_the_last_words_are_the_sentence() -> None:
    assert said_last("step 1\nfledge: The disk is full.\nFree some space.\n") == "The disk is full.\nFree some space."
    assert said_last("Traceback\nKeyError: 'a'\n") == "KeyError: 'a'"
