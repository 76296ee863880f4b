"""A run small enough to train in a second: a character tokenizer, random windows with a rule in them, a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.config import RunConfig, parse
from fledge.model import build_model
from fledge.tokenizer import CharacterTokenizer
from fledge.tokens import Batch
from fledge.training import Setup, TrainingResult, load_checkpoint, train
from fledge.training.device import reseed

TEXT = "in the beginning was the word, and the word was made of letters. "


def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer.train([TEXT])


class TextWindows:
    """Windows over a repeated text, sample n at a place that follows from (seed, n); some end in masked targets."""

    def __init__(self, context_length: int = 16, seed: int = 0, padded: bool = False, size: int = 64) -> None:
        self.ids = np.array(tokenizer().encode(TEXT * 4), dtype=np.int64)
        self.context_length, self.seed, self.padded, self.size = context_length, seed, padded, size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def batch(self, samples: Any) -> Batch:
        rows = []
        for n in samples:
            self.asked.append(int(n))
            generator = np.random.default_rng([self.seed, int(n)])
            start = int(generator.integers(len(self.ids) - self.context_length - 1))
            row = self.ids[start : start + self.context_length + 1]
            rows.append(row)
        block = torch.from_numpy(np.stack(rows))
        inputs, targets = block[:, :-1].clone(), block[:, 1:].clone()
        if self.padded:
            for row, n in enumerate(samples):
                targets[row, 4 + int(n) % 9 :] = -100
        return Batch(inputs, targets)

    def ahead(self, shares: Sequence[range]) -> None: ...

    def batches(self, shares: Sequence[range]) -> list[Batch]:
        return [self.batch(share) for share in shares]


def settings(**overrides: Any) -> RunConfig:
    """A tiny run; keyword arguments such as `training={"steps": 3}` are merged in."""
    values: dict[str, Any] = {
        "name": "tiny",
        "tokens": {"context_length": 16},
        "model": {"layers": 2, "width": 32, "heads": 2},
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 2},
        "training": {
            "steps": 12,
            "batch_size": 8,
            "threads": 1,
            "device": "cpu",
            "log_every": 3,
            "save_every": 4,
            "evaluate_every": 4,
            "evaluate_windows": 12,
            "sample_every": 6,
            "keep_last": 10,
        },
        "sampling": {"max_tokens": 5, "prompt": "in"},
    }
    for group, entries in overrides.items():
        values[group] = {**values.get(group, {}), **entries}
    return parse(RunConfig, values)


def fresh_model(config: RunConfig) -> Any:
    reseed(config.training.seed, "weights")
    return build_model(config.model, tokenizer().vocab_size, config.tokens.context_length)


def run(
    config: RunConfig,
    folder: Path,
    resume: bool | Path = False,
    at: int | None = None,
    windows: Any = None,
    model: Any = None,
    **options: Any,
) -> TrainingResult:
    """Train a tiny run, or go on with it, from its last checkpoint or the one that is given."""
    bundle = load_checkpoint(folder if resume is True else resume, at) if resume else None
    setup = Setup(
        config,
        bundle.model if bundle else model or fresh_model(config),
        tokenizer(),
        windows or TextWindows(config.tokens.context_length),
        TextWindows(config.tokens.context_length, seed=1, size=20),  # type: ignore[arg-type]
        folder,
        resume=bundle,
        bytes_per_token=1.0,
        **{"quiet": True, **options},
    )
    return train(setup)


def weights(result: TrainingResult) -> dict[str, torch.Tensor]:
    from fledge.bundle import load_bundle

    return dict(load_bundle(result.checkpoint).model.state_dict())
