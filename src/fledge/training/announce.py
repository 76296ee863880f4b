"""What is said when training starts: what is trained, on what, how, and what the account expects of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from fledge import devices
from fledge.accounting import Account, Forecast, forecast
from fledge.accounting.devices import training_device
from fledge.accounting.launches import GPU_MFU
from fledge.accounting.ledger import DEFAULT_MFU
from fledge.config import RunConfig
from fledge.training.device import used_memory
from fledge.training.stepper import Stepper

NARROW_MFU = 0.2
"""The share of a CPU's products in bfloat16 that training is expected to reach, instead of `DEFAULT_MFU`: only products
become faster there. Small models reached 21 to 26 % (measured)."""


def opening(stepper: Stepper, steps: int, peak: float | None, expected: Forecast | None) -> str:
    """The line with which training starts; `peak` is what MFU is reckoned against."""
    place, precision, world = stepper.device, stepper.precision, stepper.ranks.world
    device = devices.title(place) if devices.is_gpu(place) else place.type
    threads = f" ({torch.get_num_threads()} threads)" if place.type == "cpu" else ""
    processes = f"{world} processes, " if world > 1 else ""
    return (
        f"Training {stepper.parameters:,} parameters on {processes}{device}{threads} in "
        f"{precision.name} ({precision.reason}); {stepper.config.training.batch_size} windows a step, "
        f"{stepper.progress.micro_batch} at once; steps {stepper.progress.step} to {steps}."
        + (f" MFU is of {peak / 1e12:,.0f} TFLOP/s." if peak else "")
        + (f" {expected.sentence()}" if expected else "")
    )


def expect(stepper: Stepper) -> Forecast | None:
    """What the account expects of the steps; nothing for an architecture that it does not know, nor with teachers,
    which it does not count. All take part."""
    config, ranks, precision = stepper.config, stepper.ranks, stepper.precision.name
    if config.training.teachers:
        return None
    ranks.wait()  # where products are measured, all processes measure at once, as they will train
    device = training_device(stepper.device, precision)
    if device.measured:
        total = ranks.total(*device.peaks.values())[0]
        device = replace(device, peaks={precision: total / ranks.world})
    try:
        account = Account(
            config.model,
            stepper.model.vocabulary_size,
            config.tokens.context_length,
            batch=stepper.progress.micro_batch,
            precision=precision,
            optimizer=config.optimizer.name,
            average=config.training.average > 0,
            recompute=config.training.recompute,
            device=device,
            step_batch=config.training.batch_size,
            shards=stepper.shards,
            positions=stepper.model.context_length,
        )
        if stepper.device.type == "cuda":
            return forecast(account, ranks.world, GPU_MFU, stepper.replay.on)
        narrow = stepper.device.type == "cpu" and precision == "bf16"
        return forecast(account, ranks.world, NARROW_MFU if narrow else DEFAULT_MFU)
    except KeyError:
        return None


def flops_per_token(config: RunConfig, vocabulary_size: int) -> float | None:
    """What MFU is reckoned with; None for an architecture that the accounts do not know."""
    try:
        return Account(config.model, vocabulary_size, config.tokens.context_length).flops_per_token
    except KeyError:
        return None


def grown_memory(device: torch.device, resident: int, fullest: int) -> float | None:
    """What training took at its fullest, to hold against what was expected of it.

    Of a process, what it grew by from `resident` bytes, unless it had been larger before, at its `fullest`.
    """
    used = used_memory(device)
    if devices.peak_memory(device) is not None:
        return used
    return used - resident if used > fullest else None
