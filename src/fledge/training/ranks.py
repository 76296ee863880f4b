"""The processes of one run: plain and alone, or several under torchrun, each with its share of every batch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: imported later, its functions' defaults keep that one for ever
from torch import Tensor, nn

from fledge.errors import FledgeError
from fledge.model import build_model
from fledge.training.device import choose_device

if TYPE_CHECKING:
    from fledge.model import Model

LETTING_GO = 0.1
"""Seconds for gloo's threads, which let go of a collective's tensors a moment after it is over: where Python has begun
to end by then, they abort the process. They are joined with a group that nothing keeps, but DTensor's caches keep a
sharded model's."""


@dataclass(frozen=True)
class Ranks:
    """This process among the others."""

    device: torch.device
    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """The process that writes files and prints."""
        return self.rank == 0

    def share(self, size: int) -> tuple[int, int]:
        """Where this process's part of `size` things begins and ends; together the parts are the whole, in order."""
        return size * self.rank // self.world, size * (self.rank + 1) // self.world

    def total(self, *values: float) -> list[float]:
        """Sums over the processes, on the CPU: a GPU is never waited for."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def least(self, value: int) -> int:
        """The smallest of the processes' values."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return int(tensor)

    def reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over the processes in place: the gradients, once per step."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through the block before the others, which then find its work done."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()


@contextmanager
def join_ranks(device: str = "auto") -> Iterator[Ranks]:
    """The processes that torchrun started, or this one alone. Inside another `join_ranks`, the same again."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(choose_device(device))
        return
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    place = choose_device(device, local_rank)
    if place.type == "mps":
        raise FledgeError("Several processes need CUDA devices or the CPU. Add --set training.device=cpu.")
    joined = dist.is_initialized()
    if not joined:
        if place.type == "cuda":
            torch.cuda.set_device(place)
        backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    try:
        yield Ranks(place, rank, world)
    finally:
        if not joined:
            dist.destroy_process_group()
            time.sleep(LETTING_GO)


# -- FSDP2: every process holds a shard of each parameter -----------------------------------------------------------


def shard(objective: nn.Module, model: Model, ranks: Ranks) -> Any:
    """Shard the layers one by one, so that one at a time is whole, and then what is left of the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for layer in getattr(model, "layers", []):
        fully_shard(layer, mesh=mesh)
    return fully_shard(objective, mesh=mesh)


@torch.no_grad()
def gather_model(model: Model, ranks: Ranks) -> Model | None:
    """The whole model on the CPU of the main process; None on the others. All take part, one tensor at a time."""
    whole = build_model(model.config, model.vocabulary_size, model.context_length) if ranks.main else None
    places = dict(whole.named_parameters()) if whole is not None else {}
    for name, parameter in model.named_parameters():
        # After a forward pass without a backward one, what is not in a layer is still whole.
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        if whole is not None:
            places[name].copy_(full)
    return whole.eval() if whole is not None else None


@torch.no_grad()
def scatter(model: Model, whole: Model) -> None:
    """Take a whole model's weights into the shards."""
    from torch.distributed.tensor import distribute_tensor

    places = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        data: Any = parameter.data
        full = places[name].to(data.device)
        data.to_local().copy_(distribute_tensor(full, data.device_mesh, data.placements).to_local())
