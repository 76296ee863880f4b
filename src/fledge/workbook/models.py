"""Questions that trained models answer: the four ablations, the main experiment, and what its model writes."""

from __future__ import annotations

import hashlib
import math
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import override_config
from fledge.experiments.plan import with_shared_data
from fledge.experiments.space import RATE
from fledge.plot import curves
from fledge.reports.page import Page
from fledge.workbook.sweeps import (
    add_sweep_curves,
    arm_facts,
    best_rate,
    learned_from,
    result_text,
    start_part,
    too_short,
)

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.workbook.book import Book

SAMPLINGS: dict[str, dict[str, Any]] = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.8": {"temperature": 0.8},
    "temperature 1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "temperature 1.5": {"temperature": 1.5},
}
"Ways of choosing the next token, from careful to bold."

Facts = dict[str, Any]


# -- ablations ---------------------------------------------------------------------------------------------------------


def ask_ablations(book: Book) -> Facts:
    from fledge.experiments.ablate import BASE, ablate

    config = start_part(book, "ablations", best_rate(book))
    plan, outcomes, _ = ablate(config, book.folder / "ablations", command=book.command)
    return {
        "base": BASE,
        "steps": config.steps,
        "rate": config.optimizer.learning_rate,
        "arms": arm_facts(plan, outcomes),
    }


def show_ablations(page: Page, facts: Facts, book: Book) -> None:
    arms = facts["arms"]
    base = next(arm for arm in arms if arm["arm"] == facts["base"])
    page.paragraph(
        f"{facts['steps']:,} steps each, at rate {facts['rate']:g}, the same data in the same order, one seed."
    )
    rows = []
    for arm in arms:
        known = arm["loss"] is not None and base["loss"] is not None and arm is not base
        change = f"{arm['loss'] - base['loss']:+.4f}" if known else "–"
        rows.append((arm["arm"], arm["changes"] or "as the recipe", result_text(arm), change, arm["parameters"]))
    page.table(["arm", "changes", "nats per token", "difference", "parameters"], rows)
    if base["loss"] is None:
        page.paragraph("The recipe itself diverged at this rate, so nothing can be said of its parts.")
    else:
        worse = sorted(
            (arm for arm in arms if arm["loss"] is not None and arm["loss"] > base["loss"]),
            key=lambda arm: -float(arm["loss"]),
        )
        others = [arm for arm in arms if arm["loss"] is not None and arm["loss"] <= base["loss"] and arm is not base]
        diverged = [arm["arm"] for arm in arms if arm["status"] == "diverged"]
        parts = []
        if diverged:
            parts.append(f"{' and '.join(diverged)} diverged.")
        if worse:
            parts.append(
                "Worse than the recipe, the worst first: "
                + ", ".join(f"{arm['arm']} by {arm['loss'] - base['loss']:.3f}" for arm in worse)
                + "."
            )
        if others:
            parts.append(f"Not worse: {', '.join(arm['arm'] for arm in others)}.")
        parts.append(
            "With one seed, differences of a few hundredths may be chance: fledge ablate --seeds 3 settles them."
        )
        best = min(float(arm["loss"]) for arm in arms if arm["loss"] is not None)
        page.paragraph(" ".join(parts) + too_short(best, book))
    add_sweep_curves(
        page, book, "ablations", {arm["arm"]: arm["folder"] for arm in arms}, "Validation loss of each arm."
    )


# -- the main experiment -----------------------------------------------------------------------------------------------


def main_folder(book: Book, name: str) -> Path:
    from fledge.experiments.trials import slug

    plain = slug(name)
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return book.folder / "main" / (plain if plain == name else f"{plain}-{mark}".strip("-"))


def ask_main(book: Book) -> Facts:
    from fledge.reports.finished import result_of
    from fledge.reports.run import report_run
    from fledge.run import Run
    from fledge.runs.checkpoints import checkpoints
    from fledge.training import Diverged, load_checkpoint

    found: Facts = {}
    for name in book.plan.corpora:
        folder = main_folder(book, name)
        config = book.plan.config(name, "main")
        steps = config.steps
        every = [f"training.{key}={max(1, steps // 10)}" for key in ("evaluate_every", "save_every")]
        often = f"training.log_every={max(1, steps // 200)}"
        config = override_config(config, [f"{RATE}={best_rate(book):g}", *every, often, "training.sample_every=0"])
        run = Run(with_shared_data(config, book.folder), folder, quiet=True)
        run.bundle = load_checkpoint(folder) if checkpoints(folder) else None
        if run.bundle is None or result_of(run).stopped:
            try:
                stopped = run.train(resume=run.bundle).stopped
            except Diverged as error:
                found[name] = {"diverged": error.step, "why": str(error)}
                continue
            if stopped:
                raise KeyboardInterrupt
        result = result_of(run)
        report = report_run(run, result, held_out_prompts(book, run))
        train = run.tokens.split("train")
        found[name] = {
            "parameters": run.model.parameters_count(),
            "steps": result.step,
            "tokens": result.tokens,
            "repeats": result.tokens / max(1, len(train.tokens)),
            "seconds": result.seconds,
            "speed": result.tokens_per_second,
            "loss": report.evaluation.loss,
            "bits_per_byte": report.evaluation.bits_per_byte,
            "evaluated": report.evaluation.tokens,
            "baselines": report.baselines,
            "report": str(report.path.relative_to(book.folder)),
        }
    return found


def show_main(page: Page, facts: Facts, book: Book) -> None:
    from fledge.experiments.findings import read_curve

    page.paragraph(f"The longest training of this workbook, at rate {best_rate(book):g}, on each text.")
    for name, f in facts.items():
        if "diverged" in f:
            page.paragraph(f"On {name} training diverged at step {f['diverged']:,}: {f['why']}")
            continue
        rows = sorted([*f["baselines"].items(), ("this model", f["loss"])], key=lambda row: -float(row[1]))
        page.table(
            [f"predicting {name} with", "nats per token", "perplexity"],
            [(row, loss, math.exp(loss)) for row, loss in rows],
            strong=[row for row, _ in rows].index("this model"),
        )
        beaten = [row for row, loss in f["baselines"].items() if f["loss"] < loss]
        verdict = f"it beats the {', the '.join(beaten)}" if beaten else "it does not even beat counting tokens"
        missed = [row for row in f["baselines"] if row not in beaten]
        bits = f", {f['bits_per_byte']:.3f} bits per byte" if f["bits_per_byte"] else ""
        page.paragraph(
            f"{f['parameters']:,} parameters saw {f['tokens']:,} tokens of {name} ({f['repeats']:.1f} times its "
            f"training text) in {f['seconds']:,.1f} seconds, {f['speed']:,.0f} tokens a second. On {f['evaluated']:,} "
            f"held-out tokens it needs {f['loss']:.3f} nats a token{bits}: {verdict}"
            + (f", and not the {', the '.join(missed)}." if missed and beaten else ".")
            + f" Its own report: {f['report']}.{learned_from(book, name)}"
        )
    lines = {name: read_curve(main_folder(book, name), "tokens") for name, f in facts.items() if "diverged" not in f}
    lines = {name: line for name, line in lines.items() if line[0]}
    if lines:
        drawing = curves(lines, "tokens", "validation loss, nats per token")
        book.figure(
            page,
            "main",
            drawing,
            "Validation loss of the main experiment; losses of different texts and "
            "tokenizers are not to be compared with each other.",
        )


def held_out_prompts(book: Book, run: Run) -> tuple[str, ...]:
    """Nothing, and the first words of two documents that were held out."""
    openings = []
    for document in islice(run.corpus.documents("validation"), 2):
        words = document.decode("utf-8", "replace").split()[:3]
        openings.append(" ".join(words)[:60])
    return ("", *(opening for opening in openings if opening))


def ask_generation(book: Book) -> Facts:
    from fledge.run import Run, load
    from fledge.workbook.texts import SAMPLE, sample_of

    found: Facts = {}
    for name, f in book.answers["main"].items():
        if "diverged" in f:
            continue
        folder = main_folder(book, name)
        prompt = next(reversed(held_out_prompts(book, Run.open(folder))))
        run = load(folder)
        known = set(words_in(sample_of(book, name, SAMPLE).decode("utf-8", "replace")))
        rows = []
        for label, sampling in SAMPLINGS.items():
            text = run.generate([prompt], seed=0, **sampling)[0].text
            words = words_in(text)
            rows.append(
                {
                    "label": label,
                    "text": text,
                    "words": len(words),
                    "known": sum(word in known for word in set(words)) / max(1, len(set(words))),
                    "distinct": len(set(words)) / max(1, len(words)),
                }
            )
        found[name] = {"prompt": prompt, "rows": rows}
    return found


def words_in(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


def show_generation(page: Page, facts: Facts, book: Book) -> None:
    if not facts:
        page.paragraph("There is no model to write: the main experiment diverged.")
    for name, f in facts.items():
        page.paragraph(f"The model of {name} goes on from {f['prompt']!r}, seed 0:")
        for row in f["rows"]:
            page.quote(f"{row['label']}: {f['prompt']}▸{row['text']}")
        page.table(
            ["", "words", "of the different ones, words of the text", "different words"],
            [
                (
                    row["label"],
                    row["words"],
                    *(f"{row[key]:.0%}" if row["words"] else "–" for key in ("known", "distinct")),
                )
                for row in f["rows"]
            ],
        )
        careful, bold = f["rows"][0], f["rows"][-1]
        if careful["words"] and bold["words"]:
            page.paragraph(
                f"From {careful['label']} to {bold['label']}, real words go from {careful['known']:.0%} to "
                f"{bold['known']:.0%} and different words from {careful['distinct']:.0%} to {bold['distinct']:.0%}: "
                "the first says how much is spelled right, the second how little is repeated."
            )
