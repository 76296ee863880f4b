"""Parameters end to end: one buffer of weights and one of gradients per update rule, with the parameters as views.

Sharded parameters (FSDP2) keep the storage that was made for them: each is a group of its own, updated shard by shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fledge.errors import FledgeError


class Stack(NamedTuple):
    """Matrices of one shape, whole, and where a change of them goes."""

    weights: Tensor
    "What this process holds of their weights."
    matrices: Tensor
    share: Callable[[Tensor], Tensor]
    "Of a change of the matrices, what belongs to `weights`."


class UpdateGroup(Protocol):
    """Some parameters of one rule that are updated together, element by element."""

    shapes: dict[str, torch.Size]

    @property
    def weights(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor: ...

    def clear(self) -> None:
        """Clear the gradients."""

    def release(self) -> None:
        """Have none, so that autograd hands over those that it makes, and adds to nothing."""

    def gather(self) -> None:
        """Take in the gradients that autograd made after `release`."""

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """A tensor laid out like `weights`, cut into whole tensors of the parameters' shapes."""

    def views(self, tensor: Tensor, names: Collection[str]) -> Iterator[Tensor]:
        """The parts of a tensor laid out like `weights` that belong to these parameters."""

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        """Put one parameter's whole tensor into its place in a tensor laid out like `weights`."""

    def stacks(self, tensor: Tensor) -> Iterator[Stack]:
        """The whole matrices in a tensor laid out like `weights`; those of one shape that lie side by side together."""

    def left_out(self) -> list[str]:
        """The parameters that this step does not move: frozen ones, and those without a gradient."""


class FlatPiece:
    """All parameters of one rule in one buffer; the model's parameters and their gradients become views of it."""

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(named)
        self.shapes = {name: parameter.shape for name, parameter in named.items()}
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in named.values()])
        self._gradient = torch.zeros_like(self.weights)
        self._views, self._slopes = dict(self.split(self.weights)), dict(self.split(self._gradient))
        for name, parameter in named.items():
            parameter.data = self._views[name]
            parameter.grad = self._slopes[name]

    @property
    def gradient(self) -> Tensor:
        """All gradients; those that autograd made elsewhere, as after `model.zero_grad()`, are taken over first."""
        for name, parameter in self._parameters.items():
            view, slope, found = self._views[name], self._slopes[name], parameter.grad
            if parameter.data_ptr() != view.data_ptr() or parameter.dtype != view.dtype:
                if parameter.device != view.device or parameter.dtype != view.dtype or parameter.shape != view.shape:
                    raise FledgeError(
                        f"{name} is no longer the parameter that the optimizer was built for: it is of shape "
                        f"{tuple(parameter.shape)}, {parameter.dtype}, on {parameter.device}. Build the optimizer "
                        "after moving or converting the model."
                    )
                view.copy_(parameter.data)
                parameter.data = view
            if found is None:
                slope.zero_()
            elif found is not slope:
                slope.copy_(found)
                parameter.grad = slope
        return self._gradient

    def left_out(self) -> list[str]:
        return [name for name, each in self._parameters.items() if each.grad is None or not each.requires_grad]

    def clear(self) -> None:
        """Set the gradients to zero, in place: autograd adds to them."""
        self._gradient.zero_()
        for name, parameter in self._parameters.items():
            parameter.grad = self._slopes[name]

    def release(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def gather(self) -> None:
        made = {name: each.grad for name, each in self._parameters.items() if each.grad is not None}
        if made:
            torch._foreach_copy_([self._slopes[name] for name in made], list(made.values()))
        for name, parameter in self._parameters.items():
            parameter.grad = self._slopes[name] if name in made else self._slopes[name].zero_()

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        for (name, shape), part in zip(self.shapes.items(), torch.split(tensor, sizes), strict=True):
            yield name, part.view(shape)

    def views(self, tensor: Tensor, names: Collection[str]) -> Iterator[Tensor]:
        return (part for name, part in self.split(tensor) if name in names)

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        dict(self.split(tensor))[name].copy_(whole)

    def stacks(self, tensor: Tensor) -> Iterator[Stack]:
        start = 0
        for shape, alike in groupby(self.shapes.values()):
            count = len(list(alike))
            end = start + count * shape.numel()
            weights, matrices = (each[start:end].view(count, *shape) for each in (self.weights, tensor))
            yield Stack(weights, matrices, lambda whole: whole)
            start = end


class ShardedPiece:
    """One parameter of which this process holds a shard."""

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        self.name, self.parameter = name, parameter
        self.shapes = {name: parameter.shape}

    @property
    def weights(self) -> Tensor:
        return _local(self.parameter.data)

    @property
    def gradient(self) -> Tensor:
        grad = self.parameter.grad
        return torch.zeros_like(self.weights) if grad is None else _local(grad)

    def left_out(self) -> list[str]:
        return [] if self.parameter.requires_grad and self.parameter.grad is not None else [self.name]

    def clear(self) -> None:
        self.parameter.grad = None

    def release(self) -> None:
        self.clear()

    def gather(self) -> None: ...

    def whole(self, shard: Tensor) -> Tensor:
        """The full tensor of which every process holds a shard laid out like the parameter's."""
        from torch.distributed.tensor import DTensor

        parameter = self.parameter.data
        if not isinstance(parameter, DTensor):
            return shard
        sharded = DTensor.from_local(
            shard,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        return sharded.full_tensor()

    def shard(self, whole: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        parameter = self.parameter.data
        if not isinstance(parameter, DTensor):
            return whole
        return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements).to_local()

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield self.name, self.whole(tensor)

    def views(self, tensor: Tensor, names: Collection[str]) -> Iterator[Tensor]:
        return iter([tensor] if self.name in names else [])

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        tensor.copy_(self.shard(whole))

    def stacks(self, tensor: Tensor) -> Iterator[Stack]:
        yield Stack(self.weights, self.whole(tensor)[None], lambda whole: self.shard(whole[0]))


class Rule(NamedTuple):
    """How some parameters are updated: with what method, and how much they decay."""

    method: str
    decay: float


class Layout:
    """Parameters by rule, as groups that are updated together."""

    def __init__(self, named: Mapping[str, nn.Parameter], rules: Mapping[str, Rule], flat: bool) -> None:
        self.rules = sorted(set(rules.values()))
        self._groups: dict[Rule, list[UpdateGroup]] = {}
        for rule in self.rules:
            members = {name: named[name] for name, of in rules.items() if of == rule}
            self._groups[rule] = (
                [FlatPiece(alike) for alike in _alike(members)]
                if flat
                else [ShardedPiece(name, parameter) for name, parameter in members.items()]
            )

    def groups(self, rule: Rule) -> list[UpdateGroup]:
        return self._groups[rule]

    def gradients(self) -> list[Tensor]:
        return [group.gradient for group in self._all]

    @property
    def _all(self) -> list[UpdateGroup]:
        return [group for rule in self.rules for group in self._groups[rule]]

    def release(self) -> None:
        """Have no gradients until `gather` takes in those that autograd makes: cheaper than zeros and sums on a GPU."""
        for group in self._all:
            group.release()

    @torch.no_grad()
    def gather(self) -> None:
        for group in self._all:
            group.gather()

    @torch.no_grad()
    def zero(self) -> None:
        """Clear the gradients."""
        for group in self._all:
            group.clear()


def _alike(named: Mapping[str, nn.Parameter]) -> list[dict[str, nn.Parameter]]:
    """The parameters by device and type, each group in its order; on a GPU those of one shape lie side by side, so that
    an update takes them in one batch."""
    groups: dict[Any, dict[str, nn.Parameter]] = {}
    for name, parameter in sorted(named.items(), key=_shape_on_gpu):
        groups.setdefault((parameter.device, parameter.dtype), {})[name] = parameter
    return list(groups.values())


def _shape_on_gpu(named: tuple[str, nn.Parameter]) -> tuple[int, ...]:
    return tuple(named[1].shape) if named[1].device.type == "cuda" else ()


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
