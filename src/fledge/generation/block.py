"""One block of a Transformer for one token a row, as plain tensors and formulas: what torch.compile can fuse, and what
our own kernels read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.model.activations import ACTIVATIONS
from fledge.model.layers import NORMS, form, rotate
from fledge.model.transformer import Block


class BlockShape(NamedTuple):
    """What of the settings a block's mathematics depends on, as plain values that a compiler can take for constants."""

    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    pre_norm: bool
    qk_norm: bool
    feed_forward: str

    @staticmethod
    def of(config: ModelConfig) -> BlockShape:
        return BlockShape(
            config.heads,
            config.kv_heads or config.heads,
            config.head_width,
            config.norm_epsilon,
            config.norm_place == "pre",
            config.qk_norm,
            config.feed_forward,
        )


class Norm(NamedTuple):
    """One norm, its kind by `model.norm`; no weights at all for no norm."""

    kind: str
    weight: Tensor | None
    bias: Tensor | None


NO_NORM = Norm("none", None, None)


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class Weights(NamedTuple):
    """One block as plain tensors, which all fast forms read: equal for all blocks but for their values, so that one
    compilation serves all."""

    norm1: Norm
    qkv: Linear
    query_norm: Norm
    key_norm: Norm
    output: Linear
    norm2: Norm
    inner: Linear
    outer: Linear


class Place(NamedTuple):
    """Where the next token stands, for all rows or for each: its slot in the ring, which slots hold keys, and the
    cosines and sines of its rotary angles."""

    slot: Tensor
    held: Tensor
    rotation: tuple[Tensor, Tensor] | None


@cache
def compiled_parts() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A block and the head, fused. So tuned, a product with one vector becomes a kernel that streams the matrix."""
    options: dict[str, Any] = {"coordinate_descent_tuning": True}
    return (
        torch.compile(block_step, dynamic=False, options=options),
        torch.compile(head_step, dynamic=False, options=options),
    )


def block_weights(block: Block) -> Weights:
    attention, feed_forward = block.attn, block.ffn
    return Weights(
        norm1=norm_weights(block.ln1),
        qkv=Linear(*_detached(attention.qkv)),
        query_norm=norm_weights(attention.q_norm) if attention.qk_norm else NO_NORM,
        key_norm=norm_weights(attention.k_norm) if attention.qk_norm else NO_NORM,
        output=Linear(*_detached(attention.output_proj)),
        norm2=norm_weights(block.ln2),
        inner=Linear(*_detached(feed_forward.w13 if feed_forward.gated else feed_forward.w1)),
        outer=Linear(*_detached(feed_forward.w2)),
    )


def norm_weights(module: Any) -> Norm:
    return NO_NORM if isinstance(module, nn.Identity) else Norm(module.kind, *_detached(module))


def _detached(module: Any) -> tuple[Tensor, Tensor | None]:
    return module.weight.detach(), None if module.bias is None else module.bias.detach()


def block_step(x_BD: Tensor, w: Weights, keys: Tensor, values: Tensor, place: Place, shape: BlockShape) -> Tensor:
    """One block for one token a row: see `Block` in the model, whose mathematics this is."""
    if shape.pre_norm:
        x_BD = x_BD + _attend(_norm(x_BD, w.norm1, shape), w, keys, values, place, shape)
        return x_BD + _feed_forward(_norm(x_BD, w.norm2, shape), w, shape)
    x_BD = _norm(x_BD + _attend(x_BD, w, keys, values, place, shape), w.norm1, shape)
    return _norm(x_BD + _feed_forward(x_BD, w, shape), w.norm2, shape)


def head_step(x_BD: Tensor, norm: Norm, head: Tensor, shape: BlockShape) -> Tensor:
    if shape.pre_norm:
        x_BD = _norm(x_BD, norm, shape)
    return functional.linear(x_BD, head)


def _norm(x: Tensor, norm: Norm, shape: BlockShape) -> Tensor:
    if norm.weight is None:
        return x
    bias = None if norm.bias is None else norm.bias.float()
    return form(NORMS, "norm", norm.kind)(x.float(), norm.weight.float(), bias, shape.epsilon).to(x.dtype)


def _attend(x_BD: Tensor, w: Weights, keys: Tensor, values: Tensor, place: Place, shape: BlockShape) -> Tensor:
    heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_size
    batch, groups, capacity = x_BD.shape[0], heads // kv_heads, place.held.shape[-1]
    heads_BHK = functional.linear(x_BD, *w.qkv).view(batch, -1, size)
    q, k, v = torch.split(heads_BHK, [heads, kv_heads, kv_heads], dim=1)
    q, k = _norm(q, w.query_norm, shape), _norm(k, w.key_norm, shape)
    if place.rotation is not None:
        q, k = rotate(q, *place.rotation), rotate(k, *place.rotation)
    for ring, new in ((keys, k), (values, v)):
        new = new[:, :, None].to(ring.dtype)
        if place.slot.shape[0] == 1:
            ring.index_copy_(2, place.slot, new)
        else:
            ring.scatter_(2, place.slot[:, None, None, None].expand_as(new), new)
    q = q.reshape(batch, kv_heads, groups, size) * size**-0.5
    if torch.compiler.is_compiling():
        # Sums of products become one pass over the keys each, spread over the whole GPU.
        scores = (q[:, :, :, None].float() * keys[:, :, None, :capacity].float()).sum(-1)
        scores = scores.masked_fill(~place.held, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = (weights[..., None] * values[:, :, None, :capacity].float()).sum(-2)
    else:
        scores = torch.matmul(q, keys[:, :, :capacity].transpose(-1, -2).to(q.dtype)).float()
        weights = torch.softmax(scores.masked_fill(~place.held, -torch.inf), dim=-1)
        mixed = torch.matmul(weights.to(q.dtype), values[:, :, :capacity].to(q.dtype))
    return functional.linear(mixed.to(x_BD.dtype).reshape(batch, -1), *w.output)


def _feed_forward(x_BD: Tensor, w: Weights, shape: BlockShape) -> Tensor:
    activation = form(ACTIVATIONS, "feed_forward", shape.feed_forward)
    return functional.linear(activation(functional.linear(x_BD, *w.inner)), *w.outer)
