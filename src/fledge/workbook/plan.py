"""The workbook's plan: texts, the recipe that is trained, and how long. Written once, before the first answer.

A time budget becomes steps by measuring this machine, and bytes of text by its length; the stored plan keeps both, so
the same plan gives the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fledge.config import CorpusConfig, RunConfig, load_recipe, override_config, parse
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.experiments.compare import RATES as FACTORS
from fledge.experiments.compare import arm_config
from fledge.experiments.plan import DATA, PLAN, TIMING, Pace, check_corpus, warm_up_was_set
from fledge.experiments.timing import CostClock, TooShort, minutes, steps_that_fit
from fledge.files import atomic_write, read_json, write_json
from fledge.runs.folder import differences
from fledge.start.look import look_at
from fledge.tokenizer.compare import limited

TEXTS = "texts"
SEPARATOR = "<|endoftext|>"
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)
"Learning rates to sweep: from timid to certainly too high."
BATCH_FACTORS, RATE_FACTORS = (0.125, 1.0, 4.0), (0.316, 1.0, 3.16)
ABLATED = 6  # trials of the four ablations: as it is, no norm at two rates, post-norm, no position, SiLU
LAID, SIZED = 8, 4  # trials of the ways to lay windows, and of the vocabulary sizes
COMPARED = ("gpt2", "bdh")
SEEDS = 2  # of the comparison
SHARES = {"rates": 0.17, "batches": 0.19, "ablations": 0.17, "main": 0.19, "windows": 0.08, "vocabulary": 0.04}
SHARES |= {"comparison": 0.08}
"Parts of the budget that go to the trainings; what is left is for the text and the page."
OPTIONAL = ("windows", "vocabulary", "comparison")
"What a budget that is too short for it leaves out."
TEXT_BYTES, TRAINING_BYTES = 2_000_000, 50_000
"Bytes for each second of the budget: that the tokenizers read, and that the models see."
LEAST_BYTES = 8_000_000
SHORTEST = 30.0


@dataclass(frozen=True)
class BookPlan:
    """All that fixes the numbers."""

    corpora: dict[str, list[str]]
    "A short name for each text, and where it lies."
    budget: str
    recipe: str
    changes: list[str]
    seconds: float
    steps: dict[str, int]
    evaluate_windows: int
    threads: int
    trained: dict[str, dict[str, Any]]
    "For each text, the corpus settings that the trainings change: the text itself, or its beginning where it is large."

    def steps_of(self, part: str) -> int:
        """Of one part; 0 where the budget leaves it out. A plan older than the question has those of the ablations."""
        return self.steps[part if part in self.steps else "ablations"]

    @property
    def text_bytes(self) -> int:
        return max(LEAST_BYTES, int(self.seconds * TEXT_BYTES))

    def corpus(self, name: str) -> Corpus:
        """The whole text, read as the recipe's settings say."""
        return Corpus.from_config(base_config(self.recipe, self.changes, {"source": self.corpora[name]}).corpus)

    def config(self, name: str, part: str) -> RunConfig:
        """The run of one part of the workbook on one text."""
        steps = self.steps_of(part)
        config = base_config(self.recipe, self.changes, self.trained[name])
        warmup = config.schedule.warmup_steps
        if not warm_up_was_set(config):
            warmup = min(warmup, max(1, steps // 10))
        return override_config(
            config,
            [
                "training.tokens=none",
                f"training.steps={steps}",
                f"training.evaluate_windows={self.evaluate_windows}",
                f"training.threads={self.threads}",
                f"schedule.warmup_steps={warmup}",
            ],
        )


def base_config(recipe: str, changes: Sequence[str], corpus: dict[str, Any]) -> RunConfig:
    """The recipe on a text, with AdamW as in the course, unless another optimizer is asked for."""
    config = load_recipe(recipe, ["optimizer.name=adamw", *changes])
    values = {**config.corpus.model_dump(mode="json"), **corpus}
    return config.model_copy(update={"corpus": parse(CorpusConfig, values)})


def short_names(sources: Sequence[str]) -> dict[str, list[str]]:
    """
    >>> short_names(["akjv", "texts/novels.txt", "other/novels.txt"])
    {'akjv': ['akjv'], 'novels': ['texts/novels.txt'], 'novels 2': ['other/novels.txt']}
    """
    found: dict[str, list[str]] = {}
    for source in sources:
        stem = Path(source.rstrip("/")).name.partition(".")[0] or "text"
        name, number = stem, 1
        while name in found:
            number += 1
            name = f"{stem} {number}"
        found[name] = [source]
    return found


def settle(
    sources: Sequence[str], folder: Path, budget: str, seconds: float, recipe: str, changes: Sequence[str]
) -> BookPlan:
    """The stored plan where it asks the same, or a new one, for which this machine is measured."""
    asked: dict[str, Any] = {
        "corpora": short_names(sources),
        "budget": budget,
        "recipe": recipe,
        "changes": list(changes),
    }
    if "-" in sources:
        raise FledgeError("A workbook reads its text several times, and standard input only once. Name a file.")
    if (folder / PLAN).is_file():
        stored = read_json(folder / PLAN)
        differing = differences({key: stored.get(key) for key in asked}, json.loads(json.dumps(asked)))
        if differing:
            raise FledgeError(
                f"{folder} holds another workbook ({'; '.join(differing[:3])}). Name another folder with -o."
            )
        return BookPlan(**stored)
    if folder.exists() and {path.name for path in folder.iterdir()} - {DATA, TIMING, TEXTS}:
        raise FledgeError(f"{folder} exists already and holds no workbook. Choose another folder with -o.")
    if seconds < SHORTEST:
        raise FledgeError(f"--budget {budget} is too short for a workbook: give at least {SHORTEST:.0f}s, such as 5m.")
    plan = measure_machine(
        BookPlan(**asked, seconds=seconds, steps={}, evaluate_windows=0, threads=0, trained={}), folder
    )
    write_json(folder / PLAN, asdict(plan))
    return plan


def measure_machine(plan: BookPlan, folder: Path) -> BookPlan:
    """The plan with what this machine and the texts allow."""
    import torch

    began = time.monotonic()
    base_config(plan.recipe, plan.changes, {})  # a mistake in the settings is found before anything is written
    most = max(LEAST_BYTES, int(plan.seconds * TRAINING_BYTES))
    trained = {
        name: training_text(name, plan.corpus(name), sources, most, folder) for name, sources in plan.corpora.items()
    }
    first = next(iter(trained.values()))
    config = base_config(plan.recipe, plan.changes, first)
    threads = config.training.threads or torch.get_num_threads()
    config = override_config(config, [f"training.threads={threads}"])
    asked = any(text.partition("=")[0].strip() == "training.steps" for text in plan.changes)
    fixed = config.training.steps if asked else None
    if fixed is not None:
        paces = {part: Pace(fixed, config.training.evaluate_windows) for part in SHARES}
    else:
        paces = paces_of(config, plan, folder, began)
    for corpus in trained.values():
        text = base_config(plan.recipe, plan.changes, corpus)
        check_corpus(text, paces["main"].steps if fixed is None else 0, folder)
    return BookPlan(
        **{
            **asdict(plan),
            "steps": {part: pace.steps for part, pace in paces.items()},
            "evaluate_windows": min(pace.evaluate_windows for pace in paces.values() if pace.steps),
            "threads": threads,
            "trained": trained,
        }
    )


def paces_of(config: RunConfig, plan: BookPlan, folder: Path, began: float | None = None) -> dict[str, Pace]:
    """Steps of each part, from the measured cost of a step of each batch size.

    A budget that is too short for one of them is refused, with one that is not.
    """
    clock, size = CostClock(folder, plan.seconds, began), config.training.batch_size
    each = clock.cost(config)
    by_batch = [
        clock.cost(override_config(config, [f"training.batch_size={batch}"]), size)
        for batch in batch_sizes_around(size)
    ]
    costs = {
        "rates": [each] * len(RATES),
        "batches": by_batch * len(RATE_FACTORS),
        "ablations": [each] * ABLATED,
        "main": [each] * len(plan.corpora),
        "windows": [each] * LAID,
        "vocabulary": [each] * SIZED,
        "comparison": [clock.cost(arm_config(name, config)) for name in COMPARED] * (len(FACTORS) + SEEDS - 1),
    }
    windows = config.training.evaluate_windows
    paces, needed = {}, 0.0
    for part, share in SHARES.items():
        try:
            paces[part] = steps_that_fit(costs[part], share * plan.seconds, plan.budget, windows)
        except TooShort as error:
            paces[part] = Pace(0, windows)
            needed = max(needed, 0 if part in OPTIONAL else error.needed / share)
    if needed:
        raise FledgeError(
            f"--budget {plan.budget} is too short for the trainings of a workbook with this model on this machine. "
            f"Give about {minutes(needed)}, or a smaller model, such as --set model.layers=1."
        )
    return paces


def batch_sizes_around(size: int) -> list[int]:
    return sorted({max(1, round(size * factor)) for factor in BATCH_FACTORS})


def training_text(name: str, corpus: Corpus, sources: list[str], most: int, folder: Path) -> dict[str, Any]:
    """The text itself, or, where it is larger than the time allows to learn from, its beginning as a file."""
    if look_at(corpus).bytes <= most:
        return {"source": sources}
    mark = hashlib.sha256(repr((sources, corpus.description, most)).encode()).hexdigest()[
        :8
    ]  # one for each call's text
    target = (folder / TEXTS / f"{name}-{mark}.txt").absolute()
    if not target.is_file():
        with atomic_write(target) as file:
            for block in limited(corpus, most):
                ends = block.offsets.tolist()
                for start, end in pairwise(ends):
                    file.write(bytes(block.buffer[start:end]) + SEPARATOR.encode())
    return {"source": [str(target)], "format": "text", "separator": SEPARATOR, "validation_source": []}
