"""Getting a loaded model ready to decode: the device it runs on, and weights laid out for one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import nn

if TYPE_CHECKING:
    from fledge.model import Model

SMALLEST = 1 << 16  # entries; a matrix that stays in the nearest cache reads equally well either way


_prepared: WeakSet[nn.Module] = WeakSet()


def best_device() -> str:
    """`cuda` or `mps` where there is one, else `cpu`."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def prepare(model: Model) -> Model:
    """Make ready a model that from now on only generates: on a GPU its steps may be recorded and replayed; on the CPU
    its matrices are laid out so that a product with one vector runs at the speed of memory.

    A matrix with more outputs than inputs is stored by its inputs: the product then adds long rows instead of taking
    many short dot products, for which BLAS reaches half the bandwidth. Values and shapes stay as they are, and each
    matrix is moved on its own. Sums may be taken in another order than before.
    """
    _prepared.add(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if _gains(parameter):
                parameter.data = parameter.data.t().contiguous().t()
    return model


def is_prepared(model: Model) -> bool:
    """Whether `prepare` was called: a model in training is not, and nothing is recorded of it."""
    return model in _prepared


def _gains(parameter: nn.Parameter) -> bool:
    return (
        parameter.device.type == "cpu"
        and parameter.ndim == 2
        and parameter.numel() >= SMALLEST
        and parameter.shape[0] > parameter.shape[1]
        and parameter.is_contiguous()
    )
