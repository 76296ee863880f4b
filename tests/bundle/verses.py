"""A small run with a bundle, a token store and a text, for the handbook's examples: made in a second, untrained."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from fledge.bundle import TrainingState, save_bundle
from fledge.config import ModelConfig, RunConfig, TokensConfig
from fledge.corpus import Corpus
from fledge.model import build_model
from fledge.tokenizer import train_bpe
from fledge.tokens import write_store
from fledge.training.optimizers import build_optimizer
from fledge.training.progress import Progress

VERSES = [f"And in the beginning the earth number {number} was without form, and void." for number in range(200)]


def make_run(folder: Path) -> None:
    """`runs/verses` with one checkpoint and its tokens, the bundle `other`, and `text.txt`."""
    for name, size in (("verses", 300), ("other", 280)):
        tokenizer = train_bpe([verse.encode() for verse in VERSES], size, ["<|endoftext|>"])
        config = RunConfig(
            name=name, model=ModelConfig(layers=2, width=32, heads=4), tokens=TokensConfig(context_length=64)
        )
        torch.manual_seed(0)
        model = build_model(config.model, tokenizer.vocab_size, 64)
        place = folder / "other" if name == "other" else folder / "runs" / "verses" / "checkpoints" / "step-00000100"
        counters = Progress(step=100, samples=3_200, tokens=204_800, updates=100)
        moments = dict(build_optimizer(copy.deepcopy(model), config.optimizer).named_state())
        state = TrainingState(moments, counters.values())
        metrics = {"step": 100, "tokens": 204_800, "loss": 5.4, "validation_loss": 5.5, "bits_per_byte": 2.6}
        save_bundle(place, config, tokenizer, model, training=state, metrics=metrics)
        if name == "verses":
            write_store(Corpus.from_documents(VERSES), tokenizer, folder / "runs" / "verses" / "tokens", progress=False)
    (folder / "text.txt").write_text("<|endoftext|>".join(VERSES[:30]))
