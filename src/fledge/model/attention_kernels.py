"""The Triton kernels of `short_attention`: one forward, two backward (for queries, and for keys and values).

Tiles of one head stay on the chip; scores are made again in the backward pass from the saved log-normaliser. Products
are taken in the input's precision with 32-bit sums. Each kernel takes the tile on the diagonal first: the others need
no causal mask, and none but a row's last tile needs bounds.
"""

# The bodies of kernels are Triton's language, which has no types of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from fledge.model.base import capability

try:
    from triton.tools.tensor_descriptor import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        TensorDescriptor,
    )
except ImportError:  # an older Triton
    TensorDescriptor = None

jit: Any = triton.jit
LOG2E = 1.4426950408889634
TILE = 64  # queries and keys a tile, four warps a program: measured, see docs/gpu-speed.md


@jit
def _turn(x, cosines, sines, rows, inside, SIZE: tl.constexpr, EVEN: tl.constexpr, BACK: tl.constexpr):
    """Rotate the adjacent pairs of each row of a tile by the angles of its position."""
    c = _rows(cosines, rows, inside, SIZE // 2, SIZE // 2, EVEN)
    s = _rows(sines, rows, inside, SIZE // 2, SIZE // 2, EVEN)
    if BACK:
        s = -s
    even, odd = tl.split(tl.reshape(x, (x.shape[0], SIZE // 2, 2)))
    even, odd = even.to(tl.float32), odd.to(tl.float32)
    return tl.reshape(tl.join(even * c - odd * s, even * s + odd * c), (x.shape[0], SIZE))


@jit
def _load(place, inside, EVEN: tl.constexpr):
    """What lies there; zero past the end, where tiles may reach over it."""
    if EVEN:
        return tl.load(place)
    else:
        return tl.load(place, mask=inside, other=0.0)


@jit
def _store(place, values, inside, EVEN: tl.constexpr):
    if EVEN:
        tl.store(place, values)
    else:
        tl.store(place, values, mask=inside)


@jit
def _rows(base, rows, inside, stride, SIZE: tl.constexpr, EVEN: tl.constexpr):
    return _load(base + rows[:, None] * stride + tl.arange(0, SIZE)[None, :], inside[:, None], EVEN)


@jit
def _turned(base, rows, inside, stride, cosines, sines, SIZE: tl.constexpr, EVEN: tl.constexpr, ROPE: tl.constexpr):
    """A tile of queries or keys at its place."""
    x = _rows(base, rows, inside, stride, SIZE, EVEN)
    if ROPE:
        return _turn(x, cosines, sines, rows, inside, SIZE, EVEN, False).to(x.dtype)
    else:
        return x


@jit
def _keys_and_values(
    tiles, base, first, key, value, rows, stride, cosines, sines,
    SIZE: tl.constexpr, ROPE: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """A tile of keys, at its place, and of values, before the diagonal: all there. COPY: by the copy engine."""
    if COPY:
        k = tiles.load([first, key])
        v = tiles.load([first, value])
    else:
        k = _turned(base + key, rows, rows, stride, cosines, sines, SIZE, True, ROPE)
        v = _rows(base + value, rows, rows, stride, SIZE, True)
    return k, v


@jit
def _place(block, row, length, stride, TILE: tl.constexpr):
    """Where a tile's rows stand in their text, which of them are in it, and the offset of the text's first row."""
    here = block * TILE + tl.arange(0, TILE)
    return here, here < length, (row * length).to(tl.int64) * stride


@jit
def _normed(x, gain, epsilon, SIZE: tl.constexpr):
    """The rows of a tile over their roots of mean squares, these as factors, and the rows times the gain."""
    factor = tl.rsqrt(tl.sum(x * x, 1) / SIZE + epsilon)
    unit = x * factor[:, None]
    return unit, factor, unit * gain[None, :]


@jit
def _prepare_heads(
    source, target, gains, cosines, sines, epsilon, length, stride,
    HEADS: tl.constexpr, TURNED: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A tile of one head, normed and turned to its place; of heads that are values, as it is."""
    here, inside, offset = _place(tl.program_id(0), tl.program_id(1), length, stride, TILE)
    head = tl.program_id(2)
    x = _rows(source + offset + head * SIZE, here, inside, stride, SIZE, EVEN)
    if head < TURNED:
        if NORM:
            gain = tl.load(gains + (head >= HEADS).to(tl.int32) * SIZE + tl.arange(0, SIZE)).to(tl.float32)
            _, _, normed = _normed(x.to(tl.float32), gain, epsilon, SIZE)
            x = normed.to(x.dtype)
        if ROPE:
            x = _turn(x, cosines, sines, here, inside, SIZE, EVEN, False).to(x.dtype)
    place = target + offset + head * SIZE + here[:, None] * stride + tl.arange(0, SIZE)[None, :]
    _store(place, x, inside[:, None], EVEN)


@jit
def _prepare_heads_backward(
    grad, source, gain_grads, gains, cosines, sines, epsilon, length, stride,
    HEADS: tl.constexpr, TURNED: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of one head, in its place; each program's share of the gains' in a row of its own."""
    here, inside, offset = _place(tl.program_id(0), tl.program_id(1), length, stride, TILE)
    head = tl.program_id(2)
    slope = _rows(grad + offset + head * SIZE, here, inside, stride, SIZE, EVEN).to(tl.float32)
    if ROPE:
        slope = _turn(slope, cosines, sines, here, inside, SIZE, EVEN, True)
    if NORM:
        column = tl.arange(0, SIZE)
        x = _rows(source + offset + head * SIZE, here, inside, stride, SIZE, EVEN).to(tl.float32)
        gain = tl.load(gains + (head >= HEADS).to(tl.int32) * SIZE + column).to(tl.float32)
        unit, factor, _ = _normed(x, gain, epsilon, SIZE)
        program = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * TURNED + head
        tl.store(gain_grads + program * SIZE + column, tl.sum(slope * unit, 0))
        slope *= gain[None, :]
        slope = factor[:, None] * (slope - unit * (tl.sum(slope * unit, 1) / SIZE)[:, None])
    place = grad + offset + head * SIZE + here[:, None] * stride + tl.arange(0, SIZE)[None, :]
    _store(place, slope.to(grad.dtype.element_ty), inside[:, None], EVEN)


@jit
def _forward_step(q, k, v, here, there, scale, greatest, mass, sums, DIAGONAL: tl.constexpr):
    scores = tl.dot(q, tl.trans(k))
    if DIAGONAL:
        scores = tl.where(here[:, None] >= there[None, :], scores, -1e30)
    above = tl.maximum(greatest, tl.max(scores, 1) * scale)
    p = tl.exp2(scores * scale - above[:, None])
    fade = tl.exp2(greatest - above)
    return above, mass * fade + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, sums * fade[:, None])


@jit
def _forward(
    qkv, tiles, out, normalisers, cosines, sines, length, scale, stride, out_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    ROPE: tl.constexpr, EVEN: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    block, pair = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)  # the longest first
    row, head = pair // HEADS, pair % HEADS
    shared = head // (HEADS // KV_HEADS)
    key, value = (HEADS + shared) * SIZE, (HEADS + KV_HEADS + shared) * SIZE
    here, inside, offset = _place(block, row, length, stride, TILE)
    base = qkv + offset
    q = _turned(base + head * SIZE, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
    if not ROPE:  # what was calculated is kept in registers, which leaves memory for one more program; halving is exact
        q *= 0.5
        scale *= 2.0
    k = _turned(base + key, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
    v = _rows(base + value, here, inside, stride, SIZE, EVEN)
    greatest = tl.full((TILE,), -1e30, tl.float32)
    mass = tl.zeros((TILE,), tl.float32)
    sums = tl.zeros((TILE, SIZE), tl.float32)
    greatest, mass, sums = _forward_step(q, k, v, here, here, scale, greatest, mass, sums, True)
    for start in range(0, block * TILE, TILE):
        there = start + tl.arange(0, TILE)
        k, v = _keys_and_values(
            tiles, base, row * length + start, key, value, there, stride, cosines, sines, SIZE, ROPE, COPY
        )
        greatest, mass, sums = _forward_step(q, k, v, here, there, scale, greatest, mass, sums, False)
    sums *= (1.0 / mass)[:, None]
    target = out + (row * length).to(tl.int64) * out_stride + head * SIZE
    target += here[:, None] * out_stride + tl.arange(0, SIZE)[None, :]
    _store(target, sums.to(out.dtype.element_ty), inside[:, None], EVEN)
    _store(normalisers + pair.to(tl.int64) * length + here, greatest + tl.log2(mass), inside, EVEN)


@jit
def _query_step(q, k, v, g, here, there, scale, normaliser, drift, q_grad, DIAGONAL: tl.constexpr):
    scores = tl.dot(q, tl.trans(k))
    slope = tl.dot(g, tl.trans(v))  # goes on while the exponentials are taken
    p = tl.exp2(scores * scale - normaliser[:, None])
    if DIAGONAL:
        p = tl.where(here[:, None] >= there[None, :], p, 0.0)
    slope = p * (slope - drift[:, None])
    return tl.dot(slope.to(k.dtype), k, q_grad)


@jit
def _backward_queries(
    grad, qkv, tiles, out, normalisers, drifts, qkv_grad, cosines, sines,
    length, scale, stride, out_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    ROPE: tl.constexpr, EVEN: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    block, pair = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    row, head = pair // HEADS, pair % HEADS
    shared = head // (HEADS // KV_HEADS)
    key, value = (HEADS + shared) * SIZE, (HEADS + KV_HEADS + shared) * SIZE
    here, inside, offset = _place(block, row, length, stride, TILE)
    base = qkv + offset
    q = _turned(base + head * SIZE, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
    k = _turned(base + key, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
    v = _rows(base + value, here, inside, stride, SIZE, EVEN)
    place = (row * length).to(tl.int64) * out_stride + head * SIZE
    g = _rows(grad + place, here, inside, out_stride, SIZE, EVEN)
    o = _rows(out + place, here, inside, out_stride, SIZE, EVEN)
    drift = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    query = pair.to(tl.int64) * length + here
    _store(drifts + query, drift, inside, EVEN)
    normaliser = _load(normalisers + query, inside, EVEN)
    q_grad = tl.zeros((TILE, SIZE), tl.float32)
    q_grad = _query_step(q, k, v, g, here, here, scale, normaliser, drift, q_grad, True)
    for start in range(0, block * TILE, TILE):
        there = start + tl.arange(0, TILE)
        k, v = _keys_and_values(
            tiles, base, row * length + start, key, value, there, stride, cosines, sines, SIZE, ROPE, COPY
        )
        q_grad = _query_step(q, k, v, g, here, there, scale, normaliser, drift, q_grad, False)
    q_grad *= scale / 1.4426950408889634
    if ROPE:
        q_grad = _turn(q_grad, cosines, sines, here, inside, SIZE, EVEN, True)
    target = qkv_grad + offset + head * SIZE + here[:, None] * stride + tl.arange(0, SIZE)[None, :]
    _store(target, q_grad.to(qkv_grad.dtype.element_ty), inside[:, None], EVEN)


@jit
def _key_step(
    q, g, normaliser, drift, k, v, here, there, scale, k_grad, v_grad, DIAGONAL: tl.constexpr
):  # fmt: skip
    """Add what one tile of queries gives; a query past the end has no gradient, and so adds nothing."""
    p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - normaliser[None, :])
    if DIAGONAL:
        p = tl.where(there[None, :] >= here[:, None], p, 0.0)
    v_grad = tl.dot(p.to(g.dtype), g, v_grad)
    slope = p * (tl.dot(v, tl.trans(g)) - drift[None, :])
    return tl.dot(slope.to(q.dtype), q, k_grad), v_grad


@jit
def _backward_keys(
    grad, qkv, tiles, grad_tiles, normalisers, drifts, qkv_grad, cosines, sines, length, scale, stride, out_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr,
    ROPE: tl.constexpr, EVEN: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    block, pair = tl.program_id(0), tl.program_id(1)
    row, shared = pair // KV_HEADS, pair % KV_HEADS
    key, value = (HEADS + shared) * SIZE, (HEADS + KV_HEADS + shared) * SIZE
    here, inside, offset = _place(block, row, length, stride, TILE)
    k = _turned(qkv + offset + key, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
    v = _rows(qkv + offset + value, here, inside, stride, SIZE, EVEN)
    k_grad = tl.zeros((TILE, SIZE), tl.float32)
    v_grad = tl.zeros((TILE, SIZE), tl.float32)
    for member in range(HEADS // KV_HEADS):
        head = shared * (HEADS // KV_HEADS) + member
        base, grads = qkv + offset + head * SIZE, grad + (row * length).to(tl.int64) * out_stride + head * SIZE
        query = (row * HEADS + head).to(tl.int64) * length
        q = _turned(base, here, inside, stride, cosines, sines, SIZE, EVEN, ROPE)
        g = _rows(grads, here, inside, out_stride, SIZE, EVEN)
        normaliser, drift = _load(normalisers + query + here, inside, EVEN), _load(drifts + query + here, inside, EVEN)
        k_grad, v_grad = _key_step(q, g, normaliser, drift, k, v, here, here, scale, k_grad, v_grad, True)
        for start in range((block + 1) * TILE, length, TILE):
            there = start + tl.arange(0, TILE)
            present = there < length
            if COPY:
                q = tiles.load([row * length + start, head * SIZE])
                g = grad_tiles.load([row * length + start, head * SIZE])
            else:
                q = _turned(base, there, present, stride, cosines, sines, SIZE, EVEN, ROPE)
                g = _rows(grads, there, present, out_stride, SIZE, EVEN)
            normaliser = _load(normalisers + query + there, present, EVEN)
            drift = _load(drifts + query + there, present, EVEN)
            k_grad, v_grad = _key_step(q, g, normaliser, drift, k, v, here, there, scale, k_grad, v_grad, False)
    k_grad *= scale / 1.4426950408889634
    if ROPE:
        k_grad = _turn(k_grad, cosines, sines, here, inside, SIZE, EVEN, True)
    target = qkv_grad + offset + here[:, None] * stride + tl.arange(0, SIZE)[None, :]
    _store(target + key, k_grad.to(qkv_grad.dtype.element_ty), inside[:, None], EVEN)
    _store(target + value, v_grad.to(qkv_grad.dtype.element_ty), inside[:, None], EVEN)


def _tiles(x: Tensor, size: int) -> Any:
    """A tensor as the copy engine of Hopper and later GPUs reads it: in tiles of one head. Or None."""
    if TensorDescriptor is None or capability(x.device) < (9, 0):
        return None
    if size <= 32 or x.data_ptr() % 16:  # measured: small heads load faster without it
        return None
    return TensorDescriptor.from_tensor(x.view(-1, x.shape[-1]), [TILE, size])


class _Case:
    """What the kernels take for one shape, measured settings included (see docs/gpu-speed.md)."""

    def __init__(self, qkv: Tensor, heads: int, kv_heads: int, rope: bool) -> None:
        self.batch, self.length, columns = qkv.shape
        self.blocks = triton.cdiv(self.length, TILE)
        self.size = size = columns // (heads + 2 * kv_heads)
        self.numbers = (self.length, LOG2E / size**0.5, columns, heads * size)
        self.tiles = _tiles(qkv, size)
        self.settings = {
            "HEADS": heads, "KV_HEADS": kv_heads, "SIZE": size, "TILE": TILE, "ROPE": rope,
            "EVEN": self.length % TILE == 0, "COPY": self.tiles is not None, "num_warps": 4,
        }  # fmt: skip

    def staged(self, stages: int, registers: int) -> dict[str, Any]:
        """Registers are capped, and pipelines short, where one more program then fits on a processor."""
        return self.settings | {"num_stages": 1 if self.size <= 32 else stages, "maxnreg": registers}


class _Pass:
    """A pass over queries and keys before the attention, and one over their gradients after it.

    It norms them where `gains` are given, and turns heads of more than 32: the kernels themselves would turn a key once
    for each tile of queries, which is cheap for small heads alone.
    """

    def __init__(
        self, qkv: Tensor, gains: Tensor | None, cosines: Tensor | None, sines: Tensor | None, heads: int,
        kv_heads: int, epsilon: float,
    ) -> None:  # fmt: skip
        self.batch, self.length, columns = qkv.shape
        self.heads, self.turned, self.all_heads = heads, heads + kv_heads, heads + 2 * kv_heads
        self.size = columns // self.all_heads
        self.blocks = triton.cdiv(self.length, TILE)
        self.gains = gains
        self.numbers = (gains, cosines, sines, epsilon, self.length, columns)
        self.settings = {
            "HEADS": heads, "TURNED": self.turned, "SIZE": self.size, "TILE": TILE, "NORM": gains is not None,
            "ROPE": cosines is not None, "EVEN": self.length % TILE == 0,
        }  # fmt: skip

    @property
    def needed(self) -> bool:
        return self.gains is not None or bool(self.settings["ROPE"] and self.size > 32)

    def forward(self, qkv: Tensor) -> Tensor:
        """Queries and keys as attention compares them, and the values as they are."""
        target = torch.empty_like(qkv)
        _prepare_heads[(self.blocks, self.batch, self.all_heads)](qkv, target, *self.numbers, **self.settings)
        return target

    def backward(self, grad: Tensor, qkv: Tensor) -> Tensor | None:
        """The gradient of `qkv`, written over that of what `forward` gave; returns the gains'."""
        sums = None
        if self.gains is not None:
            shape = (self.blocks * self.batch, self.turned, self.size)
            sums = torch.empty(shape, dtype=torch.float32, device=qkv.device)
        _prepare_heads_backward[(self.blocks, self.batch, self.turned)](grad, qkv, sums, *self.numbers, **self.settings)
        if sums is None or self.gains is None:
            return None
        of_queries, of_keys = sums[:, : self.heads].sum((0, 1)), sums[:, self.heads :].sum((0, 1))
        return torch.stack((of_queries, of_keys)).to(self.gains.dtype)


def forward(
    qkv: Tensor, gains: Tensor | None, cosines: Tensor | None, sines: Tensor | None, heads: int, kv_heads: int,
    epsilon: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    before = _Pass(qkv, gains, cosines, sines, heads, kv_heads, epsilon)
    if before.needed:
        return forward(before.forward(qkv), None, None, None, heads, kv_heads, epsilon)
    case = _Case(qkv, heads, kv_heads, cosines is not None)
    out = torch.empty(case.batch, case.length, heads * case.size, dtype=qkv.dtype, device=qkv.device)
    normalisers = torch.empty(case.batch, heads, case.length, dtype=torch.float32, device=qkv.device)
    _forward[(case.blocks, case.batch * heads)](
        qkv, case.tiles, out, normalisers, cosines, sines, *case.numbers, **case.staged(2, 128)
    )
    return out, normalisers


def backward(
    grad: Tensor, qkv: Tensor, out: Tensor, normalisers: Tensor, gains: Tensor | None, cosines: Tensor | None,
    sines: Tensor | None, heads: int, kv_heads: int, epsilon: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gradients of `qkv` and of the gains."""
    before = _Pass(qkv, gains, cosines, sines, heads, kv_heads, epsilon)
    if before.needed:
        prepared = before.forward(qkv)
        qkv_grad, _ = backward(grad, prepared, out, normalisers, None, None, None, heads, kv_heads, epsilon)
        return qkv_grad, before.backward(qkv_grad, qkv)
    case = _Case(qkv, heads, kv_heads, cosines is not None)
    qkv_grad, drifts = torch.empty_like(qkv), torch.empty_like(normalisers)
    _backward_queries[(case.blocks, case.batch * heads)](
        grad, qkv, case.tiles, out, normalisers, drifts, qkv_grad, cosines, sines, *case.numbers,
        **case.staged(3, 128),
    )  # fmt: skip
    # Past a text's end the copy engine would read the next text, so it fetches whole tiles alone.
    grads = _tiles(grad, case.size) if case.settings["EVEN"] else None
    stages = {"COPY": grads is not None, "num_stages": 1 if grads is None else 2}
    _backward_keys[(case.blocks, case.batch * kv_heads)](
        grad, qkv, case.tiles, grads, normalisers, drifts, qkv_grad, cosines, sines, *case.numbers,
        **case.staged(1, 168) | stages,
    )  # fmt: skip
    return qkv_grad, None
