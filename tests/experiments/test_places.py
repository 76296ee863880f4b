"""How many trials run at once follows from memory and from what they do together; none is lost for want of memory."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.config import load_recipe, override_config
from fledge.errors import FledgeError
from fledge.experiments import engines, processes
from fledge.experiments.engines import Engine, run_trials
from fledge.experiments.places import (
    Climb,
    Places,
    Room,
    WorkMeter,
    keep_seen,
    needed_memory,
    places_on_gpus,
    seen_at_once,
    window_flops,
)
from fledge.experiments.plan import with_threads
from fledge.experiments.processes import PutBack, in_order
from fledge.experiments.sweep import sweep
from fledge.experiments.trials import Outcome, OutOfRoom, Trial
from fledge.training import device
from tests.experiments.test_trials import SMALL, TEXT
from tests.kernels import on_gpu

CONFIG = load_recipe("akjv-demo", SMALL)


def trial(name: str, *changes: str) -> Trial:
    return Trial(name, override_config(CONFIG, changes))


def outcome(name: str) -> Outcome:
    return Outcome(name, 0, "complete", 1, 1, 1, 1.0)


class Machine:
    """A pretended one: trials take `work`, do it at a common rate that depends on how many there are, and fill memory
    for more than `holds` of them; `first` lets time pass and gives the one that has ended, or none for a look."""

    def __init__(self, rates: dict[int, float], work: float = 100.0, holds: int = 99) -> None:
        self.rates, self.work, self.holds, self.measurable = rates, work, holds, True
        self.left: dict[str, float] = {}
        self.failed: set[str] = set()
        self.stopped: set[str] = set()
        self.begun: list[str] = []
        self.seconds, self.most = 0.0, 0

    def submit(self, one: Trial) -> str:
        self.left[one.arm] = self.work
        self.begun.append(one.arm)
        self.most = max(self.most, len(self.left))
        if len(self.left) > self.holds:
            self.failed.add(one.arm)
        return one.arm

    def first(self, running: list[str]) -> str | None:
        if ended := sorted(name for name in running if self.left[name] <= 0 or name in self.failed | self.stopped):
            return ended[0]
        self.seconds += 1
        for name in running:
            self.left[name] -= self.rates[len(running)] / len(running)
        return None

    def result(self, name: str) -> Outcome:
        del self.left[name]
        if name in self.stopped:
            self.stopped.remove(name)
            self.failed.discard(name)
            raise PutBack
        if name in self.failed:
            self.failed.remove(name)
            raise OutOfRoom("out of memory")
        return outcome(name)

    def stop(self, name: str) -> None:
        self.stopped.add(name)

    def look(self, running: list[Trial]) -> tuple[int, float] | None:
        return (len(running), self.rates[len(running)]) if self.measurable else None

    def training(self, running: list[Trial]) -> int:
        return sum(self.left[one.arm] < self.work for one in running)

    def run(self, count: int, places: Places) -> list[str]:
        """The rest of the trials, if it is left to the caller, is run as one trial alone."""
        every = [trial(str(number)) for number in range(count)]
        found = [one.arm for one in in_order(every, places, self.submit, self.first, self.result, self.stop)]
        self.seconds += (count - len(found)) * self.work / self.rates[1]
        return found


def climbing(machine: Machine, most: int = 16, room: Room | None = None) -> Places:
    return Places(Climb(1, most), room, machine)  # type: ignore[arg-type]


def test_the_number_grows_as_long_as_all_together_do_more(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {1: 10.0, 2: 18.0, 3: 23.0, 4: 26.0, 5: 26.5, 6: 26.5, 7: 26.0, 8: 25.0}
    machine = Machine(rates)
    assert machine.run(40, climbing(machine)) == [str(number) for number in range(40)]
    assert (
        capsys.readouterr().out == "4 trials run at once and together do 2.6 times the work of 1; 8 were no faster.\n"
    )
    assert machine.most == 8
    alone = Machine(rates)
    alone.run(40, Places(Climb(1)))
    assert machine.seconds < alone.seconds / 2


def test_where_one_fills_the_device_it_is_soon_alone_again(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine({1: 10.0, 2: 9.8})
    assert machine.run(20, climbing(machine)) == ["0", "1"], "the rest needs no processes"
    assert capsys.readouterr().out == "1 trial runs at a time; 2 were no faster.\n"
    alone = Machine({1: 10.0})
    alone.run(20, Places(Climb(1)))
    assert machine.seconds < 1.02 * alone.seconds


def test_trials_too_short_to_be_measured_share_the_time_of_their_starts() -> None:
    machine = Machine({number: 10.0 * number for number in range(1, 9)}, work=2.0)
    machine.measurable = False
    assert len(machine.run(40, climbing(machine, most=8))) == 40
    assert machine.most == 8


def test_those_that_only_start_leave_their_places_to_others() -> None:
    machine = Machine({})
    places = climbing(machine)
    for at_once, rate in ((1, 10.0), (2, 20.0), (4, 20.0)):
        places.climb.measured(at_once, rate)
    assert places.climb.limit == 2
    running = [trial(str(number)) for number in range(2)]
    machine.left = {"0": 100.0, "1": 100.0, "2": 100.0, "3": 100.0}
    assert places.free(trial("2"), running), "neither trains"
    machine.left |= {"0": 50.0, "1": 50.0}
    assert not places.free(trial("2"), running)
    assert not Places(Climb(2)).free(trial("2"), running), "a number that was asked for is kept"


def test_memory_and_cores_set_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {number: 10.0 * number for number in range(1, 17)}
    machine = Machine(rates)
    machine.run(40, climbing(machine, room=Room(10.0, 10.0, lambda one: 3.0)))
    assert machine.most == 3
    machine = Machine(rates)
    machine.run(40, climbing(machine, most=5))
    assert machine.most == 5
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("3 trials run at once")
    assert told[0].endswith("more do not fit the memory.")
    assert told[1].endswith("each has a core of its own, and no more are left.")


def test_a_trial_that_needs_all_of_the_memory_runs_alone() -> None:
    room = Room(20.0, 10.0, lambda one: 12.0 if one.arm == "large" else 4.0)
    small, large = trial("small"), trial("large")
    assert room.fits(large, [])
    assert not room.fits(large, [small])
    assert not room.fits(small, [large])
    assert room.fits(small, [small] * 4)
    assert not room.fits(small, [small] * 5)
    places = Places(Climb(1, 4), room)
    assert (places.whole(small), places.whole(large)) == (True, False)


@pytest.mark.parametrize("start", [2, 4, 7])
def test_where_memory_runs_out_fewer_run_and_none_is_lost(start: int) -> None:
    machine = Machine(dict.fromkeys(range(1, 9), 10.0), holds=3)
    places = Places(Climb(start))
    if start > 3:
        with pytest.warns(UserWarning, match=r"Memory ran out while \d trials ran at once. From here on at most 3 do"):
            found = machine.run(9, places)
    else:
        found = machine.run(9, places)
    assert found == [str(number) for number in range(9)]
    assert places.climb.limit == min(start, 3)
    assert places.climb.settled


def test_the_last_one_makes_room_since_it_may_wait_for_one_before_it() -> None:
    """The first of three runs out of memory, the two others wait for it for ever: the last one gives up its place."""
    begun: list[str] = []
    stopped: list[str] = []
    ended = iter(["0", "2", "0", "1", "2"])

    def result(name: str) -> Outcome:
        if name == "0" and begun.count("0") == 1:
            raise OutOfRoom("out of memory")
        if name == "2" and begun.count("2") == 1:
            assert stopped == ["2"]
            raise PutBack
        return outcome(name)

    def submit(one: Trial) -> str:
        begun.append(one.arm)
        return one.arm

    every = [trial(str(number)) for number in range(3)]
    found = in_order(every, Places(Climb(3)), submit, lambda _: next(ended), result, stopped.append)
    with pytest.warns(UserWarning, match="From here on at most 2 do"):
        names = [one.arm for one in found]
    assert names == ["0", "1", "2"]
    assert begun == ["0", "1", "2", "0", "2"]


def test_a_trial_that_does_not_fit_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        def recv(self) -> Any:
            return FledgeError("Even one window does not fit in memory."), []

    class Process:
        exitcode = 0

        def join(self) -> None:
            pass

    with pytest.raises(OutOfRoom):
        processes.Job(Process(), Pipe(), None, shared=True).result()  # type: ignore[arg-type]
    with pytest.raises(FledgeError, match="Even one window") as caught:
        processes.Job(Process(), Pipe(), None, shared=False).result()  # type: ignore[arg-type]
    assert not isinstance(caught.value, OutOfRoom)


def test_the_meter_reads_what_trials_log_once_each_has_logged_undisturbed(tmp_path: Path) -> None:
    now = [0.0]
    meter = WorkMeter(tmp_path, lambda: now[0])
    one, two = trial("a"), trial("b", "model.layers=2")
    per_token = {each.arm: window_flops(each.config) / each.config.tokens.context_length for each in (one, two)}

    def log(each: Trial, *speeds: float) -> None:
        place = tmp_path / "trials" / each.name
        place.mkdir(parents=True, exist_ok=True)
        rows = [f"{step},{speed}" for step, speed in enumerate(speeds, 1)]
        (place / "metrics.csv").write_text("\n".join(["step,tokens_per_second", *rows]) + "\n")

    assert meter.look([one]) is None, "nothing is logged"
    log(one, 1, 100)
    assert meter.look([one]) is None
    now[0] = 10
    log(one, 1, 100, 100, 200, 300)
    assert meter.look([one]) == (1, 250 * per_token["a"])
    log(two, 1, 40)
    assert meter.look([one, two]) is None, "the second has begun to train"
    now[0] = 12
    log(one, 1, 100, 100, 200, 300, 300, 90, 110)
    log(two, 1, 40, 40, 50, 50)
    assert meter.look([one, two]) is None, "two seconds are too few"
    now[0] = 14
    assert meter.look([one, two]) == (2, 100 * per_token["a"] + 50 * per_token["b"])


def test_needs_grow_with_the_batch_and_are_unknown_of_other_architectures(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    text.write_text("<|endoftext|>".join(lines * 4))
    need = needed_memory(tmp_path, "bf16")
    small, large = (trial(str(size), f"corpus.source={text}", f"training.batch_size={size}") for size in (4, 4000))
    assert 1 << 30 < need(small) < need(large)


def test_auto_on_a_cpu_is_the_cores_by_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "machine_threads", lambda: 12)
    auto = Engine("local", "auto")
    config = override_config(CONFIG, ["training.device=cpu", "training.threads=none"])
    assert auto.planned(config) == auto.sharing(config) == 1, "a trial without threads of its own has all of them"
    assert auto.planned(override_config(config, ["training.threads=4"])) == 3


def test_threads_are_divided_as_they_were_before_a_run_set_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time budget is measured with a trial's threads, in this process, before the plan divides the machine's."""
    monkeypatch.setattr(device, "_threads_before", [12])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    config = override_config(CONFIG, ["training.threads=none", "training.device=cpu"])
    planned = with_threads(config, 4)
    assert planned.training.threads == 3
    assert Engine("local", "auto").planned(planned) == 4


def test_what_one_round_of_a_search_finds_holds_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fledge.devices.free_memory", lambda gpu: 8 << 30)
    monkeypatch.setattr("fledge.experiments.places.machine_threads", lambda: 4)
    monkeypatch.setattr("fledge.memory.total", lambda: 64 << 30)
    gpus = [torch.device("cuda", 0)]
    first = places_on_gpus(tmp_path, gpus)
    first.climb.fewer(1)
    assert places_on_gpus(tmp_path, gpus).climb.settled
    assert not places_on_gpus(tmp_path / "other", gpus).climb.settled


def test_a_report_knows_how_many_ran_at_once(tmp_path: Path) -> None:
    assert seen_at_once(tmp_path) == 1
    for number in (2, 4, 3):
        keep_seen(tmp_path, number)
    assert seen_at_once(tmp_path) == 4


def seeds(folder: Path, count: int, *changes: str) -> list[Trial]:
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (folder / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    given = [f"corpus.source={folder / 'text.txt'}", "training.threads=1", "training.device=cpu", *changes]
    return [trial(str(seed), *given, f"training.seed={seed}") for seed in range(count)]


@pytest.mark.slow
def test_trials_that_are_measured_while_they_run_give_the_numbers_of_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real processes, begun and measured as on a GPU."""
    every = seeds(tmp_path, 4, "training.steps=400", "training.log_every=4")
    alone = list(run_trials(every, tmp_path / "alone"))
    places = Places(Climb(1, 2), None, WorkMeter(tmp_path / "measured"))
    monkeypatch.setattr("fledge.experiments.engines._places", lambda *_: places)
    together = list(run_trials(every, tmp_path / "measured", Engine("local", "auto")))
    assert [one.validation_loss for one in together] == [one.validation_loss for one in alone]
    assert seen_at_once(tmp_path / "measured") == 2


@pytest.mark.slow
def test_a_process_that_the_system_ends_for_its_memory_is_run_again_alone(tmp_path: Path) -> None:
    every = seeds(tmp_path, 2, "training.steps=200")

    def end_one() -> None:
        while len(multiprocessing.active_children()) < 2:
            time.sleep(0.05)
        time.sleep(2)
        multiprocessing.active_children()[0].kill()

    threading.Thread(target=end_one, daemon=True).start()
    with pytest.warns(UserWarning, match="Memory ran out while 2 trials ran at once. From here on at most 1 does"):
        found = list(run_trials(every, tmp_path / "killed", Engine("local", 2)))
    assert [one.validation_loss for one in found] == [
        one.validation_loss for one in run_trials(every, tmp_path / "alone")
    ]


@pytest.mark.parametrize("name", [pytest.param("cuda", marks=on_gpu)])
def test_trials_on_one_gpu_give_the_numbers_of_one_after_the_other(tmp_path: Path, name: str) -> None:
    pytest.importorskip("optuna")
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    given = [f"corpus.source={tmp_path / 'text.txt'}", f"training.device={name}", "training.compile=off"]
    config = override_config(CONFIG, [*given, "training.steps=300"])
    from fledge.experiments.space import parse_axis

    axis = parse_axis("optimizer.learning_rate=3e-3,1e-3,3e-4,1e-4")
    _, alone, _ = sweep(config, tmp_path / "alone", [axis])
    _, auto, _ = sweep(config, tmp_path / "auto", [axis], engine=Engine("local", "auto"))
    assert [one.validation_loss for one in auto] == [one.validation_loss for one in alone]
