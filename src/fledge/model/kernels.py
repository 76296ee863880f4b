"""Triton kernels for what a compiler leaves on the table: single passes over the largest tensors of a step.

Each is the plain formula of its twin in `loss.py` and `bdh_layer.py`, which the CPU runs and the tests compare with.
Imported only where there is a CUDA device and Triton.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

jit: Any = triton.jit


@jit
def _softmax_slope(
    logits, targets, losses, stride, vocabulary, smoothing, z_loss,
    GRAD: tl.constexpr, SMOOTH: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of logits a program: its loss, and the slope in place. The second reading comes from the L2 cache."""
    row = tl.program_id(0).to(tl.int64)
    base = logits + row * stride
    target = tl.load(targets + row)
    real = target != MASKED
    greatest = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < vocabulary
        x = tl.load(base + column, mask=inside, other=-float("inf"), eviction_policy="evict_last").to(tl.float32)
        above = tl.maximum(greatest, x)
        mass = mass * tl.exp(greatest - above) + tl.exp(x - above)
        greatest = above
        if SMOOTH:
            total += tl.where(inside, x, 0.0)
    top = tl.max(greatest, 0)
    normaliser = top + tl.log(tl.sum(mass * tl.exp(greatest - top), 0))
    picked = tl.load(base + tl.where(real, target, 0)).to(tl.float32)
    loss = normaliser - (1.0 - smoothing) * picked + z_loss * normaliser * normaliser
    if SMOOTH:
        loss -= smoothing * tl.sum(total, 0) / vocabulary
    tl.store(losses + row, tl.where(real, loss, 0.0))
    if GRAD:
        tl.debug_barrier()  # every thread has read its target's logit before any of them is overwritten
        scale = tl.where(real, 1.0 + 2.0 * z_loss * normaliser, 0.0)
        spread = tl.where(real, smoothing / vocabulary, 0.0)
        for start in range(0, stride, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < vocabulary
            x = tl.load(base + column, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(tl.float32)
            slope = tl.exp(x - normaliser) * scale
            if SMOOTH:
                slope -= tl.where(inside, spread, 0.0)
            slope -= tl.where((column == target) & real, 1.0 - smoothing, 0.0)
            tl.store(base + column, slope.to(logits.dtype.element_ty), mask=column < stride)


def softmax_slope(
    logits_MV: Tensor, targets_M: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool, masked: int
) -> tuple[Tensor, Tensor]:
    """The summed loss, and the logits turned into its slope in place (into themselves where no gradient is asked for)."""
    rows, stride = logits_MV.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits_MV.device)
    # Few rows at once where rows are long, so that all rows in flight fit the L2 cache.
    warps = 32 if stride > 32_768 else 16 if stride > 8_192 else 8
    _softmax_slope[(rows,)](
        logits_MV, targets_M, losses, stride, vocabulary, smoothing, z_loss,
        GRAD=grad, SMOOTH=smoothing > 0, MASKED=masked, BLOCK=512 * warps, num_warps=warps,
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
        keep_first, keep_second = _kept_pair(
            token * pairs + p, tl.load(seeds + head).to(tl.int32), threshold, scale
        )
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
        u_hMN, w_hMN, out, seeds_h, tokens, pairs, int(dropout * 65536), 1 / (1 - dropout), DROP=dropout > 0, BLOCK=block
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
