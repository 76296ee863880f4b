"""Averaged weights: the mean they say they are, chosen where they are better, and resumed to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import load_bundle
from fledge.config import OptimizerConfig
from fledge.errors import FledgeError
from fledge.training import build_optimizer, load_checkpoint, read_metrics
from fledge.training.averaging import Average
from fledge.training.continuity import check_training_state

from .support import TextWindows, fresh_model, run, settings
from .test_resume import assert_same, cut_back

RESTLESS: dict[str, Any] = {
    "model": {"dropout": 0.1},
    "schedule": {"name": "constant", "warmup_steps": 2},
    "training": {"average": 0.5, "steps": 12},
}


def averaging(name: str = "adamw", rate: float = 2e-2) -> Any:
    return settings(**RESTLESS, optimizer={"name": name, "learning_rate": rate})


def test_over_the_whole_run_it_is_the_mean() -> None:
    """With a span of 1, the plain mean of the weights after every step; a shorter span forgets the first."""
    model = fresh_model(settings())
    layout = build_optimizer(model, OptimizerConfig()).layout
    whole, short = Average(layout, 1.0), Average(layout, 0.1)
    seen = []
    torch.manual_seed(0)
    for step in range(1, 21):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        seen.append({name: tensor.clone() for name, tensor in model.named_parameters()})
        whole.update(whole.share(step))
        short.update(short.share(step))
    for name, average in whole.named():
        torch.testing.assert_close(average, torch.stack([weights[name] for weights in seen]).mean(0))
    newest = seen[-1]
    distances = [
        sum(float((average - newest[name]).detach().square().sum()) for name, average in each.named())
        for each in (whole, short)
    ]
    assert distances[1] < distances[0] / 2


def test_in_its_place_and_back_again() -> None:
    model = fresh_model(settings())
    average = Average(build_optimizer(model, OptimizerConfig()).layout, 1.0)
    with torch.no_grad():
        for kept in average.weights:
            kept.add_(1.0)
    plain = {name: tensor.clone() for name, tensor in model.named_parameters()}
    with pytest.raises(ZeroDivisionError), average.in_place():
        assert all(torch.equal(tensor, plain[name] + 1) for name, tensor in model.named_parameters())
        1 / 0  # noqa: B018
    assert all(torch.equal(tensor, plain[name]) for name, tensor in model.named_parameters())


@pytest.mark.parametrize(("name", "rate"), [("adamw", 1e-1), ("adamw", 1e-3), ("sgd", 2e-2), ("muon", 2e-2)])
def test_a_cut_run_ends_with_the_same_bits(tmp_path: Path, name: str, rate: float) -> None:
    """The averaged and the plain weights, whichever of them the checkpoint that it goes on from hands over."""
    run(averaging(name, rate), tmp_path / "unbroken")
    cut_back(tmp_path / "unbroken", tmp_path / "run", 8)
    run(averaging(name, rate), tmp_path / "run", resume=True)
    assert_same(tmp_path / "unbroken", tmp_path / "run")


def test_the_better_set_is_the_checkpoints_model(tmp_path: Path) -> None:
    """The average late in a restless run, the plain weights early in a steep one; training never sees either choice."""
    found = []
    for rate in (1e-1, 1e-3):
        folder = tmp_path / str(rate)
        run(averaging(rate=rate), folder)
        rows = {int(row["step"]): row for row in read_metrics(folder / "metrics.csv") if row["validation_loss"]}
        for step, row in rows.items():
            plain, average = float(row["plain_loss"]), float(row["average_loss"])
            assert float(row["validation_loss"]) == min(plain, average)
            bundle = load_bundle(folder / "checkpoints" / f"step-{step:08}")
            assert validation(bundle.model) == pytest.approx(min(plain, average), abs=1e-5)
            assert bundle.metrics["validation_loss"] == pytest.approx(min(plain, average), abs=1e-6)
            assert bundle.training is not None
            kinds = {name.split("/")[0] for name in bundle.training.tensors} - {"mean", "square"}
            assert kinds == {"plain" if average < plain else "average"}
            found.append(average < plain)
            check_training_state(bundle)
    assert set(found) == {True, False}


def test_without_an_average_training_goes_on_from_the_plain_weights(tmp_path: Path) -> None:
    """The checkpoint's model is the average, and a run that no longer averages ends as one that never did."""
    rate = {"learning_rate": 3e-1}
    steady = {name: value for name, value in RESTLESS.items() if name != "training"}
    run(averaging(rate=3e-1), tmp_path / "run")
    kept = load_checkpoint(tmp_path / "run").training
    assert kept is not None
    assert kept.values["averaged"]
    run(settings(**steady, optimizer=rate), tmp_path / "never")
    longer = settings(**steady, optimizer=rate, training={"steps": 16})
    for name in ("run", "never"):
        run(longer, tmp_path / name, resume=True)
    one, two = (load_checkpoint(tmp_path / name).model.state_dict() for name in ("run", "never"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run(averaging(rate=1e-3), tmp_path / "run")
    training = load_checkpoint(tmp_path / "run").training
    assert training is not None
    tensors = dict(training.tensors)
    name = next(name for name in tensors if name.startswith(("average/", "plain/")))
    layout = build_optimizer(fresh_model(averaging()), OptimizerConfig()).layout
    for changed in (tensors[name] * torch.nan, tensors[name][:1]):
        with pytest.raises(FledgeError, match=r"(average|plain) weights of .* Resume from an earlier checkpoint"):
            Average(layout, 0.5).load({**tensors, name: changed})


def validation(model: Any) -> float:
    windows = TextWindows(16, seed=1, size=20)
    batch = windows.batch(range(12))
    with torch.no_grad():
        logits = model.eval()(batch.inputs_BT)
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten()))
