"""Recurrent networks on contiguous lanes: the state goes on from batch to batch, and through a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fledge.tokens import Batch
from fledge.training import load_checkpoint, read_metrics

from .support import TextWindows, run, settings


class Lanes(TextWindows):
    """Sample n is step n // 4 of lane n % 4 of a text: row i of a batch goes on where row i stopped before."""

    def batch(self, samples: Any) -> Batch:
        steps, lanes = np.divmod(np.asarray(samples), 4)
        starts = (lanes * 61 + steps * self.context_length) % (len(self.ids) - self.context_length - 1)
        block = torch.from_numpy(np.stack([self.ids[start : start + self.context_length + 1] for start in starts]))
        return Batch(block[:, :-1].clone(), block[:, 1:].clone())


def lanes(**training: Any) -> Any:
    model = {"architecture": "lstm", "layers": 2, "width": 32, "bias": True, "dropout": 0.1, "heads": 4}
    return settings(
        model=model,
        tokens={"policy": "lanes"},
        training={"batch_size": 4, "micro_batch": 3, **training},
    )


def test_a_carried_state_is_kept_to_the_bit(tmp_path: Path) -> None:
    run(lanes(), tmp_path / "unbroken", windows=Lanes(16))
    shutil.copytree(tmp_path / "unbroken", tmp_path / "cut")
    for step in (8, 12):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"step-{step:08}")
    run(lanes(), tmp_path / "cut", resume=True, windows=Lanes(16))
    one, two = load_checkpoint(tmp_path / "unbroken").training, load_checkpoint(tmp_path / "cut").training
    assert one is not None
    assert two is not None
    assert any(name.startswith("carried/") and bool(tensor.any()) for name, tensor in one.tensors.items())
    assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())
    losses = [[row["loss"] for row in read_metrics(tmp_path / name / "metrics.csv")] for name in ("unbroken", "cut")]
    assert losses[0] == losses[1]


def test_the_state_reaches_the_next_batch(tmp_path: Path) -> None:
    """The second batch's loss is not that of the same windows from an empty state."""
    carried = run(lanes(steps=2, log_every=1), tmp_path / "carried", windows=Lanes(16))
    config = lanes(steps=2, log_every=1)
    empty = config.model_copy(update={"tokens": config.tokens.model_copy(update={"policy": "stream"})})
    fresh = run(empty, tmp_path / "fresh", windows=Lanes(16))
    first, second = (
        [float(row["loss"]) for row in read_metrics(result.metrics) if row["loss"]] for result in (carried, fresh)
    )
    assert first[0] == second[0]
    assert first[1] != second[1]
