"""The plan of an experiment: what is asked, the arms, the seeds and the steps. Written once, before the first trial.

A time budget becomes steps by measuring this machine, once: the same plan run twice gives the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError
from fledge.files import read_json, write_json
from fledge.run import differences

if TYPE_CHECKING:
    from fledge.experiments.timing import Pace

PLAN = "plan.json"
DATA = "data"
TIMING = "timing"


@dataclass(frozen=True)
class Arm:
    """One way of doing it: a name, and the settings that make the difference."""

    name: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything that fixes the numbers: the recipe as settings, the arms, the seeds. Stored before the first trial."""

    kind: str
    question: str
    config: dict[str, Any]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Plan:
        values = read_json(folder / PLAN)
        arms = tuple(Arm(arm["name"], tuple(arm["changes"])) for arm in values.pop("arms"))
        return cls(arms=arms, seeds=tuple(values.pop("seeds")), **values)

    def settle(self, folder: Path) -> Plan:
        """Write the plan, or take up the stored one where it asks the same; a plan of another recipe is refused."""
        if not (folder / PLAN).is_file():
            if folder.exists() and {path.name for path in folder.iterdir()} - {DATA, TIMING}:
                raise FledgeError(f"{folder} exists already and holds no experiment. Choose another folder with --out.")
            write_json(folder / PLAN, asdict(self))
            return self
        stored = Plan.read(folder)
        mine, theirs = (json.loads(json.dumps(asdict(plan))) for plan in (self, stored))
        if mine != theirs:
            raise FledgeError(
                f"{folder} holds another experiment ({stored.kind}: {stored.question}; "
                f"{'; '.join(differences(theirs, mine)[:3])}). Name another folder with --out."
            )
        return stored


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
) -> Plan:
    """The plan. With a budget, `pace` turns it into steps by measuring this machine, and the stored plan keeps them.

    So are the threads of each trial kept, of which the bits depend: the machine's, divided by those that run at once.
    """
    import torch

    from fledge.experiments.timing import EVALUATIONS, Pace, check_corpus

    threads = config.training.threads or max(1, torch.get_num_threads() // parallel)
    config = override_config(config, [f"training.threads={threads}"])
    found = Pace(config.steps, config.training.evaluate_windows)
    if (folder / PLAN).is_file():
        stored = Plan.read(folder)
        kept = stored.config["training"]
        config = override_config(config, [f"training.threads={kept['threads']}"])
        if budget_text and stored.facts.get("budget") == budget_text:
            found = Pace(stored.facts["steps"], kept["evaluate_windows"])
    else:
        if pace is not None:
            found = pace(config)
        check_corpus(config, found.steps if pace is not None else 0, folder)
    settings = override_config(
        config,
        [
            "training.tokens=none",
            f"training.steps={found.steps}",
            f"training.evaluate_every={max(1, found.steps // EVALUATIONS)}",
            f"training.evaluate_windows={found.evaluate_windows}",
            "training.save_every=0",
            "training.sample_every=0",
            f"training.log_every={max(1, found.steps // 100)}",
            f"schedule.warmup_steps={min(config.schedule.warmup_steps, found.steps // 10)}",
        ],
    )
    facts = {"steps": found.steps, "budget": budget_text}
    plan = Plan(kind, question, settings.model_dump(mode="json"), tuple(arms), tuple(range(seeds)), facts)
    return plan.settle(folder)


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
