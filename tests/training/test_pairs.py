"""A model that begins from counts: what it knows before its first step, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from fledge import Run
from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.evaluation import baselines
from fledge.model import build_model
from fledge.training import load_checkpoint, read_metrics
from fledge.training.device import reseed
from fledge.training.pairs import pair_targets, require_pairs, start_from_pairs
from tests.small import SMALL

IDS = 40


def config(**model: object) -> RunConfig:
    shape = {"layers": 2, "width": 32, "heads": 2, **model}
    return parse(RunConfig, {"model": shape, "training": {"device": "cpu", "threads": 1, "start": "pairs"}})


def chain(length: int, seed: int) -> np.ndarray:
    """Ids of which each has a few likely successors."""
    likely = np.random.default_rng(7).dirichlet(np.full(IDS, 0.05), IDS)
    generator = np.random.default_rng(seed)
    ids = [0]
    for _ in range(length - 1):
        ids.append(int(generator.choice(IDS, p=likely[ids[-1]])))
    return np.array(ids, dtype=np.uint16)


def built(settings: RunConfig, seed: int = 0):
    reseed(seed, "weights")
    return build_model(settings.model, IDS, 16)


def loss_of(model: torch.nn.Module, tokens: np.ndarray) -> float:
    ids = torch.from_numpy(tokens[: len(tokens) // 17 * 17].astype(np.int64)).view(-1, 17)
    with torch.no_grad():
        logits = model.eval()(ids[:, :-1])
    return float(functional.cross_entropy(logits.reshape(-1, IDS), ids[:, 1:].reshape(-1)))


@pytest.mark.parametrize("model", [{}, {"norm": "layer", "bias": True}, {"norm": "none"}, {"position": "learned"}])
def test_it_begins_as_good_as_a_bigram(model: dict[str, object]) -> None:
    train, held_out = chain(6000, 1), chain(1700, 2)
    settings = config(**model)
    begun = built(settings)
    start_from_pairs(begun, train, settings)
    best = baselines(train, held_out, IDS)
    assert loss_of(begun, held_out) < best.bigram + 0.1 < best.unigram


def test_at_first_only_the_last_token_counts() -> None:
    settings = config()
    model = built(settings)
    start_from_pairs(model, chain(2000, 1), settings)
    ids = torch.tensor([[1, 2, 3], [9, 8, 3]])
    with torch.no_grad():
        last = model.eval()(ids)[:, -1]
    assert torch.allclose(last[0], last[1], atol=1e-6)


def test_the_same_counts_give_the_same_bits() -> None:
    settings, first, second = config(), built(config()), built(config())
    for model in (first, second):
        start_from_pairs(model, chain(2000, 1), settings)
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_targets_are_distributions_of_what_follows() -> None:
    tokens = np.array([0, 1, 0, 1, 0, 2] * 50)
    targets, weights = pair_targets(tokens, 4, torch.device("cpu"))
    assert torch.allclose(targets.sum(1), torch.ones(4), atol=1e-5)
    assert targets[0].argmax() == 1
    assert targets[1].argmax() == 0
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights[3]) == 0


@pytest.mark.parametrize(
    ("model", "ids", "words"),
    [
        ({"tied": True}, IDS, "model.tied=false"),
        ({"architecture": "lstm"}, IDS, "architecture = transformer"),
        ({"norm_place": "post"}, IDS, "norm_place = pre"),
        ({}, 20_000, "the limit is 16,384"),
    ],
)
def test_what_cannot_begin_so_is_refused(model: dict[str, object], ids: int, words: str) -> None:
    with pytest.raises(FledgeError, match=words):
        require_pairs(config(**model), ids)


def test_a_run_begins_with_it_and_goes_on_without(tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log. " * 100)
    common = [
        *SMALL,
        f"corpus.source={text}",
        "training.log_every=1",
        "schedule.name=constant",
        "schedule.warmup_steps=1",
        "sampling.max_tokens=2",
    ]

    def losses(folder: str, *settings: str) -> list[float]:
        run = Run(RunConfig(name="run"), tmp_path / folder, overrides=[*common, *settings], quiet=True)
        run.train(quiet=True)
        return logged(tmp_path / folder)

    def logged(folder: Path) -> list[float]:
        return [float(row["loss"]) for row in read_metrics(folder / "metrics.csv") if row["loss"]]

    whole = losses("whole", "training.start=pairs")
    assert whole[0] < 0.7 * losses("random")[0]
    assert losses("half", "training.start=pairs", "training.steps=3") == whole[:3]
    resumed = Run.open(tmp_path / "half", ["training.steps=6"], quiet=True)
    resumed.train(resume=load_checkpoint(tmp_path / "half"), quiet=True)
    assert logged(tmp_path / "half") == whole
