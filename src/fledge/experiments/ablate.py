"""Ablations: take one thing away, change nothing else, and see what it was worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fledge.config import RunConfig, override_config
from fledge.errors import FledgeError, nearest
from fledge.experiments import findings
from fledge.experiments.plan import Arm, Plan, make_plan
from fledge.experiments.trials import Outcome, by_arm, run_trials

BASE = "as it is"
GROUPS = ("architecture", "windows", "vocabulary", "fit", "tied")


def group_arms(group: str, config: RunConfig) -> list[Arm]:
    """The arms of a named group, besides the recipe as it is."""
    model, rate = config.model, config.optimizer.learning_rate
    if group == "architecture":
        lower = (
            f"optimizer.learning_rate={rate / 5:g}",
            f"optimizer.matrix_learning_rate={config.optimizer.matrix_learning_rate / 5:g}",
        )
        return [
            Arm("no norm", ("model.norm=none",)),
            Arm("no norm, lower rate", ("model.norm=none", *lower)),
            Arm("post-norm", ("model.norm_place=post",)),
            Arm("no position", ("model.position=none",)),
            Arm("SiLU", ("model.feed_forward=silu", f"model.hidden={matched_hidden(config)}")),
        ]
    if group == "windows":
        policies = ("stream", "packed", "slide-in", "full", "aligned", "longest")
        return [Arm(policy, (f"tokens.policy={policy}",)) for policy in policies if policy != config.tokens.policy]
    if group == "vocabulary":
        size = config.tokenizer.vocabulary_size or 4096
        return [Arm(f"vocabulary {n:,}", (f"tokenizer.vocabulary_size={n}",)) for n in (size // 2, size * 2, size * 4)]
    if group == "fit":
        other = "all" if config.tokenizer.fit_on == "train" else "train"
        return [Arm(f"tokenizer fitted on {other}", (f"tokenizer.fit_on={other}",))]
    if group == "tied":
        return [Arm("untied" if model.tied else "tied", (f"model.tied={str(not model.tied).lower()}",))]
    raise FledgeError(f"There is no group of ablations called {group!r}. {nearest(group, GROUPS)}")


def matched_hidden(config: RunConfig) -> int:
    """The inner size of a plain feed-forward with as many parameters as the gated one: three matrices against two."""
    from fledge.accounting import Account

    account = Account(config.model, 256, config.tokens.context_length)
    gated = account.parameters.by_component.get("feed-forward", 0) / config.model.layers
    return round(gated / (2 * config.model.width))


def parse_arm(text: str) -> Arm:
    """`name: a.b=c d.e=f` as an arm.

    >>> parse_arm("wide: model.width=96 model.heads=6")
    Arm(name='wide', changes=('model.width=96', 'model.heads=6'))
    """
    name, colon, changes = text.partition(":")
    if not colon or not changes.strip():
        raise FledgeError(f"--arm {text!r} is not of the form 'name: a.b=c d.e=f'.")
    return Arm(name.strip(), tuple(changes.split()))


def ablate(
    config: RunConfig,
    folder: Path,
    groups: Sequence[str] = ("architecture",),
    arms: Sequence[Arm] = (),
    seeds: int = 1,
    budget: float | None = None,
    command: str = "",
    budget_text: str = "",
) -> tuple[Plan, list[Outcome], Path]:
    """Run every arm with every seed and write the report; `budget` is seconds for all of it."""
    every = [Arm(BASE), *(arm for group in groups for arm in group_arms(group, config)), *arms]
    for arm in every:
        override_config(config, arm.changes)  # a mistake in the last arm is found before the first is run
    seconds = budget / (len(every) * seeds) if budget else None
    question = f"What is each part of {config.name} worth?"
    plan = make_plan("ablate", question, config, every, seeds, seconds, budget_text, folder)
    outcomes = list(run_trials(plan, folder))
    metric = (
        "bits_per_byte" if any("tokenizer." in change for arm in every for change in arm.changes) else "validation_loss"
    )
    page = findings.begin(plan, answer(plan, outcomes, metric))
    findings.add_arms(page, plan, outcomes, metric, BASE)
    findings.add_curves(page, plan, outcomes, folder)
    findings.add_setup(page, plan, command)
    return plan, outcomes, findings.write(page, outcomes, folder)


def answer(plan: Plan, outcomes: Sequence[Outcome], metric: str) -> str:
    """The finding in two sentences: what hurts, what makes no difference."""
    groups = by_arm(outcomes)
    base = {outcome.seed: outcome for outcome in groups[BASE]}
    losses = []
    for arm in plan.arms[1:]:
        found = groups.get(arm.name, [])
        if any(outcome.status == "diverged" for outcome in found):
            losses.append((float("inf"), f"{arm.name} diverges"))
        elif (value := findings.difference(found, base, metric)) is not None:
            losses.append((value.mean, f"{arm.name} {value.mean:+.3f}"))
    ordered = [text for _, text in sorted(losses, reverse=True)]
    return f"Change in {findings.METRICS[metric]} against the recipe as it is (more is worse): {', '.join(ordered)}."
