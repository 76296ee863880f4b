"""Ablations: take one thing away, change nothing else, and see what it was worth."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fledge.config import RunConfig, override_config, parse
from fledge.errors import FledgeError, nearest, short
from fledge.experiments import findings
from fledge.experiments.checks import check_arms, check_effects
from fledge.experiments.engines import ONE_BY_ONE, Engine, alone_in, run_trials
from fledge.experiments.findings import Experiment
from fledge.experiments.plan import (
    Arm,
    ExperimentPlan,
    check_folder,
    key_of,
    make_plan,
    tokens_differ,
    with_shared_data,
    with_windows,
)
from fledge.experiments.setup import add_setup, tokens_seen, unequal_tokens
from fledge.experiments.statistics import Estimate, apart, estimate
from fledge.experiments.timing import Cost, CostClock, pacer
from fledge.experiments.trials import Measure, Metric, Outcome, by_arm, plan_trials, unigram_loss
from fledge.reports.page import Page
from fledge.tokens.policies import POLICIES

BASE, LOWER = "as it is", "no norm, lower rate"
GROUPS = ("architecture", "windows", "vocabulary", "fit", "tied")
QUESTIONS: dict[tuple[str, ...], str] = {
    ("windows",): "Which way of laying windows on documents trains {name} best?",
    ("vocabulary",): "Which vocabulary size suits {name}?",
    ("fit",): "Does it help {name} to fit the tokenizer on the held-out text too?",
    ("tied",): "Should {name} use its embedding as its head too?",
}


def group_arms(group: str, config: RunConfig) -> list[Arm]:
    """The arms of a named group, besides the recipe as it is."""
    model = config.model
    if group == "architecture":
        return architecture_arms(config)
    if group == "windows":
        mine = (config.tokens.policy, config.tokens.remainder)
        others = [policy for policy in POLICIES if policy not in (mine[0], "aligned")]
        arms = [Arm(policy, (f"tokens.policy={policy}",)) for policy in others]
        return arms + [
            Arm(name, ("tokens.policy=aligned", f"tokens.remainder={remainder}"))
            for name, remainder in (("aligned, padded", "pad"), ("aligned, cut", "cut"))
            if mine != ("aligned", remainder)
        ]
    if group == "vocabulary":
        if config.tokenizer.kind == "character":
            raise FledgeError(
                "tokenizer.kind = character takes its vocabulary from the text, so the size can't be varied."
            )
        size = config.tokenizer.vocabulary_size or 4096
        return [Arm(f"vocabulary {n:,}", (f"tokenizer.vocabulary_size={n}",)) for n in (size // 2, size * 2, size * 4)]
    if group == "fit":
        other = "all" if config.tokenizer.fit_on == "train" else "train"
        return [Arm(f"tokenizer fitted on {other}", (f"tokenizer.fit_on={other}",))]
    if group == "tied":
        from fledge.model.registry import find_architecture

        if "tied" not in find_architecture(model.architecture).settings:
            raise FledgeError(f"model.tied has no effect on model.architecture = {model.architecture}.")
        return [Arm("untied" if model.tied else "tied", (f"model.tied={str(not model.tied).lower()}",))]
    raise FledgeError(f"There is no group of ablations called {short(repr(group))}. {nearest(group, GROUPS)}")


def architecture_arms(config: RunConfig) -> list[Arm]:
    """The four ablations, less those of parts that this model has not."""
    from fledge.model.registry import find_architecture

    rate, of_matrices = config.optimizer.learning_rate, config.optimizer.matrix_learning_rate
    lower = (f"optimizer.learning_rate={rate / 5:g}", f"optimizer.matrix_learning_rate={of_matrices / 5:g}")
    silu = f"model.hidden={matched_hidden(config)}"
    arms = {
        Arm("no norm", ("model.norm=none",)): config.model.norm != "none",
        Arm(LOWER, ("model.norm=none", *lower)): config.model.norm != "none",
        Arm("post-norm", ("model.norm_place=post",)): config.model.norm != "none" and config.model.norm_place != "post",
        Arm("no position", ("model.position=none",)): config.model.position != "none",
        Arm("SiLU", ("model.feed_forward=silu", silu)): config.model.feed_forward != "silu",
    }
    known = {f"model.{name}" for name in find_architecture(config.model.architecture).settings}
    found = [arm for arm, changes_it in arms.items() if changes_it and key_of(arm.changes[0]) in known]
    if not found:
        raise FledgeError(
            f"The model of {config.name}, model.architecture = {config.model.architecture}, has none of the "
            "parts that the group architecture removes (norms, positions, feed-forward). Name another "
            "--group, or define your own arms with --arm."
        )
    return found


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
    engine: Engine = ONE_BY_ONE,
) -> Experiment:
    """Run every arm with every seed and write the report; `budget` is seconds for all of it."""
    began = time.monotonic()
    every = [Arm(BASE), *(arm for group in groups for arm in group_arms(group, config)), *arms]
    check_arms(config, every, planned=budget is not None)  # a mistake in the last arm is found before the first is run
    for arm in arms:
        check_effects(config, [key_of(change) for change in arm.changes])
    question = QUESTIONS.get(tuple(groups) if not arms else (), "What is each part of {name} worth?")
    question = question.format(name=config.name)

    def costs(settings: RunConfig, clock: CostClock) -> list[Cost]:
        return [clock.cost(override_config(settings, arm.changes)) for arm in every] * seeds

    check_folder(folder)
    with alone_in(folder):
        every, left_out = with_windows(config, every, [arm.name for arm in arms], folder)
        pace = pacer(budget, budget_text, began, engine, folder, costs)
        keys = {key_of(change) for arm in every for change in arm.changes}
        hold = tokens_differ(config, keys, planned=budget is not None)
        threads = engine.sharing(config)
        plan = make_plan("ablate", question, config, every, seeds, folder, pace, budget_text, threads, tokens_hold=hold)
        measure = Measure.of(keys)
        metric = measure.metric
        outcomes = list(run_trials(plan_trials(plan, measure.alone), folder, engine))
        found = ablation_answer(plan, outcomes, metric, unigrams(plan, folder))
        page = Page(plan.question, f"{found} {unequal_tokens(outcomes, keys)}".strip())
        findings.add_arms(page, plan, outcomes, metric, BASE)
        for sentence in left_out:
            page.paragraph(sentence)
        page.paragraph(
            "No setting was tuned for any arm, the learning rate among them. So this is what each change does to a "
            "model of this size on this text after so short a training, where an arm may lead because it learns faster "
            "at first; it is not what the change would do to one that is larger or trained for longer."
        )
        if measure.alone:
            add_policies(page, plan, config)
        findings.add_curves(page, plan, outcomes, folder, measure.note)
        findings.add_given_up(page, outcomes)
        findings.add_samples(page, plan, outcomes, folder, config.sampling.prompt)
        add_setup(page, plan, command, outcomes, folder)
        return Experiment(plan, outcomes, findings.write_findings(page, outcomes, folder))


def add_policies(page: Page, plan: ExperimentPlan, config: RunConfig) -> None:
    """What the ways to lay windows are, and what they are compared on."""
    tokens = config.tokens
    page.table(
        ["tokens.policy", "how windows lie on documents"],
        [(f"{name} (the recipe's)" if name == tokens.policy else name, how) for name, (_, how) in POLICIES.items()],
    )
    most = plan.config["training"]["evaluate_windows"] * tokens.context_length
    page.paragraph(
        "Where windows are padded, an arm sees less text in the same number of tokens. The "
        f"losses above are those of the first held-out documents, about {most:,} tokens of them and the same for every "
        "arm, each document read by itself from its beginning. That is how packed and aligned windows train; on "
        "running text, stream may do better. The windows that the set-up tells of are those of the curves."
    )


def unigrams(plan: ExperimentPlan, folder: Path) -> dict[str, float]:
    """What counting tokens gives with each arm's tokens, in nats per token."""
    base = parse(RunConfig, plan.config)
    stores = {arm.name: with_shared_data(override_config(base, arm.changes), folder.absolute()) for arm in plan.arms}
    found = {config.tokens.store: unigram_loss(config) for config in stores.values()}
    return {name: found[config.tokens.store] for name, config in stores.items()}


def ablation_answer(
    plan: ExperimentPlan, outcomes: Sequence[Outcome], metric: Metric, counted: Mapping[str, float] | None = None
) -> str:
    """The finding in a few sentences: what hurts, what helps, what diverges, and of what no difference is shown.

    An arm that is no better than counting tokens, whose losses `counted` has, has learned nothing to be compared by.
    """
    groups, counted = by_arm(outcomes), counted or {}
    losses = {name: findings.arm_values(found, "validation_loss") for name, found in groups.items()}
    weak = [
        name for name, values in losses.items() if values and sum(values) / len(values) >= counted.get(name, math.inf)
    ]
    if BASE in weak:
        return (
            f"No conclusion: the recipe itself did not get below the {counted[BASE]:.3f} nats of counting tokens, "
            "so nothing was learned that its parts could be told by. Train longer."
        )
    base = {outcome.seed: outcome for outcome in groups[BASE]}
    if not findings.arm_values(groups[BASE], metric):
        return (
            "No conclusion: the recipe itself diverged, so nothing can be said of its parts. Lower its learning rate."
        )
    found: dict[str, Estimate] = {}
    diverged = []
    for arm in plan.arms[1:]:
        runs = groups.get(arm.name, [])
        if any(outcome.status == "diverged" for outcome in runs):
            diverged.append(arm.name)
        elif arm.name not in weak and (value := findings.difference(runs, base, metric)) is not None:
            found[arm.name] = value
    ordered = sorted(found, key=lambda name: -found[name].mean)
    parts = []
    if lost := sum(outcome.status == "diverged" for outcome in groups[BASE]):
        parts.append(f"The recipe itself diverged with {lost} of {len(base)} seeds: differences are of the others.")

    def told(names: Sequence[str]) -> str:
        return "; ".join(f"{name} {findings.with_interval(found[name])}" for name in names)

    worse = [name for name in ordered if apart(found[name]) and found[name].mean > 0]
    better = [name for name in reversed(ordered) if apart(found[name]) and found[name].mean < 0]
    open_ = [name for name in ordered if not apart(found[name])]
    if worse:
        parts.append(f"Worse than the recipe as it is: {told(worse)}.")
    if LOWER in found:
        parts.append(f"{LOWER!r} changes two things, and no arm the rate alone: that is not the worth of the norm.")
    if better:
        parts.append(f"Better: {told(better)}.")
    if diverged:
        parts.append(f"Training diverged: {', '.join(diverged)}.")
    if weak:
        parts.append(f"No better than counting tokens, so nothing was learned to compare: {'; '.join(weak)}.")
    if open_ and len(plan.seeds) > 1:
        parts.append(f"No difference shown: {told(open_)}.")
    elif open_:
        parts.append(
            f"One seed shows no uncertainty, so no difference is shown yet (run with --seeds 3). Measured against the "
            f"recipe as it is, more is worse: {told(open_)}."
        )
    spread = f", ± half the 95 % interval over {len(plan.seeds)} seeds" * (len(plan.seeds) > 1)
    padded = any(change.startswith("tokens.policy=") for arm in plan.arms for change in arm.changes)
    seen = tokens_seen(outcomes) + ", padding included" * padded
    unit = f"In {findings.METRICS[metric]} after training on {seen}{spread}."
    if plan.question.startswith("Which") and found:
        means = {arm.name: findings.arm_values(groups.get(arm.name, []), metric) for arm in plan.arms}
        strong = [name for name in means if means[name] and name not in weak]
        lowest = min(strong, key=lambda name: sum(means[name]) / len(means[name]))
        best = estimate(means[lowest])
        near = [name for name in strong if name != lowest and estimate(means[name]).overlaps(best)]
        also = f", not told apart from {', '.join(near)}" if near and len(plan.seeds) > 1 else ""
        parts.insert(0, f"Lowest: {lowest}, with {best}{also}.")
    return " ".join([*parts, unit] if found else parts)
