"""A small world to serve: two runs with a real bundle each, a broken one, and tokenizers; made in a second."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from fledge.bundle import save_bundle
from fledge.config import RunConfig, SamplingConfig, load_recipe
from fledge.corpus import Corpus
from fledge.generation import generate
from fledge.model import build_model
from fledge.runs.metrics import COLUMNS
from fledge.tokenizer import CharacterTokenizer, Tokenizer, WordTokenizer, train_bpe
from fledge.tokens import write_store
from fledge.tokens.index import PassageIndex
from fledge.web.library import Library
from fledge.web.shelf import Shelf

TEXT = """In the beginning was the egg, and the egg was warm; therefore the hen sat on it.
Wherefore art thou so patient, said the fox. Before the forest woke, the egg moved.
And the hen said: let there be light, and there was light, and the chick saw it.
It was naïve, it was small; it cost 3 € and a café’s patience. 鸡蛋 🥚 🐣
"""
SMALL = [
    "model.layers=2",
    "model.width=32",
    "model.heads=4",
    "tokens.context_length=64",
    "training.steps=200",
]


def make_world(folder: Path) -> Path:
    """Everything below `folder/runs` and `folder/tokenizers`; returns `folder`."""
    tokenizer = train_bpe([TEXT.encode()] * 3, 370, ["<|endoftext|>"])
    make_run(folder / "runs" / "alpha", tokenizer, ["model.feed_forward=swiglu"], steps=200, seed=1)
    make_run(folder / "runs" / "beta", tokenizer, ["optimizer.learning_rate=0.002"], steps=120, seed=2)
    broken = folder / "runs" / "broken"
    broken.mkdir()
    (broken / "metrics.csv").write_bytes(b"\xff\xfe\x00 not, a\ntable")
    (broken / "config.json").write_text("{")
    folders = folder / "tokenizers"
    tokenizer.save(folders / "bpe-370")
    train_bpe([TEXT.encode()] * 3, 300, ["<|endoftext|>"]).save(folders / "bpe-300")
    WordTokenizer.train([TEXT]).save(folders / "words")
    CharacterTokenizer.train([TEXT]).save(folders / "characters")
    return folder


def make_run(folder: Path, tokenizer: Tokenizer, overrides: list[str], steps: int, seed: int) -> None:
    config = load_recipe("akjv-demo", [*SMALL, *overrides, f"name={folder.name}"])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    write_metrics(folder, range(0, steps + 1, 5), seed)
    parts = [f"──────── step {step} ────────\nAnd the egg said {step}.\n\n" for step in (50, 100)]
    (folder / "samples.txt").write_text("".join(parts), encoding="utf-8")
    for step in (steps // 2, steps):
        make_bundle(folder / "checkpoints" / f"step-{step:08d}", config, tokenizer, seed)


def make_bundle(folder: Path, config: RunConfig, tokenizer: Tokenizer, seed: int) -> None:
    torch.manual_seed(seed)
    model = build_model(config.model, tokenizer.vocab_size, config.tokens.context_length)
    save_bundle(folder, config, tokenizer, model)


def write_metrics(folder: Path, steps: range, seed: int) -> None:
    lines = [",".join(COLUMNS)]
    for step in steps:
        loss = 2.4 + 3.5 * math.exp(-step / (40 + 10 * seed)) + 0.1 * math.sin(step * seed)
        values = {
            "step": step,
            "samples": step * 32,
            "tokens": step * 2048,
            "loss": round(loss, 4),
            "validation_loss": round(loss + 0.1, 4) if step % 25 == 0 else "",
            "learning_rate": 0.003 * min(1, step / 20),
            "tokens_per_second": 21000 + 500 * math.sin(step),
            "seconds": step * 0.1,
            "time": "2026-01-01T00:00:00.000+00:00",
        }
        lines.append(",".join(str(values.get(name, "")) for name in COLUMNS))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def read_lines(body: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in body.splitlines()]


def make_learned(folder: Path) -> Path:
    """A run whose training text holds what its model says: the text was written after the model."""
    tokenizer = train_bpe([TEXT.encode()], 256, [])  # bytes, so that what is said is always read back as the same ids
    make_bundle(folder / "checkpoints" / "step-00000200", load_recipe("akjv-demo", SMALL), tokenizer, seed=1)
    found = Shelf(Library([folder.parent])).bundle("aaa/checkpoints/step-00000200")
    settings = SamplingConfig(temperature=0, max_tokens=60)
    said = tokenizer.decode_bytes(generate(found.model, tokenizer, ["the egg"], settings)[0].ids)
    corpus = Corpus.from_documents([TEXT.encode(), b"the hen said: " + said], validation_fraction=0)
    PassageIndex.of(write_store(corpus, tokenizer, folder / "tokens", progress=False))
    return folder
