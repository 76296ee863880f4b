"""The activations: one table of plain torch, and for SwiGLU and GELU on a GPU operators that read each input once.

A compiler writes the two halves of SwiGLU's gradient as one concatenation, and so reads all its inputs twice; it
computes GELU's gradient twice too, once for the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fledge.model.base import has_kernels


def gated_silu(fused: Tensor) -> Tensor:
    """silu(first half) · second half, along the last dimension."""
    gate, up = fused.chunk(2, dim=-1)
    return functional.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": gated_silu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}
"By `model.feed_forward`: what becomes of the inner matrix's outputs (of two, side by side, where it is gated)."


def swiglu(fused: Tensor) -> Tensor:
    """`gated_silu`, in one pass where our kernels run."""
    return _swiglu(fused) if has_kernels(fused) else gated_silu(fused)


def gelu_of_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """GELU (by tanh) of a linear layer; the bias is added where the activation is taken."""
    if has_kernels(x):
        return _gelu(functional.linear(x, weight), bias)  # type: ignore[no-any-return]
    return ACTIVATIONS["gelu_tanh"](functional.linear(x, weight, bias))


@torch.library.custom_op("fledge::swiglu", mutates_args=())
def _swiglu(fused: Tensor) -> Tensor:
    from fledge.model import kernels

    return kernels.swiglu(fused.contiguous())


@_swiglu.register_fake
def _(fused: Tensor) -> Tensor:
    return fused.new_empty(*fused.shape[:-1], fused.shape[-1] // 2)


@torch.library.custom_op("fledge::swiglu_backward", mutates_args=())
def _swiglu_backward(grad: Tensor, fused: Tensor) -> Tensor:
    from fledge.model import kernels

    return kernels.swiglu_backward(grad.contiguous(), fused.contiguous())


@_swiglu_backward.register_fake
def _(grad: Tensor, fused: Tensor) -> Tensor:
    return fused.new_empty(fused.shape)


@torch.library.custom_op("fledge::gelu", mutates_args=())
def _gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    from fledge.model import kernels

    return kernels.gelu(x.contiguous(), bias)


@_gelu.register_fake
def _(x: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("fledge::gelu_backward", mutates_args=())
def _gelu_backward(grad: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    from fledge.model import kernels

    return kernels.gelu_backward(grad.contiguous(), x.contiguous(), bias)


@_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if bias is None else x.shape[-1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward_of_swiglu(ctx: Any, grad: Tensor) -> Tensor:
    return _swiglu_backward(grad, *ctx.saved_tensors)  # type: ignore[no-any-return]


def _backward_of_gelu(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, bias = ctx.saved_tensors
    x_grad, bias_grad = _gelu_backward(grad, x, bias)
    return x_grad, None if bias is None else bias_grad.to(bias.dtype)


_swiglu.register_autograd(_backward_of_swiglu, setup_context=_keep)
_gelu.register_autograd(_backward_of_gelu, setup_context=_keep)
