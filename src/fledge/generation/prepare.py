"""Getting a loaded model ready to decode: the device it runs on, and weights laid out for one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from fledge.model import Model

SMALLEST = 1 << 16  # entries; a matrix that stays in the nearest cache reads equally well either way


def best_device() -> str:
    """`cuda` or `mps` where there is one, else `cpu`."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def prepare(model: Model) -> Model:
    """Lay out the matrices of a model on the CPU so that a product with one vector runs at the speed of memory.

    A matrix with more outputs than inputs is stored by its inputs: the product then adds long rows instead of taking many
    short dot products, for which BLAS reaches half the bandwidth. Values and shapes stay as they are, and each matrix is
    moved on its own. Meant for models that only generate: sums may be taken in another order than before.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if _gains(parameter):
                parameter.data = parameter.data.t().contiguous().t()
    return model


def _gains(parameter: nn.Parameter) -> bool:
    return (
        parameter.device.type == "cpu"
        and parameter.ndim == 2
        and parameter.numel() >= SMALLEST
        and parameter.shape[0] > parameter.shape[1]
        and parameter.is_contiguous()
    )
