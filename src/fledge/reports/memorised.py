"""What models learned by heart, on the pages of runs and experiments, beside what people repeat of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fledge.plot import curves
from fledge.reports.page import Page
from fledge.tokens.store import PASSAGES

if TYPE_CHECKING:
    from fledge.evaluation import Evaluation
    from fledge.evaluation.memorised import Memorised
    from fledge.run import Run

INDEXED = 50_000_000  # tokens; an index of more would keep a report waiting
TITLE = "What it learned by heart"


def measure_memorised(run: Run) -> Memorised | None:
    """What a run's model learned by heart; None where its text is too long to be indexed for a report."""
    from fledge.evaluation.memorised import memorised

    store = run.tokens
    if len(store.split("train").tokens) > INDEXED and not (store.folder / PASSAGES).is_dir():
        return None
    return memorised(run.model, run.tokenizer, store, run.config.sampling)


def add_memorised(page: Page, run: Run, evaluation: Evaluation) -> None:
    """The figures of one run, with a picture; and the loss with and without held-out documents that leaked."""
    from fledge.evaluation.memorised import without_leaks

    found = measure_memorised(run)
    page.heading(TITLE)
    if found is None:
        page.paragraph(
            f"Not measured: the training text has more than {INDEXED:,} tokens, and no index of its passages yet. "
            "fledge generate --sources makes one; then write the report again."
        )
        return
    leaked, loss = without_leaks(run.tokens, evaluation.by_document, run.tokens.final)
    page.table(
        ["", ""],
        [
            ("generated tokens in stretches of 20 or more that stand in the training text", f"{found.generated:.1%}"),
            ("the same of held-out text, which people wrote", share(found.held_out)),
            ("the same of what it writes after training passages, 32 tokens after 32", f"{found.continued:.1%}"),
            ("training passages continued word for word", f"{found.extracted:.1%}"),
            ("longest generated stretch that stands in the training text, in tokens", found.longest),
            ("held-out documents of which half or more stands in the training text", f"{leaked:.1%}"),
        ],
    )
    lines = {"the model's text": found.generated_by_length, "held-out text, by people": found.held_out_by_length}
    drawn = {
        name: (list(map(float, line)), [100 * value for value in line.values()]) for name, line in lines.items() if line
    }
    if drawn:
        page.figure(
            curves(drawn, "least length of the stretch, tokens", "% of the tokens", log_x=True),
            "How much stands word for word in the training text, by the least length of the stretch. A model whose "
            "line lies far above that of people copies.",
        )
    verdict = (
        "The model has learned its text by heart: what it writes is to a large part copied. Train it for fewer passes, "
        "or on more text."
        if found.by_heart
        else "The model has not learned its text by heart."
    )
    if leaked and loss is not None:
        verdict += (
            f" Without the held-out documents that leaked, its loss is {loss:.3f} nats per token; with them "
            f"{evaluation.loss:.3f}."
        )
    page.paragraph(f"{verdict} fledge generate --sources shows where a text stands in the training text.")


def add_memorised_arms(page: Page, arms: Mapping[str, Memorised | None]) -> None:
    """A row for each arm of an experiment."""
    rows = [
        (
            name,
            *map(share, (one.generated, one.held_out, one.continued, one.extracted)),
            "yes" if one.by_heart else "no",
        )
        for name, one in arms.items()
        if one is not None
    ]
    if not rows:
        return
    page.heading("What they learned by heart" if len(rows) > 1 else TITLE)
    page.table(["arm", "copied", "held-out text", "after passages", "extracted", "by heart"], rows)
    page.paragraph(
        "Copied: generated tokens in stretches of 20 or more that stand word for word in the training text, beside the "
        "same share of held-out text, which people wrote, and of what the model writes after training passages, 32 "
        "tokens after 32. Extracted: passages that it continues word for word."
    )


def share(value: float | None) -> str:
    """A share that may be unknown."""
    return "–" if value is None else f"{value:.1%}"
