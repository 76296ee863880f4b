"""One block of a Transformer for one token a row, as plain tensors and formulas, which our own kernels read too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.model.activations import ACTIVATIONS
from fledge.model.layers import NORMS, form, rotate
from fledge.model.transformer import Block


class BlockShape(NamedTuple):
    """What of the settings a block's mathematics depends on."""

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
    """One block as plain tensors, which all fast forms read."""

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


Mix = Callable[[Tensor], Tensor]
"The attention of one block: from the queries, keys and values of the new tokens to what its heads find."


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


def block_step(x_BD: Tensor, w: Weights, mix: Mix, shape: BlockShape) -> Tensor:
    """One block for one token a row: see `Block` in the model, whose mathematics this is."""
    if shape.pre_norm:
        x_BD = _add_product(x_BD, mix(functional.linear(_norm(x_BD, w.norm1, shape), *w.qkv)), w.output)
        return _add_product(x_BD, _inner(_norm(x_BD, w.norm2, shape), w, shape), w.outer)
    x_BD = _norm(_add_product(x_BD, mix(functional.linear(x_BD, *w.qkv)), w.output), w.norm1, shape)
    return _norm(_add_product(x_BD, _inner(x_BD, w, shape), w.outer), w.norm2, shape)


def head_step(x_BD: Tensor, norm: Norm, head: Tensor, shape: BlockShape) -> Tensor:
    if shape.pre_norm:
        x_BD = _norm(x_BD, norm, shape)
    return functional.linear(x_BD, head)


def attend(qkv_BE: Tensor, w: Weights, keys: Tensor, values: Tensor, place: Place, shape: BlockShape) -> Tensor:
    """The plain formula of a `Mix`; the new keys and values are stored."""
    heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_size
    batch, groups, capacity = qkv_BE.shape[0], heads // kv_heads, place.held.shape[-1]
    q, k, v = torch.split(qkv_BE.view(batch, -1, size), [heads, kv_heads, kv_heads], dim=1)
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
    scores = torch.matmul(q, keys[:, :, :capacity].transpose(-1, -2).to(q.dtype)).float()
    weights = torch.softmax(scores.masked_fill(~place.held, -torch.inf), dim=-1)
    mixed = torch.matmul(weights.to(q.dtype), values[:, :, :capacity].to(q.dtype))
    return mixed.to(qkv_BE.dtype).reshape(batch, -1)


def _norm(x: Tensor, norm: Norm, shape: BlockShape) -> Tensor:
    if norm.weight is None:
        return x
    return form(NORMS, "norm", norm.kind)(x, norm.weight, norm.bias, shape.epsilon)


def _add_product(x_BD: Tensor, y_BE: Tensor, linear: Linear) -> Tensor:
    """x + weight · y + bias, of which a product adds one sum for nothing."""
    return torch.addmm(x_BD if linear.bias is None else x_BD + linear.bias, y_BE, linear.weight.t())


def _inner(x_BD: Tensor, w: Weights, shape: BlockShape) -> Tensor:
    return form(ACTIVATIONS, "feed_forward", shape.feed_forward)(functional.linear(x_BD, *w.inner))
