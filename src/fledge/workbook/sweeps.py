"""Questions that sweeps answer: which learning rate and which batch size are best, and where training diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import RunConfig, override_config
from fledge.experiments.plan import with_shared_data
from fledge.experiments.space import BATCH, RATE, Axis
from fledge.files import readable_bytes
from fledge.plot import curves
from fledge.reports.page import Page
from fledge.workbook.plan import RATE_FACTORS, RATES, batch_sizes_around

if TYPE_CHECKING:
    from fledge.experiments.plan import ExperimentPlan
    from fledge.experiments.trials import Outcome
    from fledge.workbook.book import Book

Facts = dict[str, Any]


def start_part(book: Book, part: str, rate: float | None = None) -> RunConfig:
    """The first text's run for one part, on the tokens that all parts share."""
    config = book.plan.config(book.first, part)
    if rate is not None:
        config = override_config(config, [f"{RATE}={rate:g}"])
    return with_shared_data(config, book.folder)


def points(axes: Sequence[Axis], outcomes: Sequence[Outcome]) -> list[Facts]:
    """Each point of a sweep with what came of it."""
    from fledge.experiments.space import grid, label

    found = {outcome.arm: outcome for outcome in outcomes}
    rows = []
    for point in grid(list(axes)):
        outcome = found[label(point)]
        rows.append(
            {
                **point,
                "status": outcome.status,
                "loss": outcome.validation_loss,
                "step": outcome.step,
                "speed": outcome.tokens_per_second,
                "folder": outcome.folder,
            }
        )
    return rows


def arm_facts(plan: ExperimentPlan, outcomes: Sequence[Outcome], **more: str) -> list[Facts]:
    """Each arm of an ablation with what came of it; `more` are further facts, each by its name in an outcome."""
    changes = {arm.name: " ".join(arm.changes) for arm in plan.arms}
    return [
        {
            "arm": outcome.arm,
            "changes": changes[outcome.arm],
            "status": outcome.status,
            "loss": outcome.validation_loss,
            "step": outcome.step,
            "parameters": outcome.parameters,
            "folder": outcome.folder,
            **{name: getattr(outcome, field) for name, field in more.items()},
        }
        for outcome in outcomes
    ]


def result_text(row: Facts) -> str:
    return f"{row['loss']:.4f}" if row["loss"] is not None else f"{row['status']} at step {row['step']:,}"


def lowest_row(rows: Sequence[Facts]) -> Facts | None:
    return min((row for row in rows if row["loss"] is not None), key=lambda row: float(row["loss"]), default=None)


def best_rate(book: Book) -> float:
    """The rate that the sweep found best; the recipe's own where every rate diverged."""
    best = lowest_row(book.answers["rates"]["points"])
    return float(best[RATE]) if best else book.plan.config(book.first, "main").optimizer.learning_rate


# -- learning rate -----------------------------------------------------------------------------------------------------


def ask_rates(book: Book) -> Facts:
    from fledge.experiments.space import Axis
    from fledge.experiments.sweep import sweep
    from fledge.experiments.trials import unigram_loss

    config, axes = start_part(book, "rates"), [Axis(RATE, RATES, log=True)]
    _, outcomes, _ = sweep(config, book.folder / "rates", axes, command=book.command, prune=False)
    return {
        "points": points(axes, outcomes),
        "unigram": unigram_loss(config),
        "steps": config.steps,
        "optimizer": config.optimizer.name,
    }


def show_rates(page: Page, facts: Facts, book: Book) -> None:
    rows = facts["points"]
    best = lowest_row(rows)
    page.paragraph(
        f"{facts['optimizer']}, {facts['steps']:,} steps at each rate, all else equal, on {book.first}."
        f"{learned_from(book, book.first)}"
    )
    page.table(
        ["learning rate", "validation loss, nats per token"],
        [(f"{row[RATE]:g}", result_text(row)) for row in rows],
        strong=rows.index(best) if best else None,
    )
    diverged = [row[RATE] for row in rows if row["status"] == "diverged"]
    if best is None:
        page.paragraph(
            "Every rate diverged: there is no best one in this range, or the training was too short to tell."
        )
        return
    sentence = f"The best of these rates is {best[RATE]:g}, with {best['loss']:.4f} nats per token."
    sentence += too_short(float(best["loss"]), book)
    above = [rate for rate in diverged if rate > best[RATE]]
    if above:
        sentence += (
            f" Training diverges at {min(above):g}: the best rate lies a factor of {min(above) / best[RATE]:,.0f} "
            "below that edge."
        )
    else:
        sentence += " No rate above it diverged: the edge lies further up."
    if best in (rows[0], rows[-1]):
        sentence += " The best lies at the end of the range, so a better one may lie beyond."
    page.paragraph(sentence)
    done = [row for row in rows if row["loss"] is not None]
    line = ([row[RATE] for row in done], [row["loss"] for row in done])
    drawing = curves(
        {"validation loss": line}, "learning rate", "nats per token", levels={"unigram": facts["unigram"]}, log_x=True
    )
    book.figure(page, "rates", drawing, "Final validation loss at each learning rate; diverged rates have none.")
    add_sweep_curves(
        page, book, "rates", {f"{row[RATE]:g}": row["folder"] for row in rows}, "Validation loss as it trained."
    )


def add_sweep_curves(page: Page, book: Book, part: str, folders: dict[str, str], caption: str) -> None:
    from fledge.experiments.findings import read_curve

    lines = {name: read_curve(book.folder / part / folder, "tokens") for name, folder in folders.items()}
    lines = {name: line for name, line in lines.items() if len(line[0]) > 1}
    if lines:
        book.figure(page, f"{part}-curves", curves(lines, "tokens", "validation loss, nats per token"), caption)


# -- batch size --------------------------------------------------------------------------------------------------------


def ask_batches(book: Book) -> Facts:
    from fledge.accounting import account
    from fledge.accounting.devices import this_device
    from fledge.errors import FledgeError
    from fledge.experiments.space import Axis
    from fledge.experiments.sweep import sweep
    from fledge.tokens import TokenStore

    rate, config = best_rate(book), start_part(book, "batches")
    rates = tuple(float(f"{rate * factor:.3g}") for factor in RATE_FACTORS)
    windows = config.steps * config.training.batch_size
    sizes = tuple(size for size in batch_sizes_around(config.training.batch_size) if size <= windows)
    axes = [Axis(BATCH, sizes), Axis(RATE, rates, log=True)]
    _, outcomes, _ = sweep(config, book.folder / "batches", axes, equal_samples=True, command=book.command, prune=False)
    seen = max(outcome.tokens for outcome in outcomes) // config.tokens.context_length
    facts: Facts = {"points": points(axes, outcomes), "windows": seen}
    try:
        device = this_device()
        cost = account(
            config.model,
            TokenStore.open(config.tokens.store or "").vocabulary_size,
            config.tokens.context_length,
            precision="fp32",
            optimizer=config.optimizer.name,
            device=device,
        )
        facts["memory"] = {"bytes": device.memory, "largest": cost.memory.largest_batch(device.memory)}
    except FledgeError:  # a GPU that no table knows
        facts["memory"] = None
    return facts


def show_batches(page: Page, facts: Facts, book: Book) -> None:
    rows = facts["points"]
    rates = sorted({row[RATE] for row in rows})
    batches = sorted({row[BATCH] for row in rows})
    table = {(row[BATCH], row[RATE]): row for row in rows}
    speeds = {batch: max((table[batch, rate]["speed"] or 0) for rate in rates) for batch in batches}
    page.paragraph(
        f"Every cell saw the same {facts['windows']:,} windows: a larger batch took fewer steps. Losses in nats per "
        "token."
    )
    page.table(
        ["batch size", *(f"rate {rate:g}" for rate in rates), "tokens/s"],
        [
            (
                f"{batch:,}",
                *(result_text(table[batch, rate]) for rate in rates),
                f"{speeds[batch]:,.0f}" if speeds[batch] else "–",
            )
            for batch in batches
        ],
    )
    chosen = {batch: lowest_row([table[batch, rate] for rate in rates]) for batch in batches}
    found = {batch: row for batch, row in chosen.items() if row is not None}
    if found:
        lowest = min(found, key=lambda batch: float(found[batch]["loss"]))
        fastest = max(batches, key=lambda batch: float(speeds[batch]))
        page.paragraph(
            f"At equal samples, batch {lowest} ends lowest, with {found[lowest]['loss']:.4f} at rate "
            f"{found[lowest][RATE]:g}; batch {fastest} has the most tokens per second."
            + too_short(float(found[lowest]["loss"]), book)
        )
    page.paragraph(rate_growth({batch: float(row[RATE]) for batch, row in found.items()}, rates))
    if facts["memory"]:
        page.paragraph(
            f"By the account of memory, this machine's {readable_bytes(facts['memory']['bytes'])} would hold a batch "
            f"of up to {facts['memory']['largest']:,} windows."
        )
    lines = {
        f"batch {batch}": (
            [rate for rate in rates if table[batch, rate]["loss"] is not None],
            [table[batch, rate]["loss"] for rate in rates if table[batch, rate]["loss"] is not None],
        )
        for batch in found
    }
    if lines:
        drawing = curves(lines, "learning rate", "nats per token", log_x=True)
        book.figure(page, "batches", drawing, "Final validation loss over the rate, one line for each batch size.")


def too_short(loss: float, book: Book) -> str:
    """What to add where the best of a comparison is no better than counting tokens."""
    unigram = book.answers["rates"]["unigram"]
    if loss < unigram:
        return ""
    return (
        f" Even the best is no better than the {unigram:.3f} nats of counting tokens: the trainings were too short to "
        "conclude anything."
    )


def learned_from(book: Book, name: str) -> str:
    """What to add where models learn from a part of the text."""
    used = book.plan.trained[name]["source"]
    if used == book.plan.corpora[name]:
        return ""
    return f" Models learn from the first {readable_bytes(Path(used[0]).stat().st_size)} of it: the time reads no more."


def rate_growth(chosen: dict[int, float], rates: Sequence[float]) -> str:
    """Whether a larger batch wants a larger rate, as far as these points tell.

    >>> rate_growth({8: 0.001, 80: 0.001}, [0.0003, 0.001, 0.003])
    'Batches of 8 and of 80 do best at the same rate of those tried, 0.001: no larger rate was needed.'
    """
    if len(chosen) < 2:
        return "Too few of these points trained to say whether a larger batch wants a larger rate."
    small, large = min(chosen), max(chosen)
    grown = chosen[large] / chosen[small]
    at_edge = {chosen[small], chosen[large]} & {rates[0], rates[-1]}
    edge = " A best rate lies at the edge of those tried, so one beyond it may be right." if at_edge else ""
    if grown == 1:
        return (
            f"Batches of {small} and of {large} do best at the same rate of those tried, {chosen[small]:g}: no larger "
            f"rate was needed.{edge}"
        )
    more = large / small
    near = (
        "nearer to its square root"
        if abs(math.log(grown) - math.log(more) / 2) < abs(math.log(grown) - math.log(more))
        else "nearer to the factor itself"
    )
    if grown < 1:
        return f"Batch {large} did best at a smaller rate than batch {small}: these runs ask for no larger one.{edge}"
    return (
        f"From batch {small} to {large}, {more:g} times as many windows a step, the best rate tried grew {grown:.3g} "
        f"times, from {chosen[small]:g} to {chosen[large]:g}: {near}.{edge}"
    )
