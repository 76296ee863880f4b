"""A fair comparison: recipes or architectures on one corpus and one tokenizer, matched, tuned alike, over seeds.

An arm that is no better than counting tokens, or intervals that overlap, give no conclusion: the report says so, and
how much more would be needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from fledge.accounting import Account
from fledge.config import RunConfig, load_recipe, override_config, parse, recipe_names
from fledge.config.reading import nearest_recipe
from fledge.errors import FledgeError
from fledge.experiments import findings, ranking
from fledge.experiments.checks import check_arms
from fledge.experiments.engines import ONE_BY_ONE, Engine, alone_in, run_trials
from fledge.experiments.findings import Experiment
from fledge.experiments.match import Match, same_parameters, same_work
from fledge.experiments.plan import (
    EVALUATIONS,
    NOTES,
    Arm,
    ExperimentPlan,
    check_folder,
    key_of,
    make_plan,
    with_shared_data,
)
from fledge.experiments.setup import add_setup
from fledge.experiments.timing import Cost, CostClock, pacer
from fledge.experiments.trials import Outcome, Trial, unigram_loss

RATES = (0.3, 1.0, 3.0)
"The small grid that every arm is tuned over, as factors of its recipe's learning rate."
ARCHITECTURES = ("transformer", "gpt2", "bdh", "rnn", "gru", "lstm")
# As such networks are usually built: with no residual path around a layer, four of them hardly learn in a short run.
RECURRENT = ("model.layers=2", "model.bias=true", "model.tied=false")
PRESETS = {
    "transformer": ("model.architecture=transformer",),
    "gpt2": (
        "model.architecture=transformer",
        "model.norm=layer",
        "model.position=learned",
        "model.feed_forward=gelu_tanh",
        "model.bias=true",
        "model.tied=true",
    ),
    "bdh": ("model.architecture=bdh", "model.tied=false"),
    "rnn": ("model.architecture=rnn", *RECURRENT),
    "gru": ("model.architecture=gru", *RECURRENT),
    "lstm": ("model.architecture=lstm", *RECURRENT),
}


def arm_config(name: str, base: RunConfig) -> RunConfig:
    """An architecture at the base recipe's settings, or the model of another recipe on the base's corpus and tokens."""
    if name == base.name or name == base.model.architecture == "transformer":
        return base
    if name in PRESETS:
        from fledge.model.registry import without_unused

        config = override_config(base, [*PRESETS[name]])
        return config.model_copy(update={"model": without_unused(config.model)})
    if name in recipe_names() or name.endswith((".toml", ".json")) or "/" in name:
        other = load_recipe(name)
        return base.model_copy(update={"model": other.model, "optimizer": other.optimizer, "schedule": other.schedule})
    from fledge.model.registry import is_known, without_unused

    if not is_known(name):
        raise FledgeError(
            f"{name!r:.80} is neither a recipe nor an architecture. "
            f"{nearest_recipe(name, {*recipe_names(), *ARCHITECTURES})}"
        )
    config = override_config(base, [f"model.architecture={name}"])
    return config.model_copy(update={"model": without_unused(config.model)})


def compare(
    names: Sequence[str],
    base: RunConfig,
    folder: Path,
    match: Match = "parameters",
    seeds: int = 3,
    budget: float | None = None,
    command: str = "",
    budget_text: str = "",
    prompt: str = "",
    engine: Engine = ONE_BY_ONE,
) -> Experiment:
    """Tune every arm over the same small grid with the first seed, then run its best rate with the others."""
    began = time.monotonic()
    if len(names) < 2 or len(set(names)) < len(names):
        raise FledgeError("A comparison takes two or more different recipes or architectures, such as: bdh gpt2.")
    asked = [arm_config(name, base) for name in names]
    for (first, one), (second, other) in combinations(zip(names, asked, strict=True), 2):
        if one == other:
            raise FledgeError(f"{first} and {second} are the same model here. Leave one out.")
    check_folder(folder)
    with alone_in(folder):
        vocabulary_size = shared_vocabulary(base, folder)
        configs = same_parameters(names, asked, vocabulary_size) if match == "parameters" else asked
        arms = [
            Arm(f"{name} ×{rate:g}", changes(base, config, rate))
            for name, config in zip(names, configs, strict=True)
            for rate in RATES
        ]
        check_arms(base, arms)
        question = f"Which predicts {', '.join(base.corpus.source)} best at equal {match}: {', '.join(names)}?"

        work = ArmCosts(names, configs, arms[:: len(RATES)], match, vocabulary_size, folder)

        def costs(settings: RunConfig, clock: CostClock) -> list[Cost]:
            each = work.measure(settings, clock)
            of_step = work.costs(settings)
            scaled = [cost._replace(step=cost.step * of_step[0] / own) for cost, own in zip(each, of_step, strict=True)]
            return scaled * (len(RATES) + seeds - 1)

        def matched(settings: RunConfig, count: int) -> dict[str, Any]:
            return work.facts(settings, count, longer=budget is None)

        pace = pacer(budget, budget_text, began, engine, folder, costs)
        equal = match in ("parameters", "tokens")
        parallel = engine.sharing(base)
        plan = make_plan(
            "compare", question, base, arms, seeds, folder, pace, budget_text, parallel, None if equal else matched
        )
        notes = [*moved(names[0], asked[0], configs[0], vocabulary_size), *plan.facts.get(NOTES, [])]
        steps = {name: int(plan.facts.get("arm_steps", {}).get(name, plan.facts["steps"])) for name in names}
        if budget is None and steps[names[0]] != base.steps:
            notes.append(
                f"{names[0]} takes {steps[names[0]]:,} steps and not the {base.steps:,} asked for, so that whole steps "
                "of all arms agree."
            )
            print(notes[-1], flush=True)
        outcomes = run_arms(plan, names, steps, folder, engine)
        unigram = unigram_loss(with_shared_data(base, folder))
        page = ranking.comparison_page(plan, outcomes, names, match, unigram, folder)
        chosen = ranking.best_rates(outcomes, names, plan.seeds[0])
        finals = [outcome for outcome in outcomes if outcome.arm in chosen.values()]
        findings.add_samples(page, plan, finals, folder, prompt)
        differing = {key_of(change) for arm in arms for change in arm.changes}
        varied = {*differing, "model.architecture", "model.layers", "model.width"}
        if len(set(steps.values())) > 1:
            varied.add("training.steps")
        ranking.add_matching(page, plan, chosen, steps, notes)
        add_setup(page, plan, command, outcomes, folder, varied)
        return Experiment(plan, outcomes, findings.write_findings(page, outcomes, folder))


def shared_vocabulary(base: RunConfig, folder: Path) -> int:
    from fledge.tokens import TokenStore

    store = with_shared_data(base, folder).tokens.store
    assert store is not None
    return TokenStore.open(store).vocabulary_size


def moved(name: str, asked: RunConfig, config: RunConfig, vocabulary_size: int) -> list[str]:
    """What became of the first arm's size, where no other could have met it as it was."""
    if config.model == asked.model:
        return []
    sizes = [
        Account(each.model, vocabulary_size, each.tokens.context_length).parameters.total for each in (asked, config)
    ]
    found = ", ".join(
        f"model.{key}={getattr(config.model, key)}"
        for key in ("layers", "width", "hidden", "multiplier")
        if getattr(config.model, key) != getattr(asked.model, key)
    )
    line = (
        f"The settings give {name} {sizes[0]:,} parameters, and not every other arm has a size near enough to that: it "
        f"has {sizes[1]:,} here ({found})."
    )
    print(line, flush=True)
    return [line]


def changes(base: RunConfig, config: RunConfig, rate: float) -> tuple[str, ...]:
    """What turns the base recipe into an arm at one learning rate."""
    found = []
    for group in ("model", "optimizer", "schedule"):
        old, new = (getattr(settings, group).model_dump(mode="json") for settings in (base, config))
        found += [f"{group}.{key}={_text(new[key])}" for key in new if new[key] != old[key]]
    optimizer = config.optimizer
    found = [text for text in found if "learning_rate=" not in text]
    found += [f"optimizer.learning_rate={optimizer.learning_rate * rate:g}"]
    found += [f"optimizer.matrix_learning_rate={optimizer.matrix_learning_rate * rate:g}"]
    return tuple(found)


class ArmCosts:
    """What a step of each arm costs in FLOPs (by accounting) or in seconds (measured), and the steps that follow."""

    def __init__(
        self,
        names: Sequence[str],
        configs: Sequence[RunConfig],
        arms: Sequence[Arm],
        match: Match,
        vocabulary_size: int,
        folder: Path,
    ) -> None:
        self.names, self.configs, self.arms, self.match = names, configs, arms, match
        self.vocabulary_size, self.folder = vocabulary_size, folder
        self.measured: list[Cost] = []

    def measure(self, settings: RunConfig, clock: CostClock) -> list[Cost]:
        self.measured = [clock.cost(override_config(settings, arm.changes)) for arm in self.arms]
        return self.measured

    def costs(self, settings: RunConfig) -> list[float]:
        """Of a step of each arm, in what is matched; the same for all where that is tokens or parameters."""
        if self.match == "time":
            return [cost.step for cost in self.measured or self.measure(settings, CostClock(self.folder))]
        if self.match == "flops":
            windows = settings.training.batch_size * settings.tokens.context_length
            return [
                windows * Account(each.model, self.vocabulary_size, each.tokens.context_length).flops_per_token
                for each in self.configs
            ]
        return [1.0] * len(self.configs)

    def facts(self, settings: RunConfig, steps: int, longer: bool) -> dict[str, Any]:
        """What the plan keeps: the steps of every arm, and what one of them costs."""
        costs = self.costs(settings)
        found = same_work(self.names, costs, steps, self.match, longer)
        return {
            "steps": found[self.names[0]],
            "arm_steps": found,
            "step_costs": {name: float(f"{cost:.4g}") for name, cost in zip(self.names, costs, strict=True)},
        }


def run_arms(
    plan: ExperimentPlan, names: Sequence[str], steps: dict[str, int], folder: Path, engine: Engine = ONE_BY_ONE
) -> list[Outcome]:
    """Every rate of every arm with the first seed, then the best of each with the others."""
    base = parse(RunConfig, plan.config)

    def trial(arm: Arm, seed: int) -> Trial:
        count = steps[arm.name.rpartition(" ×")[0]]
        config = override_config(base, arm.changes)
        # The share of the run that the plan has; of a recipe that brings its own, at most a tenth.
        warmup = round(base.schedule.warmup_steps * count / base.steps)
        if config.schedule.warmup_steps != base.schedule.warmup_steps:
            warmup = min(config.schedule.warmup_steps, count // 10)
        length = {
            "training.steps": count,
            "training.evaluate_every": max(1, count // EVALUATIONS),
            "schedule.warmup_steps": warmup,
            "training.seed": seed,
        }
        return Trial(arm.name, override_config(config, [f"{key}={value}" for key, value in length.items()]))

    first, total = plan.seeds[0], plan.trials
    outcomes = list(run_trials([trial(arm, first) for arm in plan.arms], folder, engine, total=total))
    chosen = ranking.best_rates(outcomes, names, first).values()
    again = [trial(arm, seed) for seed in plan.seeds[1:] for arm in plan.arms if arm.name in chosen]
    return outcomes + list(run_trials(again, folder, engine, len(outcomes), total))


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
