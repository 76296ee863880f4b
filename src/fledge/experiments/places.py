"""How many trials run at once: as many as are asked for; or, with `auto`, as many as fit the memory and do more work a
second together than fewer would, which is found by trying.

On a GPU one trial begins. While each doubling of their number lets all together do more work, the number grows; when it
does not, no more are begun until the best number is left. On a CPU it is the cores by the threads of a trial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from fledge import devices, memory
from fledge.config import RunConfig
from fledge.errors import note
from fledge.experiments.plan import DATA, with_shared_data
from fledge.experiments.trials import Trial
from fledge.files import read_json, write_json
from fledge.runs.layout import METRICS
from fledge.training.device import GPU_SHARE, machine_threads

SEEN = "at-once.json"
GAIN = 1.05  # times the work of fewer, or more trials at once are not worth their memory
ROWS, SECONDS = 2, 3.0  # of logged speeds that a measurement has at least, of each trial
POLL = 1.0  # seconds between two looks at what trials log
HOST = 4 << 30  # bytes of the machine's memory for a process that trains on a GPU: torch, its libraries, the driver's
PROCESS = 1 << 30  # bytes that a process takes besides what the account counts: of the GPU, or of the machine
CPU_SHARE = 0.8  # of the machine's memory


class Climb:
    """The number of trials at once, from the work per second that so many did."""

    def __init__(self, limit: int, most: int | None = None) -> None:
        """`most` where more than the first `limit` are tried; the number stays as it is otherwise."""
        self.limit, self.most = limit, most or limit
        self.settled = self.limit >= self.most
        self.rates: dict[int, float] = {}

    @property
    def best(self) -> int:
        return max(self.rates, key=self.rates.__getitem__, default=0)

    def measured(self, at_once: int, rate: float, full: bool = False) -> None:
        """So many trials did so much work per second; `full`: there is no memory for more."""
        best = self.best
        if self.settled or at_once <= best:
            return
        self.rates[at_once] = rate
        if rate < GAIN * self.rates.get(best, 0.0):
            self._settle(best, f"{at_once} were no faster")
        elif full:
            self._settle(at_once, "more do not fit the memory")
        elif at_once >= self.most:
            self._settle(at_once, "each has a core of its own, and no more are left")
        else:
            self.limit = max(self.limit, min(2 * at_once, self.most))

    def unmeasured(self) -> None:
        """A trial was over before it could be measured: most of its time is the start of its process."""
        if not self.settled and not self.rates:
            self.limit = min(2 * self.limit, self.most)

    def fewer(self, at_once: int) -> None:
        """No more than these from now on."""
        self.limit = self.most = max(1, min(self.limit, at_once))
        self.settled = True

    def _settle(self, at_once: int, why: str) -> None:
        self.limit, self.settled = at_once, True
        times = self.rates[at_once] / self.rates[min(self.rates)]
        together = f" and together do {times:.1f} times the work of {min(self.rates)}" if at_once > 1 else ""
        runs = "trials run at once" if at_once > 1 else "trial runs at a time"
        print(f"{at_once} {runs}{together}; {why}.", flush=True)


class Room:
    """The memory that trials share, by what each takes at its fullest moment."""

    def __init__(self, free: float, largest: float, need: Callable[[Trial], float]) -> None:
        """Bytes of all devices together, and of one."""
        self.free, self.largest, self.need = free, largest, need

    def fits(self, trial: Trial, beside: Sequence[Trial]) -> bool:
        """A trial alone always does: it takes its steps in parts then."""
        needs = [self.need(each) for each in (trial, *beside)]
        return not beside or (max(needs) <= self.largest and sum(needs) <= self.free)


class WorkMeter:
    """The work per second of the trials that train at this moment, from the speeds that they log."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.marks: dict[str, int] = {}
        self.since = 0.0

    def look(self, running: Sequence[Trial]) -> tuple[int, float] | None:
        """How many train, and what they did since the last one began or ended; None until each has logged enough."""
        logged = self._logged(running)
        if logged.keys() != self.marks.keys():
            # The row under way is of the time before, too.
            self.marks, self.since = {name: len(found) + 1 for name, found in logged.items()}, self.clock()
        fresh = {name: found[self.marks[name] :] for name, found in logged.items()}
        if not fresh or self.clock() - self.since < SECONDS or min(map(len, fresh.values())) < ROWS:
            return None
        flops = {trial.name: window_flops(trial.config) / trial.config.tokens.context_length for trial in running}
        return len(fresh), sum(flops[name] * sum(found) / len(found) for name, found in fresh.items())

    def training(self, running: Sequence[Trial]) -> int:
        """How many have got so far."""
        return len(self._logged(running))

    def _logged(self, running: Sequence[Trial]) -> dict[str, list[float]]:
        found = {trial.name: speeds(self.folder / "trials" / trial.name) for trial in running}
        return {name: logged for name, logged in found.items() if logged}


class Places:
    """Who may begin, given those that run."""

    def __init__(self, climb: Climb, room: Room | None = None, meter: WorkMeter | None = None) -> None:
        self.climb, self.room, self.meter = climb, room, meter
        self.full = False

    @property
    def poll(self) -> float | None:
        """Seconds until the next look; None where there is nothing to find out."""
        return None if self.meter is None else POLL

    @property
    def alone(self) -> bool:
        """Whether it was found that trials do best one after the other, which needs no processes."""
        return self.meter is not None and self.climb.settled and self.climb.limit == 1

    @property
    def shared(self) -> bool:
        """Whether a trial that begins now may have others beside it."""
        return self.climb.limit > 1 or not self.climb.settled

    def whole(self, trial: Trial) -> bool:
        """Whether its steps fit the memory as a whole when the trial has it alone, which now it may not."""
        return self.shared and self.room is not None and self.room.need(trial) <= self.room.largest

    def free(self, trial: Trial, running: Sequence[Trial]) -> bool:
        if len(running) >= self.climb.limit and not self._starting(running):
            return False
        self.full = self.room is not None and not self.room.fits(trial, running)
        return not self.full

    def _starting(self, running: Sequence[Trial]) -> bool:
        """Whether so many only start their processes that there are places left beside those that train."""
        if self.meter is None or not self.climb.settled or len(running) >= min(2 * self.climb.limit, self.climb.most):
            return False
        return self.meter.training(running) < self.climb.limit

    def ended(self) -> None:
        """A trial came to its end."""
        if self.meter is not None:
            self.climb.unmeasured()

    def look(self, running: Sequence[Trial]) -> None:
        if self.meter is not None and (found := self.meter.look(running)) is not None:
            self.climb.measured(*found, full=self.full)

    def fewer(self, beside: int) -> None:
        """After memory ran out for a trial beside so many others."""
        self.climb.fewer(beside)
        note(
            f"Memory ran out while {beside + 1} trials ran at once. From here on at most {self.climb.limit} "
            f"{'do' if self.climb.limit > 1 else 'does'}, and what was stopped is run again."
        )


def speeds(run: Path) -> list[float]:
    """Tokens per second as training logs them; the first, which has the start in it, left out."""
    from fledge.training import read_metrics

    return [float(row["tokens_per_second"]) for row in read_metrics(run / METRICS) if row["tokens_per_second"]][1:]


def window_flops(config: RunConfig) -> float:
    """Of one window forward and backward; of an architecture that the accounts do not know, as of a Transformer."""
    from fledge.accounting import Account

    size, length = config.tokenizer.vocabulary_size or 256, config.tokens.context_length
    try:
        return length * Account(config.model, size, length).flops_per_token
    except KeyError:
        known = config.model.model_copy(update={"architecture": "transformer"})
        return length * Account(known, size, length).flops_per_token


def needed_memory(folder: Path, precision: str) -> Callable[[Trial], float]:
    """Bytes that a trial takes at its fullest moment, a step in as few parts as its settings allow."""
    from fledge.accounting import account_run
    from fledge.tokens import TokenStore

    known: dict[str, float] = {}

    def need(trial: Trial) -> float:
        if trial.name not in known:
            store = TokenStore.open(with_shared_data(trial.config, folder).tokens.store or "")
            given = trial.config.training.precision
            try:
                account = account_run(
                    trial.config, store.vocabulary_size, precision=precision if given == "auto" else given
                )
                known[trial.name] = account.memory.total / GPU_SHARE + PROCESS
            except KeyError:  # an architecture of the user's own: it has the device for itself
                known[trial.name] = math.inf
        return known[trial.name]

    return need


_climbs: dict[tuple[Path, int], Climb] = {}
"By experiment: what was found in one round of a search holds for the next."


def places_on_gpus(folder: Path, gpus: Sequence[torch.device]) -> Places:
    free = [devices.free_memory(gpu) or 0 for gpu in gpus]
    most = max(1, min(machine_threads(), (memory.total() or HOST) // HOST))
    climb = _climbs.setdefault((folder, most), Climb(min(len(gpus), most), most))
    return Places(climb, Room(sum(free), min(free), needed_memory(folder, "bf16")), WorkMeter(folder))


def places_on_cpu(folder: Path, at_once: int) -> Places:
    free = CPU_SHARE * (memory.total() or math.inf)
    return Places(Climb(at_once), Room(free, free, needed_memory(folder, "fp32")))


def keep_seen(folder: Path, at_once: int) -> None:
    """For the report: so many trials of the experiment have run at once."""
    if at_once > seen_at_once(folder):
        write_json(folder / DATA / SEEN, {"at_once": at_once})


def seen_at_once(folder: Path) -> int:
    place = folder / DATA / SEEN
    found: Mapping[str, int] = read_json(place) if place.is_file() else {}
    return found.get("at_once", 1)
