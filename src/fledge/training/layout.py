"""Parameters end to end: one buffer of weights and one of gradients per update rule, with the parameters as views.

Sharded parameters (FSDP2) keep the storage that was made for them: each is a piece of its own, updated shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn


class Piece(Protocol):
    """Some parameters of one rule that are updated together, element by element."""

    shapes: dict[str, torch.Size]

    @property
    def weights(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor: ...

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """A tensor laid out like `weights`, cut into whole tensors of the parameters' shapes."""

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        """Put one parameter's whole tensor into its place in a tensor laid out like `weights`."""

    def by_shape(self, tensor: Tensor) -> Iterator[tuple[list[str], Tensor]]:
        """The whole matrices in a tensor laid out like `weights`, stacked by shape."""

    def add(self, name: str, whole: Tensor, factor: float) -> None:
        """Add `factor` times a whole tensor to a parameter."""

    def decay_cautiously(self, name: str, whole: Tensor, keep: float) -> None:
        """Multiply by `keep` the weights of a parameter that have the sign of a whole tensor."""


class FlatPiece:
    """All parameters of one rule in one buffer; the model's parameters and their gradients become views of it."""

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        parameters = list(named.values())
        self.shapes = {name: parameter.shape for name, parameter in named.items()}
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradient = torch.zeros_like(self.weights)
        for (_, view), (_, slope), parameter in zip(
            self.split(self.weights), self.split(self.gradient), parameters, strict=True
        ):
            parameter.data = view
            parameter.grad = slope
        self._views = dict(self.split(self.weights))

    def split(self, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        for (name, shape), part in zip(self.shapes.items(), torch.split(tensor, sizes), strict=True):
            yield name, part.view(shape)

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        dict(self.split(tensor))[name].copy_(whole)

    def by_shape(self, tensor: Tensor) -> Iterator[tuple[list[str], Tensor]]:
        groups: dict[torch.Size, list[tuple[str, Tensor]]] = {}
        for name, matrix in self.split(tensor):
            groups.setdefault(matrix.shape, []).append((name, matrix))
        for members in groups.values():
            yield [name for name, _ in members], torch.stack([matrix for _, matrix in members])

    def add(self, name: str, whole: Tensor, factor: float) -> None:
        self._views[name].add_(whole, alpha=factor)

    def decay_cautiously(self, name: str, whole: Tensor, keep: float) -> None:
        weights = self._views[name]
        weights.mul_(torch.where(weights * whole > 0, keep, 1.0))


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
        assert self.parameter.grad is not None
        return _local(self.parameter.grad)

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

    def fill(self, tensor: Tensor, name: str, whole: Tensor) -> None:
        tensor.copy_(self.shard(whole))

    def by_shape(self, tensor: Tensor) -> Iterator[tuple[list[str], Tensor]]:
        yield [self.name], self.whole(tensor)[None]

    def add(self, name: str, whole: Tensor, factor: float) -> None:
        self.weights.add_(self.shard(whole), alpha=factor)

    def decay_cautiously(self, name: str, whole: Tensor, keep: float) -> None:
        self.weights.mul_(torch.where(self.weights * self.shard(whole) > 0, keep, 1.0))


class Layout:
    """A model's parameters by rule, as pieces that are updated together."""

    def __init__(self, model: nn.Module, rules: Mapping[str, str], flat: bool) -> None:
        named = dict(model.named_parameters())
        self.rules = sorted(set(rules.values()))
        self._pieces: dict[str, list[Piece]] = {}
        for rule in self.rules:
            members = {name: named[name] for name, of in rules.items() if of == rule}
            self._pieces[rule] = (
                [FlatPiece(members)] if flat else [ShardedPiece(name, parameter) for name, parameter in members.items()]
            )
        self._flat = flat
        self._parameters = list(named.values())

    def pieces(self, rule: str) -> list[Piece]:
        return self._pieces[rule]

    def gradients(self) -> list[Tensor]:
        return [piece.gradient for rule in self.rules for piece in self._pieces[rule]]

    @torch.no_grad()
    def zero(self) -> None:
        """Clear the gradients: in place where they are views, which autograd then adds to."""
        if self._flat:
            for gradient in self.gradients():
                gradient.zero_()
        else:
            for parameter in self._parameters:
                parameter.grad = None


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
