"""Norms of weights and activations in metrics.csv: numbers that torch confirms, and training that does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.bundle import load_bundle
from fledge.runs.metrics import COLUMNS
from fledge.tokens import Batch
from fledge.training import read_metrics
from fledge.web.runs import metrics_since as metrics_of_the_page

from .support import TextWindows, run, settings, weights

NORMS = {"steps": 6, "save_every": 6, "norms": True}


def test_they_are_those_of_the_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    """Weights by part, and the mean norm of a token's vector where each part's output goes on to the next."""
    result = run(settings(training=NORMS), tmp_path)
    row = [row for row in read_metrics(result.metrics) if row["loss"]][-1]
    model = load_bundle(result.checkpoint).model.eval()
    values = {name: float(row[name]) for name in row if name not in COLUMNS}
    for part, module in {"layers.1": model.layers[1], "lm_head": model.lm_head}.items():  # type: ignore[index]
        flat = torch.cat([parameter.flatten() for parameter in module.parameters()])
        assert values[f"weight_norm.{part}"] == pytest.approx(float(flat.detach().norm()), rel=1e-5)
    with torch.no_grad():
        ids = TextWindows().batch(range(1)).inputs_BT
        x = model.token_embeddings(ids)
        known = {"token_embeddings": x}
        for number, layer in enumerate(model.layers):  # type: ignore[arg-type]
            x = known[f"layers.{number}"] = layer(x, (model.cosines_TP[:16], model.sines_TP[:16]), None, None, number)
        known["hidden"] = known["ln_final"] = model.hidden(ids)[0]
    assert {name.partition(".")[2] for name in values if name.startswith("activation")} == set(known)
    for part, vectors in known.items():
        assert values[f"activation_norm.{part}"] == pytest.approx(float(vectors.norm(dim=-1).mean()), rel=1e-5)


def test_training_does_not_notice_them(tmp_path: Path) -> None:
    """The weights are the same bits, dropout included, and without the setting there is no column more."""
    dropped = {"layers": 2, "width": 32, "heads": 2, "dropout": 0.2}
    plain = run(settings(model=dropped, training={**NORMS, "norms": False}), tmp_path / "plain")
    measured = run(settings(model=dropped, training=NORMS), tmp_path / "measured")
    for one, other in zip(weights(plain).values(), weights(measured).values(), strict=True):
        assert torch.equal(one, other)
    assert plain.metrics.read_text().partition("\n")[0] == ",".join(COLUMNS)
    assert measured.metrics.read_text().startswith(",".join(COLUMNS) + ",weight_norm.token_embeddings,")


def test_a_run_may_ask_for_them_later_and_leave_them_again(tmp_path: Path) -> None:
    """Rows from before have none, and columns that are there stay; the page reads the file."""
    name = "activation_norm.layers.0"
    run(settings(training={**NORMS, "norms": False}), tmp_path)
    run(settings(training={**NORMS, "steps": 9}), tmp_path, resume=True)
    result = run(settings(training={**NORMS, "steps": 12, "norms": False}), tmp_path, resume=True)
    logged = [row for row in read_metrics(result.metrics) if row["loss"]]
    assert [(row["step"], bool(row[name])) for row in logged] == [
        ("3", False),
        ("6", False),
        ("9", True),
        ("12", False),
    ]
    column = metrics_of_the_page("run", tmp_path).columns[name]
    assert [value for value in column if value is not None] == [float(logged[2][name])]


class Padded(TextWindows):
    """Windows of which the second half is padding, whose ids say nothing."""

    def __init__(self, filling: int) -> None:
        super().__init__()
        self.filling = filling

    def batch(self, samples: object) -> Batch:
        inputs, targets = super().batch(samples)[:2]
        half = inputs.shape[1] // 2
        inputs[:, half:], targets[:, half:] = self.filling, -100
        documents = torch.zeros_like(inputs)
        documents[:, half:] = -1
        return Batch(inputs, targets, None, documents)


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "lstm"])
def test_padding_does_not_count(tmp_path: Path, architecture: str) -> None:
    model = {"architecture": architecture, "layers": 2, "width": 32}
    last = []
    for filling in (0, 5):
        config = settings(model=model, training={**NORMS, "steps": 3, "evaluate_every": 0})
        result = run(config, tmp_path / str(filling), windows=Padded(filling))
        last.append([row for row in read_metrics(result.metrics) if row["loss"]][-1])
    names = ["activation_norm.token_embeddings", "activation_norm.hidden", "weight_norm.token_embeddings"]
    assert all(float(last[0][name]) > 0 for name in names)
    assert [last[0][name] for name in names] == [last[1][name] for name in names]
