"""The plan of an experiment: what is asked, the arms, the seeds and the steps. Written once, before the first trial.

A time budget becomes steps by measuring this machine, once: the same plan run twice gives the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fledge.config import RunConfig, load_recipe, override_config, recipe_names
from fledge.errors import FledgeError
from fledge.files import read_json, write_json
from fledge.runs.folder import differences

PLAN = "plan.json"
DATA = "data"
TIMING = "timing"
NOTES = "notes"
"Of a plan's facts: what was changed by itself, in sentences for the report."
OF_STEP = ("training.batch_size", "tokens.context_length")
"Settings that say how many tokens a step has."
EVALUATIONS = 10
"Evaluations of each trial: enough for a curve."
LONGEST_QUESTION, LONGEST_DIFFERENCE = 100, 80
MOST_REPEATS = 100


@dataclass(frozen=True)
class Arm:
    """One way of doing it: a name, and the settings that make the difference."""

    name: str
    changes: tuple[str, ...] = ()


def key_of(change: str) -> str:
    """The setting that a change such as `model.layers=6` is of."""
    return change.partition("=")[0].strip()


@dataclass(frozen=True)
class ExperimentPlan:
    """Everything that fixes the numbers: the recipe as settings, the arms, the seeds. Stored before the first trial."""

    kind: str
    question: str
    config: dict[str, Any]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> ExperimentPlan:
        values = read_json(folder / PLAN)
        try:
            arms = tuple(Arm(arm["name"], tuple(arm["changes"])) for arm in values.pop("arms"))
            return cls(arms=arms, seeds=tuple(values.pop("seeds")), **values)
        except (AttributeError, KeyError, TypeError):
            raise FledgeError(
                f"{folder / PLAN} is not the plan of an experiment. Name another folder with --out, or remove this one."
            ) from None

    @property
    def trials(self) -> int:
        """How many trials it has; of points that are drawn at most so many, since some may be drawn twice."""
        if self.kind == "compare":  # every rate with the first seed, then the best of each name with the others
            names = {arm.name.rpartition(" ×")[0] for arm in self.arms}
            return len(self.arms) + len(names) * (len(self.seeds) - 1)
        drawn = self.kind == "sweep" and not any(arm.changes for arm in self.arms)
        return (int(self.facts["points"]) if drawn else len(self.arms)) * len(self.seeds)

    def settle(self, folder: Path) -> ExperimentPlan:
        """Write the plan, or take up the stored one where it asks the same; a plan of another recipe is refused."""
        if not (folder / PLAN).is_file():
            check_folder(folder)
            write_json(folder / PLAN, asdict(self))
            return self
        stored = ExperimentPlan.read(folder)
        mine, theirs = (json.loads(json.dumps(asdict(plan))) for plan in (self, stored))
        if mine != theirs:
            raise FledgeError(
                f"{folder} holds another experiment ({stored.kind}: {shorten(stored.question, LONGEST_QUESTION)}): "
                f"{'; '.join(_changed(theirs, mine))}. Name another folder with --out."
            )
        return stored


class Pace(NamedTuple):
    """What fits: steps of the plan, and windows of each evaluation."""

    steps: int
    evaluate_windows: int


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is written into it."""
    if (folder / PLAN).is_file() or not folder.exists():
        return
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {DATA, TIMING}:
        raise FledgeError(f"{folder} exists already and is not an experiment. Choose another folder with --out.")


def make_plan(
    kind: str,
    question: str,
    config: RunConfig,
    arms: Sequence[Arm],
    seeds: int,
    folder: Path,
    pace: Callable[[RunConfig], Pace] | None = None,
    budget_text: str = "",
    parallel: int = 1,
    match: Callable[[RunConfig, int], dict[str, Any]] | None = None,
    asked: Mapping[str, Any] | None = None,
    tokens_hold: bool = False,
) -> ExperimentPlan:
    """The plan. With a budget, `pace` turns it into steps by measuring this machine, and the stored plan keeps them.

    So are the threads of each trial kept, of which the bits depend: the machine's, divided by those that run at once.
    Where arms take different steps, `match` gives the facts to keep: `steps`, those of the first arm, and others.
    What was `asked` besides, which the same folder must be asked again, is kept too. Where `tokens_hold`, every trial
    sees `training.tokens`, and its steps follow from its own batch size and context.
    """
    config = with_threads(config, parallel)
    found, matched, new = Pace(config.steps, config.training.evaluate_windows), {}, not (folder / PLAN).is_file()
    if new:
        if pace is not None:
            found = pace(config)
        if match is not None:
            matched = {"asked": config.steps, **match(config, found.steps)}
        found = found._replace(steps=matched.get("steps", found.steps))
        check_corpus(config, found.steps if pace is not None else 0, folder)
    else:
        stored = ExperimentPlan.read(folder)
        kept = stored.config["training"]
        config = override_config(config, [f"training.threads={kept['threads']}"])
        if budget_text and stored.facts.get("budget") == budget_text:
            found = Pace(stored.facts["steps"], kept["evaluate_windows"])
        if match is not None and stored.facts.get("asked") == config.steps:
            matched = {name: value for name, value in stored.facts.items() if name not in ("budget", NOTES)}
            found = found._replace(steps=stored.facts["steps"])
    warmup, notes = warm_up(config, found.steps)
    settings = override_config(
        config,
        [
            *([] if tokens_hold else ["training.tokens=none", f"training.steps={found.steps}"]),
            f"training.evaluate_every={max(1, found.steps // EVALUATIONS)}",
            f"training.evaluate_windows={found.evaluate_windows}",
            "training.save_every=0",
            "training.keep_best=false",  # a trial that is given up leaves no checkpoint to go on from
            "training.sample_every=0",
            f"training.log_every={max(1, found.steps // 100)}",
            f"schedule.warmup_steps={warmup}",
        ],
    )
    facts = {"steps": found.steps, "budget": budget_text, **matched, **(asked or {})}
    facts |= {NOTES: notes} if notes else {}
    numbers = tuple(range(config.training.seed, config.training.seed + seeds))
    plan = ExperimentPlan(kind, question, settings.model_dump(mode="json"), tuple(arms), numbers, facts)
    settled = plan.settle(folder)
    if new:
        given = "training.steps" if config.training.tokens is None else "training.tokens"
        decided = f"--budget {budget_text} decides: {found.steps:,} steps, not the {config.steps:,} of {given}."
        for line in [*([decided] if pace is not None else []), *notes]:
            print(line, flush=True)
    return settled


def check_corpus(config: RunConfig, steps: int, folder: Path) -> None:
    """Refuse a text that gives nothing to measure on, or that the time would repeat beyond sense."""
    from fledge.run import Run

    run = Run(with_shared_data(config, folder), folder / TIMING, quiet=True)
    source = ", ".join(config.corpus.source)
    windows = len(run.windows("train"))
    run.windows("validation")  # a text that has none is refused there
    if (repeats := steps * config.training.batch_size / windows) > MOST_REPEATS:
        raise FledgeError(
            f"{source} is too small for this length of training: its {windows:,} windows would be seen "
            f"{repeats:,.0f} times each, and more than {MOST_REPEATS} times says nothing. Give more text or "
            "less time."
        )


def tokens_differ(config: RunConfig, keys: Collection[str], planned: bool) -> bool:
    """Whether trials that differ in `keys` need steps of their own to see the `training.tokens` that are asked for.

    A `planned` length is one of steps or windows, which a budget or --equal-samples decides.
    """
    return config.training.tokens is not None and not planned and bool({*keys} & {*OF_STEP, "training.tokens"})


def with_length(config: RunConfig, base: RunConfig, changed: Iterable[str], steps: int | None = None) -> RunConfig:
    """A trial of `steps`, or of those that the plan's tokens are for it.

    It is evaluated as often as a trial of the plan's steps and warmed up for the same share; what it has `changed`
    itself stays.
    """
    if steps is None and (config.training.tokens is None or config.steps == base.steps):
        return config
    fixed = {} if steps is None else {"training.steps": steps}
    steps, changed = steps or config.steps, set(changed)
    length = fixed | {
        "training.evaluate_every": max(1, steps // EVALUATIONS),
        "training.log_every": max(1, steps // 100),
        "schedule.warmup_steps": round(steps * base.schedule.warmup_steps / base.steps),
    }
    return override_config(config, [f"{key}={value}" for key, value in length.items() if key not in changed])


def with_threads(config: RunConfig, parallel: int) -> RunConfig:
    """The same with threads for each trial: those set, or the machine's divided by the trials that run at once."""
    from fledge.training.device import machine_threads

    threads = config.training.threads or max(1, machine_threads() // parallel)
    return override_config(config, [f"training.threads={threads}"])


def warm_up(config: RunConfig, steps: int) -> tuple[int, list[str]]:
    """The warm-up of a run of so many steps: a recipe's is at most a tenth of them, and one that was set is kept.

    What is changed is said, and so is a warm-up that was set and never ends.

    >>> warm_up(RunConfig(name="akjv-demo"), 50)
    (5, ['The warm-up of 100 steps that the recipe has was cut to 5, a tenth of the 50 steps.'])
    """
    asked = config.schedule.warmup_steps
    if asked <= steps // 10:
        return asked, []
    if warm_up_was_set(config):
        return asked, [
            f"The warm-up of {asked:,} steps that was set is not over within the {steps:,} steps: the learning rate "
            "never reaches its peak."
        ] * (asked >= steps)
    cut = steps // 10
    return cut, [
        f"The warm-up of {asked:,} steps that the recipe has was cut to {cut:,}, a tenth of the {steps:,} steps."
    ]


def warm_up_was_set(config: RunConfig) -> bool:
    """Whether somebody chose the warm-up: in a recipe of their own, or other than the packaged recipe of this name."""
    if config.name in recipe_names():
        return load_recipe(config.name).schedule.warmup_steps != config.schedule.warmup_steps
    return "schedule" in config.model_fields_set and "warmup_steps" in config.schedule.model_fields_set


def _changed(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """In a few words, what another plan has otherwise: at most three things."""
    found = [f"seeds: {len(theirs['seeds'])} there, {len(mine['seeds'])} here"] * (theirs["seeds"] != mine["seeds"])
    there, here = ({arm["name"]: arm["changes"] for arm in plan["arms"]} for plan in (theirs, mine))
    for names, place in ((there.keys() - here.keys(), "there"), (here.keys() - there.keys(), "here")):
        if names:
            found.append(f"only {place}: {shorten(', '.join(sorted(names)), LONGEST_DIFFERENCE)}")
    found += differences(theirs["config"], mine["config"])
    found += [f"{name}: other settings" for name in there if name in here and there[name] != here[name]]
    told = ("steps", NOTES)  # with the settings, or not asked for
    there_facts, here_facts = ({k: v for k, v in plan["facts"].items() if k not in told} for plan in (theirs, mine))
    found += differences(there_facts, here_facts)
    if theirs["question"] != mine["question"]:
        found.append("another question")
    return [shorten(text, LONGEST_DIFFERENCE) for text in found[:3]]


def shorten(text: str, most: int) -> str:
    """
    >>> shorten("a long sentence", 8)
    'a long …'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def with_shared_data(config: RunConfig, folder: Path) -> RunConfig:
    """The same run with tokenizer and tokens that all trials of the same corpus and tokenizer settings share."""
    from fledge.run import Run
    from fledge.tokens import write_store

    if config.tokens.store is not None:
        return config
    settings = json.dumps(
        [config.corpus.model_dump(mode="json"), config.tokenizer.model_dump(mode="json")], sort_keys=True
    )
    place = folder / DATA / hashlib.sha256(settings.encode()).hexdigest()[:12]
    run = Run(RunConfig(name=DATA, corpus=config.corpus, tokenizer=config.tokenizer), place, quiet=True)
    write_store(run.corpus, run.tokenizer, place / "tokens", progress=False)
    tokens = config.tokens.model_copy(update={"store": str((place / "tokens").absolute())})
    return config.model_copy(update={"tokens": tokens})


def with_windows(
    config: RunConfig, arms: Sequence[Arm], asked: Collection[str], folder: Path
) -> tuple[list[Arm], list[str]]:
    """The arms that this text has windows for, and a sentence on each of a group's that it has none for.

    One that was `asked` for by name is refused, before the first trial.
    """
    found, left_out = [], []
    for arm in arms:
        try:
            if any(change.startswith(("corpus.", "tokenizer.", "tokens.")) for change in arm.changes):
                from fledge.run import Run

                settings = with_shared_data(override_config(config, arm.changes), folder.absolute())
                run = Run(settings, folder / TIMING, quiet=True)
                for split in ("train", "validation"):
                    run.windows(split)
            found.append(arm)
        except FledgeError as error:
            if arm.name in asked:
                raise FledgeError(f"The arm {arm.name!r} cannot be run. {error}") from None
            left_out.append(f"{arm.name} is left out: {error}")
            print(left_out[-1], flush=True)
    return found, left_out
