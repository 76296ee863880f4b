"""Small bundles to save, load, break and compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import Bundle, TrainingState, load_bundle, save_bundle
from fledge.bundle.manifest import MANIFEST, checksum, without_checksum
from fledge.config import ModelConfig, RunConfig, TokensConfig
from fledge.model import Model, build_model
from fledge.tokenizer import Tokenizer, train_bpe

TEXT = b"In the beginning God created the heaven and the earth. And the earth was without form, and void. "


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT * 4], 280, ["<|endoftext|>"])


def small_config(**model: object) -> RunConfig:
    shape = {"layers": 2, "width": 32, "heads": 4, **model}
    return RunConfig(name="small", tokens=TokensConfig(context_length=16), model=ModelConfig(**shape))


def small_model(config: RunConfig, tokenizer: Tokenizer, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return build_model(config.model, tokenizer.vocab_size, config.tokens.context_length).eval()


def scores(model: Model) -> torch.Tensor:
    """Logits on fixed ids, by which two models are compared."""
    ids = torch.arange(1, 17).reshape(1, 16)
    with torch.inference_mode():
        return model(ids)


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and seal it again, as an attacker would."""
    values = without_checksum(json.loads((folder / MANIFEST).read_bytes()))
    change(values)
    (folder / MANIFEST).write_text(json.dumps({**values, "checksum": checksum(values)}))


@pytest.fixture
def bundle(tmp_path: Path, tokenizer: Tokenizer) -> Bundle:
    config = small_config()
    state = TrainingState({"moment": torch.arange(6.0)}, {"step": 5, "samples": 160})
    model = small_model(config, tokenizer)
    folder = save_bundle(
        tmp_path / "bundle", config, tokenizer, model, training=state, metrics={"step": 5, "validation_loss": 2.5}
    )
    return load_bundle(folder)
