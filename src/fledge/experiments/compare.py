"""A fair comparison: recipes or architectures on one corpus and one tokenizer, matched, tuned alike, over seeds.

An arm that is no better than counting tokens, or intervals that overlap, give no conclusion: the report says so, and
how much more would be needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fledge.accounting import Account
from fledge.config import RunConfig, load_recipe, override_config, parse, recipe_names
from fledge.errors import FledgeError, nearest
from fledge.experiments import findings
from fledge.experiments.engines import ONE_BY_ONE, Engine, alone_in, run_trials
from fledge.experiments.match import Match, apart, same_parameters, same_work
from fledge.experiments.page import Page
from fledge.experiments.plan import NOTES, Arm, Plan, make_plan, with_shared_data
from fledge.experiments.statistics import Estimate, estimate
from fledge.experiments.statistics import apart as differ
from fledge.experiments.timing import EVALUATIONS, Clock, Cost, pacer
from fledge.experiments.trials import Outcome, Trial, by_arm, check_arms, unigram_loss
from fledge.files import readable_bytes, write_json
from fledge.plot import curves

RATES = (0.3, 1.0, 3.0)
"The small grid that every arm is tuned over, as factors of its recipe's learning rate."
METRIC = "validation_loss"
ARCHITECTURES = ("transformer", "gpt2", "bdh", "rnn", "gru", "lstm")
# As such networks are usually built: with no residual path around a layer, four of them hardly learn in a short run.
RECURRENT = ("model.layers=2", "model.bias=true", "model.tied=false")
PRESETS = {
    "gpt2": (
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
    if name == base.name or name == "transformer":
        return base
    if name in PRESETS:
        from fledge.model.registry import without_unused

        config = override_config(base, [*PRESETS[name]])
        return config.model_copy(update={"model": without_unused(config.model)})
    if name in recipe_names() or name.endswith(".toml"):
        other = load_recipe(name)
        return base.model_copy(update={"model": other.model, "optimizer": other.optimizer, "schedule": other.schedule})
    raise FledgeError(
        f"{name!r} is neither a recipe nor an architecture. {nearest(name, {*recipe_names(), *ARCHITECTURES})}"
    )


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
) -> tuple[Plan, list[Outcome], Path]:
    """Tune every arm over the same small grid with the first seed, then run its best rate with the others."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise FledgeError("A comparison takes two or more different recipes or architectures, such as: bdh gpt2.")
    with alone_in(folder):
        vocabulary_size = shared_vocabulary(base, folder)
        asked = [arm_config(name, base) for name in names]
        configs = same_parameters(names, asked, vocabulary_size) if match == "parameters" else asked
        arms = [
            Arm(f"{name} ×{rate:g}", changes(base, config, rate))
            for name, config in zip(names, configs, strict=True)
            for rate in RATES
        ]
        check_arms(base, arms)
        question = f"Which predicts {', '.join(base.corpus.source)} best at equal {match}: {', '.join(names)}?"

        work = Work(names, configs, arms[:: len(RATES)], match, vocabulary_size, folder)

        def costs(settings: RunConfig, clock: Clock) -> list[Cost]:
            each = work.measure(settings, clock)
            of_step = work.costs(settings)
            scaled = [cost._replace(step=cost.step * of_step[0] / own) for cost, own in zip(each, of_step, strict=True)]
            return scaled * (len(RATES) + seeds - 1)

        def matched(settings: RunConfig, count: int) -> dict[str, Any]:
            return work.facts(settings, count, longer=budget is None)

        pace = pacer(budget, budget_text, engine.parallel, folder, costs)
        equal = match in ("parameters", "tokens")
        parallel = engine.parallel
        plan = make_plan(
            "compare", question, base, arms, seeds, folder, pace, budget_text, parallel, None if equal else matched
        )
        notes = [*moved(names[0], asked[0], configs[0], vocabulary_size), *plan.facts.get(NOTES, [])]
        steps = {name: int(plan.facts.get("arm_steps", {}).get(name, plan.facts["steps"])) for name in names}
        write_json(folder / "steps.json", steps)
        outcomes = run_arms(plan, names, steps, folder, engine)
        chosen = best_rates(outcomes, names, plan.seeds[0])
        finals = [outcome for outcome in outcomes if outcome.arm in chosen.values()]
        unigram = unigram_loss(with_shared_data(base, folder))
        page = findings.begin(plan, verdict(finals, chosen, unigram))
        add_table(page, plan, finals, chosen, match, unigram)
        for x, read in (("tokens", 1.0), ("seconds", 1.0)):
            lines = {name: curve(finals, arm, plan.seeds[0], folder, x, read) for name, arm in chosen.items()}
            page.figure(
                curves(lines, x, "validation loss, nats per token"), f"Validation loss against {x}, first seed."
            )
        per_token = {outcome.arm: outcome.flops / outcome.tokens for outcome in finals}
        lines = {
            name: curve(finals, arm, plan.seeds[0], folder, "tokens", per_token[arm])
            for name, arm in chosen.items()
            if arm in per_token
        }
        page.figure(
            curves(lines, "training FLOPs", "validation loss, nats per token"),
            "Validation loss against FLOPs, first seed.",
        )
        add_tuning(page, outcomes, names, plan.seeds[0])
        findings.add_given_up(page, outcomes)
        findings.add_samples(page, plan, finals, folder, prompt)
        findings.add_setup(page, plan, command, outcomes, engine.parallel, folder)
        add_arms(page, plan, chosen, notes)
        return plan, outcomes, findings.write(page, outcomes, folder)


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
        f"{name} has {sizes[1]:,} parameters and not the {sizes[0]:,} asked for ({found}): not every arm has a size "
        "near enough to those."
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


class Work:
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

    def measure(self, settings: RunConfig, clock: Clock) -> list[Cost]:
        self.measured = [clock.cost(override_config(settings, arm.changes)) for arm in self.arms]
        return self.measured

    def costs(self, settings: RunConfig) -> list[float]:
        """Of a step of each arm, in what is matched; the same for all where that is tokens or parameters."""
        if self.match == "time":
            return [cost.step for cost in self.measured or self.measure(settings, Clock(self.folder))]
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
    plan: Plan, names: Sequence[str], steps: dict[str, int], folder: Path, engine: Engine = ONE_BY_ONE
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

    first, total = plan.seeds[0], len(plan.arms) + len(names) * (len(plan.seeds) - 1)
    outcomes = list(run_trials([trial(arm, first) for arm in plan.arms], folder, engine, total=total))
    chosen = best_rates(outcomes, names, first).values()
    again = [trial(arm, seed) for seed in plan.seeds[1:] for arm in plan.arms if arm.name in chosen]
    return outcomes + list(run_trials(again, folder, engine, len(outcomes), total))


def best_rates(outcomes: Sequence[Outcome], names: Sequence[str], seed: int) -> dict[str, str]:
    """For each name, the arm whose rate gave the lowest loss with the first seed; none where all diverged."""
    chosen = {}
    for name in names:
        found = [
            outcome
            for outcome in outcomes
            if outcome.arm.rpartition(" ×")[0] == name and outcome.seed == seed and outcome.validation_loss is not None
        ]
        if found:
            chosen[name] = min(found, key=lambda outcome: outcome.validation_loss or math.inf).arm
    return chosen


def estimates(finals: Sequence[Outcome], chosen: dict[str, str]) -> dict[str, Estimate]:
    groups = by_arm(finals)
    found = {name: findings.arm_values(groups.get(arm, []), METRIC) for name, arm in chosen.items()}
    return {name: estimate(values) for name, values in found.items() if values}


def verdict(finals: Sequence[Outcome], chosen: dict[str, str], unigram: float) -> str:
    """The winner, or why there is none and what would be needed."""
    means = estimates(finals, chosen)
    weak = [name for name, value in means.items() if value.mean >= unigram]
    if weak:
        return (
            f"No conclusion: {' and '.join(weak)} did not get below the {unigram:.3f} nats of counting tokens, so "
            "nothing was learned that could be compared. Train on several times more tokens."
        )
    if len(means) < 2:
        return "No conclusion: fewer than two arms trained without diverging. Lower the learning rate."
    ordered = sorted(means, key=lambda name: means[name].mean)
    first, second = ordered[0], ordered[1]
    groups = by_arm(finals)
    base = {outcome.seed: outcome for outcome in groups[chosen[first]]}
    gap = findings.difference(groups[chosen[second]], base, METRIC)
    ranking = ", ".join(f"{name} {means[name]}" for name in ordered)
    if gap is not None and differ(gap) and not means[first].overlaps(means[second]):
        return f"{first} predicts best, {gap.mean:.3f} ± {gap.half_width:.3f} nats below {second}. Losses: {ranking}."
    level = [name for name in ordered if means[name].overlaps(means[first])]
    worse = [name for name in ordered if not any(means[name].overlaps(means[other]) for other in level)]
    rest = f" {' and '.join(worse)} {'is' if len(worse) == 1 else 'are'} worse than these." if worse else ""
    return (
        f"No conclusion between {' and '.join(level)}: {needed(means[first], means[second], gap)}{rest} "
        f"Losses in nats per token: {ranking}."
    )


def needed(first: Estimate, second: Estimate, gap: Estimate | None) -> str:
    """How many seeds would take the intervals apart, if the means stayed where they are."""
    if gap is None or not math.isfinite(gap.half_width):
        return "one seed shows no spread; run with --seeds 3."
    if gap.mean == 0:
        return "the means are equal."
    seeds = math.ceil(gap.seeds * ((first.half_width + second.half_width) / abs(gap.mean)) ** 2) + 1
    return (
        f"their intervals overlap (a difference of {abs(gap.mean):.4f} ± {gap.half_width:.4f}, seed by seed); it needs "
        f"about {seeds} seeds, or a longer run."
    )


def add_table(
    page: Page, plan: Plan, finals: Sequence[Outcome], chosen: dict[str, str], match: Match, unigram: float
) -> None:
    groups = by_arm(finals)
    rows = []
    for name, arm in chosen.items():
        found = groups[arm]
        values, bits = findings.arm_values(found, METRIC), findings.arm_values(found, "bits_per_byte")
        speeds = [outcome.tokens_per_second for outcome in found if outcome.tokens_per_second]
        seconds = [outcome.seconds for outcome in found if outcome.seconds]
        sizes = [outcome.memory for outcome in found if outcome.memory]
        rows.append(
            (
                name,
                f"{found[0].parameters:,}",
                f"{found[0].tokens:,}",
                f"{found[0].flops:.4g}",
                f"{sum(seconds) / len(seconds):,.1f}" if seconds else "–",
                str(estimate(values)),
                perplexity(estimate(values)),
                str(estimate(bits)) if bits else "–",
                f"{sum(speeds) / len(speeds):,.0f}" if speeds else "–",
                readable_bytes(max(sizes)) if sizes else "–",
                arm.rpartition("×")[2],
            )
        )
    page.heading("Result")
    head = [
        "arm",
        "parameters",
        "tokens",
        "FLOPs",
        "seconds",
        "nats per token",
        "perplexity",
        "bits per byte",
        "tokens/s",
        "memory",
        "rate ×",
    ]
    page.table(head, sorted(rows, key=lambda row: float(str(row[5]).split()[0])))
    page.paragraph(
        f"{how_matched(plan, [groups[arm][0] for arm in chosen.values()], match)} "
        "± is the 95 % interval of the mean over the seeds. Counting tokens alone (unigram) gives "
        f"{unigram:.3f} nats per token: an arm above that has learned nothing."
    )


def how_matched(plan: Plan, outcomes: Sequence[Outcome], match: Match) -> str:
    """What is the same for all arms, and how nearly."""
    if match == "time":
        costs, steps = plan.facts["step_costs"], plan.facts["arm_steps"]
        first = next(iter(costs))
        ratios = ", ".join(f"{costs[name] / costs[first]:.3g} times that for {name}" for name in list(costs)[1:])
        off = apart(costs[name] * steps[name] for name in costs)
        return (
            f"Matched: time, by steps measured before the first trial: {costs[first]:.3g} s for one of {first}, "
            f"{ratios}. The steps planned from that differ by {off:.2%} in time. The seconds in the table are what "
            "training took, evaluations and all."
        )
    values: dict[Match, list[float]] = {
        "parameters": [outcome.parameters for outcome in outcomes],
        "tokens": [outcome.tokens for outcome in outcomes],
        "flops": [outcome.flops for outcome in outcomes],
    }
    off = apart(values[match]) if values[match] else 0.0
    return f"Matched: {match}, {f'which differ by {off:.2%} at most' if off else 'the same for all'}."


def perplexity(loss: Estimate) -> str:
    """
    >>> perplexity(Estimate(2.0, 0.1, 3)), perplexity(Estimate(2.0, math.inf, 1))
    ('7.39 (6.69 to 8.17)', '7.39')
    """
    if not math.isfinite(loss.half_width):
        return f"{math.exp(loss.mean):,.2f}"
    return f"{math.exp(loss.mean):,.2f} ({math.exp(loss.low):,.2f} to {math.exp(loss.high):,.2f})"


def add_tuning(page: Page, outcomes: Sequence[Outcome], names: Sequence[str], seed: int) -> None:
    page.heading("Learning rates tried")
    rows = []
    for outcome in outcomes:
        if outcome.seed == seed:
            name, _, rate = outcome.arm.rpartition(" ×")
            result = "diverged" if outcome.validation_loss is None else f"{outcome.validation_loss:.4f}"
            rows.append((name, f"× {rate}", result))
    page.table(["arm", "learning rate, of its recipe's", "nats per token, first seed"], rows)
    chosen = best_rates(outcomes, names, seed)
    edges = [name for name, arm in chosen.items() if arm.rpartition("×")[2] in (f"{RATES[0]:g}", f"{RATES[-1]:g}")]
    if edges:
        page.paragraph(
            f"For {' and '.join(edges)} the best rate is at the end of the grid: one beyond it might do better still."
        )


def add_arms(page: Page, plan: Plan, chosen: dict[str, str], notes: Sequence[str]) -> None:
    """What the matching and the tuning made of each arm, and of the recipe."""
    if notes:
        page.paragraph(" ".join(notes))
    changes = {arm.name: " ".join(arm.changes) for arm in plan.arms}
    page.table(
        ["arm", "settings that differ from the recipe's"], [(name, changes[arm]) for name, arm in chosen.items()]
    )


def curve(
    finals: Sequence[Outcome], arm: str, seed: int, folder: Path, x: str, scale: float
) -> tuple[list[float], list[float]]:
    outcome = next(outcome for outcome in finals if outcome.arm == arm and outcome.seed == seed)
    xs, ys = findings.read_curve(folder / outcome.folder, x)
    return [value * scale for value in xs], list(ys)


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
