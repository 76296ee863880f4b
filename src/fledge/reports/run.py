"""The report of one run: `report.html`, one file that opens offline and says what the numbers mean.

The validation loss stands beside n-gram baselines on the same tokens: a loss alone says nothing.
"""

from __future__ import annotations

import math
import platform
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fledge.bundle.checkpoints import step_of
from fledge.config.writing import Choice, settings_text, toml
from fledge.errors import FledgeError, notes_kept
from fledge.files import read_json, readable_bytes, write_json
from fledge.plot import curves, in_words
from fledge.reports.page import Page

if TYPE_CHECKING:
    from fledge.evaluation import Evaluation
    from fledge.run import Run
    from fledge.training import TrainingResult

BASELINES = "baselines.json"
INDEXED = 50_000_000  # tokens; an index of more would keep a report waiting
FINAL = {
    "validation": "text that it has not seen",
    "test": "the test part, which no checkpoint or setting was chosen by",
}  # how the part that a final figure is measured on is named
PROMPTS = ("", "In the beginning", "And he said unto them,")
REPORTED_TOKENS = 1_000_000
START = "start.json"  # of a run that `fledge start` began: what it chose


class RunReport(NamedTuple):
    """Where the page lies, and the numbers on it."""

    path: Path
    evaluation: Evaluation
    baselines: dict[str, float]
    samples: list[tuple[str, str]]


def report_run(
    run: Run,
    result: TrainingResult,
    prompts: tuple[str, ...] = PROMPTS,
    *,
    choices: Sequence[Choice] = (),
    most_tokens: int | None = None,
) -> RunReport:
    """Evaluate the trained model on the test part, or on validation where there is none, and write the page.

    `choices` are told with their reasons; of a large text, `most_tokens` held-out ones are evaluated.
    """
    from fledge.training.device import choose_device

    run.use_best(choose_device(run.config.training.device))
    baselines = run_baselines(run, most_tokens)
    evaluation = run.evaluate(split=run.tokens.final, max_tokens=most_tokens)
    with notes_kept():  # what a person should know of the samples stands on the page
        texts = run.generate(list(prompts))
    samples = [(prompt, text.text) for prompt, text in zip(prompts, texts, strict=True)]
    page = Page(run.config.name, lead(run, result, evaluation))
    add_samples(page, run, samples)
    add_meaning(page, evaluation)
    add_answer(page, run, evaluation, baselines)
    add_use(page, run, prompts)
    add_curves(page, run, baselines, (result, evaluation.loss))
    add_course(page, run, result)
    add_compression(page, run, evaluation)
    add_memorised(page, run, evaluation)
    add_choices(page, choices)
    add_costs(page, run, result)
    add_settings(page, run)
    return RunReport(page.write(run.folder / "report.html"), evaluation, baselines, samples)


def report_folder(folder: Path) -> RunReport:
    """The report of the run in a folder, finished or not, from what lies there."""
    from fledge.bundle import load_bundle
    from fledge.reports.finished import result_of
    from fledge.run import Run, require_checkpoint
    from fledge.training.timeline import settings_file

    run = Run.open(folder, settings=settings_file(folder) if folder.is_dir() else None)
    require_checkpoint(folder)
    run.bundle = load_bundle(folder)
    validation = run.tokens.split("validation")
    if not len(validation.tokens):
        raise FledgeError(
            f"A report needs text that the model has not seen, and {folder} has no held-out text. Train with "
            "corpus.validation_fraction above 0."
        )
    documents = (run.tokenizer.decode_bytes(validation.document(n)) for n in range(len(validation.documents)))
    kept = read_json(folder / START) if (folder / START).is_file() else {}
    choices = [Choice(*choice) for choice in kept.get("choices", [])] if isinstance(kept, dict) else []
    prompts = ("", *openings(documents))
    return report_run(run, result_of(run), prompts, choices=choices, most_tokens=REPORTED_TOKENS)


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


def run_baselines(run: Run, most_tokens: int | None = None) -> dict[str, float]:
    """Nats per token of the n-gram models on this run's test tokens, or validation tokens, computed once and kept.

    With `most_tokens`, they are held against so many of them, and counted on a hundred times as many at most.
    """
    from fledge.evaluation import baselines

    kept = run.folder / BASELINES
    if not kept.is_file():
        store = run.tokens
        train, held_out = (store.split(name).verify().tokens for name in ("train", store.final))
        counted = None if most_tokens is None else 100 * most_tokens
        found = baselines(train[:counted], held_out[:most_tokens], run.tokenizer.vocab_size)
        write_json(kept, {"unigram": found.unigram, "bigram": found.bigram, "trigram": found.trigram})
    return {str(name): float(value) for name, value in read_json(kept).items()}


def lead(run: Run, result: TrainingResult, evaluation: Evaluation) -> str:
    bits = f"{evaluation.bits_per_byte:.3f} bits per byte, " if evaluation.bits_per_byte else ""
    return (
        f"A {run.config.model.architecture} of {run.model.parameters_count():,} parameters, trained on "
        f"{result.tokens:,} tokens of {text_name(run)}. On {FINAL[run.tokens.final]}: "
        f"{bits}{evaluation.loss:.3f} nats per token."
    )


def add_meaning(page: Page, evaluation: Evaluation) -> None:
    """The measures in plain words, for somebody who meets them for the first time."""
    page.heading("What the numbers mean")
    if bits := evaluation.bits_per_byte:
        page.paragraph(
            "Bits per byte measure how well the model predicts text that it has not seen. A byte is a letter of plain "
            "English. Guessing blindly takes 8 bits for each; a model that always knew what comes next would take 0. "
            f"This one takes {bits:.2f}: with its help, 1,000 bytes of such text could be stored in {125 * bits:,.0f}."
        )
    page.paragraph(
        "The loss in nats per token is the same measure for each token (a piece of text, often a word), with another "
        "logarithm. Perplexity is the number of tokens between which the model hesitates, on average. Lower is better "
        "for all of them. An n-gram model only counts: a unigram how often each token occurs, a bigram which token "
        "follows which, a trigram which follows each pair. Kneser–Ney is the usual way to fill the gaps in such "
        "counts. A trained model should beat them all."
    )


def add_use(page: Page, run: Run, prompts: Sequence[str]) -> None:
    """The commands that use the model and hand it to others."""
    page.heading("How to use and share it")
    prompt = next((prompt for prompt in prompts if prompt), run.config.sampling.prompt)
    name = run.folder.absolute().name
    lines = (
        (("generate", run.folder, "--prompt", prompt), "continue a text"),
        (("generate", run.folder, "--interactive"), "one prompt after the other"),
        (("serve",), "a page in the browser, for this machine"),
        (("bundle", "pack", run.folder, f"{name}.zip", "--no-training"), "one file for somebody else, who runs:"),
        (("generate", f"{name}.zip"), ""),
        (("bundle", "export", run.folder, f"{name}-hub"), "for Hugging Face's transformers, where it knows the model"),
        (("bundle", "export", run.folder, f"{name}.gguf"), "for llama.cpp and Ollama, likewise"),
    )
    page.code(
        "\n".join(f"fledge {shlex.join(map(str, words))}" + (f"  # {why}" if why else "") for words, why in lines)
    )


def add_answer(page: Page, run: Run, evaluation: Evaluation, baselines: dict[str, float]) -> None:
    held_out = run.tokens.split(run.tokens.final)
    bytes_per_token = held_out.source_bytes / len(held_out.tokens)
    if evaluation.bytes:  # of what was evaluated, which may be a part
        bytes_per_token = evaluation.bytes / evaluation.tokens
    rows: list[tuple[str, float]] = [
        (f"{name} (Kneser–Ney)" if name != "unigram" else name, loss) for name, loss in baselines.items()
    ]
    rows = sorted([*rows, ("this model", evaluation.loss)], key=lambda row: -row[1])
    page.table(
        ["predicting the held-out text with", "nats per token", "perplexity", "bits per byte"],
        [(name, loss, math.exp(loss), loss / math.log(2) / bytes_per_token) for name, loss in rows],
        strong=[name for name, _ in rows].index("this model"),
    )
    best = min(baselines, key=lambda name: baselines[name])
    beaten = [name for name, loss in baselines.items() if evaluation.loss < loss]
    if best in beaten:
        margin = baselines[best] - evaluation.loss
        verdict = f"The model beats every n-gram baseline on held-out text: the {best} by {margin:.2f} nats."
    elif beaten:
        verdict = (
            f"The model beats the {' and the '.join(beaten)}, and not yet the {best}: train longer"
            f"{' (fledge train akjv)' if run.config.name == 'akjv-demo' else ''}."
        )
    else:
        verdict = "The model is no better than counting tokens: it has not learned yet. Train longer."
    page.paragraph(
        f"{verdict} All rows are measured on the same {evaluation.tokens:,} tokens of {FINAL[held_out.name]}. "
        "Neither the model nor the counts have seen them; the model saw "
        f"{evaluation.mean_context:.0f} tokens of context on average."
    )


def add_curves(
    page: Page, run: Run, baselines: dict[str, float], model: tuple[TrainingResult, float] | None = None
) -> None:
    """The losses by tokens, and where the `model` lies that came of the training, with its loss."""
    from fledge.bundle.checkpoints import read_metrics

    page.heading("How it learned")
    rows = read_metrics(run.folder / "metrics.csv")
    lines = {}
    for name, column in (("training", "loss"), ("validation", "validation_loss")):
        points = [(float(row["tokens"]), float(row[column])) for row in rows if row[column]]
        if points:
            lines[name] = ([x for x, _ in points], [y for _, y in points])
    timed = [(float(row["tokens"]), float(row["seconds"])) for row in rows if row["tokens"] and row["seconds"]]
    times = ([tokens for tokens, _ in timed], [seconds for _, seconds in timed])
    point, caption = None, "Loss against tokens seen, and above them the time."
    if baselines:
        caption += " The dashed lines are the n-gram baselines."
    if model is not None:
        result, loss = model
        step = step_of(result.best) or result.step
        at = next((float(row["tokens"]) for row in rows if row["step"] == str(step)), float(result.tokens))
        point = (f"the model: {loss:.3f}", at, loss)
        caption += (
            " The dot is the model of this report. It is measured with more context and more text than the curve, so "
            "it may lie beside it."
        )
    page.figure(curves(lines, "tokens", "nats per token", levels=baselines, times=times, point=point), caption)
    if "training" in lines and "validation" in lines and lines["validation"][1][-1] < lines["training"][1][-1]:
        page.paragraph(why_below(run))


def why_below(run: Run) -> str:
    """Why the validation loss may lie below the training loss, with what of it holds for this run."""
    reasons = ["the training loss is a mean over the steps before its point, when the model knew less"]
    if run.config.model.dropout:
        reasons.insert(0, "dropout hides parts of the model while it trains, and never while it is evaluated")
    if run.config.training.average:
        reasons.insert(0, "the evaluated weights are a moving average, which is often better than those in training")
    return f"The validation loss lies below the training loss. That is no mistake: {'; '.join(reasons)}."


def add_compression(page: Page, run: Run, evaluation: Evaluation) -> None:
    """What programs that people know need for the same held-out text after the same training text."""
    from fledge.evaluation.compression import HELD_OUT, TRAINING, compression

    texts = []
    for name, most in (("train", TRAINING), (run.tokens.final, HELD_OUT)):
        split = run.tokens.split(name)
        count = int(1.2 * most * len(split.tokens) / max(1, split.source_bytes)) + 1
        part = split.tokens[-count:] if name == "train" else split.tokens[:count]
        texts.append(run.tokenizer.decode_bytes(part))
    found = compression(*texts)
    if found is None:
        return
    rows = [*found.bits.items(), *([("this model", evaluation.bits_per_byte)] if evaluation.bits_per_byte else [])]
    rows = sorted(rows, key=lambda row: -row[1])
    strong = next((number for number, (name, _) in enumerate(rows) if name == "this model"), None)
    page.table(["compressing the held-out text with", "bits per byte"], rows, strong=strong)
    page.paragraph(
        "xz and bz2 are widely used compressors. Each compressed the training text with and without the held-out text "
        f"behind it; the difference is what the held-out text costs. The last {readable_bytes(found.training)} of the "
        f"training text and the first {readable_bytes(found.held_out)} of the held-out text were used."
    )


def add_course(page: Page, run: Run, result: TrainingResult) -> None:
    """Which step is handed over, whether the run overfitted, and what to change."""
    from fledge.bundle.checkpoints import evaluations
    from fledge.training.metrics import course

    found = course(evaluations(run.folder))
    if found is None:
        return
    handed = f"The model handed over is that of step {step_of(result.best) or result.step:,} of {result.steps:,}."
    if found.risen:
        verdict = (
            f"The run overfitted: the validation loss was lowest at step {found.best_step:,} ({found.best:.3f}) and "
            f"had risen to {found.last:.3f} by step {found.last_step:,}. More text helps most. Otherwise raise "
            "optimizer.weight_decay or model.dropout, or train a smaller model or for fewer steps."
        )
    elif not found.since:
        verdict = (
            f"The run did not overfit: the validation loss was lowest at its last evaluation, at step "
            f"{found.last_step:,}. More steps may lower it further."
        )
    else:
        verdict = (
            f"The run did not overfit notably: the validation loss was lowest at step {found.best_step:,} "
            f"({found.best:.3f}) and ended at {found.last:.3f}. More steps alone will not lower it much: try more text "
            "or a larger model."
        )
    page.paragraph(f"{verdict} {handed}")


def add_samples(page: Page, run: Run, samples: list[tuple[str, str]]) -> None:
    page.heading("What it writes")
    sampling = run.config.sampling
    page.paragraph(
        f"Temperature {sampling.temperature:g}, seed {sampling.seed}; what the model wrote follows ▸, after the prompt."
    )
    for prompt, text in samples:
        page.quote(f"{prompt}▸{text}" if prompt else f"▸{text}")


def add_memorised(page: Page, run: Run, evaluation: Evaluation) -> None:
    """What the model says word for word as its text does, beside what people repeat; and the loss without leaks."""
    from fledge.evaluation.memorised import memorised, without_leaks

    store = run.tokens
    if len(store.split("train").tokens) > INDEXED:
        return
    found = memorised(run.model, run.tokenizer, store, run.config.sampling)
    leaked, loss = without_leaks(store, evaluation.by_document, store.final)
    page.heading("What it learned by heart")
    human = "–" if found.held_out is None else f"{found.held_out:.1%}"
    page.table(
        ["", ""],
        [
            ("generated tokens in stretches of 20 or more that stand in the training text", f"{found.generated:.1%}"),
            ("the same of held-out text, which people wrote", human),
            ("training passages continued word for word, 32 tokens after 32", f"{found.extracted:.1%}"),
            ("longest generated stretch that stands in the training text, in tokens", found.longest),
            ("held-out documents of which half or more stands in the training text", f"{leaked:.1%}"),
        ],
    )
    verdict = (
        "The model has learned its text by heart: what it writes is to a large part copied. Train it for fewer passes, "
        "or on more text."
        if found.by_heart
        else "The model has not learned its text by heart."
    )
    if leaked and loss is not None:
        verdict += f" Without the held-out documents that leaked, its loss is {loss:.3f} nats per token."
    page.paragraph(f"{verdict} fledge generate --sources shows where a text stands in the training text.")


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
