"""The plan of an experiment: what is asked, the arms, the seeds and the steps. Written once, before the first trial.

A time budget becomes steps by measuring this machine, once: the same plan run twice gives the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError
from fledge.files import read_json, write_json

PLAN = "plan.json"
DATA = "data"
TIMING = "timing"
WARM_STEPS, TIMED_STEPS = 3, 8


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
        mine, theirs = ({**asdict(plan), "facts": None} for plan in (self, stored))
        for values in (mine, theirs):  # a budget in time becomes steps once, and the stored number holds
            values["config"] = {
                **values["config"],
                "training": {**values["config"]["training"], "steps": None, "tokens": None},
            }
        if json.loads(json.dumps(mine)) != json.loads(json.dumps(theirs)):
            raise FledgeError(
                f"{folder} holds another experiment ({stored.kind}: {stored.question}). Name another folder with --out."
            )
        return stored


def make_plan(
    kind: str,
    question: str,
    config: RunConfig,
    arms: Sequence[Arm],
    seeds: int,
    seconds_each: float | None,
    budget_text: str,
    folder: Path,
) -> Plan:
    """The plan, with a time budget turned into steps by measuring this machine once."""
    steps = config.steps
    if (folder / PLAN).is_file():
        steps = Plan.read(folder).facts["steps"]
    elif seconds_each is not None:
        steps = steps_for(config, seconds_each, folder)
    often = max(1, steps // 10)
    settings = override_config(
        config,
        [
            "training.tokens=none",
            f"training.steps={steps}",
            f"training.evaluate_every={often}",
            "training.save_every=0",
            "training.sample_every=0",
            f"training.log_every={max(1, steps // 100)}",
            f"schedule.warmup_steps={min(config.schedule.warmup_steps, steps // 10)}",
        ],
    )
    facts = {"steps": steps, "budget": budget_text}
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


def steps_for(config: RunConfig, seconds: float, folder: Path) -> int:
    """The steps this machine takes in a time, from a few measured ones; some of it goes to evaluation and saving."""
    import torch

    from fledge.loss import head_loss
    from fledge.run import Run
    from fledge.training.device import choose_device
    from fledge.training.optimizers import build_optimizer

    run = Run(with_shared_data(config, folder), folder / TIMING, quiet=True)
    device = torch.device(choose_device(config.training.device))
    model = run.model.to(device)
    optimizer = build_optimizer(model, config.optimizer)
    batch = run.windows("train").batch(range(config.training.batch_size)).to(device)
    started = 0.0
    for step in range(WARM_STEPS + TIMED_STEPS):
        if step == WARM_STEPS:
            started = time.monotonic()
        hidden, _ = model.hidden(batch.inputs_BT, model.plan(batch))
        loss, count = head_loss(model, hidden, batch.targets_BT)
        (loss / count).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero()
        float(loss.detach())
    return max(10, int(0.85 * seconds / ((time.monotonic() - started) / TIMED_STEPS)))
