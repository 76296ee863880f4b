"""The workbook as a whole: ask every question once, keep each answer, and write the page from what is kept."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fledge.config import load_recipe
from fledge.errors import FledgeError
from fledge.experiments.ablate import group_arms
from fledge.extras import missing
from fledge.files import atomic_write, read_json, write_json
from fledge.reports.page import Page
from fledge.workbook import costs, models, sweeps, texts, variants
from fledge.workbook.plan import BookPlan, settle

ANSWERS, FIGURES = "answers", "figures"


class Book:
    """A plan, the folder it is carried out in, and the answers so far."""

    def __init__(self, plan: BookPlan, folder: Path, command: str) -> None:
        self.plan, self.folder, self.command = plan, folder, command
        self.first = next(iter(plan.corpora))
        self.answers: dict[str, Any] = {}

    def ask(self, name: str, question: Callable[[Book], Any]) -> None:
        """The answer, kept: a second time it is read."""
        kept = self.folder / ANSWERS / f"{name}.json"
        if not kept.is_file():
            print(f"{name} …", flush=True)
            started = time.monotonic()
            write_json(kept, question(self))
            print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
        self.answers[name] = read_json(kept)

    def figure(self, page: Page, name: str, svg: str, caption: str) -> None:
        """A drawing on the page, and a file of its own for the Markdown."""
        with atomic_write(self.folder / FIGURES / f"{name}.svg") as file:
            file.write(svg.encode())
        page.figure(svg, caption)
        page.parts[-1] = (page.parts[-1][0], f"![{caption}]({FIGURES}/{name}.svg)\n\n*{caption}*")


ASKED: tuple[tuple[str, Callable[[Book], Any]], ...] = (
    ("unicode", texts.ask_unicode),
    ("bpe", texts.ask_bpe),
    ("encoding", texts.ask_encoding),
    ("accounting", costs.ask_accounting),
    ("toy", costs.ask_toy),
    ("adamw", costs.ask_adamw),
    ("rates", sweeps.ask_rates),
    ("batches", sweeps.ask_batches),
    ("ablations", models.ask_ablations),
    ("windows", variants.ask_windows),
    ("vocabulary", variants.ask_vocabulary),
    ("comparison", variants.ask_comparison),
    ("devices", variants.ask_devices),
    ("tied", costs.ask_tied),
    ("main", models.ask_main),
    ("generation", models.ask_generation),
)
"What is computed, in the order in which answers need each other."


class Section(NamedTuple):
    """A heading of the page, the question under it, and how its answer is shown."""

    title: str
    question: str
    answer: str
    show: Callable[[Page, Any, Book], None]


SECTIONS = (
    Section(
        "What is a character, and how is it stored?",
        "What does chr(0) return, print, and do inside a string? Which of UTF-8, UTF-16 and UTF-32 is smallest for a "
        "text? Why can UTF-8 not be decoded byte by byte, and which two bytes decode to no character at all?",
        "unicode",
        texts.show_unicode,
    ),
    Section(
        "What does it take to train BPE?",
        "Train a byte-level BPE tokenizer on each text. How long does it take, and how much memory?",
        "bpe",
        texts.show_bpe,
    ),
    Section(
        "Which tokens are longest, and why?",
        "What are the longest tokens in the vocabulary? Do they make sense?",
        "bpe",
        texts.show_longest,
    ),
    Section(
        "Where does the training time go?",
        "Profile the tokenizer's training. Which part takes the most time: counting words, counting pairs or merging?",
        "bpe",
        texts.show_profile,
    ),
    Section(
        "How many bytes does a token stand for?",
        "What is each tokenizer's compression ratio, in bytes per token, on its own text and on the others? How much "
        "does it differ from one document to the next?",
        "encoding",
        texts.show_compression,
    ),
    Section(
        "How fast is encoding, and how long would The Pile take?",
        "How many bytes a second does the tokenizer encode, and how long would 825 GB of text take?",
        "encoding",
        texts.show_throughput,
    ),
    Section(
        "Which integer fits the ids?",
        "Ids can be stored as uint16. Why is that a good choice, and up to which vocabulary?",
        "encoding",
        texts.show_width,
    ),
    Section(
        "What does a Transformer cost?",
        "How many parameters has GPT-2 XL's shape, and which products does a forward pass take? Which parts take "
        "the most FLOPs, and how do the shares change with the size of the model and with the context?",
        "accounting",
        costs.show_accounting,
    ),
    Section(
        "What does the original GPT-2 XL cost?",
        "The first count is of a gated feed-forward and a head of its own. How many parameters and FLOPs has the tied "
        "model with two matrices in its feed-forward, and does a formula on paper give the same?",
        "tied",
        costs.show_tied,
    ),
    Section(
        "What does the learning rate do to gradient descent?",
        "Run SGD on a toy at learning rates 10, 100 and 1000 for ten steps. Does the loss fall, and how fast?",
        "toy",
        costs.show_toy,
    ),
    Section(
        "What does training with AdamW cost?",
        "How much memory does AdamW take, as a·batch + b, and what is the largest batch in 80 GB? How many FLOPs is "
        "one step, and how many days would 400,000 steps of 1,024 windows take on one A100 at half of its peak?",
        "adamw",
        costs.show_adamw,
    ),
    Section(
        "Which learning rate is best, and which is too high?",
        "Sweep the learning rate until training diverges. Is the best one near the edge of divergence?",
        "rates",
        sweeps.show_rates,
    ),
    Section(
        "Which batch size, and does a larger one want a larger rate?",
        "Vary the batch size at equal samples, with several learning rates each. How does the best rate change?",
        "batches",
        sweeps.show_batches,
    ),
    Section(
        "What is each part of the Transformer worth?",
        "Remove the norms, move them behind the residual, remove the position embedding, and replace SwiGLU by SiLU. "
        "What does each change do to the loss?",
        "ablations",
        models.show_ablations,
    ),
    Section(
        "Which padding policy trains best?",
        "Windows can slide in from the left, slide in and out, be full only, start with the document and be cut or "
        "padded, be whole documents, or run through the text. Which way gives the lowest loss?",
        "windows",
        variants.show_windows,
    ),
    Section(
        "How large should the vocabulary be?",
        "A larger vocabulary makes texts shorter and the model larger. Which size predicts the text best, in bits per "
        "byte?",
        "vocabulary",
        variants.show_vocabulary,
    ),
    Section(
        "Is BDH better than GPT-2?",
        "Train BDH and GPT-2's architecture with equally many parameters on the same tokens, each at its best of three "
        "learning rates. Which one predicts held-out text better, and at what cost?",
        "comparison",
        variants.show_comparison,
    ),
    Section(
        "How much faster is a GPU?",
        "Measure training at several batch sizes on every device here. How long do equally many samples take, and how "
        "long equally many steps?",
        "devices",
        variants.show_devices,
    ),
    Section(
        "The main experiment",
        "Train a model as long as the time allows on each text. Does it beat n-gram counts on held-out text?",
        "main",
        models.show_main,
    ),
    Section(
        "What does the model write?",
        "Generate text at several temperatures. How fluent is it, and what does the temperature change?",
        "generation",
        models.show_generation,
    ),
)


def write_workbook(
    sources: Sequence[str],
    folder: Path | str,
    budget: str = "5m",
    recipe: str = "akjv-demo",
    changes: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Answer every question on the texts, each once, and write `report.html` and `report.md` into the folder.

    Called again after a kill, it goes on where it stopped. With `training.steps` among the changes, every training has
    that length, and the budget sizes the text alone.
    """
    from fledge.training import parse_duration

    try:
        import optuna  # noqa: F401
    except ImportError:
        raise missing("fledge workbook", "optuna", "sweep") from None
    folder = Path(folder)
    check_recipe(recipe, changes)
    plan = settle(sources, folder, budget, parse_duration(budget), recipe, changes)
    book = Book(plan, folder, command)
    for name, question in ASKED:
        book.ask(name, question)
    page = Page(f"Workbook: {', '.join(plan.corpora)}", book_lead(book))
    page.contents([(f"q{number}", section.title) for number, section in enumerate(SECTIONS, 1)])
    for number, section in enumerate(SECTIONS, 1):
        page.heading(f"{number}. {section.title}", f"q{number}")
        page.quote(f"Question: {section.question}")
        section.show(page, book.answers[section.answer], book)
    add_repetition(page, book)
    page.write(folder / "report.md")
    return page.write(folder / "report.html")


def check_recipe(recipe: str, changes: Sequence[str]) -> None:
    """Refuse a model without the parts that the ablations take away, before anything is run."""
    try:
        group_arms("architecture", load_recipe(recipe, list(changes)))
    except FledgeError as error:
        if "none of the parts" not in str(error):
            raise
        raise FledgeError(f"The workbook's ablations need a Transformer, and --recipe {recipe} is not one.") from None


def book_lead(book: Book) -> str:
    """The workbook in a sentence, from its own numbers."""
    main = book.answers["main"][book.first]
    if "diverged" in main:
        end = "the main experiment diverged."
    else:
        end = (
            f"{main['parameters']:,} parameters reach {main['loss']:.3f} nats a token on {book.first}, where counting "
            f"tokens gives {main['baselines']['unigram']:.3f}."
        )
    return f"{len(SECTIONS)} questions about language models, answered by running them on this machine: {end}"


def add_repetition(page: Page, book: Book) -> None:
    from fledge import __version__

    plan = book.plan
    page.heading("How to repeat it")
    page.code(book.command)
    page.paragraph(
        f"The budget of {plan.budget} was turned into steps once, and the plan keeps them: the same folder gives the "
        "same numbers again, those of time apart. All answers lie as JSON in answers/, the sweeps and ablations with "
        "reports of their own in rates/, batches/ and ablations/, the model in main/."
    )
    page.table(
        ["training", "steps"], [(part, steps or "left out: too little time") for part, steps in plan.steps.items()]
    )
    page.paragraph(
        f"fledge {__version__}, torch {version('torch')}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, {plan.threads} thread{'s' * (plan.threads > 1)}."
    )
