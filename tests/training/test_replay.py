"""Steps replayed from CUDA graphs against the same steps launched kernel by kernel."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from fledge.bundle import TrainingState
from fledge.config import RunConfig, override_config, parse
from fledge.model import build_model
from fledge.model.transformer import Transformer
from fledge.tokens import Batch
from fledge.training.device import reseed
from fledge.training.progress import Progress
from fledge.training.ranks import Ranks
from fledge.training.replay import WARM_UPS, Recording, Replay
from fledge.training.stepper import Stepper

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH, ROWS, IDS, STEPS = 64, 8, 300, 9
MODELS = {
    "transformer": {},
    "muon": {"optimizer.name": "muon", "model.qk_norm": "true"},
    "dropout": {"model.dropout": "0.2", "model.layer_dropout": "0.2", "model.token_dropout": "0.1"},
    "sgd": {"optimizer.name": "sgd", "optimizer.learning_rate": "0.1"},
    "average": {"training.average": "0.2", "optimizer.name": "muon", "optimizer.cautious_decay": "true"},
    "parts": {"training.micro_batch": "3", "model.dropout": "0.1"},
    "four parts": {"training.micro_batch": "2", "model.dropout": "0.1"},
    "recomputed": {"training.recompute": "true", "model.dropout": "0.1"},
    "fp16": {"training.precision": "fp16"},
    "fp32": {"training.precision": "fp32"},
    "uncompiled loss": {"training.label_smoothing": "0.1", "training.z_loss": "0.001"},
    "packed": {"tokens.policy": "packed"},
    "packed, dropped": {"tokens.policy": "packed", "model.dropout": "0.2"},
    "bdh": {"model.architecture": "bdh", "model.multiplier": "16", "model.dropout": "0.1"},
    "bdh, packed": {"model.architecture": "bdh", "model.multiplier": "16", "tokens.policy": "packed"},
    "lstm": {"model.architecture": "lstm"},
    "lstm, lanes": {"model.architecture": "lstm", "tokens.policy": "lanes", "training.micro_batch": "4"},
    "lstm, dropped": {"model.architecture": "lstm", "tokens.policy": "lanes", "model.dropout": "0.2"},
    "gru": {"model.architecture": "gru"},
}


def settings(**changes: str) -> RunConfig:
    base: dict[str, Any] = {
        "tokens": {"context_length": LENGTH},
        "model": {"layers": 2, "width": 128, "heads": 2},
        "training": {"steps": STEPS, "batch_size": ROWS, "device": "cuda"},
        "sampling": {"max_tokens": 1},
    }
    return override_config(parse(RunConfig, base), [f"{name}={value}" for name, value in changes.items()])


def batches(packed: bool, count: int = STEPS) -> list[Batch]:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(count):
        ids = torch.from_numpy(draw.integers(IDS, size=(ROWS, LENGTH + 1)))
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        if not packed:
            found.append(pinned(Batch(inputs, targets)))
            continue
        documents = torch.from_numpy(np.sort(draw.integers(4, size=(ROWS, LENGTH))))
        places = torch.arange(LENGTH).expand(ROWS, -1).contiguous()
        found.append(pinned(Batch(inputs, targets, places, documents)))
    return found


def pinned(batch: Batch) -> Batch:
    return batch.pin() if torch.cuda.is_available() else batch


def stepper(config: RunConfig, recorded: bool, progress: Progress | None = None) -> Stepper:
    reseed(0, "weights")
    model = build_model(config.model, IDS, LENGTH)
    made = Stepper(config, model, Ranks(torch.device("cuda", 0)), progress)
    made.replay.on = made.replay.on and recorded
    return made


def take(made: Stepper, steps: list[Batch]) -> list[float]:
    found = []
    for batch in steps:
        made.optimizer.factor = 1 / (1 + made.progress.step)  # a rate that changes
        loss, norm = made.step(batch)
        found += [loss, norm]
    return torch.stack(found).tolist()  # type: ignore[no-any-return]


class TestOnGPU:
    pytestmark = on_gpu

    @pytest.mark.parametrize("name", MODELS)
    def test_a_replayed_step_is_the_step(self, name: str) -> None:
        config = settings(**MODELS[name])
        steps = batches(config.tokens.policy == "packed")
        plain, recorded = stepper(config, False), stepper(config, True)
        wanted, found = take(plain, steps), take(recorded, steps)
        assert recorded.replay.on
        assert len(recorded.replay._recordings) >= 2
        # Some kernels add up in any order: where they do, a run is not repeated to the bit.
        assert found == pytest.approx(wanted, rel=1e-4)
        if not name.startswith(("bdh", "fp32")):
            assert found == wanted

    def test_what_comes_after_a_checkpoint_is_replayed_too(self) -> None:
        config = settings(**{"training.average": "0.2", "model.dropout": "0.1"})
        steps = batches(False)
        first = stepper(config, True)
        wanted = take(first, steps)
        half = stepper(config, True)
        take(half, steps[:5])
        tensors = {name: tensor.clone() for name, tensor in half.state().items()}
        weights = {name: tensor.clone() for name, tensor in half.model.state_dict().items()}
        later = stepper(config, True, Progress(**half.progress.values()))
        later.model.load_state_dict(weights)
        later.take_up(TrainingState(tensors, half.progress.values()))
        assert take(later, steps[5:]) == pytest.approx(wanted[10:], rel=5e-3)
        # A run that went on and returns to the checkpoint, as after a divergence, goes the same way again.
        take(half, steps[5:])
        half.model.load_state_dict(weights)
        half.progress.step = 5
        half.take_up(TrainingState(tensors, half.progress.values()))
        half.optimizer.steps = 5
        assert take(half, steps[5:]) == pytest.approx(wanted[10:], rel=5e-3)

    def test_what_looks_at_the_device_is_not_recorded_and_that_is_said_once(self) -> None:
        replay = Replay(torch.device("cuda", 0), True)

        def looks(x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum()) + torch.rand_like(x)

        x = torch.ones(4)
        for _ in range(WARM_UPS + 3):
            replay.begin_step()
            assert bool((replay(looks, x) >= 4).all())
        assert not replay.on
        assert "CUDA graph" in replay.complaint
        # Nothing of the failed recording is left behind: another one works, random numbers included.
        other = Replay(torch.device("cuda", 0), True)
        drawn = []
        for number in range(WARM_UPS + 3):
            other.begin_step()
            torch.manual_seed(number % 2)
            drawn.append(other(torch.rand_like, x).clone())
        assert other.on
        assert torch.equal(drawn[0], drawn[-1])
        assert torch.equal(drawn[1], drawn[-2])
        assert not torch.equal(drawn[0], drawn[1])

    def test_a_class_that_does_not_say_so_is_not_recorded(self) -> None:
        class Own(Transformer):
            """Changes nothing, but it could."""

        config, said = settings(), []
        made = Stepper(config, Own(config.model, IDS, LENGTH), Ranks(torch.device("cuda", 0)))
        made.note = said.append
        take(made, batches(False, 4))
        assert not made.replay.on
        assert len(said) == 1

    def test_documents_in_one_window_of_a_recurrent_model_are_not_recorded(self) -> None:
        config = settings(**{"model.architecture": "lstm", "tokens.policy": "packed"})
        made, said = stepper(config, True), []
        made.note = said.append
        take(made, batches(True, 4))
        assert not made.replay.on
        assert len(said) == 1
        assert "recurrent" in said[0]


def test_on_a_cpu_functions_are_called_as_they_are() -> None:
    replay = Replay(torch.device("cpu"), True)
    kept: list[Any] = []

    def part(batch: Batch, factor: float, nothing: None) -> torch.Tensor:
        kept.append(batch)
        return batch.inputs_BT * factor

    batch = Batch(torch.ones(2, 3), torch.ones(2, 3))
    for number in range(WARM_UPS + 2):
        replay.begin_step()
        assert float(replay(part, batch, float(number), None).sum()) == 6 * number
    assert not replay.complaint
    assert all(each.inputs_BT is batch.inputs_BT for each in kept)


def test_all_parts_of_a_step_are_recorded_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them have the same shape: what is not recorded yet would need the memory a second time."""
    replay = Replay(torch.device("cpu"), True)
    replay.on = True
    asked: list[tuple[int, Any]] = []
    monkeypatch.setattr(replay, "_aside", lambda function, arguments: None)
    monkeypatch.setattr(replay, "_record", lambda key, *_: asked.append((replay._step, key[0])))

    def first(x: torch.Tensor) -> None: ...
    def later(x: torch.Tensor) -> None: ...

    for _ in range(WARM_UPS + 1):
        replay.begin_step()
        for part in (first, later, later, later):
            replay(part, torch.ones(3))
    assert {step for step, _ in asked} == {WARM_UPS + 1}
    assert {name for _, name in asked} == {"first", "later"}


def test_a_stepper_that_nobody_holds_is_let_go() -> None:
    """Its weights and recordings would take the memory of the next one's."""
    config = settings(**{"training.device": "cpu"})
    made = Stepper(config, build_model(config.model, IDS, LENGTH), Ranks(torch.device("cpu")))
    made.step(Batch(*(part.clone() for part in batches(False, 1)[0][:2])))
    held = weakref.ref(made)
    gc.disable()
    try:
        del made
        assert held() is None
    finally:
        gc.enable()


def test_memory_of_recordings_is_given_up_for_what_has_no_room_beside_them() -> None:
    config = settings(**{"training.device": "cpu"})
    made = Stepper(config, build_model(config.model, IDS, LENGTH), Ranks(torch.device("cpu")))
    tries: list[int] = []

    def needs_room() -> int:
        tries.append(len(made.replay._recordings))
        if tries[-1] or len(tries) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return 7

    made.replay._recordings["a step"] = Recording(None, [], None)
    assert made.with_room(needs_room) == 7
    assert tries == [1, 0]
    with pytest.raises(RuntimeError, match="out of memory"):
        made.with_room(needs_room)
    assert len(tries) == 3
