"""Where our Triton kernels are tested: on a GPU, or without one by Triton's interpreter (`make kernels`)."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
INTERPRETED = not GPU and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
NARROW = torch.float32 if INTERPRETED else torch.bfloat16  # the interpreter does not calculate in bf16

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPU, reason="needs a CUDA device of compute capability 8.0"),
]
on_gpu_or_interpreted = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPU and not INTERPRETED, reason="needs a CUDA device, or TRITON_INTERPRET=1"),
]


def near(bar: float) -> float:
    """How far a kernel may be from its formula in bf16; in 32 bits far less."""
    return min(bar, 2e-5) if INTERPRETED else bar


def distance(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm())
