"""Causal attention for short contexts on a GPU: rotary positions, scores and values in one Triton kernel.

It reads the fused projection as it lies in memory and writes the layout that the output projection reads; backward
likewise. At 256 tokens and heads of 32 the general kernels spend most of their time around the attention: on turning,
copying and converting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fledge.config.sizes import LONGEST, SHORT_HEADS, SHORTEST
from fledge.model.base import has_kernels


def is_short(qkv: Tensor, head_size: int) -> bool:
    """Whether the kernel is made for this: bf16, few tokens, heads of 16 to 64."""
    return has_kernels(qkv) and SHORTEST <= qkv.shape[1] <= LONGEST and head_size in SHORT_HEADS


@torch.library.custom_op("fledge::short_attention", mutates_args=())
def short_attention(
    qkv: Tensor,
    gains: Tensor | None,
    cosines: Tensor | None,
    sines: Tensor | None,
    heads: int,
    kv_heads: int,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Attention's output before the last projection, and each query's log-normaliser.

    With `gains`, of queries and of keys, both are divided by their roots of mean squares first.
    """
    from fledge.model.attention_kernels import forward

    return forward(qkv.contiguous(), gains, cosines, sines, heads, kv_heads, epsilon)


@short_attention.register_fake
def _(
    qkv: Tensor, gains: Any, cosines: Any, sines: Any, heads: int, kv_heads: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    batch, length, columns = qkv.shape
    width = columns // (heads + 2 * kv_heads) * heads
    return qkv.new_empty(batch, length, width), qkv.new_empty(batch, heads, length, dtype=torch.float32)


@torch.library.custom_op("fledge::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    normalisers: Tensor,
    gains: Tensor | None,
    cosines: Tensor | None,
    sines: Tensor | None,
    heads: int,
    kv_heads: int,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of `qkv` and of the gains, which are empty where there are none."""
    from fledge.model.attention_kernels import backward

    given = (out, normalisers, gains, cosines, sines, heads, kv_heads, epsilon)
    qkv_grad, gains_grad = backward(grad.contiguous(), qkv.contiguous(), *given)
    return qkv_grad, qkv.new_empty(0) if gains_grad is None else gains_grad


@short_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, out: Tensor, normalisers: Tensor, gains: Tensor | None, *others: Any) -> Any:
    return torch.empty_like(qkv), qkv.new_empty(0) if gains is None else torch.empty_like(gains)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, gains, cosines, sines, *ctx.numbers = inputs
    ctx.save_for_backward(qkv, *output, gains, cosines, sines)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    qkv_grad, gains_grad = short_attention_backward(grad, *ctx.saved_tensors, *ctx.numbers)
    return qkv_grad, gains_grad if gains_grad.numel() else None, *[None] * 5


short_attention.register_autograd(_backward, setup_context=_keep)
