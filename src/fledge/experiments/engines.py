"""Where trials run: one after the other in this process, several processes at once, or tasks on a Ray cluster.

The numbers are the same whatever the engine and however many run at once: a trial depends on its settings alone, the
threads of each are fixed in the plan, and outcomes are handed on in the order of the trials.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fledge import devices
from fledge.config import RunConfig
from fledge.config.reading import CODE
from fledge.errors import FledgeError
from fledge.experiments.places import Climb, Places, keep_seen, places_on_cpu, places_on_gpus
from fledge.experiments.plan import with_shared_data
from fledge.experiments.processes import ask_to_stop, heard, in_order, in_processes, run_heard
from fledge.experiments.trials import Outcome, Trial, outcome_line, run_trial
from fledge.experiments.watch import OUTCOME, STOPPING
from fledge.extras import missing
from fledge.files import locked
from fledge.tokens.writer import OtherText
from fledge.training.device import choose_device, machine_threads
from fledge.training.view import clock_time

Name = Literal["local", "ray"]


class Engine(NamedTuple):
    """`local` or `ray`, and how many trials run at once; `auto` finds it out."""

    name: Name = "local"
    parallel: int | Literal["auto"] = 1

    def planned(self, config: RunConfig) -> int:
        """How many run at once for sure: with `auto` one on each GPU, or as many as the cores have the threads for."""
        return places(self, config) if self.parallel == "auto" else self.parallel

    def sharing(self, config: RunConfig) -> int:
        """Among how many the threads are divided. On GPUs with `auto` each has one: it only has to launch kernels."""
        if self.parallel == "auto" and devices.is_gpu(choose_device(config.training.device)):
            return machine_threads()
        return self.planned(config)


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
    """How many trials can run at once without sharing a core or a GPU. Without threads of its own, a trial with `auto`
    has all of them."""
    threads = config.training.threads or (machine_threads() if engine.parallel == "auto" else 1)
    if engine.name == "ray":
        return _ray_places(_ray(), threads)
    if devices.is_gpu(device := choose_device(config.training.device)):
        return devices.count(device.type)
    return max(1, machine_threads() // threads)


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """One process at a time has an experiment's folder; another one is refused. A kill gives it free."""
    folder.mkdir(parents=True, exist_ok=True)
    return locked(
        folder, f"Another process is at work in {folder}. Wait until it is done, or name another folder with --out."
    )


def _outcomes(trials: Sequence[Trial], folder: Path, engine: Engine) -> Iterator[Outcome]:
    left = [trial for trial in trials if not (folder / "trials" / trial.name / OUTCOME).is_file()]
    if engine.name == "ray" and left:
        return _on_ray(trials, folder, engine.planned(left[0].config))
    if len(left) > 1 and (here := _places(left, folder, engine)).shared:
        return _beside_each_other(trials, folder, here)
    return (run_trial(trial, folder) for trial in trials)


def _beside_each_other(trials: Sequence[Trial], folder: Path, places: Places) -> Iterator[Outcome]:
    done = 0
    for outcome in in_processes(trials, folder, places):
        done += 1
        yield outcome
    yield from (run_trial(trial, folder) for trial in trials[done:])


def _places(trials: Sequence[Trial], folder: Path, engine: Engine) -> Places:
    """Those of this machine."""
    if engine.parallel != "auto":
        return Places(Climb(min(engine.parallel, len(trials))))
    config = trials[0].config
    device = choose_device(config.training.device)
    if device.type != "cuda":
        return places_on_cpu(folder, min(engine.planned(config), len(trials)))
    every = [torch.device("cuda", number) for number in range(devices.count("cuda"))]
    return places_on_gpus(folder, every if config.training.device in ("auto", "cuda") else [device])


def _on_ray(trials: Sequence[Trial], folder: Path, parallel: int) -> Iterator[Outcome]:
    """Tasks on a cluster, whose machines all see the same folder."""
    ray = _ray()
    threads = max(trial.config.training.threads or 1 for trial in trials)
    # A trial may wait for one before it, so no more are handed in than can run at once.
    at_once = min(parallel, _ray_places(ray, threads))
    keep_seen(folder, at_once)
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
        yield from in_order(trials, Places(Climb(at_once)), submit, first, result, ray.cancel)
    except BaseException:
        ask_to_stop(folder)
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
