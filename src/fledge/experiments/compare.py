"""A fair comparison: recipes or architectures on one corpus and one tokenizer, matched, tuned alike, over seeds.

An arm that is no better than counting tokens, or intervals that overlap, give no conclusion: the report says so, and
how much more would be needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fledge.accounting import Account
from fledge.config import RunConfig, load_recipe, override_config, parse, recipe_names
from fledge.errors import FledgeError, nearest
from fledge.experiments import findings
from fledge.experiments.engines import ONE_BY_ONE, Engine, run_trials
from fledge.experiments.match import Match, with_parameters
from fledge.experiments.page import Page
from fledge.experiments.plan import Arm, Plan, make_plan, with_shared_data
from fledge.experiments.statistics import Estimate, apart, estimate
from fledge.experiments.timing import EVALUATIONS, Clock, Cost, pacer
from fledge.experiments.trials import Outcome, Trial, by_arm, unigram_loss
from fledge.files import readable_bytes
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
        f"{name!r} is neither a recipe nor an architecture. {nearest(name, [*recipe_names(), *ARCHITECTURES])}"
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
    vocabulary_size = shared_vocabulary(base, folder)
    configs = sized([arm_config(name, base) for name in names], match, vocabulary_size)
    arms = [
        Arm(f"{name} ×{rate:g}", changes(base, config, rate))
        for name, config in zip(names, configs, strict=True)
        for rate in RATES
    ]
    question = f"Which predicts {', '.join(base.corpus.source)} best at equal {match}: {', '.join(names)}?"

    def costs(settings: RunConfig, clock: Clock) -> list[Cost]:
        each = [clock.cost(override_config(settings, arm.changes)) for arm in arms[:: len(RATES)]]
        shares = step_shares(configs, match, vocabulary_size, [cost.step for cost in each])
        scaled = [cost._replace(step=cost.step * share) for cost, share in zip(each, shares, strict=True)]
        return scaled * (len(RATES) + seeds - 1)

    pace = pacer(budget, budget_text, engine.parallel, folder, costs)
    plan = make_plan("compare", question, base, arms, seeds, folder, pace, budget_text, engine.parallel)
    steps = arm_steps(plan, names, configs, match, vocabulary_size, folder)
    outcomes = run_arms(plan, names, steps, folder, engine)
    chosen = best_rates(outcomes, names, plan.seeds[0])
    finals = [outcome for outcome in outcomes if outcome.arm in chosen.values()]
    unigram = unigram_loss(with_shared_data(base, folder))
    page = findings.begin(plan, verdict(finals, chosen, unigram))
    add_table(page, finals, chosen, match, unigram)
    for x, read in (("tokens", 1.0), ("seconds", 1.0)):
        lines = {name: curve(finals, arm, plan.seeds[0], folder, x, read) for name, arm in chosen.items()}
        page.figure(curves(lines, x, "validation loss, nats per token"), f"Validation loss against {x}, first seed.")
    per_token = {outcome.arm: outcome.flops / outcome.tokens for outcome in finals}
    lines = {
        name: curve(finals, arm, plan.seeds[0], folder, "tokens", per_token[arm])
        for name, arm in chosen.items()
        if arm in per_token
    }
    page.figure(
        curves(lines, "training FLOPs", "validation loss, nats per token"), "Validation loss against FLOPs, first seed."
    )
    add_tuning(page, outcomes, names, plan.seeds[0])
    findings.add_given_up(page, outcomes)
    findings.add_samples(page, plan, finals, folder, prompt)
    findings.add_setup(page, plan, command, outcomes, engine.parallel)
    add_arms(page, plan, chosen)
    return plan, outcomes, findings.write(page, outcomes, folder)


def shared_vocabulary(base: RunConfig, folder: Path) -> int:
    from fledge.tokens import TokenStore

    store = with_shared_data(base, folder).tokens.store
    assert store is not None
    return TokenStore.open(store).vocabulary_size


def sized(configs: list[RunConfig], match: Match, vocabulary_size: int) -> list[RunConfig]:
    """At matched parameters, every arm as large as the first; otherwise as they are."""
    if match != "parameters":
        return configs
    first = configs[0]
    target = Account(first.model, vocabulary_size, first.tokens.context_length).parameters.total
    return [first, *(with_parameters(config, vocabulary_size, target) for config in configs[1:])]


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


def step_shares(
    configs: Sequence[RunConfig], match: Match, vocabulary_size: int, seconds: Sequence[float]
) -> list[float]:
    """Steps of each arm for one of the first: equal tokens, FLOPs, or time where a step takes `seconds`."""
    if match == "time":
        return [seconds[0] / each for each in seconds]
    if match == "flops":
        accounts = [Account(config.model, vocabulary_size, config.tokens.context_length) for config in configs]
        return [accounts[0].flops_per_token / account.flops_per_token for account in accounts]
    return [1.0] * len(configs)


def arm_steps(
    plan: Plan, names: Sequence[str], configs: list[RunConfig], match: Match, vocabulary_size: int, folder: Path
) -> dict[str, int]:
    """Steps of each arm: the plan's, or what the same FLOPs or the same time give; kept with the plan."""
    from fledge.files import read_json, write_json

    kept = folder / "steps.json"
    if kept.is_file():
        return {str(name): int(value) for name, value in read_json(kept).items()}
    seconds = [1.0] * len(configs)
    if match == "time":
        base, clock = parse(RunConfig, plan.config), Clock(folder)
        seconds = [clock.cost(override_config(base, arm.changes)).step for arm in plan.arms[:: len(RATES)]]
    shares = step_shares(configs, match, vocabulary_size, seconds)
    steps = int(plan.facts["steps"])
    found = {name: max(1, round(steps * share)) for name, share in zip(names, shares, strict=True)}
    write_json(kept, found)
    return found


def run_arms(
    plan: Plan, names: Sequence[str], steps: dict[str, int], folder: Path, engine: Engine = ONE_BY_ONE
) -> list[Outcome]:
    """Every rate of every arm with the first seed, then the best of each with the others."""
    base = parse(RunConfig, plan.config)

    def trial(arm: Arm, seed: int) -> Trial:
        count = steps[arm.name.rpartition(" ×")[0]]
        length = [f"training.steps={count}", f"training.evaluate_every={max(1, count // EVALUATIONS)}"]
        return Trial(arm.name, override_config(base, [*arm.changes, *length, f"training.seed={seed}"]))

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
    if gap is not None and apart(gap) and not means[first].overlaps(means[second]):
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


def add_table(page: Page, finals: Sequence[Outcome], chosen: dict[str, str], match: Match, unigram: float) -> None:
    groups = by_arm(finals)
    rows = []
    for name, arm in chosen.items():
        found = groups[arm]
        values, bits = findings.arm_values(found, METRIC), findings.arm_values(found, "bits_per_byte")
        speeds = [outcome.tokens_per_second for outcome in found if outcome.tokens_per_second]
        sizes = [outcome.memory for outcome in found if outcome.memory]
        rows.append(
            (
                name,
                f"{found[0].parameters:,}",
                f"{found[0].tokens:,}",
                f"{found[0].flops:.3g}",
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
        "nats per token",
        "perplexity",
        "bits per byte",
        "tokens/s",
        "memory",
        "rate ×",
    ]
    page.table(head, sorted(rows, key=lambda row: float(str(row[4]).split()[0])))
    page.paragraph(
        f"Matched: {match}. ± is the 95 % interval of the mean over the seeds. Counting tokens alone (unigram) gives "
        f"{unigram:.3f} nats per token: an arm above that has learned nothing."
    )


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


def add_arms(page: Page, plan: Plan, chosen: dict[str, str]) -> None:
    """What the matching and the tuning made of each arm."""
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
