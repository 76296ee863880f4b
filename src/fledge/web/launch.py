"""The process behind a training that the page began: it waits for its turn, runs the ordinary commands, and keeps how
they ended.

It has a session of its own, so that neither the page nor the server takes it along. It holds a lock on its folder, as
do the commands it runs: whoever finds the folder unlocked knows that nothing of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fledge.files import read_json, write_json
from fledge.system import STOPS, Lock, ignore_hangup, inheriting, is_locked, lock

JOB, STATE, LOCK, LOG = "job.json", "state.json", "lock", "log.txt"
POLL = 0.2
STOPPED = 130
BEGINNING = 20.0  # seconds that a process may take to begin


class Launch:
    """One job, from its turn to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: dict[str, Any] = read_json(folder / JOB)
        self.stopped = False
        self.state: dict[str, Any] = {"state": "waiting", "pid": os.getpid()}

    def run(self) -> None:
        own = self.folder / LOCK
        own.touch(0o600)
        held = lock(own, wait=True)  # who asks whether it lives holds it for a moment
        for number in STOPS:
            signal.signal(number, self.stop)
        ignore_hangup()
        self.keep()
        turn = self.wait()
        code = STOPPED
        if turn is not None:
            self.keep(state="running", started=time.time())
            code = self.work((held, turn))
        self.keep(state="ended", ended=time.time(), code=code, stopped=self.stopped)

    def stop(self, *_: object) -> None:
        self.stopped = True

    def keep(self, **values: Any) -> None:
        """Write how it stands. On a full disk that goes into the file that is there, whose block is taken already."""
        self.state.update(values)
        try:
            write_json(self.folder / STATE, self.state)
        except OSError:
            with suppress(OSError), open(self.folder / STATE, "r+b") as file:
                file.write(json.dumps(self.state).encode())
                file.truncate()

    def wait(self) -> Lock | None:
        """The lock of the device, once those that came before have ended; None where it was stopped meanwhile."""
        device = self.folder.parent / f"device-{self.job['device']}.lock"
        device.touch(0o600)
        while not self.stopped:
            if not any(self.before()):
                with suppress(BlockingIOError):
                    return lock(device)
            time.sleep(POLL)
        return None

    def before(self) -> Iterator[Path]:
        """The jobs of the same device that were asked for earlier, and live or are about to."""
        for folder in sorted(self.folder.parent.iterdir()):
            if folder.name >= self.folder.name:
                return
            with suppress(OSError, ValueError, KeyError, TypeError):
                other = read_json(folder / JOB)
                if other["device"] == self.job["device"] and (is_alive(folder) or is_new(folder, other["created"])):
                    yield folder

    def work(self, locks: tuple[Lock, Lock]) -> int:
        """The commands, one after the other, for as long as each does what it should; the exit code of the last."""
        code = 0
        with open(self.folder / LOG, "ab", buffering=0) as log:
            for words in self.job["commands"]:
                with suppress(OSError):
                    log.write(f"$ fledge {' '.join(words)}\n".encode(errors="replace"))
                process = subprocess.Popen(
                    [sys.executable, "-m", "fledge", *words],
                    cwd=self.job["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "100"},
                    **inheriting(locks),
                )
                code = process.wait()
                if code or self.stopped:
                    break
        return code


def is_new(folder: Path, created: float) -> bool:
    """Whether its process was begun a moment ago, and has not said anything yet."""
    return not (folder / STATE).exists() and time.time() - created < BEGINNING


def is_alive(folder: Path) -> bool:
    """Whether a process of the job is left: only then is its folder locked."""
    return is_locked(folder / LOCK) is not False


if __name__ == "__main__":
    Launch(Path(sys.argv[1])).run()
