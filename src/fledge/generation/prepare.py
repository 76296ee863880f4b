"""Getting a loaded model ready to decode: weights laid out for one token at a time."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fledge.model.bdh import BDH
from fledge.model.transformer import Transformer

if TYPE_CHECKING:
    from fledge.model import Model

SMALLEST = 1 << 16  # entries; a matrix that stays in the nearest cache reads equally well either way
LARGE_PAGE, LINE = 2 << 20, 64  # bytes

_prepared: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()


def prepare(model: Model) -> Model:
    """Make ready a model that from now on only generates: on a GPU its steps may be recorded and replayed; on the CPU
    its matrices are laid out so that a product with one vector runs at the speed of memory.

    Where the native products read them row by row, they go into large pages; BDH's encoders are turned for that. Of the
    other models, a matrix with more outputs than inputs is stored by its inputs: BLAS then adds long rows instead of
    taking many short dot products, for which it reaches half the bandwidth. Values and shapes stay as they are; a
    matrix that lies in one piece of memory with others, as an optimizer wants them, stays where it is.
    """
    if is_prepared(model):
        return model
    large = [parameter for parameter in model.parameters() if _is_large(parameter)]
    with torch.no_grad():
        if type(model) in (Transformer, BDH):
            for parameter, home in zip(large, large_pages(map(_by_rows, large)), strict=False):
                home.copy_(_by_rows(parameter))
                parameter.data = home.mT if parameter.ndim == 3 else home
        else:
            for parameter in large:
                if parameter.shape[0] > parameter.shape[1] and parameter.is_contiguous():
                    parameter.data = parameter.data.t().contiguous().t()
    _prepared[model] = _places(model)
    return model


def is_prepared(model: Model) -> bool:
    """Whether `prepare` was called and the weights still lie where it left them: training lays them out anew, and
    nothing is recorded of a model in training."""
    return _prepared.get(model) == _places(model)


def _places(model: Model) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


def widen(model: Model) -> Model:
    """Weights of 16 bits in 32 on a CPU, which is slow with the narrow ones: the same numbers."""
    weight = next(model.parameters())
    return model.float() if weight.device.type == "cpu" and weight.element_size() == 2 else model


def large_pages(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Room for tensors like these in one stretch of memory that the system backs with large pages: a processor that
    streams through small ones spends half its time looking up where they are. Empty on a system without them."""
    tensors = list(tensors)
    if sys.platform != "linux" or not tensors or not hasattr(mmap, "MADV_HUGEPAGE"):
        return []
    sizes = [-(-tensor.nbytes // LINE) * LINE for tensor in tensors]
    stretch = mmap.mmap(-1, sum(sizes) + LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        stretch.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return []
    memory = torch.frombuffer(stretch, dtype=torch.uint8)
    place = -memory.data_ptr() % LARGE_PAGE
    homes = []
    for tensor, size in zip(tensors, sizes, strict=True):
        homes.append(memory[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        place += size
    return homes


def _is_large(parameter: nn.Parameter) -> bool:
    alone = parameter.untyped_storage().nbytes() == parameter.nbytes
    return parameter.device.type == "cpu" and parameter.ndim >= 2 and parameter.numel() >= SMALLEST and alone


def _by_rows(parameter: Tensor) -> Tensor:
    """A matrix with one row an output; BDH's encoders, which have three dimensions, hold them as columns."""
    return parameter.mT if parameter.ndim == 3 else parameter
