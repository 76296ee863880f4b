"""What a comparison found: the arm that predicts best, or why none can be named and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from fledge.experiments import findings
from fledge.experiments.match import Match, relative_spread
from fledge.experiments.plan import ExperimentPlan
from fledge.experiments.statistics import Estimate, apart, estimate, seeds_needed
from fledge.experiments.trials import Outcome, by_arm
from fledge.files import readable_bytes
from fledge.plot import curves
from fledge.reports.page import Page
from fledge.training.view import clock_time

METRIC = "validation_loss"


def comparison_page(
    plan: ExperimentPlan, outcomes: Sequence[Outcome], names: Sequence[str], match: Match, unigram: float, folder: Path
) -> Page:
    """The page of a comparison, all but its samples and its set-up."""
    chosen = best_rates(outcomes, names, plan.seeds[0])
    finals = [outcome for outcome in outcomes if outcome.arm in chosen.values()]
    said = [verdict(finals, chosen, unigram), *lost_sentences(finals, names, chosen)]
    if edges := at_edge(outcomes, chosen):
        said.append(
            f"{listed(edges)} did best at the end of the rates tried: one beyond may be better, and the order another."
        )
    groups = by_arm(finals)
    said.append(findings.final_figures({name: groups[arm] for name, arm in chosen.items()}, METRIC))
    page = Page(plan.question, " ".join(said).strip())
    add_table(page, plan, finals, chosen, match, unigram)
    if len(plan.seeds) > 1:
        add_pairs(page, finals, chosen)
    per_token = {outcome.arm: outcome.flops / outcome.tokens for outcome in finals}
    for title, x, scales in (
        ("tokens", "tokens", {}),
        ("seconds", "seconds", {}),
        ("training FLOPs", "tokens", per_token),
    ):
        lines = {
            name: arm_curve(finals, arm, plan.seeds[0], folder, x, scales.get(arm, 1.0)) for name, arm in chosen.items()
        }
        drawing = curves(lines, title, "validation loss, nats per token")
        page.figure(drawing, f"Validation loss against {title}, seed {plan.seeds[0]}, each arm at its best rate.")
    add_tuning(page, outcomes, chosen, plan.seeds[0])
    if all(outcome.status == "complete" for outcome in outcomes):
        page.paragraph(f"All {len(outcomes)} trials ran to their last step.")
    findings.add_given_up(page, outcomes)
    return page


def arm_of(outcome: Outcome) -> str:
    """The name of what was compared; a trial's arm has its learning rate besides.

    >>> arm_of(Outcome("gpt2 ×0.3", 0, "complete", 1, 1, 1, 1.0))
    'gpt2'
    """
    return outcome.arm.rpartition(" ×")[0]


def best_rates(outcomes: Sequence[Outcome], names: Sequence[str], seed: int) -> dict[str, str]:
    """For each name, the arm whose rate gave the lowest loss with the first seed; none where all diverged."""
    chosen = {}
    for name in names:
        found = {
            outcome.arm: outcome.validation_loss
            for outcome in outcomes
            if arm_of(outcome) == name and outcome.seed == seed and outcome.validation_loss is not None
        }
        if found:
            chosen[name] = min(found, key=lambda arm: found[arm])
    return chosen


def lost_sentences(finals: Sequence[Outcome], names: Sequence[str], chosen: Mapping[str, str]) -> list[str]:
    """What diverged and so is not in the figures: whole arms, or some seeds of one."""
    groups = by_arm(finals)
    said = [f"{name} diverged at every rate tried, and is left out." for name in names if name not in chosen]
    for name, arm in chosen.items():
        if lost := sum(outcome.validation_loss is None for outcome in groups[arm]):
            said.append(f"{name} diverged with {lost} of {len(groups[arm])} seeds: its figures are of the others.")
    return said


def verdict(finals: Sequence[Outcome], chosen: Mapping[str, str], unigram: float) -> str:
    """The winner, or why there is none and what would be needed."""
    groups = by_arm(finals)
    values = {name: findings.arm_values(groups.get(arm, []), METRIC) for name, arm in chosen.items()}
    means = {name: estimate(found) for name, found in values.items() if found}
    weak = [name for name, value in means.items() if value.mean >= unigram]
    each = sum(mean_seconds(groups.get(arm, [])) for arm in chosen.values())
    if weak:
        return (
            f"No conclusion: {' and '.join(weak)} did not get below the {unigram:.3f} nats of counting tokens, so "
            f"nothing was learned that could be compared. Train at least four times as long{on_this_machine(4 * each)}."
        )
    if len(means) < 2:
        return "No conclusion: fewer than two arms trained without diverging. Lower the learning rate."
    ordered = sorted(means, key=lambda name: means[name].mean)
    first, second = ordered[0], ordered[1]
    base = {outcome.seed: outcome for outcome in groups[chosen[first]]}
    gap = findings.difference(groups[chosen[second]], base, METRIC)
    seen = max(outcome.tokens for outcome in finals)
    losses = (
        f"Losses in nats per token after {seen:,} tokens: {', '.join(f'{name} {means[name]}' for name in ordered)}."
    )
    if gap is not None and apart(gap) and not means[first].overlaps(means[second]):
        return f"{first} predicts best, {gap.mean:.3f} ± {gap.half_width:.3f} nats below {second}. {losses}"
    level = [name for name in ordered if means[name].overlaps(means[first])]
    parts = [f"No conclusion between {listed(level)}: {more_seeds(means, first, second, gap, len(base), each)}"]
    near = {name: [other for other in level if means[name].overlaps(means[other])] for name in ordered}
    between = [name for name in ordered if name not in level and near[name]]
    parts += [f"{name} is worse than {first}, but not told apart from {listed(near[name])}." for name in between]
    if worse := [name for name in ordered if not near[name]]:
        parts.append(f"{listed(worse)} {'is' if len(worse) == 1 else 'are'} worse than {listed(level)}.")
    return " ".join([*parts, losses])


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def mean_seconds(found: Sequence[Outcome]) -> float:
    """Of the trials that ran to their end."""
    known = [outcome.seconds for outcome in found if outcome.seconds]
    return sum(known) / len(known) if known else 0.0


def on_this_machine(seconds: float) -> str:
    """
    >>> on_this_machine(600), on_this_machine(0)
    (': about 10 min 00 s for each seed of all arms on this machine', '')
    """
    return f": about {clock_time(seconds)} for each seed of all arms on this machine" if seconds else ""


def more_seeds(
    means: Mapping[str, Estimate], first: str, second: str, gap: Estimate | None, seeds: int, each: float
) -> str:
    """How many seeds, of `each` so many seconds, would take the two best apart, if means and spread stayed as they
    are."""
    if gap is None or not math.isfinite(gap.half_width):
        if seeds > 1:
            return "too few seeds ran to their end in both to show a spread. Lower the learning rate."
        return "one seed shows no spread; run with --seeds 3."
    if gap.mean == 0:
        return "the means are equal."
    more = seeds_needed(means[first], means[second])
    enough = "no number of seeds in reach takes them apart"
    if more:
        time = f", {clock_time((more - seeds) * each)} more on this machine" if each and more > seeds else ""
        enough = f"about {more} seeds (--seeds {more}{time}) would take them apart"
    return (
        f"the intervals of {first} and {second} overlap ({second} is {abs(gap.mean):.4f} ± {gap.half_width:.4f} nats "
        f"above, seed by seed). If gap and spread stay as they are, {enough}; a longer run may widen the gap, close it "
        "or turn it round."
    )


def add_table(
    page: Page, plan: ExperimentPlan, finals: Sequence[Outcome], chosen: Mapping[str, str], match: Match, unigram: float
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
    on_cpu = any(outcome.machine.startswith("CPU") for outcome in finals)
    page.paragraph(
        f"{how_matched(plan, [groups[arm][0] for arm in chosen.values()], match)} "
        "± is the 95 % interval of the mean over the seeds (Student's t). Counting tokens alone (unigram) gives "
        f"{unigram:.3f} nats per token: an arm above that has learned less than these counts. Losses are those of the "
        "last step; each seed has validation windows of its own, which ± includes. The rate was chosen with the first "
        "seed, whose trial counts, too. "
        "Seconds and tokens/s are means over the seeds; the seconds count evaluations, too. The rate is a factor of "
        "the learning rate of the arm's recipe, the best of those tried."
        + " Memory is the most that the process had at a time, with what earlier trials left to it."
        * on_cpu
    )


def add_pairs(page: Page, finals: Sequence[Outcome], chosen: Mapping[str, str]) -> None:
    """Every two arms: how far apart, seed by seed, and whether that is a conclusion."""
    groups = by_arm(finals)
    means = {
        name: estimate(found) for name, arm in chosen.items() if (found := findings.arm_values(groups[arm], METRIC))
    }
    rows = []
    for first, second in combinations(sorted(means, key=lambda name: means[name].mean), 2):
        base = {outcome.seed: outcome for outcome in groups[chosen[first]]}
        gap = findings.difference(groups[chosen[second]], base, METRIC)
        told = "overlap: no conclusion" if means[first].overlaps(means[second]) else "apart"
        rows.append((f"{second} less {first}", findings.with_interval(gap) if gap else "–", told))
    page.table(["arms", "difference, seed by seed", "their intervals"], rows)
    page.paragraph(
        "Arms are told apart where their own intervals do not overlap. That asks for more than a difference whose "
        "interval leaves zero out, as fits so few seeds."
    )


def how_matched(plan: ExperimentPlan, outcomes: Sequence[Outcome], match: Match) -> str:
    """What is the same for all arms, and how nearly."""
    if match == "time":
        costs, steps = plan.facts["step_costs"], plan.facts["arm_steps"]
        first = next(iter(costs))
        ratios = ", ".join(f"{costs[name] / costs[first]:.3g} times that for {name}" for name in list(costs)[1:])
        off = relative_spread(costs[name] * steps[name] for name in costs)
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
    off = relative_spread(values[match]) if values[match] else 0.0
    return f"Matched: {match}, {f'which differ by {off:.2%} at most' if off else 'the same for all'}."


def perplexity(loss: Estimate) -> str:
    """
    >>> perplexity(Estimate(2.0, 0.1, 3)), perplexity(Estimate(2.0, math.inf, 1))
    ('7.39 (6.69 to 8.17)', '7.39')
    """
    if not math.isfinite(loss.half_width):
        return f"{math.exp(loss.mean):,.2f}"
    return f"{math.exp(loss.mean):,.2f} ({math.exp(loss.low):,.2f} to {math.exp(loss.high):,.2f})"


def add_tuning(page: Page, outcomes: Sequence[Outcome], chosen: Mapping[str, str], seed: int) -> None:
    """Every arm at every rate, with the seed that all were tuned on."""
    page.heading("Learning rates tried")
    rows: list[tuple[str, str, str]] = []
    for outcome in outcomes:
        if outcome.seed == seed:
            rate = outcome.arm.rpartition("×")[2]
            result = "diverged" if outcome.validation_loss is None else f"{outcome.validation_loss:.4f}"
            rows.append((arm_of(outcome), f"× {rate}", result))
    page.table(["arm", "learning rate, of its recipe's", f"nats per token, seed {seed}"], rows)
    if edges := at_edge(outcomes, chosen):
        page.paragraph(
            f"For {listed(edges)} the best rate is at the end of the grid: one beyond it might do better still."
        )


def at_edge(outcomes: Sequence[Outcome], chosen: Mapping[str, str]) -> list[str]:
    """The arms whose best rate is the lowest or the highest of those tried."""
    tried = {outcome.arm.rpartition("×")[2] for outcome in outcomes}
    ends = {min(tried, key=float), max(tried, key=float)}
    return [name for name, arm in chosen.items() if arm.rpartition("×")[2] in ends]


def add_matching(
    page: Page, plan: ExperimentPlan, chosen: Mapping[str, str], steps: Mapping[str, int], notes: Sequence[str]
) -> None:
    """What the matching and the tuning made of each arm, and of the recipe."""
    page.heading("Arms")
    if notes:
        page.paragraph(" ".join(notes))
    changes = {arm.name: " ".join(arm.changes) for arm in plan.arms}
    page.table(
        ["arm", "steps", "settings that differ from the recipe's"],
        [(name, steps[name], changes[arm]) for name, arm in chosen.items()],
    )


def arm_curve(
    finals: Sequence[Outcome], arm: str, seed: int, folder: Path, x: str, scale: float
) -> tuple[list[float], list[float]]:
    outcome = next(outcome for outcome in finals if outcome.arm == arm and outcome.seed == seed)
    xs, ys = findings.read_curve(folder / outcome.folder, x)
    return [value * scale for value in xs], list(ys)
