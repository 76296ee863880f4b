"""What the notebook of `fledge kaggle` calls once fledge is installed there: take up a run, tokenize, collect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.kaggle.pack import slug_of

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.training import TrainingResult

TOKENS = "tokens"
STEP_LINE = re.compile(r"step \d+/(\d+), ")
LARGE = 30_000_000  # training tokens beyond which the report leaves out the n-gram baselines, which take much memory


def take_up(name: str, inputs: Path, working: Path) -> tuple[Path, int]:
    """The run's folder and the step it is at: that of the furthest run of this name among the inputs and the results.

    A run of an earlier version lies in a folder that cannot be written; it is copied into `working`, with its tokens.
    """
    from fledge.runs.checkpoints import checkpoints

    place = working / "runs" / name
    steps = {place: _step(place)}
    for found in sorted(inputs.rglob(f"runs/{name}/config.json")):
        if checkpoints(found.parent):
            steps[found.parent] = _step(found.parent)
    best = max(steps, key=lambda folder: steps[folder])
    if best != place and steps[best] > steps[place]:
        _copy(best, place)
        if (tokens := best.parents[1] / TOKENS / name).is_dir():
            _copy(tokens, working / TOKENS / name)
        steps[place] = steps[best]
    return place, steps[place]


def _copy(folder: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, copy_function=shutil.copyfile)
    for place in (target, *(path for path in target.rglob("*") if path.is_dir())):
        place.chmod(0o755)


def _step(folder: Path) -> int:
    from fledge.runs.checkpoints import checkpoints

    return max((int(path.name.rpartition("-")[2]) for path in checkpoints(folder)), default=0)


def changed_settings(recipe: Path, folder: Path) -> list[str]:
    """Settings in which a run that was taken up differs from the recipe; its length and its tokens' place may."""
    from fledge.config import load_recipe
    from fledge.files import read_json
    from fledge.runs.folder import differences
    from fledge.runs.layout import CONFIG

    if not (folder / CONFIG).is_file():
        return []
    found = differences(read_json(folder / CONFIG), load_recipe(str(recipe)).model_dump(mode="json"))
    return [
        change for change in found if not change.startswith(("training.steps ", "training.tokens ", "tokens.store "))
    ]


def lengths(recipe: Path) -> list[str]:
    """The recipe's length as changes for a resumed run, so that a longer recipe trains on."""
    from fledge.config import load_recipe

    training = load_recipe(str(recipe)).training
    values = {"steps": training.steps, "tokens": training.tokens}
    return [f"--set=training.{key}={'none' if value is None else value}" for key, value in values.items()]


def tokenize(recipe: Path, working: Path) -> list[str]:
    """Train the tokenizer and write the tokens, unless an earlier version has; where they lie, as a change to the run.

    They lie beside the run, as a store that settings name: the text's time of change differs with every attachment.
    """
    from fledge.config import RunConfig, load_recipe
    from fledge.corpus.fetch import NAMED, fetch_corpus
    from fledge.run import Run
    from fledge.tokens import TokenStore, write_store

    config = load_recipe(str(recipe))
    if config.tokens.store is not None:
        return []
    for name in (*config.corpus.source, *config.corpus.validation_source):
        if name in NAMED and not os.path.exists(name):
            fetch_corpus(name)  # what is there already is left alone
    folder = working / TOKENS / config.name
    place = folder / "tokens"
    if not (place / "store.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        run = Run(RunConfig(name=config.name, corpus=config.corpus, tokenizer=config.tokenizer), folder)
        write_store(run.corpus, run.tokenizer, place)
    store = TokenStore.open(place)
    for name in ("train", "validation"):
        split = store.split(name)
        print(f"{name}: {len(split.tokens):,} tokens of {split.source_bytes:,} bytes")
    return [f"--set=tokens.store={place}"]


def train(command: list[str], folder: Path) -> None:
    """Run a training in processes of its own and show it: in a notebook as one chart, elsewhere line by line.

    Of a notebook's lines, those of single steps are left out: hours of them would fill its file.
    """
    from fledge.notebook import running_cell
    from fledge.runs.layout import METRICS, SAMPLES
    from fledge.runs.metrics import newest, read_metrics
    from fledge.training.chart import LossChart

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1
    )
    assert process.stdout is not None
    chart, cell, last = None, running_cell(), ""
    for line in process.stdout:
        step = STEP_LINE.match(line)
        if step is None or cell is None:
            print(line, end="", flush=True)
            continue
        if chart is None:
            chart = LossChart(folder.name, int(step[1]), cell)
            chart.rows = lambda: read_metrics(folder / METRICS)
        chart.sample, last = newest(folder / SAMPLES), line.rstrip()
        chart.update(last)
    code = process.wait()
    if chart is not None:
        chart.sample = newest(folder / SAMPLES)
        chart.close(last)
    if code:
        raise RuntimeError(f"Training ended with code {code}; what was saved is in {folder}.")


def collect(folder: Path, working: Path) -> list[Path]:
    """The model as one file, the metrics, the curve and the report, at the top of `working`; their paths."""
    from fledge.bundle import load_bundle
    from fledge.bundle.archive import pack as pack_bundle
    from fledge.reports.finished import result_of
    from fledge.reports.run import PROMPTS, report_run
    from fledge.run import Run
    from fledge.runs import find_bundle
    from fledge.training.device import choose_device

    run = Run.open(folder)
    run.bundle = load_bundle(find_bundle(folder))
    target = working / f"{slug_of(run.config.name).removeprefix('fledge-')}.zip"
    target.unlink(missing_ok=True)
    found = [pack_bundle(run.bundle.path, target, training=False)]
    run.use_best(choose_device(run.config.training.device))
    result = result_of(run)
    prompts = PROMPTS if "akjv" in run.config.corpus.source else (run.config.sampling.prompt,)
    if len(run.tokens.split("train").tokens) <= LARGE and len(run.tokens.split("validation").tokens) > 2:
        report_run(run, result, prompts)
    else:
        plain_report(run, result, prompts)
    for name in ("metrics.csv", "loss.svg", "report.html"):
        if (folder / name).is_file():
            found.append(Path(shutil.copyfile(folder / name, working / name)))
    return found


def plain_report(run: Run, result: TrainingResult, prompts: tuple[str, ...]) -> None:
    """The report of a run whose tokens are too many, or too few held out, to count n-grams for."""
    from fledge.reports import run as report
    from fledge.reports.course import add_learning_curves
    from fledge.reports.page import Page

    samples = [(prompt, text.text) for prompt, text in zip(prompts, run.generate(list(prompts)), strict=True)]
    loss = f"{result.validation_loss:.3f}" if result.validation_loss is not None else "no"
    page = Page(
        run.config.name,
        f"{run.model.parameters_count():,} parameters, step {result.step:,} of {result.steps:,}, {result.tokens:,} "
        f"tokens: a validation loss of {loss} nats per token.",
    )
    add_learning_curves(page, run, {})
    report.add_texts(page, run, samples)
    report.add_costs(page, run, result)
    report.add_settings(page, run)
    page.write(run.folder / "report.html")
