"""Trainings that the page began, each in a folder of its own below `.jobs` of the first served folder.

What is asked and how it stands lie on the disk, so that a second server, or the same one later, finds them again.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fledge.errors import FledgeError, harmless
from fledge.files import read_json, write_json
from fledge.system import apart, interrupt
from fledge.web.launch import JOB, LOCK, LOG, STATE, is_alive, is_new
from fledge.web.library import NotFound
from fledge.web.metrics import tail
from fledge.web.schemas import Answer

FOLDER = ".jobs"
KEPT = 40  # of those that have ended
WAITING = 20
TAIL = 20_000  # bytes of a log
State = Literal["waiting", "running", "finished", "stopped", "failed", "killed"]


class TrainingJob(Answer):
    """A training that the page began, or a plan; those that wait come in the order in which they were asked for."""

    id: str
    kind: Literal["plan", "start", "train"]
    run: str
    device: str
    command: str
    state: State
    created: float
    started: float | None
    ended: float | None
    ahead: int
    "Others of the same device that come before it."
    problem: str | None
    "The last words of one that failed."


class Jobs:
    """The jobs below a served folder."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / FOLDER
        self._children: list[subprocess.Popen[bytes]] = []

    def all(self) -> list[TrainingJob]:
        """The newest first."""
        self._children = [child for child in self._children if child.poll() is None]  # no zombies
        ahead: dict[str, int] = {}
        found = []
        for folder in self._folders():
            try:
                job = read_job(folder, ahead)
            except (OSError, FledgeError, KeyError, TypeError, ValueError):
                continue  # half-written, or somebody else's
            found.append(job)
            if job.state in ("waiting", "running"):
                ahead[job.device] = ahead.get(job.device, 0) + 1
        return found[::-1]

    def of_run(self, run: str) -> TrainingJob | None:
        """The newest job of a run."""
        return next((job for job in self.all() if job.run == run), None)

    def begin(
        self, kind: str, run: str, device: str, commands: Sequence[Sequence[str]], asked: dict[str, Any] | None = None
    ) -> TrainingJob:
        """Start the process that runs the commands when their turn comes; `asked` is kept with it."""
        active = [job for job in self.all() if job.state in ("waiting", "running")]
        if any(job.run == run for job in active):
            raise FledgeError(f"{run} is being planned or trained already. Wait for it, or stop it first.")
        if len(active) >= WAITING:
            raise FledgeError(f"{len(active)} trainings are already waiting. Wait for one of them, or stop one.")
        self._forget()
        folder = self.folder / f"{time.time_ns():020d}-{secrets.token_hex(3)}"
        folder.mkdir(parents=True)
        try:
            (folder / LOCK).touch(0o600)
            (folder / LOG).touch(0o600)
            write_json(
                folder / JOB,
                {
                    "kind": kind,
                    "run": run,
                    "device": device,
                    "commands": [list(words) for words in commands],
                    "asked": asked,
                    "cwd": os.getcwd(),
                    "created": time.time(),
                },
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._children.append(
            subprocess.Popen(
                [sys.executable, "-m", "fledge.web.launch", str(folder.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **apart(),
            )
        )
        return self.one(folder.name)

    def one(self, name: str) -> TrainingJob:
        found = next((job for job in self.all() if job.id == name), None)
        if found is None:
            raise NotFound(f"There is no training {name!r}: it ended long ago, or never was.")
        return found

    def stop(self, name: str) -> TrainingJob:
        """As Ctrl-C in a terminal: the step is finished and saved; a second time, it stops at once."""
        job = self.one(name)
        folder = self.folder / name
        if job.state not in ("waiting", "running"):
            raise FledgeError(f"{job.run} is not being trained: there is nothing to stop.")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with suppress(OSError, FledgeError, KeyError, TypeError):
                if is_alive(folder):  # then its process is the one that is kept, and no other has its number
                    interrupt(int(read_json(folder / STATE)["pid"]))
                    break
            if job.started is not None and not is_alive(folder):
                break
            time.sleep(0.05)
        return self.one(name)

    def log(self, name: str) -> str:
        """The end of what the commands said."""
        self.one(name)
        return end_of(self.folder / name / LOG)

    def commands(self, name: str) -> list[list[str]]:
        values: dict[str, Any] = read_json(self.folder / name / JOB)
        return [list(map(str, words)) for words in values["commands"]]

    def asked(self, name: str) -> dict[str, Any] | None:
        values: dict[str, Any] = read_json(self.folder / name / JOB)
        return values.get("asked")

    def _folders(self) -> list[Path]:
        if self.folder.is_symlink() or not self.folder.is_dir():
            return []
        with os.scandir(self.folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))

    def _forget(self) -> None:
        for job in [job for job in self.all() if job.state not in ("waiting", "running")][KEPT:]:
            shutil.rmtree(self.folder / job.id, ignore_errors=True)


def read_job(folder: Path, ahead: dict[str, int]) -> TrainingJob:
    """What lies in a job's folder; the lock says whether it lives, whatever was written last."""
    asked: dict[str, Any] = read_json(folder / JOB)
    alive = is_alive(folder)
    state: dict[str, Any] = {"state": "waiting" if alive or is_new(folder, asked["created"]) else "lost"}
    if (folder / STATE).is_file():
        state = read_json(folder / STATE)
    found = standing(state, alive)
    last = end_of(folder / LOG) if found == "failed" else ""
    return TrainingJob(
        id=folder.name,
        kind=asked["kind"],
        run=str(asked["run"]),
        device=str(asked["device"]),
        command="\n".join(shlex.join(["fledge", *map(str, words)]) for words in asked["commands"]),
        state=found,
        created=float(asked["created"]),
        started=state.get("started"),
        ended=state.get("ended"),
        ahead=ahead.get(str(asked["device"]), 0) if found == "waiting" else 0,
        problem=said_last(last) if found == "failed" else None,
    )


def standing(state: dict[str, Any], alive: bool) -> State:
    if state["state"] == "ended":
        return "stopped" if state.get("stopped") else "failed" if state.get("code") else "finished"
    if alive or (state["state"] == "waiting" and "pid" not in state):
        return "running" if state["state"] == "running" else "waiting"
    return "killed"


def end_of(log: Path) -> str:
    try:
        return harmless(tail(log, TAIL)[0].decode("utf-8", "replace"), keep="\n")
    except OSError:
        return ""


def said_last(log: str) -> str:
    """The sentence that a command ended with: from its last `fledge:` on, or the last line of a traceback."""
    said = log.rpartition("fledge: ")[2].strip() if "fledge: " in log else log.strip().rpartition("\n")[2]
    return said[-600:] or "It ended without a word."
