"""Trials: the same recipe with small changes, over several seeds, each run once and its outcome kept.

An experiment's folder holds `plan.json`, `data/` (tokenizers and token stores that the trials share) and
`trials/NAME/` (one run each, with `outcome.json` when it is done). Run again after a kill, finished trials are read
and unfinished ones resumed.
"""

from __future__ import annotations

import gc
import hashlib
import platform
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fledge import devices, memory
from fledge.config import RunConfig, override_config, parse
from fledge.errors import FledgeError, note, notes_kept
from fledge.experiments.plan import ExperimentPlan, key_of, with_length, with_shared_data
from fledge.experiments.watch import OUTCOME, GivenUp, Watch
from fledge.files import read_json, write_json
from fledge.runs.layout import METRICS
from fledge.tokens.store import MANIFEST, TokenStore

if TYPE_CHECKING:
    from fledge.corpus.corpus import Split
    from fledge.evaluation import Evaluation
    from fledge.run import Run

LONGEST = 100
"Characters of an arm's name in the name of its folder."
LENGTH = ("training.steps", "training.tokens")
COUNTED = 1 << 24
"Tokens that are counted at once."

Metric = Literal["validation_loss", "bits_per_byte"]


class OutOfRoom(FledgeError):
    """A trial for which the memory did not suffice while others had their share of it."""


class Measure(NamedTuple):
    """What arms are held against each other by.

    Nats per token where all have the same tokens, and elsewhere bits per byte; `alone`, on documents read each by
    itself, where they have windows of their own.
    """

    metric: Metric
    alone: bool

    @classmethod
    def of(cls, keys: Iterable[str]) -> Measure:
        """For arms that differ in these settings.

        >>> Measure.of(["optimizer.learning_rate"]), Measure.of(["tokens.policy", "tokenizer.kind"])
        (Measure(metric='validation_loss', alone=False), Measure(metric='bits_per_byte', alone=True))
        """
        keys = list(keys)
        own_tokens = any(key.startswith(("corpus.", "tokenizer.")) or key == "tokens.store" for key in keys)
        return cls(
            "bits_per_byte" if own_tokens else "validation_loss",
            any(key in ("tokens.policy", "tokens.remainder") for key in keys),
        )

    @property
    def plain(self) -> bool:
        """Whether losses of training's own evaluations can be compared: only then are trials held against others."""
        return self == ("validation_loss", False)

    @property
    def note(self) -> str:
        """To say with curves that are not to be compared."""
        if self.plain:
            return ""
        what = "windows" if self.alone else "tokens"
        return f" Each arm on {what} of its own: heights are not to be held against each other."


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    arm: str
    seed: int
    status: Literal["complete", "diverged", "pruned"]
    step: int
    tokens: int
    parameters: int
    flops: float
    validation_loss: float | None = None
    bits_per_byte: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    memory: int | None = None
    why: str = ""
    folder: str = ""
    reached: float | None = None
    "The last validation loss of a trial that was not run to its end."
    machine: str = ""
    "What it ran on: processor or GPU, and versions."
    test_loss: float | None = None
    test_bits_per_byte: float | None = None
    "Both on the test part; None where the text has none."


class Trial(NamedTuple):
    """An arm with a seed, and the trials that it is held against while it runs (none: it is not pruned).

    With `alone`, its result is the loss on each held-out document by itself, whatever windows it was trained on.
    """

    arm: str
    config: RunConfig
    rivals: tuple[str, ...] = ()
    alone: bool = False

    @property
    def name(self) -> str:
        """The name of its folder."""
        return trial_folder(self.arm, self.config.training.seed)


def plan_trials(plan: ExperimentPlan, alone: bool = False) -> list[Trial]:
    """Every arm with every seed; seeds outermost, so that an early stop leaves all arms comparable."""
    base = parse(RunConfig, plan.config)
    return [
        Trial(arm.name, with_length(config, base, map(key_of, arm.changes)), alone=alone)
        for seed in plan.seeds
        for arm in plan.arms
        for config in [override_config(base, [*arm.changes, f"training.seed={seed}"])]
    ]


def with_rivals(trials: Sequence[Trial], before: Sequence[Trial] = ()) -> list[Trial]:
    """The trials, each held against the earlier ones of its seed; `before` are those of earlier rounds."""
    found: list[Trial] = []
    for trial in trials:
        earlier = [other for other in (*before, *found) if other.config.training.seed == trial.config.training.seed]
        found.append(trial._replace(rivals=tuple(other.name for other in earlier)))
    return found


def run_trial(trial: Trial, folder: Path, whole: bool = False) -> Outcome:
    """One run to its end, or its outcome where it has been run before. A trial whose steps fit the memory as a `whole`
    and that took them in parts, because others had the memory, is thrown away: its rounding is not that of one alone.
    """
    from fledge.accounting import Account
    from fledge.run import Run
    from fledge.runs.checkpoints import checkpoints
    from fledge.training import Diverged, load_checkpoint
    from fledge.training.stops import Stops

    place = folder / "trials" / trial.name
    if (place / OUTCOME).is_file():
        return read_outcome(trial, place)
    config = with_shared_data(trial.config, folder)
    run = Run(config, place, quiet=True)
    account = Account(config.model, run.tokenizer.vocab_size, config.tokens.context_length)
    facts: dict[str, Any] = {
        "arm": trial.arm,
        "seed": config.training.seed,
        "parameters": account.parameters.total,
        "folder": str(place.relative_to(folder)),
        "machine": machine_text(config),
    }
    rivals = tuple(folder / "trials" / name for name in trial.rivals)
    watch = Watch(place, config.steps, config.schedule.warmup_steps, unigram_loss(config), rivals)

    def ended(status: Literal["diverged", "pruned"], step: int, why: str, reached: float | None = None) -> Outcome:
        tokens = step * config.training.batch_size * config.tokens.context_length
        flops = account.flops_per_token * tokens
        return Outcome(status=status, step=step, tokens=tokens, flops=flops, why=why, reached=reached, **facts)

    forget_peaks()
    began = time.monotonic()
    try:
        with without_context_notes():
            result = run.train(resume=load_checkpoint(place) if checkpoints(place) else None, on_evaluation=watch)
    except Diverged as error:
        outcome = ended("diverged", error.step, str(error))
    except GivenUp as reason:
        outcome = ended(reason.status, reason.step, reason.why, reason.loss)
    else:
        if result.stopped:
            raise KeyboardInterrupt
        if whole and took_parts(place, config):
            shutil.rmtree(place)
            raise OutOfRoom(f"{trial.arm} (seed {config.training.seed}) took its steps in parts beside other trials.")
        measures = last_metrics(place)
        if why := watch.divergence(result.step, measures["validation_loss"]):
            outcome = ended("diverged", result.step, why, measures["validation_loss"])
        else:
            if trial.alone:
                found = held_out_loss(run, "validation", alone=True)
                measures.update(validation_loss=found.loss, bits_per_byte=found.bits_per_byte)
            if run.tokens.final == "test":
                found = held_out_loss(run, "test", trial.alone)
                measures.update(test_loss=found.loss, test_bits_per_byte=found.bits_per_byte)
            outcome = Outcome(
                status="complete",
                step=result.step,
                tokens=result.tokens,
                flops=account.flops_per_token * result.tokens,
                seconds=result.seconds,
                **measures,
                **facts,
            )
    write_json(place / OUTCOME, asdict(outcome))
    if Stops.last_signal > began:
        raise KeyboardInterrupt  # it came when this trial was over anyway, and is meant for those that follow
    return outcome


def took_parts(place: Path, config: RunConfig) -> bool:
    """Whether a finished run's last steps had more parts than its settings ask for."""
    from fledge.training import load_checkpoint

    state, size = load_checkpoint(place).training, config.training.batch_size
    assert state is not None
    return bool(state.values["micro_batch"] < min(config.training.micro_batch or size, size))


def read_outcome(trial: Trial, place: Path) -> Outcome:
    """What is kept of this trial; a damaged file, or one of another trial, is refused."""
    again = f"Remove the folder {place}: the same command then runs this trial again."
    try:
        outcome = Outcome(**read_json(place / OUTCOME))
    except TypeError:
        raise FledgeError(f"{place / OUTCOME} is damaged: it is not the outcome of a trial. {again}") from None
    if (outcome.arm, outcome.seed) != (trial.arm, trial.config.training.seed):
        raise FledgeError(
            f"{place / OUTCOME} is of {outcome.arm!r} with seed {outcome.seed}, and not of {trial.arm!r} with seed "
            f"{trial.config.training.seed}. {again}"
        )
    return outcome


@contextmanager
def without_context_notes() -> Iterator[None]:
    """Samples of trials often outgrow a small context; that is no news for each of them."""
    with notes_kept() as said:
        yield
    for sentence in said:
        if not sentence.startswith("The text outgrows the context"):
            note(sentence)


def machine_text(config: RunConfig) -> str:
    """What a trial runs on, and with: speeds are of this, and bits too."""
    import torch

    from fledge.training.device import choose_device

    device = choose_device(config.training.device)
    if devices.is_gpu(device):
        processor = devices.title(device)
    else:
        threads = config.training.threads or torch.get_num_threads()
        processor = f"{device.type.upper()} with {threads} thread{'s' * (threads != 1)}"
    system = f"{platform.system()} {platform.machine()}"
    return f"{processor}, torch {version('torch')}, Python {platform.python_version()}, {system}"


def forget_peaks() -> None:
    """So that a trial's memory is its own, and not that of one before it in this process; Linux can do it for a CPU."""
    gc.collect()
    devices.forget_peak_memory()
    memory.forget_peak()


def last_metrics(run: Path) -> dict[str, Any]:
    """A finished run's last evaluation, its speed and its peak memory, as its metrics have them."""
    from fledge.runs.metrics import column, read_metrics

    rows = read_metrics(run / METRICS)
    speeds, sizes = column(rows, "tokens_per_second"), column(rows, "memory")
    return {
        "validation_loss": column(rows, "validation_loss")[-1],
        "bits_per_byte": next(reversed(column(rows, "bits_per_byte")), None),
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
        "memory": int(max(sizes)) if sizes else None,
    }


def held_out_loss(run: Run, split: Split, alone: bool) -> Evaluation:
    """On the first held-out documents, `alone` or one after the other: as many tokens as an evaluation in training."""
    most = run.config.training.evaluate_windows * run.config.tokens.context_length
    return run.evaluate(split=split, documents="alone" if alone else "stream", max_tokens=most)


def unigram_loss(config: RunConfig) -> float:
    """What counting tokens achieves on the same validation text, in nats per token."""
    place = Path(config.tokens.store or "")
    return _unigram_loss(place, (place / MANIFEST).stat().st_mtime_ns)


@cache
def _unigram_loss(place: Path, _changed: int) -> float:
    """As `KneserNey` of order 1, from the counts of all ids alone: a store may hold billions."""
    store = TokenStore.open(place)
    counts, wanted = (
        count_ids(store.split(name).verify().tokens, store.vocabulary_size) for name in ("train", "validation")
    )
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once and twice else 0.5
    spread = discount * int((counts > 0).sum()) / store.vocabulary_size
    probabilities = (np.maximum(counts - discount, 0) + spread) / counts.sum()
    return float(-(wanted * np.log(probabilities)).sum() / wanted.sum())


def count_ids(tokens: NDArray[np.integer], vocabulary_size: int) -> NDArray[np.int64]:
    """How often each id occurs, in memory that does not grow with the tokens."""
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    for start in range(0, len(tokens), COUNTED):
        counts += np.bincount(tokens[start : start + COUNTED], minlength=vocabulary_size)
    return counts


def outcome_line(outcome: Outcome) -> str:
    """One trial in a line."""
    name = f"{outcome.arm} (seed {outcome.seed})"
    if outcome.status != "complete":
        return f"{name}: {outcome.status} at step {outcome.step}"
    return (
        f"{name}: validation loss {outcome.validation_loss:.4f}, {outcome.tokens:,} tokens in {outcome.seconds:,.0f} s"
    )


def trial_folder(arm: str, seed: int) -> str:
    """The name of a trial's folder: the arm's name where any file system takes it, and elsewhere with a mark of it.

    >>> trial_folder("no norm, lower rate", 0), trial_folder("ä", 1)
    ('no-norm-lower-rate-seed0', '33e6d7-seed1')
    """
    plain = slug(arm, LONGEST + 1)
    if re.fullmatch(r"[A-Za-z0-9._=+, ×-]+", arm) and len(plain) <= LONGEST:
        return slug(f"{arm}-seed{seed}")
    mark = hashlib.sha256(arm.encode()).hexdigest()[:6]
    return slug(f"{plain[:LONGEST]}-{mark}-seed{seed}")


def slug(text: str, longest: int = 120) -> str:
    """A name that any file system takes.

    >>> slug("learning_rate=0.001 batch_size=8-seed0")
    'learning_rate=0.001-batch_size=8-seed0'
    """
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).strip("-")[:longest]


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.arm, []).append(outcome)
    return groups
