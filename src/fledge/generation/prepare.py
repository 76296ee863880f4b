"""Getting a loaded model ready to decode: the device it runs on, and weights laid out for one token at a time."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import nn

from fledge.model.transformer import Transformer

if TYPE_CHECKING:
    from fledge.model import Model

SMALLEST = 1 << 16  # entries; a matrix that stays in the nearest cache reads equally well either way
LARGE_PAGE, LINE = 2 << 20, 64  # bytes

_prepared: WeakSet[nn.Module] = WeakSet()


def best_device() -> str:
    """`cuda` or `mps` where there is one, else `cpu`."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def prepare(model: Model) -> Model:
    """Make ready a model that from now on only generates: on a GPU its steps may be recorded and replayed; on the CPU
    its matrices are laid out so that a product with one vector runs at the speed of memory.

    A Transformer's go into large pages, where the native products read them row by row. Of the others, a matrix with
    more outputs than inputs is stored by its inputs: BLAS then adds long rows instead of taking many short dot
    products, for which it reaches half the bandwidth. Values and shapes stay as they are.
    """
    _prepared.add(model)
    large = [parameter for parameter in model.parameters() if _is_large(parameter)]
    with torch.no_grad():
        if type(model) is Transformer:
            _into_large_pages(large)
        else:
            for parameter in large:
                if parameter.shape[0] > parameter.shape[1] and parameter.is_contiguous():
                    parameter.data = parameter.data.t().contiguous().t()
    return model


def is_prepared(model: Model) -> bool:
    """Whether `prepare` was called: a model in training is not, and nothing is recorded of it."""
    return model in _prepared


def _is_large(parameter: nn.Parameter) -> bool:
    return parameter.device.type == "cpu" and parameter.ndim == 2 and parameter.numel() >= SMALLEST


def _into_large_pages(parameters: list[nn.Parameter]) -> None:
    """Move the parameters, one by one, into one stretch of memory that the system backs with large pages: a processor
    that streams through small ones spends half its time looking up where they are."""
    if not parameters or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    sizes = [-(-parameter.numel() * parameter.itemsize // LINE) * LINE for parameter in parameters]
    stretch = mmap.mmap(-1, sum(sizes) + LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        stretch.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system without large pages
        return
    memory = torch.frombuffer(stretch, dtype=torch.uint8)
    place = -memory.data_ptr() % LARGE_PAGE
    for parameter, size in zip(parameters, sizes, strict=True):
        home = memory[place : place + parameter.numel() * parameter.itemsize].view(parameter.dtype)
        parameter.data = home.view(parameter.shape).copy_(parameter.data)
        place += size
