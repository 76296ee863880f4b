"""FSDP2: every process holds a shard of each parameter; a plain copy on the main process takes the whole for saving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fledge.model import build_model
from fledge.training.ranks import Ranks

if TYPE_CHECKING:
    from fledge.model import Model


def shard(objective: nn.Module, model: Model, ranks: Ranks) -> Any:
    """Shard the layers one by one, so that one at a time is whole, and then what is left of the model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    for layer in getattr(model, "layers", []):
        fully_shard(layer, mesh=mesh)
    return fully_shard(objective, mesh=mesh)


@torch.no_grad()
def gather(model: Model, ranks: Ranks) -> Model | None:
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
