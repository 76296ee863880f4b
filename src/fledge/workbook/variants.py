"""Questions that other ways of training answer: windows, vocabularies, another architecture, another device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fledge.config import override_config
from fledge.errors import FledgeError
from fledge.files import readable_bytes
from fledge.reports.page import Page
from fledge.workbook.plan import COMPARED, SEEDS, batch_sizes_around
from fledge.workbook.sweeps import add_sweep_curves, arm_facts, best_rate, result_text, start_part

if TYPE_CHECKING:
    from fledge.workbook.book import Book

MEASURED = 0.5  # seconds for each cell of the devices' table

Facts = dict[str, Any]


def left_out(book: Book, part: str) -> bool:
    return not book.plan.steps_of(part)


def say_left_out(page: Page, book: Book, command: str) -> None:
    page.paragraph(
        f"The budget of {book.plan.budget} leaves too few steps for this question. A longer one answers it, or the "
        "command alone:"
    )
    page.code(command)


# -- windows and vocabularies ------------------------------------------------------------------------------------------


def ask_group(book: Book, group: str) -> Facts | None:
    """An ablation of one group, from the best rate."""
    from fledge.experiments.ablate import ablate

    if left_out(book, group):
        return None
    config = start_part(book, group, best_rate(book))
    if group == "vocabulary":  # every arm has a tokenizer and tokens of its own
        config = override_config(config, ["tokens.store=none"])
        if config.tokenizer.kind == "character":
            return {"refused": "A character tokenizer has the vocabulary of its text: its size is not a choice."}
    plan, outcomes, report = ablate(config, book.folder / group, [group], command=book.command)
    answer = report.with_suffix(".md").read_text(encoding="utf-8").split("\n\n")[1]
    arms = arm_facts(plan, outcomes, bits="bits_per_byte", tokens="tokens")
    return {"steps": config.steps, "rate": config.optimizer.learning_rate, "arms": arms, "answer": answer}


def ask_windows(book: Book) -> Facts | None:
    return ask_group(book, "windows")


def ask_vocabulary(book: Book) -> Facts | None:
    return ask_group(book, "vocabulary")


def show_windows(page: Page, facts: Facts | None, book: Book) -> None:
    if facts is None:
        return say_left_out(page, book, f"fledge ablate {book.plan.recipe} --group windows")
    page.paragraph(
        f"{facts['steps']:,} steps each, one seed; every loss is measured on the same held-out documents, each read by "
        f"itself. {facts['answer']}"
    )
    rows = [(arm["arm"], arm["changes"] or "as the recipe", result_text(arm), arm["tokens"]) for arm in facts["arms"]]
    page.table(["windows", "changes", "nats per token", "tokens, padding included"], rows)
    add_sweep_curves(
        page, book, "windows", {arm["arm"]: arm["folder"] for arm in facts["arms"]}, "Each on its own windows."
    )


def show_vocabulary(page: Page, facts: Facts | None, book: Book) -> None:
    if facts is None:
        return say_left_out(page, book, f"fledge ablate {book.plan.recipe} --group vocabulary")
    if "refused" in facts:
        return page.paragraph(facts["refused"])
    page.paragraph(f"{facts['steps']:,} steps each, one seed. {facts['answer']}")
    rows = []
    for arm in facts["arms"]:
        bits = result_text(arm) if arm["bits"] is None else f"{arm['bits']:.4f}"
        rows.append((arm["arm"], arm["changes"] or "as the recipe", bits, arm["parameters"]))
    page.table(["arm", "changes", "bits per byte", "parameters"], rows)


# -- another architecture ----------------------------------------------------------------------------------------------


def ask_comparison(book: Book) -> Facts | None:
    from fledge.experiments.compare import compare

    if left_out(book, "comparison"):
        return None
    config = start_part(book, "comparison")
    folder = book.folder / "comparison"
    try:
        _, outcomes, report = compare(COMPARED, config, folder, "parameters", SEEDS, command=book.command)
    except FledgeError as error:  # the other questions are worth their answers
        if "parameters within" not in str(error):
            raise
        return {"refused": str(error)}
    text = report.with_suffix(".md").read_text(encoding="utf-8")
    arms = [
        [o.arm, o.seed, o.validation_loss, o.parameters, o.flops, o.tokens_per_second, o.memory, o.status, o.step]
        for o in outcomes
    ]
    return {"steps": config.steps, "answer": text.split("\n\n")[1], "arms": arms}


def show_comparison(page: Page, facts: Facts | None, book: Book) -> None:
    if facts is None:
        return say_left_out(page, book, f"fledge compare {' '.join(COMPARED)} --recipe {book.plan.recipe}")
    if "refused" in facts:
        return page.paragraph(f"These two cannot be compared at this size. {facts['refused']}")
    page.paragraph(facts["answer"])
    rows = []
    for arm, seed, loss, parameters, flops, speed, memory, status, step in facts["arms"]:
        result = f"{loss:.4f}" if loss is not None else f"{status} at step {step:,}"
        fast, large = f"{speed:,.0f}" if speed else "–", readable_bytes(memory) if memory else "–"
        rows.append((arm, seed, result, f"{parameters:,}", f"{flops:.3g}", fast, large))
    page.table(
        ["model and factor of its rate", "seed", "nats per token", "parameters", "FLOPs", "tokens/s", "memory"], rows
    )
    page.paragraph("Its own report: comparison/report.html.")


# -- another device ----------------------------------------------------------------------------------------------------


def ask_devices(book: Book) -> Facts:
    """The main training's samples and steps on every device of this machine, at three batch sizes."""
    from fledge.training.bench import devices, measure

    config = book.plan.config(book.first, "main")
    if config.tokenizer.vocabulary_size is None:
        config = override_config(config, ["tokenizer.vocabulary_size=4096"])
    rows = []
    for name in devices():
        for size in batch_sizes_around(config.training.batch_size):
            found = measure(config, size, name, MEASURED)
            rows.append([name, size, found.tokens_per_second, found.windows_per_second, found.memory])
    return {"rows": rows, "samples": config.steps * config.training.batch_size, "steps": config.steps}


def show_devices(page: Page, facts: Facts, book: Book) -> None:
    from fledge.progress import readable_time

    rows, fastest = [], dict[str, float]()
    for name, size, tokens, windows, memory in facts["rows"]:
        if windows is None:
            rows.append((name, size, "out of memory", "–", "–", "–"))
            continue
        fastest[name] = max(fastest.get(name, 0.0), windows)
        times = (readable_time(facts["samples"] / windows), readable_time(facts["steps"] * size / windows))
        rows.append((name, size, f"{tokens:,.0f}", readable_bytes(memory), *times))
    samples, steps = f"{facts['samples']:,} samples take", f"{facts['steps']:,} steps take"
    page.table(["device", "batch size", "tokens/s", "memory", samples, steps], rows)
    others = [name for name in fastest if name != "cpu"]
    if not others:
        page.paragraph(
            "There is no GPU here: these are the CPU's times. At equal steps, a larger batch sees more text."
        )
        return
    best = max(others, key=lambda name: fastest[name])
    page.paragraph(
        f"At its best batch size, {best} trains {fastest[best] / fastest['cpu']:.1f} times as fast as the CPU at its "
        "own. At equal steps, a larger batch sees more text."
    )
