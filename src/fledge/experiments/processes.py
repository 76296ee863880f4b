"""Trials in processes of their own, and the order in which any engine begins them and hands their outcomes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fledge import devices
from fledge.errors import FledgeError, note, notes_kept, out_of_memory
from fledge.experiments.places import Places, keep_seen
from fledge.experiments.trials import Outcome, OutOfRoom, Trial, run_trial
from fledge.experiments.watch import STOPPING

ALONE_TOO_LARGE = "does not fit in memory"


class PutBack(Exception):
    """A trial was stopped to make room, and is to run later."""


class Job:
    """A trial in a process of its own, and the end of the pipe on which it tells what came of it."""

    def __init__(self, process: Any, told: Connection, gpu: str | None, shared: bool) -> None:
        self.process, self.told, self.gpu, self.shared = process, told, gpu, shared
        self.stopped = False

    def result(self) -> Outcome:
        try:
            found, said = self.told.recv()
        except EOFError:
            self.process.join()
            if self.stopped:
                raise PutBack from None
            raise (OutOfRoom if self.shared else FledgeError)(
                f"The process of a trial died with exit code {self.process.exitcode}, probably because memory "
                "ran out. Run fewer at once with --parallel; the same command resumes with the remaining "
                "trials."
            ) from None
        self.process.join()
        if self.shared and isinstance(found, BaseException) and of_memory(found):
            raise OutOfRoom(str(found))
        return heard(found, said)

    def stop(self) -> None:
        """At once: a trial may be waiting for another one, which is to have its place."""
        self.stopped = True
        self.process.kill()


def of_memory(error: BaseException) -> bool:
    return isinstance(error, OutOfRoom) or out_of_memory(error) or ALONE_TOO_LARGE in str(error)


def run_heard(trial: Trial, folder: Path, whole: bool = False) -> tuple[Outcome | BaseException, list[str]]:
    """What came of a trial elsewhere, and what was said: for the process that has the person's ear."""
    found: Outcome | BaseException
    with notes_kept() as said:
        try:
            found = run_trial(trial, folder, whole)
        except (FledgeError, KeyboardInterrupt, MemoryError) as error:
            found = error
        except Exception as error:  # not every one of them can travel; its words can
            found = RuntimeError(f"{type(error).__name__}: {error}")
    return found, said


def heard(found: Outcome | BaseException, said: Sequence[str]) -> Outcome:
    for sentence in said:
        note(sentence)
    if isinstance(found, BaseException):
        raise found
    return found


def visible_gpus() -> list[str]:
    """This machine's, by what a process is told to see one of them alone."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",") if named else [str(number) for number in range(devices.count("cuda"))]


def in_processes(trials: Sequence[Trial], folder: Path, places: Places) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    under_way: list[Job] = []
    gpus = visible_gpus()

    def submit(trial: Trial) -> Job:
        here, there = context.Pipe(duplex=False)
        busy = [job.gpu for job in under_way if job.process.is_alive()]
        gpu = min(gpus, key=busy.count) if gpus and trial.config.training.device in ("auto", "cuda") else None
        process = context.Process(target=_serve, args=(trial, folder, there, gpu, places.whole(trial)))
        process.start()
        there.close()
        under_way.append(Job(process, here, gpu, places.shared))
        keep_seen(folder, len(busy) + 1)
        return under_way[-1]

    def first(running: Sequence[Job]) -> Job | None:
        ready = wait([job.told for job in running], places.poll)
        return next((job for job in running if job.told in ready), None)

    try:
        yield from in_order(trials, places, submit, first, Job.result, Job.stop)
    except BaseException:
        ask_to_stop(folder)
        for job in under_way:
            if job.process.is_alive():
                job.process.terminate()  # the step in hand is finished and saved
        raise
    finally:
        for job in under_way:
            job.process.join()


def in_order(
    trials: Sequence[Trial],
    places: Places,
    submit: Callable[[Trial], Any],
    first: Callable[[Sequence[Any]], Any],
    result: Callable[[Any], Outcome],
    stop: Callable[[Any], None],
) -> Iterator[Outcome]:
    """As many under way as there are places, none waiting in a queue that Ctrl-C could not empty; outcomes in order.

    A trial may wait for one before it. So where memory runs out, it is the last one that makes room. Where trials turn
    out to do best alone, those that have not begun are left to the caller.
    """
    waiting = list(range(len(trials)))
    running: dict[Any, int] = {}
    done: dict[int, Outcome] = {}
    handed_on = 0
    while handed_on < len(trials) and (running or not places.alone):
        while (
            waiting
            and not places.alone
            and places.free(trials[waiting[0]], [trials[number] for number in running.values()])
        ):
            number = waiting.pop(0)
            running[submit(trials[number])] = number
        job = first(list(running))
        if job is None:
            places.look([trials[number] for number in running.values()])
            continue
        number = running.pop(job)
        try:
            done[number] = result(job)
            places.ended()
        except PutBack:
            insort(waiting, number)
        except OutOfRoom:
            insort(waiting, number)
            places.fewer(len(running))
            last = max(running, key=running.__getitem__, default=None)
            if last is not None and running[last] > number:
                stop(last)
        while handed_on in done:
            yield done.pop(handed_on)
            handed_on += 1


def ask_to_stop(folder: Path) -> None:
    """A mark for trials that wait for another, which will not come any further."""
    (folder / "trials").mkdir(exist_ok=True)
    (folder / "trials" / STOPPING).touch()


def _serve(trial: Trial, folder: Path, told: Connection, gpu: str | None, whole: bool) -> None:
    """One trial. Ctrl-C reaches it while it trains, and then it saves first; it ends with the process that began it."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    told.send(run_heard(trial, folder, whole))
