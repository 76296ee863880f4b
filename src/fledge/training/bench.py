"""How fast a recipe trains on each device at each batch size: the real step on random tokens, and the time it means."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from fledge.config import RunConfig, override_config
from fledge.devices import forget_peak_memory, names
from fledge.errors import FledgeError, out_of_memory
from fledge.model import build_model
from fledge.tokens import Batch
from fledge.tokens.batch import MASKED
from fledge.training.device import choose_device, choose_precision, reseed, set_up_device, synchronize, used_memory
from fledge.training.meter import Meter
from fledge.training.objective import Objective
from fledge.training.optimizers import build_optimizer, clip_scale, gradient_norm


@dataclass(frozen=True)
class Measurement:
    """One cell of the table; `tokens_per_second` is None where the batch does not fit the memory."""

    device: str
    "The one that was chosen, where `auto` was asked for."
    batch_size: int
    tokens_per_second: float | None
    windows_per_second: float | None
    memory: int | None
    projected_seconds: float | None
    "Time for all tokens of the recipe at this speed."
    busy: float | None = None
    "The share of the time that the device worked, where it can be read."
    watts: float | None = None


def devices() -> list[str]:
    """What this machine has to train on."""
    return names()


def measure(config: RunConfig, batch_size: int, device_name: str, seconds: float = 3.0) -> Measurement:
    """Time steps of one batch size on one device, after a warm-up, for about `seconds`."""
    length = config.tokens.context_length
    total = config.training.tokens or config.steps * config.training.batch_size * length
    config = override_config(config, [f"training.batch_size={batch_size}"])
    device = choose_device(device_name, named="--device")
    precision = choose_precision(config.training.precision, device)
    set_up_device(device, precision, config.training.threads)
    forget_peak_memory()
    try:
        per_step, meter = _step_seconds(config, device, batch_size, seconds)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Measurement(str(device), batch_size, None, None, None, None)
    speed = batch_size * length / per_step
    memory = used_memory(device)
    windows = batch_size / per_step
    return Measurement(str(device), batch_size, speed, windows, memory, total / speed, meter.busy, meter.watts)


def _step_seconds(config: RunConfig, device: torch.device, batch_size: int, seconds: float) -> tuple[float, Meter]:
    vocabulary = config.tokenizer.vocabulary_size
    if vocabulary is None:
        raise FledgeError("tokenizer.vocabulary_size = none has no size before training: set one for the benchmark.")
    length = config.tokens.context_length
    precision = choose_precision(config.training.precision, device)
    reseed(config.training.seed, "weights")
    model = build_model(config.model, vocabulary, length).to(device).train()
    model.recompute = config.training.recompute
    objective = Objective(model, precision, device, config.training.label_smoothing, config.training.z_loss)
    by_itself = device.type == "cuda" and config.model.architecture not in ("rnn", "gru", "lstm")
    compiles = config.training.compile == "on" or (config.training.compile == "auto" and by_itself)
    run = torch.compile(objective, dynamic=False) if compiles else objective
    optimizer = build_optimizer(model, config.optimizer)
    ids = torch.randint(vocabulary, (batch_size, length + 1))
    batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).to(device)
    count = int((batch.targets_BT != MASKED).sum())

    def step() -> None:
        loss, _ = run(batch.inputs_BT, batch.targets_BT)
        (loss / count).backward()
        optimizer.step(clip_scale(gradient_norm(optimizer.layout.gradients()), config.optimizer.clip_norm))
        optimizer.zero_grad()

    for _ in range(2):
        step()
    synchronize(device)
    done = 0
    with Meter(device) as meter:
        start = time.perf_counter()
        while done < 3 or time.perf_counter() - start < seconds:
            step()
            done += 1
            if done % 10 == 0:
                synchronize(device)
        synchronize(device)
        per_step = (time.perf_counter() - start) / done
    return per_step, meter
