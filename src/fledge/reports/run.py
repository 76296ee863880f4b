"""The report of one run: `report.html`, one file that opens offline and says what the numbers mean.

The validation loss stands beside n-gram baselines on the same tokens: a loss alone says nothing.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fledge.config.writing import Choice, settings_text, toml
from fledge.errors import FledgeError, notes_kept
from fledge.files import read_json
from fledge.plot import in_words
from fledge.reports.course import add_course, add_learning_curves
from fledge.reports.memorised import add_memorised
from fledge.reports.page import Page, cell
from fledge.reports.quality import FINAL, add_answer, add_compression, add_forecast, add_meaning, run_baselines
from fledge.reports.reference import reference
from fledge.runs.layout import REPORT, START

if TYPE_CHECKING:
    from fledge.evaluation import Evaluation
    from fledge.run import Run
    from fledge.runs.checkpoints import At
    from fledge.training import TrainingResult

PROMPTS = ("", "In the beginning", "And he said unto them,")
REPORTED_TOKENS = 1_000_000


class RunReport(NamedTuple):
    """Where the page lies, and the numbers on it."""

    path: Path
    evaluation: Evaluation
    baselines: dict[str, float]
    samples: list[tuple[str, str]]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return cell(self.path).body


def report_run(
    run: Run,
    result: TrainingResult,
    prompts: tuple[str, ...] = PROMPTS,
    *,
    choices: Sequence[Choice] = (),
    forecast: Any = None,
    most_tokens: int | None = None,
    at: At = None,
    train_reference: bool = False,
) -> RunReport:
    """Evaluate the trained model on the test part, or on validation where there is none, and write the page.

    `choices` are told with their reasons, `forecast` is held against what came; of a large text, `most_tokens` held-out
    ones are evaluated. `at` names another checkpoint than the best. The reference recipe is a row where it was trained
    before, or is to be trained now.
    """
    from fledge.training.device import choose_device

    device = choose_device(run.config.training.device)
    fixed = reference(run, train_reference)
    run.use_best(device, at)
    baselines = run_baselines(run, most_tokens)
    evaluation = run.evaluate(split=run.tokens.final, max_tokens=most_tokens)
    known = None
    if fixed is not None:
        fixed.use_best(device)
        known = fixed.evaluate(split=run.tokens.final, max_tokens=most_tokens).loss
    with notes_kept():  # what a person should know of the samples stands on the page
        texts = run.generate(list(prompts))
    samples = [(prompt, text.text) for prompt, text in zip(prompts, texts, strict=True)]
    page = Page(run.config.name, run_lead(run, result, evaluation))
    add_texts(page, run, samples)
    add_meaning(page, evaluation)
    add_answer(page, run, evaluation, baselines, known)
    add_forecast(page, forecast, evaluation)
    add_use(page, run, prompts, at)
    add_learning_curves(page, run, baselines, (result, evaluation.loss))
    add_course(page, run, result)
    add_compression(page, run, evaluation)
    add_memorised(page, run, evaluation)
    add_choices(page, choices)
    add_costs(page, run, result)
    add_settings(page, run)
    return RunReport(page.write(run.folder / REPORT), evaluation, baselines, samples)


def report_folder(folder: Path, at: At = None, *, train_reference: bool = False) -> RunReport:
    """The report of the run in a folder, finished or not, from what lies there; of its best checkpoint, unless `at`
    names another."""
    from fledge.bundle import load_bundle
    from fledge.reports.finished import result_of
    from fledge.run import Run
    from fledge.runs import find_bundle
    from fledge.runs.branches import settings_file
    from fledge.runs.folder import require_checkpoint

    run = Run.open(folder, settings=settings_file(folder) if folder.is_dir() else None)
    require_checkpoint(folder)
    model = find_bundle(folder, at)
    run.bundle = load_bundle(model)
    validation = run.tokens.split("validation")
    if not len(validation.tokens):
        raise FledgeError(
            f"A report needs text that the model has not seen, and {folder} has no held-out text. Train with "
            "corpus.validation_fraction above 0."
        )
    documents = (run.tokenizer.decode_bytes(validation.document(n)) for n in range(len(validation.documents)))
    kept = read_json(folder / START) if (folder / START).is_file() else {}
    plan = kept if isinstance(kept, dict) else {}
    choices = [Choice(*choice) for choice in plan.get("choices", [])]
    return report_run(
        run,
        replace(result_of(run), best=model),
        ("", *openings(documents)),
        choices=choices,
        forecast=plan.get("forecast"),
        most_tokens=REPORTED_TOKENS,
        at=at,
        train_reference=train_reference,
    )


def openings(documents: Iterable[bytes], count: int = 2) -> list[str]:
    """The first words of held-out documents: prompts that belong to the text, and that the model has not seen."""
    found: list[str] = []
    for document in documents:
        words = document.decode("utf-8", "ignore").split()
        opening = " ".join(words[:4])[:60]
        if len(words) >= 8 and opening not in found:
            found.append(opening)
        if len(found) == count:
            break
    return found


def text_name(run: Run) -> str:
    """The run's text in a few words, also where it has been moved since."""
    try:
        return run.corpus.name
    except FledgeError:
        return run.config.corpus.source[0]


def run_lead(run: Run, result: TrainingResult, evaluation: Evaluation) -> str:
    bits = f"{evaluation.bits_per_byte:.3f} bits per byte, " if evaluation.bits_per_byte else ""
    return (
        f"A {run.config.model.architecture} of {run.model.parameters_count():,} parameters, trained on "
        f"{result.tokens:,} tokens of {text_name(run)}. On {FINAL[run.tokens.final]}: "
        f"{bits}{evaluation.loss:.3f} nats per token."
    )


def add_use(page: Page, run: Run, prompts: Sequence[str], at: At = None) -> None:
    """The commands that use the model and hand it to others."""
    page.heading("How to use and share it")
    prompt = next((prompt for prompt in prompts if prompt), run.config.sampling.prompt)
    name, model = run.folder.absolute().name, (run.folder, *(() if at is None else ("--at", at)))
    lines = (
        (("generate", *model, "--prompt", prompt), "continue a text"),
        (("generate", *model, "--interactive"), "one prompt after the other"),
        (("serve",), "a page in the browser, for this machine"),
        (("bundle", "pack", *model, f"{name}.zip", "--no-training"), "one file for somebody else, who runs:"),
        (("generate", f"{name}.zip"), ""),
        (("bundle", "export", *model, f"{name}-hub"), "for Hugging Face's transformers, where it knows the model"),
        (("bundle", "export", *model, f"{name}.gguf"), "for llama.cpp and Ollama, likewise"),
    )
    page.code(
        "\n".join(f"fledge {shlex.join(map(str, words))}" + (f"  # {why}" if why else "") for words, why in lines)
    )


def add_texts(page: Page, run: Run, samples: list[tuple[str, str]]) -> None:
    page.heading("What it writes")
    sampling = run.config.sampling
    page.paragraph(
        f"Temperature {sampling.temperature:g}, seed {sampling.seed}; what the model wrote follows ▸, after the prompt."
    )
    for prompt, text in samples:
        page.quote(f"{prompt}▸{text}" if prompt else f"▸{text}")


def add_choices(page: Page, choices: Sequence[Choice]) -> None:
    """Every setting that was chosen for this text, this time and this machine."""
    if choices:
        page.heading("What was chosen, and why")
        rows = [(", ".join(f"{key} = {toml(value)}" for key, value in c.values.items()), c.why) for c in choices]
        page.table(["settings", "because"], rows)


def add_costs(page: Page, run: Run, result: TrainingResult) -> None:
    from fledge.accounting import account

    costs = account(
        run.config.model,
        run.tokenizer.vocab_size,
        run.config.tokens.context_length,
        batch=run.config.training.batch_size,
    )
    page.heading("What it cost")
    page.table(["component", "parameters"], list(costs.parameters.by_component.items()))
    page.table(
        ["", ""],
        [
            ("parameters in all", costs.parameters.total),
            ("FLOPs (additions and multiplications) of one forward window", in_words(costs.forward_flops)),
            ("FLOPs per trained token", in_words(costs.flops_per_token)),
            ("tokens seen", result.tokens),
            ("FLOPs of the whole training", in_words(costs.flops_per_token * result.tokens)),
            ("tokens per second", round(result.tokens_per_second)),
            ("seconds", round(result.seconds)),
        ],
    )


def add_settings(page: Page, run: Run) -> None:
    from importlib.metadata import version

    from fledge import __version__

    page.heading("How to repeat it")
    page.code(f"fledge train {shlex.quote(str(run.folder / 'config.json'))} --out runs/again")
    page.paragraph(
        f"fledge {__version__}, torch {version('torch')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}. Tokenizer {run.tokenizer.fingerprint[:16]}."
    )
    page.code(settings_text(run.config.model_dump(mode="json")), "Every setting")
