"""Trials: the same recipe with small changes, over several seeds, each run once and its outcome kept.

An experiment's folder holds `plan.json`, `data/` (tokenizers and token stores that the trials share) and
`trials/NAME/` (one run each, with `outcome.json` when it is done). Run again after a kill, finished trials are read
and unfinished ones resumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fledge.config import RunConfig, override_config, parse
from fledge.experiments.plan import Plan, with_shared_data
from fledge.files import read_json, write_json

OUTCOME = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    """What came of one trial."""

    arm: str
    seed: int
    status: Literal["complete", "diverged"]
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


def run_trials(plan: Plan, folder: Path, quiet: bool = False) -> Iterator[Outcome]:
    """Every arm with every seed; seeds outermost, so that an early stop leaves all arms comparable."""
    base = parse(RunConfig, plan.config)
    total, done = len(plan.arms) * len(plan.seeds), 0
    for seed in plan.seeds:
        for arm in plan.arms:
            done += 1
            config = override_config(base, [*arm.changes, f"training.seed={seed}"])
            outcome = run_trial(arm.name, config, folder)
            if not quiet:
                print(f"{done}/{total} {describe(outcome)}", flush=True)
            yield outcome


def run_trial(name: str, config: RunConfig, folder: Path) -> Outcome:
    """One run to its end, or its outcome where it has been run before."""
    from fledge.accounting import Account
    from fledge.bundle.load import checkpoints
    from fledge.run import Run
    from fledge.training import Diverged, load_checkpoint

    place = folder / "trials" / slug(f"{name}-seed{config.training.seed}")
    if (place / OUTCOME).is_file():
        return Outcome(**read_json(place / OUTCOME))
    config = with_shared_data(config, folder)
    run = Run(config, place, quiet=True)
    account = Account(config.model, run.tokenizer.vocab_size, config.tokens.context_length)
    facts: dict[str, Any] = {
        "arm": name,
        "seed": config.training.seed,
        "parameters": account.parameters.total,
        "folder": str(place.relative_to(folder)),
    }
    try:
        result = run.train(resume=load_checkpoint(place) if checkpoints(place) else None)
    except Diverged as error:
        tokens = error.step * config.training.batch_size * config.tokens.context_length
        outcome = Outcome(
            status="diverged",
            step=error.step,
            tokens=tokens,
            flops=account.flops_per_token * tokens,
            why=str(error),
            **facts,
        )
    else:
        if result.stopped:
            raise KeyboardInterrupt
        outcome = Outcome(
            status="complete",
            step=result.step,
            tokens=result.tokens,
            flops=account.flops_per_token * result.tokens,
            seconds=result.seconds,
            **measured(place),
            **facts,
        )
    write_json(place / OUTCOME, asdict(outcome))
    return outcome


def measured(run: Path) -> dict[str, Any]:
    """A finished run's last evaluation, its speed and its peak memory, as its metrics have them."""
    from fledge.training import read_metrics

    rows = read_metrics(run / "metrics.csv")

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows if row[name]]

    speeds, sizes = column("tokens_per_second"), column("memory")
    return {
        "validation_loss": column("validation_loss")[-1],
        "bits_per_byte": next(reversed(column("bits_per_byte")), None),
        "tokens_per_second": sum(speeds) / len(speeds) if speeds else None,
        "memory": int(max(sizes)) if sizes else None,
    }


def describe(outcome: Outcome) -> str:
    """One trial in a line."""
    name = f"{outcome.arm} (seed {outcome.seed})"
    if outcome.status == "diverged":
        return f"{name}: diverged at step {outcome.step}"
    return (
        f"{name}: validation loss {outcome.validation_loss:.4f}, {outcome.tokens:,} tokens in {outcome.seconds:,.0f} s"
    )


def slug(text: str) -> str:
    """A name that any file system takes.

    >>> slug("learning_rate=0.001 batch_size=8-seed0")
    'learning_rate=0.001-batch_size=8-seed0'
    """
    return re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).strip("-")[:120]


def by_arm(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.arm, []).append(outcome)
    return groups
