"""The Triton kernels of `short_attention`: one forward, two backward (for queries, and for keys and values).

Tiles of one head stay on the chip; scores are made again in the backward pass from the saved log-normaliser. Products
are taken in the input's precision with 32-bit sums.
"""

# The bodies of kernels are Triton's language, which has no types of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

jit: Any = triton.jit
LOG2E = 1.4426950408889634


@jit
def _turn(x, cosines, sines, rows, inside, SIZE: tl.constexpr, TILE: tl.constexpr, BACK: tl.constexpr):
    """Rotate the adjacent pairs of each row of a tile by the angles of its position."""
    half: tl.constexpr = SIZE // 2
    place = rows[:, None] * half + tl.arange(0, half)[None, :]
    c = tl.load(cosines + place, mask=inside[:, None], other=1.0)
    s = tl.load(sines + place, mask=inside[:, None], other=0.0)
    if BACK:
        s = -s
    even, odd = tl.split(tl.reshape(x, (TILE, half, 2)))
    even, odd = even.to(tl.float32), odd.to(tl.float32)
    return tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (TILE, SIZE))


@jit
def _load(base, rows, inside, stride, cosines, sines, SIZE: tl.constexpr, TILE: tl.constexpr, ROPE: tl.constexpr):
    """A tile of queries or keys, turned."""
    x = tl.load(base + rows[:, None] * stride + tl.arange(0, SIZE)[None, :], mask=inside[:, None], other=0.0)
    if ROPE:
        return _turn(x, cosines, sines, rows, inside, SIZE, TILE, False).to(x.dtype)
    return x


@jit
def _forward(
    qkv, out, normalisers, cosines, sines, length, scale, stride, out_stride, heads, kv_heads,
    SIZE: tl.constexpr, TILE: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    block, pair = tl.program_id(0), tl.program_id(1)
    row, head = (pair // heads).to(tl.int64), pair % heads
    shared = head // (heads // kv_heads)
    base = qkv + row * length * stride
    here = block * TILE + tl.arange(0, TILE)
    inside = here < length
    columns = tl.arange(0, SIZE)
    q = _load(base + head * SIZE, here, inside, stride, cosines, sines, SIZE, TILE, ROPE)
    keys, values = base + (heads + shared) * SIZE, base + (heads + kv_heads + shared) * SIZE
    greatest = tl.full((TILE,), -1e30, tl.float32)
    mass = tl.zeros((TILE,), tl.float32)
    sums = tl.zeros((TILE, SIZE), tl.float32)
    for start in range(0, (block + 1) * TILE, TILE):
        there = start + tl.arange(0, TILE)
        present = there < length
        k = _load(keys, there, present, stride, cosines, sines, SIZE, TILE, ROPE)
        v = tl.load(values + there[:, None] * stride + columns[None, :], mask=present[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(here[:, None] >= there[None, :], scores, -1e30)
        above = tl.maximum(greatest, tl.max(scores, 1))
        p = tl.exp2(scores - above[:, None])
        fade = tl.exp2(greatest - above)
        mass = mass * fade + tl.sum(p, 1)
        sums = sums * fade[:, None] + tl.dot(p.to(v.dtype), v)
        greatest = above
    sums = sums / mass[:, None]
    target = out + row * length * out_stride + head * SIZE + here[:, None] * out_stride + columns[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(normalisers + pair.to(tl.int64) * length + here, greatest + tl.log2(mass), mask=inside)


@jit
def _backward_queries(
    grad, qkv, out, normalisers, drifts, qkv_grad, cosines, sines, length, scale, stride, out_stride, heads, kv_heads,
    SIZE: tl.constexpr, TILE: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    block, pair = tl.program_id(0), tl.program_id(1)
    row, head = (pair // heads).to(tl.int64), pair % heads
    shared = head // (heads // kv_heads)
    base = qkv + row * length * stride
    here = block * TILE + tl.arange(0, TILE)
    inside = here < length
    columns = tl.arange(0, SIZE)
    q = _load(base + head * SIZE, here, inside, stride, cosines, sines, SIZE, TILE, ROPE)
    place = row * length * out_stride + head * SIZE + here[:, None] * out_stride + columns[None, :]
    g = tl.load(grad + place, mask=inside[:, None], other=0.0)
    o = tl.load(out + place, mask=inside[:, None], other=0.0)
    drift = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(drifts + pair.to(tl.int64) * length + here, drift, mask=inside)
    normaliser = tl.load(normalisers + pair.to(tl.int64) * length + here, mask=inside, other=0.0)
    keys, values = base + (heads + shared) * SIZE, base + (heads + kv_heads + shared) * SIZE
    q_grad = tl.zeros((TILE, SIZE), tl.float32)
    for start in range(0, (block + 1) * TILE, TILE):
        there = start + tl.arange(0, TILE)
        present = there < length
        k = _load(keys, there, present, stride, cosines, sines, SIZE, TILE, ROPE)
        v = tl.load(values + there[:, None] * stride + columns[None, :], mask=present[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale - normaliser[:, None]
        p = tl.where(here[:, None] >= there[None, :], tl.exp2(scores), 0.0)
        slope = p * (tl.dot(g, tl.trans(v)) - drift[:, None])
        q_grad += tl.dot(slope.to(k.dtype), k)
    q_grad *= scale / 1.4426950408889634
    if ROPE:
        q_grad = _turn(q_grad, cosines, sines, here, inside, SIZE, TILE, True)
    target = qkv_grad + row * length * stride + head * SIZE + here[:, None] * stride + columns[None, :]
    tl.store(target, q_grad.to(qkv_grad.dtype.element_ty), mask=inside[:, None])


@jit
def _backward_keys(
    grad, qkv, normalisers, drifts, qkv_grad, cosines, sines, length, scale, stride, out_stride, kv_heads,
    SIZE: tl.constexpr, TILE: tl.constexpr, ROPE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    block, pair = tl.program_id(0), tl.program_id(1)
    row, shared = (pair // kv_heads).to(tl.int64), pair % kv_heads
    heads = GROUP * kv_heads
    base = qkv + row * length * stride
    here = block * TILE + tl.arange(0, TILE)
    inside = here < length
    columns = tl.arange(0, SIZE)
    k = _load(base + (heads + shared) * SIZE, here, inside, stride, cosines, sines, SIZE, TILE, ROPE)
    values = (heads + kv_heads + shared) * SIZE + here[:, None] * stride + columns[None, :]
    v = tl.load(base + values, mask=inside[:, None], other=0.0)
    k_grad = tl.zeros((TILE, SIZE), tl.float32)
    v_grad = tl.zeros((TILE, SIZE), tl.float32)
    for member in range(GROUP):
        head = shared * GROUP + member
        for start in range(block * TILE, length, TILE):
            there = start + tl.arange(0, TILE)
            present = there < length
            q = _load(base + head * SIZE, there, present, stride, cosines, sines, SIZE, TILE, ROPE)
            place = row * length * out_stride + head * SIZE + there[:, None] * out_stride + columns[None, :]
            g = tl.load(grad + place, mask=present[:, None], other=0.0)
            query = (row * heads + head) * length + there
            drift = tl.load(drifts + query, mask=present, other=0.0)
            normaliser = tl.load(normalisers + query, mask=present, other=0.0)
            scores = tl.dot(k, tl.trans(q)) * scale - normaliser[None, :]
            seen = (there[None, :] >= here[:, None]) & present[None, :]
            p = tl.where(seen, tl.exp2(scores), 0.0)
            v_grad += tl.dot(p.to(g.dtype), g)
            slope = p * (tl.dot(v, tl.trans(g)) - drift[None, :])
            k_grad += tl.dot(slope.to(q.dtype), q)
    k_grad *= scale / 1.4426950408889634
    if ROPE:
        k_grad = _turn(k_grad, cosines, sines, here, inside, SIZE, TILE, True)
    target = qkv_grad + row * length * stride + (heads + shared) * SIZE + here[:, None] * stride + columns[None, :]
    tl.store(target, k_grad.to(qkv_grad.dtype.element_ty), mask=inside[:, None])
    tl.store(qkv_grad + row * length * stride + values, v_grad.to(qkv_grad.dtype.element_ty), mask=inside[:, None])


def _shape(qkv: Tensor, heads: int, kv_heads: int) -> tuple[int, int, int, int, float]:
    batch, length, columns = qkv.shape
    size = columns // (heads + 2 * kv_heads)
    return batch, length, columns, size, LOG2E / size**0.5


def forward(
    qkv: Tensor,
    cosines: Tensor | None,
    sines: Tensor | None,
    heads: int,
    kv_heads: int,
    tile: int = 64,
    warps: int = 4,
) -> tuple[Tensor, Tensor]:
    qkv = qkv.contiguous()
    batch, length, columns, size, scale = _shape(qkv, heads, kv_heads)
    out = torch.empty(batch, length, heads * size, dtype=qkv.dtype, device=qkv.device)
    normalisers = torch.empty(batch, heads, length, dtype=torch.float32, device=qkv.device)
    _forward[(triton.cdiv(length, tile), batch * heads)](
        qkv, out, normalisers, cosines, sines, length, scale, columns, heads * size, heads, kv_heads,
        SIZE=size, TILE=tile, ROPE=cosines is not None, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out, normalisers


def backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    normalisers: Tensor,
    cosines: Tensor | None,
    sines: Tensor | None,
    heads: int,
    kv_heads: int,
    tile: int = 64,
    warps: int = 4,
) -> Tensor:
    qkv = qkv.contiguous()
    batch, length, columns, size, scale = _shape(qkv, heads, kv_heads)
    qkv_grad, drifts = torch.empty_like(qkv), torch.empty_like(normalisers)
    stages = 1 if size <= 32 else 3  # measured: with small heads, more programs at once beat deeper pipelines
    blocks, rope = triton.cdiv(length, tile), cosines is not None
    _backward_queries[(blocks, batch * heads)](
        grad, qkv, out, normalisers, drifts, qkv_grad, cosines, sines, length, scale, columns, heads * size, heads,
        kv_heads, SIZE=size, TILE=tile, ROPE=rope, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    _backward_keys[(blocks, batch * kv_heads)](
        grad, qkv, normalisers, drifts, qkv_grad, cosines, sines, length, scale, columns, heads * size, kv_heads,
        SIZE=size, TILE=tile, ROPE=rope, GROUP=heads // kv_heads, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return qkv_grad
