"""Triton kernels for what a compiler leaves on the table: single passes over the largest tensors of a step.

Each is the plain formula of its twin in `loss.py` and `bdh_layer.py`, which the CPU runs and the tests compare with.
Imported only where there is a CUDA device and Triton.
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


@jit
def _logits(base, column, stride, vocabulary):
    """Logits near the end of a row: −∞ past the vocabulary. Bound by the stride, whole vectors can be loaded."""
    x = tl.load(base + column, mask=column < stride, other=-float("inf")).to(tl.float32)
    return tl.where(column < vocabulary, x, -float("inf"))


@jit
def _softmax_slope(
    logits, targets, losses, stride, vocabulary, smoothing, z_loss,
    GRAD: tl.constexpr, SMOOTH: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of logits a program: its loss, and the slope in place. The second reading comes from the L2 cache.

    Each lane keeps a maximum and a mass of its own and takes four values at a time, so that correcting the mass for
    a new maximum costs one exponential in five. Exponents are of 2. Bounds are looked at only near the end of a row.
    """
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    target = tl.load(targets + row)
    real = target != MASKED
    lane = tl.arange(0, BLOCK)
    greatest = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    whole = vocabulary // (4 * BLOCK) * (4 * BLOCK)
    for start in range(0, whole, 4 * BLOCK):
        place = base + start + lane
        x0 = tl.load(place, eviction_policy="evict_last").to(tl.float32)
        x1 = tl.load(place + BLOCK, eviction_policy="evict_last").to(tl.float32)
        x2 = tl.load(place + 2 * BLOCK, eviction_policy="evict_last").to(tl.float32)
        x3 = tl.load(place + 3 * BLOCK, eviction_policy="evict_last").to(tl.float32)
        if SMOOTH:
            total += (x0 + x1) + (x2 + x3)
        above = tl.maximum(tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3)) * 1.4426950408889634, greatest)
        mass = mass * tl.exp2(greatest - above)
        mass += tl.exp2(x0 * 1.4426950408889634 - above) + tl.exp2(x1 * 1.4426950408889634 - above)
        mass += tl.exp2(x2 * 1.4426950408889634 - above) + tl.exp2(x3 * 1.4426950408889634 - above)
        greatest = above
    for start in range(whole, vocabulary, BLOCK):
        x = _logits(base, start + lane, stride, vocabulary)
        if SMOOTH:
            total += tl.where(start + lane < vocabulary, x, 0.0)
        above = tl.maximum(x * 1.4426950408889634, greatest)
        mass = mass * tl.exp2(greatest - above) + tl.exp2(x * 1.4426950408889634 - above)
        greatest = above
    top = tl.max(greatest, 0)
    exponent = top + tl.log2(tl.sum(mass * tl.exp2(greatest - top), 0))
    normaliser = exponent * 0.6931471805599453
    picked = tl.load(base + tl.where(real, target, 0)).to(tl.float32)
    loss = normaliser - (1.0 - smoothing) * picked + z_loss * normaliser * normaliser
    if SMOOTH:
        loss -= smoothing * tl.sum(total, 0) / vocabulary
    tl.store(losses + row, tl.where(real, loss, 0.0))
    if GRAD:
        tl.debug_barrier()  # every thread has read its target's logit before any of them is overwritten
        scale = tl.where(real, 1.0 + 2.0 * z_loss * normaliser, 0.0)
        spread = tl.where(real, smoothing / vocabulary, 0.0)
        whole = vocabulary // (2 * BLOCK) * (2 * BLOCK)
        for start in range(0, whole, 2 * BLOCK):
            for part in tl.static_range(2):
                place = base + start + part * BLOCK + lane
                x = tl.load(place, eviction_policy="evict_first").to(tl.float32)
                slope = tl.exp2(x * 1.4426950408889634 - exponent) * scale - spread
                tl.store(place, slope.to(logits.dtype.element_ty))
        for start in range(whole, stride, BLOCK):
            column = start + lane
            slope = tl.exp2(_logits(base, column, stride, vocabulary) * 1.4426950408889634 - exponent) * scale
            slope -= tl.where(column < vocabulary, spread, 0.0)
            tl.store(base + column, slope.to(logits.dtype.element_ty), mask=column < stride)
        tl.debug_barrier()  # the target's slope, alone in its row, replaces what was written with the others
        slope = tl.exp2(picked * 1.4426950408889634 - exponent) * scale - spread - (1.0 - smoothing)
        tl.store(base + target, slope.to(logits.dtype.element_ty), mask=real)


def softmax_slope(
    logits_MV: Tensor, targets_M: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool, masked: int
) -> tuple[Tensor, Tensor]:
    """The summed loss, and the logits turned into its slope in place, where a gradient is asked for."""
    rows, stride = logits_MV.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits_MV.device)
    warps, each = (16, 256) if stride > 32_768 else (8, 128)  # measured: see docs/gpu-speed.md
    _softmax_slope[(rows,)](
        logits_MV, targets_M, losses, stride, vocabulary, smoothing, z_loss,
        GRAD=grad, SMOOTH=smoothing > 0, MASKED=masked, BLOCK=each * warps, num_warps=warps,
    )  # fmt: skip
    return losses.sum(), logits_MV


@jit
def _kept_pair(place, seed, threshold, scale):
    """Dropout factors of a pair of neurons from one hash of its place: 16 bits each."""
    mixed = (place ^ seed).to(tl.uint32)
    mixed = (mixed ^ (mixed >> 16)) * tl.full((), 0x7FEB352D, tl.uint32)
    mixed = (mixed ^ (mixed >> 16)) * tl.full((), 0x846CA68B, tl.uint32)
    mixed = mixed ^ (mixed >> 15)
    first = tl.where((mixed & 0xFFFF).to(tl.int32) >= threshold, scale, 0.0)
    second = tl.where((mixed >> 16).to(tl.int32) >= threshold, scale, 0.0)
    return first, second


@jit
def _rope(u, out, cosines, sines, batch, length, pairs, head_stride, BLOCK: tl.constexpr):
    """RoPE of the rectified neurons. A program holds its angles and walks over the batch: they are read once."""
    step, head = tl.program_id(0), tl.program_id(1)
    p = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pairs
    c = tl.load(cosines + step * pairs + p, mask=inside).to(tl.float32)
    s = tl.load(sines + step * pairs + p, mask=inside).to(tl.float32)
    for row in range(batch):
        place = head * head_stride + (row * length + step).to(tl.int64) * (2 * pairs) + p
        first = tl.maximum(tl.load(u + place, mask=inside).to(tl.float32), 0.0)
        second = tl.maximum(tl.load(u + place + pairs, mask=inside).to(tl.float32), 0.0)
        tl.store(out + place, (first * c - second * s).to(out.dtype.element_ty), mask=inside)
        tl.store(out + place + pairs, (second * c + first * s).to(out.dtype.element_ty), mask=inside)


@jit
def _gate(u, w, out, seeds, tokens, pairs, threshold, scale, DROP: tl.constexpr, BLOCK: tl.constexpr):
    """dropout(relu(u) · relu(w))."""
    token, head = tl.program_id(0), tl.program_id(1)
    p = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pairs
    place = (head * tokens + token).to(tl.int64) * (2 * pairs) + p
    first = tl.maximum(tl.load(u + place, mask=inside).to(tl.float32), 0.0)
    first *= tl.maximum(tl.load(w + place, mask=inside).to(tl.float32), 0.0)
    second = tl.maximum(tl.load(u + place + pairs, mask=inside).to(tl.float32), 0.0)
    second *= tl.maximum(tl.load(w + place + pairs, mask=inside).to(tl.float32), 0.0)
    if DROP:
        a, b = _kept_pair(token * pairs + p, tl.load(seeds + head).to(tl.int32), threshold, scale)
        first *= a
        second *= b
    tl.store(out + place, first.to(out.dtype.element_ty), mask=inside)
    tl.store(out + place + pairs, second.to(out.dtype.element_ty), mask=inside)


@jit
def _gate_backward(
    through, u, w, gated, w_grad, seeds, tokens, pairs, threshold, scale, DROP: tl.constexpr, BLOCK: tl.constexpr
):
    """From the gradient of the gated neurons: the gated neurons again, the gradient of w, and, in place, that of u."""
    token, head = tl.program_id(0), tl.program_id(1)
    p = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pairs
    start = (head * tokens + token).to(tl.int64) * (2 * pairs) + p
    keep_first = tl.full((BLOCK,), 1.0, tl.float32)
    keep_second = tl.full((BLOCK,), 1.0, tl.float32)
    if DROP:
        keep_first, keep_second = _kept_pair(token * pairs + p, tl.load(seeds + head).to(tl.int32), threshold, scale)
    for half in tl.static_range(2):
        place = start + half * pairs
        keep = keep_first if half == 0 else keep_second
        g = tl.load(through + place, mask=inside).to(tl.float32) * keep
        a = tl.maximum(tl.load(u + place, mask=inside).to(tl.float32), 0.0)
        b = tl.maximum(tl.load(w + place, mask=inside).to(tl.float32), 0.0)
        tl.store(gated + place, (a * b * keep).to(gated.dtype.element_ty), mask=inside)
        tl.store(w_grad + place, tl.where(b > 0, g * a, 0.0).to(w_grad.dtype.element_ty), mask=inside)
        tl.store(through + place, tl.where(a > 0, g * b, 0.0).to(through.dtype.element_ty), mask=inside)


@jit
def _rope_backward(q_grad, part, u, cosines, sines, batch, length, pairs, head_stride, BLOCK: tl.constexpr):
    """The gradient of u before its rectifier, in place of that of q: turned back, plus what came through the gate."""
    step, head = tl.program_id(0), tl.program_id(1)
    p = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = p < pairs
    c = tl.load(cosines + step * pairs + p, mask=inside).to(tl.float32)
    s = tl.load(sines + step * pairs + p, mask=inside).to(tl.float32)
    for row in range(batch):
        place = head * head_stride + (row * length + step).to(tl.int64) * (2 * pairs) + p
        g = tl.load(q_grad + place, mask=inside).to(tl.float32)
        h = tl.load(q_grad + place + pairs, mask=inside).to(tl.float32)
        first = tl.load(part + place, mask=inside).to(tl.float32)
        second = tl.load(part + place + pairs, mask=inside).to(tl.float32)
        lives = tl.load(u + place, mask=inside).to(tl.float32) > 0
        other_lives = tl.load(u + place + pairs, mask=inside).to(tl.float32) > 0
        first += tl.where(lives, g * c + h * s, 0.0)
        second += tl.where(other_lives, h * c - g * s, 0.0)
        tl.store(q_grad + place, first.to(q_grad.dtype.element_ty), mask=inside)
        tl.store(q_grad + place + pairs, second.to(q_grad.dtype.element_ty), mask=inside)


def _block(pairs: int) -> int:
    return int(min(1024, triton.next_power_of_2(pairs)))


def rope_of_rectified(u_hBTN: Tensor, cosines_TP: Tensor, sines_TP: Tensor) -> Tensor:
    heads, batch, length, neurons = u_hBTN.shape
    out, pairs = torch.empty_like(u_hBTN), neurons // 2
    block = _block(pairs)
    _rope[(length, heads, triton.cdiv(pairs, block))](
        u_hBTN, out, cosines_TP, sines_TP, batch, length, pairs, batch * length * neurons, BLOCK=block
    )
    return out


def rope_backward(q_grad_hBTN: Tensor, part_hBTN: Tensor, u_hBTN: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    heads, batch, length, neurons = u_hBTN.shape
    pairs = neurons // 2
    block = _block(pairs)
    _rope_backward[(length, heads, triton.cdiv(pairs, block))](
        q_grad_hBTN, part_hBTN, u_hBTN, cosines, sines, batch, length, pairs, batch * length * neurons, BLOCK=block
    )
    return q_grad_hBTN


def gate(u_hMN: Tensor, w_hMN: Tensor, seeds_h: Tensor, dropout: float) -> Tensor:
    heads, tokens, neurons = u_hMN.shape
    out, pairs = torch.empty_like(u_hMN), neurons // 2
    block = _block(pairs)
    _gate[(tokens, heads, triton.cdiv(pairs, block))](
        u_hMN,
        w_hMN,
        out,
        seeds_h,
        tokens,
        pairs,
        int(dropout * 65536),
        1 / (1 - dropout),
        DROP=dropout > 0,
        BLOCK=block,
    )
    return out


def gate_backward(
    through_hMN: Tensor, u_hMN: Tensor, w_hMN: Tensor, seeds_h: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gated neurons, the gradient of w, and, in `through`'s place, that of u through the gate."""
    heads, tokens, neurons = u_hMN.shape
    gated, w_grad, pairs = torch.empty_like(u_hMN), torch.empty_like(u_hMN), neurons // 2
    block = _block(pairs)
    _gate_backward[(tokens, heads, triton.cdiv(pairs, block))](
        through_hMN, u_hMN, w_hMN, gated, w_grad, seeds_h, tokens, pairs, int(dropout * 65536), 1 / (1 - dropout),
        DROP=dropout > 0, BLOCK=block,
    )  # fmt: skip
    return gated, w_grad, through_hMN


@jit
def _swiglu(fused, out, rows, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < hidden)
    gate = tl.load(fused + row * 2 * hidden + column, mask=inside).to(tl.float32)
    up = tl.load(fused + row * 2 * hidden + hidden + column, mask=inside).to(tl.float32)
    tl.store(out + row * hidden + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@jit
def _swiglu_backward(grad, fused, fused_grad, rows, hidden, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < hidden)
    first = row * 2 * hidden + column
    gate = tl.load(fused + first, mask=inside).to(tl.float32)
    up = tl.load(fused + first + hidden, mask=inside).to(tl.float32)
    g = tl.load(grad + row * hidden + column, mask=inside).to(tl.float32)
    share = tl.sigmoid(gate)
    slope = share * (1.0 + gate * (1.0 - share))
    tl.store(fused_grad + first, (g * up * slope).to(fused_grad.dtype.element_ty), mask=inside)
    tl.store(fused_grad + first + hidden, (g * gate * share).to(fused_grad.dtype.element_ty), mask=inside)


def swiglu(fused: Tensor) -> Tensor:
    """silu(first half) · second half, along the last dimension."""
    rows, hidden = fused.numel() // fused.shape[-1], fused.shape[-1] // 2
    out = torch.empty((*fused.shape[:-1], hidden), dtype=fused.dtype, device=fused.device)
    _swiglu[(triton.cdiv(rows, 8), triton.cdiv(hidden, 256))](fused, out, rows, hidden, ROWS=8, BLOCK=256)
    return out


def swiglu_backward(grad: Tensor, fused: Tensor) -> Tensor:
    rows, hidden = fused.numel() // fused.shape[-1], fused.shape[-1] // 2
    fused_grad = torch.empty_like(fused)
    _swiglu_backward[(triton.cdiv(rows, 8), triton.cdiv(hidden, 256))](
        grad, fused, fused_grad, rows, hidden, ROWS=8, BLOCK=256
    )
    return fused_grad


@jit
def _gelu(x, bias, out, rows, columns, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """GELU by tanh, which is x · sigmoid(2y) with y = √(2/π)(x + 0.044715 x³), of x plus a bias."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < columns)
    v = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        v += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    y = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    tl.store(out + row * columns + column, (v * tl.sigmoid(2.0 * y)).to(out.dtype.element_ty), mask=inside)


@jit
def _gelu_backward(
    grad, x, bias, x_grad, sums, rows, columns,
    BIAS: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and, for the bias, its sum over the rows of this program."""
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    present = column < columns
    b = tl.zeros((1, BLOCK), tl.float32)
    if BIAS:
        b = tl.load(bias + column, mask=present, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for step in range(STEPS):
        row = ((tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & present
        v = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32) + b
        g = tl.load(grad + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        square = v * v
        share = 1.0 / (1.0 + tl.exp2(v * (-2.302208198 - 0.1029432397 * square)))  # the sigmoid, as a power of 2
        inner = v * (1.5957691216 + 0.2140644488 * square)
        g *= share
        g += g * (inner - inner * share)
        total += g
        tl.store(x_grad + row * columns + column, g.to(x_grad.dtype.element_ty), mask=inside)
    if BIAS:
        tl.store(sums + tl.program_id(0) * columns + column, tl.sum(total, 0)[None, :], mask=present)


def gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """GELU, by tanh, of x plus a bias."""
    columns = x.shape[-1]
    out, rows = torch.empty_like(x), x.numel() // columns
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 256))
    _gelu[grid](x, bias, out, rows, columns, BIAS=bias is not None, ROWS=8, BLOCK=256)
    return out


def gelu_backward(grad: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the bias: sums of 128 rows at a time, then their sum, always in the same order."""
    columns = x.shape[-1]
    x_grad, rows = torch.empty_like(x), x.numel() // columns
    grid = (triton.cdiv(rows, 128), triton.cdiv(columns, 256))
    sums = torch.empty((grid[0], columns) if bias is not None else (0,), dtype=torch.float32, device=x.device)
    _gelu_backward[grid](grad, x, bias, x_grad, sums, rows, columns, BIAS=bias is not None, ROWS=4, STEPS=32, BLOCK=256)
    return x_grad, sums.sum(0) if bias is not None else sums
