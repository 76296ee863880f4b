"""Schedules: a step and the number of steps in, the share of the peak learning rate or of the weight decay out."""

from __future__ import annotations

import math

from fledge.config import ScheduleConfig


def schedule(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor at `step` (from 0) of `steps`: a linear warm-up, then the configured way down to `final_fraction`.

    >>> linear = ScheduleConfig(name="linear", warmup_steps=2, final_fraction=0.0)
    >>> [schedule(linear, step, 6) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = min(config.warmup_steps, steps)
    if step < warmup:
        return (step + 1) / warmup
    if config.name == "constant":
        return 1.0
    decay_steps = steps - warmup
    if config.name == "stable":
        decay_steps = min(decay_steps, max(1, round(steps * config.decay_fraction)))
    progress = (step - (steps - decay_steps)) / max(1, decay_steps)
    progress = min(max(progress, 0.0), 1.0)
    share = 0.5 * (1 + math.cos(math.pi * progress)) if config.name == "cosine" else 1 - progress
    return config.final_fraction + (1 - config.final_fraction) * share


def decay_share(config: ScheduleConfig, step: int, steps: int) -> float:
    """The weight decay's factor at `step` (from 0) of `steps`: on a line from 1 to `final_weight_decay_factor`.

    >>> falling = ScheduleConfig(final_weight_decay_factor=0.5)
    >>> [decay_share(falling, step, 5) for step in range(5)]
    [1.0, 0.875, 0.75, 0.625, 0.5]
    """
    return 1.0 + (config.final_weight_decay_factor - 1.0) * min(1.0, step / max(1, steps - 1))
