"""Where trials run: one after the other in this process, several processes at once, or tasks on a Ray cluster.

The numbers are the same whatever the engine and however many run at once: a trial depends on its settings alone, the
threads of each are fixed in the plan, and outcomes are handed on in the order of the trials.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fledge import devices
from fledge.config import RunConfig
from fledge.config.reading import CODE
from fledge.errors import FledgeError, note, notes_kept
from fledge.experiments.plan import with_shared_data
from fledge.experiments.trials import Outcome, Trial, outcome_line, run_trial
from fledge.experiments.watch import OUTCOME, STOPPING
from fledge.extras import missing
from fledge.files import locked
from fledge.tokens.writer import OtherText
from fledge.training.device import choose_device
from fledge.training.view import clock_time

Name = Literal["local", "ray"]


class Engine(NamedTuple):
    """`local` or `ray`, and how many trials run at once."""

    name: Name = "local"
    parallel: int = 1


ONE_BY_ONE = Engine()


def run_trials(
    trials: Sequence[Trial], folder: Path, engine: Engine = ONE_BY_ONE, done: int = 0, total: int | None = None
) -> Iterator[Outcome]:
    """The outcomes in the order of the trials, each said in a line; `done` of `total` were said before."""
    folder = folder.absolute()
    (folder / "trials" / STOPPING).unlink(missing_ok=True)
    before = {trial.name for trial in trials if (folder / "trials" / trial.name / OUTCOME).is_file()}
    for trial in trials:
        write_shared_tokens(trial.config, folder)  # before several processes want it at once
    total, began, ran = total or done + len(trials), time.monotonic(), 0
    for number, (trial, outcome) in enumerate(zip(trials, _outcomes(trials, folder, engine), strict=True), done + 1):
        ran += trial.name not in before
        after = f"; about {clock_time((total - number) * (time.monotonic() - began) / ran)} left" if ran else ""
        known = " (already done)" if trial.name in before else after * (number < total)
        print(f"{number}/{total} {outcome_line(outcome)}{known}", flush=True)
        yield outcome


def write_shared_tokens(config: RunConfig, folder: Path) -> None:
    """The tokens that trials share; what is said of other text is said of the experiment, which has one text."""
    try:
        with_shared_data(config, folder)
    except OtherText:
        raise FledgeError(
            f"The text of {', '.join(config.corpus.source)} has changed since the experiment in {folder} "
            "began, so its trials would not be comparable. Name another folder with --out."
        ) from None


def places(engine: Engine, config: RunConfig) -> int:
    """How many trials can run at once without sharing a core or a GPU."""
    threads = config.training.threads or 1
    if engine.name == "ray":
        return _ray_places(_ray(), threads)
    if devices.is_gpu(device := choose_device(config.training.device)):
        return devices.count(device.type)
    return max(1, torch.get_num_threads() // threads)


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """One process at a time has an experiment's folder; another one is refused. A kill gives it free."""
    folder.mkdir(parents=True, exist_ok=True)
    return locked(
        folder, f"Another process is at work in {folder}. Wait until it is done, or name another folder with --out."
    )


def _outcomes(trials: Sequence[Trial], folder: Path, engine: Engine) -> Iterator[Outcome]:
    left = [trial for trial in trials if not (folder / "trials" / trial.name / OUTCOME).is_file()]
    if engine.name == "ray" and left:
        return _on_ray(trials, folder, engine.parallel)
    if engine.parallel > 1 and len(left) > 1:
        return _in_processes(trials, folder, min(engine.parallel, len(left)))
    return (run_trial(trial, folder) for trial in trials)


def visible_gpus() -> list[str]:
    """This machine's, by what a process is told to see one of them alone."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",") if named else [str(number) for number in range(devices.count("cuda"))]


class Job(NamedTuple):
    """A trial in a process of its own, and the end of the pipe on which it tells what came of it."""

    process: Any
    told: Any
    gpu: str | None

    def result(self) -> Outcome:
        try:
            told = self.told.recv()
        except EOFError:
            self.process.join()
            raise FledgeError(
                f"The process of a trial died with exit code {self.process.exitcode}, probably because memory "
                "ran out. Run fewer at once with --parallel; the same command resumes with the remaining "
                "trials."
            ) from None
        self.process.join()
        return heard(*told)


def run_heard(trial: Trial, folder: Path) -> tuple[Outcome | BaseException, list[str]]:
    """What came of a trial elsewhere, and what was said: for the process that has the person's ear."""
    found: Outcome | BaseException
    with notes_kept() as said:
        try:
            found = run_trial(trial, folder)
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


def _in_processes(trials: Sequence[Trial], folder: Path, parallel: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    under_way: list[Job] = []
    gpus = visible_gpus()

    def submit(trial: Trial) -> Job:
        here, there = context.Pipe(duplex=False)
        busy = [job.gpu for job in under_way if job.process.is_alive()]
        gpu = min(gpus, key=busy.count) if gpus and trial.config.training.device in ("auto", "cuda") else None
        process = context.Process(target=_serve, args=(trial, folder, there, gpu))
        process.start()
        there.close()
        under_way.append(Job(process, here, gpu))
        return under_way[-1]

    def first(running: Sequence[Job]) -> Job:
        ready = wait([job.told for job in running])
        return next(job for job in running if job.told in ready)

    try:
        yield from _in_order(trials, parallel, submit, first, Job.result)
    except BaseException:
        _ask_to_stop(folder)
        for job in under_way:
            if job.process.is_alive():
                job.process.terminate()  # the step in hand is finished and saved
        raise
    finally:
        for job in under_way:
            job.process.join()


def _on_ray(trials: Sequence[Trial], folder: Path, parallel: int) -> Iterator[Outcome]:
    """Tasks on a cluster, whose machines all see the same folder."""
    ray = _ray()
    threads = max(trial.config.training.threads or 1 for trial in trials)
    # A trial may wait for one before it, so no more are handed in than can run at once.
    at_once = min(parallel, _ray_places(ray, threads))
    gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0) / at_once)
    code = {CODE: os.environ[CODE]} if os.environ.get(CODE) else {}
    task: Any = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0, runtime_env={"env_vars": code})(run_heard)

    def first(running: Sequence[Any]) -> Any:
        return ray.wait(list(running))[0][0]

    under_way: list[Any] = []

    def submit(trial: Trial) -> Any:
        under_way.append(task.remote(trial, folder))
        return under_way[-1]

    def result(job: Any) -> Outcome:
        return heard(*ray.get(job))

    try:
        yield from _in_order(trials, at_once, submit, first, result)
    except BaseException:
        _ask_to_stop(folder)
        for job in under_way:
            ray.cancel(job)
        raise


def _ray() -> Any:
    """Ray, joined to the cluster of the environment (RAY_ADDRESS) or to a local one."""
    try:
        import ray
    except ImportError:
        raise missing("--engine ray", "ray", "ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray


def _ray_places(ray: Any, threads: int) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)


def _in_order(
    trials: Sequence[Trial],
    parallel: int,
    submit: Callable[[Trial], Any],
    first: Callable[[Sequence[Any]], Any],
    result: Callable[[Any], Outcome],
) -> Iterator[Outcome]:
    """At most `parallel` under way, none waiting in a queue that Ctrl-C could not empty; outcomes in order."""
    running: dict[Any, int] = {}
    done: dict[int, Outcome] = {}
    handed_in = handed_on = 0
    while handed_on < len(trials):
        while handed_in < len(trials) and len(running) < parallel:
            running[submit(trials[handed_in])] = handed_in
            handed_in += 1
        job = first(list(running))
        done[running.pop(job)] = result(job)
        while handed_on in done:
            yield done.pop(handed_on)
            handed_on += 1


def _ask_to_stop(folder: Path) -> None:
    """A mark for trials that wait for another, which will not come any further."""
    (folder / "trials").mkdir(exist_ok=True)
    (folder / "trials" / STOPPING).touch()


def _serve(trial: Trial, folder: Path, told: Connection, gpu: str | None) -> None:
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
    told.send(run_heard(trial, folder))
