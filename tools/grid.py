"""What size, passes and text give: trains a grid of small models with the recipes of `fledge start`, one CSV row each.

    python -m tools.grid grid.csv books=books.txt code=stdlib.txt --bytes 300k 1m --shapes 2x64 4x128 --passes 1 4

Rows that are in the file already are not trained again, so the same command goes on after a kill. `--limit` leaves out
cells that need more than so many training FLOPs. `stdlib` as a path is the source of Python's own library.
tools/fit_law.py reads the columns; docs/results/little-text.md says what came of it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fledge.accounting import Account
from fledge.config import CorpusConfig, RunConfig, TokenizerConfig, override_config, parse
from fledge.corpus import Corpus
from fledge.evaluation import baselines
from fledge.run import Run
from fledge.start import choose, law
from fledge.start.look import look_at
from fledge.start.plan import TEST

COLUMNS = (
    "text", "bytes", "fast", "vocabulary", "unique", "layers", "width", "parameters", "context", "batch", "steps",
    "passes", "decay", "dropout", "rate", "seed", "overrides", "bits_per_byte", "last_bits", "bigram", "trigram",
    "bytes_per_token", "seconds", "processor_seconds",
)  # fmt: skip


def library(size: int) -> bytes:
    """Python's own standard library, file by file."""
    root, text = Path(sysconfig.get_path("stdlib")), bytearray()
    for path in sorted(root.rglob("*.py")):
        if not {"site-packages", "test", "tests"} & set(path.parts):
            text += path.read_bytes() + b"<|endoftext|>"
        if len(text) > size:
            break
    return bytes(text[:size])


def beginning(source: str, size: int) -> bytes:
    """The first bytes of a text, up to the last whole line."""
    if source == "stdlib":
        text = library(size)
    else:
        with Corpus.open(source, validation_fraction=0).sources[0].open() as stream:
            text = bytes(stream.read(size))
    return text[: text.rfind(b"\n") + 1]


def number(text: str) -> int:
    """
    >>> number("300k"), number("1.5m")
    (300000, 1500000)
    """
    return round(float(text.rstrip("kmKM")) * {"k": 1e3, "m": 1e6}.get(text[-1].lower(), 1))


class Text:
    """One text cut to a size, with its tokenizer and token store, and what counting reaches on its test part."""

    def __init__(self, name: str, source: str, size: int, folder: Path, fast: bool, overrides: list[str]) -> None:
        self.name, self.size, self.fast, self.overrides = name, size, fast, overrides
        self.folder = folder / f"{name}-{size}"
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "text.txt"
        path.write_bytes(beginning(source, size))
        corpus = parse(CorpusConfig, {"source": [str(path)], "test_fraction": TEST})
        corpus = override_config(RunConfig(corpus=corpus), _of(overrides, "corpus.")).corpus
        look = look_at(Corpus.from_config(corpus))
        kind, vocabulary, _ = choose.choose_vocabulary(look, fast)
        tokenizer = parse(TokenizerConfig, {"kind": kind} | ({"vocabulary_size": vocabulary} if vocabulary else {}))
        base = override_config(RunConfig(name=name, corpus=corpus, tokenizer=tokenizer), _of(overrides, "tokenizer."))
        self.run = Run(base, self.folder / "store", quiet=True)
        self.config, self.documents = base, look.documents
        self.unique = len(self.run.tokens.split("train").tokens)
        held_out = self.run.tokens.split("test")
        self.bytes_per_token = held_out.source_bytes / len(held_out.tokens)
        counted = baselines(self.run.tokens.split("train").tokens, held_out.tokens, self.run.tokenizer.vocab_size)
        bits = 1 / (math.log(2) * self.bytes_per_token)
        self.bigram, self.trigram = counted.bigram * bits, counted.trigram * bits

    def cell(self, shape: tuple[int, int], passes: float, context: int, seed: int, given: list[str]) -> RunConfig:
        """The run that `start` would choose for this size and these passes."""
        tokens = passes * self.unique
        batch = choose.choose_batch(tokens, context)
        steps = max(30, round(tokens / (batch * context)))
        model = choose.model_of(*shape, self.fast)
        size = Account(model, self.run.tokenizer.vocab_size, context).parameters.inside
        crowding = choose.crowding(law.Text(self.unique), size, self.fast)
        rate, often = choose.choose_rate(shape[1]), max(1, steps // (8 if passes > 2 else 4))
        schedule = choose.choose_schedule(passes)[0]
        settings: dict[str, Any] = {
            "optimizer.name": "muon",
            "optimizer.learning_rate": rate,
            "optimizer.weight_decay": choose.choose_decay(passes, crowding)[0],
            **schedule,
            "schedule.warmup_steps": min(100, steps // 10),
            "schedule.final_fraction": 0.0,
            "training.steps": steps,
            "training.batch_size": batch,
            "training.seed": seed,
            "training.evaluate_every": often,
            "training.save_every": 0,
            "training.sample_every": 0,
            "training.log_every": often,
            "tokens.context_length": context,
            "tokens.store": str(self.folder / "store" / "tokens"),
        }
        if not self.fast:
            settings |= {"training.start": "pairs", "optimizer.matrix_learning_rate": 0.03}
            if passes >= choose.FEW_FOR_SMALL:
                settings |= dict.fromkeys(("optimizer.embedding_decay", "optimizer.head_decay"), choose.ROW_DECAY)
        model = model.model_copy(update={"dropout": choose.choose_dropout(passes, crowding)[0]})
        config = self.config.model_copy(update={"model": model})
        lines = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
        return override_config(config, lines + given)

    def train(self, config: RunConfig, overrides: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(config, folder + "/run", quiet=True)
            began, processor = time.monotonic(), time.process_time()
            result = run.train(quiet=True)
            if result.stopped:
                raise SystemExit(f"Stopped ({result.stopped}). The same command goes on.")
            seconds, used = time.monotonic() - began, time.process_time() - processor
            found = run.evaluate(split="test", max_tokens=1_000_000)
        model, training = config.model, config.training
        account = Account(model, run.tokenizer.vocab_size, config.tokens.context_length)
        seen = config.steps * training.batch_size * config.tokens.context_length
        values = (
            self.name, self.size, int(self.fast), run.tokenizer.vocab_size, self.unique, model.layers, model.width,
            account.parameters.total, config.tokens.context_length, training.batch_size, config.steps,
            round(seen / self.unique, 3), config.optimizer.weight_decay, model.dropout,
            config.optimizer.learning_rate, training.seed, overrides, round(found.bits_per_byte or math.nan, 4),
            round(result.bits_per_byte or math.nan, 4), round(self.bigram, 4), round(self.trigram, 4),
            round(self.bytes_per_token, 3), round(seconds, 1), round(used, 1),
        )  # fmt: skip
        return dict(zip(COLUMNS, values, strict=True))


def _of(overrides: list[str], group: str) -> list[str]:
    return [line for line in overrides if line.startswith(group)]


def known(path: Path) -> set[tuple[str, ...]]:
    if not path.is_file():
        return set()
    with path.open(newline="") as file:
        return {key(row) for row in csv.DictReader(file)}


def key(row: dict[str, Any]) -> tuple[str, ...]:
    names = ("text", "bytes", "fast", "layers", "width", "context", "seed", "overrides")
    return (*(str(row[name]) for name in names), f"{float(row['passes']):.1f}")


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, int, tuple[int, int], float, int]]:
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    texts = [text.partition("=")[::2] for text in options.texts]
    for size, (name, source) in itertools.product(map(number, options.bytes), texts):
        for passes, shape, seed in itertools.product(options.passes, shapes, options.seeds):
            yield name, source, size, shape, passes, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the CSV file, which grows by one row a run")
    parser.add_argument("texts", nargs="+", metavar="NAME=TEXT")
    parser.add_argument("--bytes", nargs="+", default=["1m"])
    parser.add_argument("--shapes", nargs="+", default=["2x64", "3x96", "4x128"])
    parser.add_argument("--passes", nargs="+", type=float, default=[1, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--set", nargs="+", default=[], metavar="A.B=C", dest="given")
    parser.add_argument("--limit", type=float, default=math.inf, metavar="FLOPS")
    parser.add_argument("--work", type=Path, default=None, help="where texts and token stores are kept")
    options = parser.parse_args()
    done, fast = known(options.table), torch.cuda.is_available()
    texts: dict[tuple[str, int], Text] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, source, size, shape, passes, seed in cells(options):
            if (name, size) not in texts:
                given = options.given
                texts[name, size] = Text(name, source, size, options.work or Path(temporary), fast, given)
            text = texts[name, size]
            config = text.cell(shape, passes, options.context, seed, options.given)
            account = Account(config.model, text.run.tokenizer.vocab_size, options.context)
            tokens = config.steps * config.training.batch_size * config.tokens.context_length
            overrides = " ".join(options.given)
            row = {
                "text": name, "bytes": size, "fast": int(fast), "layers": config.model.layers,
                "width": config.model.width, "context": config.tokens.context_length, "seed": seed,
                "overrides": overrides, "passes": round(tokens / text.unique, 3),
            }  # fmt: skip
            if key(row) in done or account.flops_per_token * tokens > options.limit:
                continue
            found = text.train(config, overrides)
            done.add(key(row))
            new = not options.table.is_file()
            with options.table.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow(found)
            print(
                f"{name} {size:,} {shape[0]} × {shape[1]}, {found['passes']} passes, seed {seed} {overrides}: "
                f"{found['bits_per_byte']} bits per byte (trigram {found['trigram']}) "
                f"in {found['seconds']} s, {found['processor_seconds']} of the processor",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
