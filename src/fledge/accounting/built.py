"""The account of an architecture that only its own code describes: it is built without memory, run, and watched.

For models that someone registered. On torch's meta device tensors have shapes and no storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fledge.config import ModelConfig
from fledge.errors import notes_kept

if TYPE_CHECKING:
    from fledge.model import Model


BuiltParameter = tuple[str, str, tuple[int, ...]]
BuiltProduct = tuple[str, str, int, int, int, int]


def is_registered(architecture: str) -> bool:
    from fledge.model.registry import is_known

    return is_known(architecture)


def built_parameters(config: ModelConfig, vocabulary_size: int, context_length: int) -> Iterator[BuiltParameter]:
    """Each tensor's name in the weights file, its component, which is the module it belongs to, and its shape."""
    for name, tensor in _build(config, vocabulary_size, context_length).state_dict().items():
        yield name, name.split(".")[0].replace("_", " "), tuple(tensor.shape)


@lru_cache(maxsize=64)
def built_products(config: ModelConfig, vocabulary_size: int, context_length: int) -> tuple[BuiltProduct, ...]:
    """The products of one window as they happen, equal ones together: what a `Product` is made of."""
    return _watch(config, vocabulary_size, context_length)[0]


@lru_cache(maxsize=64)
def built_activations(config: ModelConfig, context_length: int) -> float:
    """fp32 bytes that a window keeps for the backward pass when nothing is compiled."""
    return _watch(config, 8, context_length)[1]


def _build(config: ModelConfig, vocabulary_size: int, context_length: int) -> Model:
    import torch

    from fledge.model import build_model

    with notes_kept(), torch.device("meta"):
        return build_model(config, vocabulary_size, context_length)


def _watch(config: ModelConfig, vocabulary_size: int, context_length: int) -> tuple[tuple[BuiltProduct, ...], float]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    found: dict[tuple[int, int, int], int] = {}

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own base has no types
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            packet = function.overloadpacket
            if packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
                left, right = arguments[-2:]
                shape = (left.shape[-2], left.shape[-1], right.shape[-1])
                found[shape] = found.get(shape, 0) + (left.shape[0] if left.dim() == 3 else 1)
            return function(*arguments, **(keywords or {}))

    model = _build(config, vocabulary_size, context_length)
    own = {id(parameter) for parameter in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in own:
            kept[id(base)] = base.numel() * base.element_size()
        return tensor

    inputs = torch.zeros((1, context_length), dtype=torch.long, device="meta")
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with sdpa_kernel(SDPBackend.MATH), Watch(), hooks:  # type: ignore[no-untyped-call]  # torch's, as above
        hidden, _ = model.hidden(inputs)
        model.head(hidden)
    products = (
        (f"product {number}", "products", *shape, times) for number, (shape, times) in enumerate(found.items(), start=1)
    )
    return tuple(products), float(sum(kept.values()))
