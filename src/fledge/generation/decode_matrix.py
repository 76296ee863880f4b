"""A Triton kernel for the widest product of one more token: two rows of a bf16 matrix a program, on matrix units.

What they do in one instruction takes sixteen that unpack and multiply, and all of these come after the wait for the
input. `decode_step.py` says where this is used; elsewhere it is `product` of `decode_kernels.py`.
"""

# The bodies of kernels are Triton's language, which has no types of its own.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from fledge.generation.decode_kernels import _add_both, _start_next, _wait

jit: Any = triton.jit

WARPS = 2
BLOCK = 4 * 32 * WARPS  # pairs: four for each thread
REGISTERS = 128  # of a thread at most: eight programs are on a multiprocessor at once

# m16n8k16 adds A (16 x 16) times B (16 x 8) to C (16 x 8). Of each, lane 4 g + t holds a few numbers:
#   A: rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9;  B: column g, the same four rows;
#   C: rows g and g + 8, columns 2 t and 2 t + 1.
# A vector would fill one column of B in eight, and loads that suit the memory give a lane neighbouring columns of one
# row of the weights. So each group g of four lanes works on columns of its own: its weights, of two rows of the matrix,
# are rows g and g + 8 of A, and its part of the input is column g of B. The sums that are wanted stand on the diagonals
# (g, g) and (g + 8, g) of C; what a group's weights give with another group's input is not looked at.
# A lane gives four pairs of each row, two to an instruction; which columns these are does not matter.
MULTIPLY = tl.constexpr("""
{
  .reg .f32 a, b, c, d;
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {a, b, c, d}, {$4, $8, $5, $9}, {$12, $13}, {$16, $17, $18, $19};
  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$0, $1, $2, $3}, {$6, $10, $7, $11}, {$14, $15}, {a, b, c, d};
}
""")
# Which of a warp's 128 numbers of C each one is: 4 lane, and on.
NUMBER = tl.constexpr("""
{
  .reg .u32 lane;
  mov.u32 lane, %laneid;
  shl.b32 $0, lane, 2;
  add.u32 $1, $0, 1;
  add.u32 $2, $0, 2;
  add.u32 $3, $0, 3;
}
""")


@jit
def _multiplied(low, high, x, total):
    """Four pairs of numbers a lane, of two rows of weights and of the input, taken into C."""
    return tl.inline_asm_elementwise(
        MULTIPLY, "=f,=f,=f,=f,r,r,r,r,r,r,r,r,r,r,r,r,f,f,f,f", [low, high, x, total], tl.float32, False, 4
    )


@jit
def _numbered(total):
    return tl.inline_asm_elementwise(NUMBER, "=r,=r,=r,=r,f,f,f,f", [total], tl.int32, False, 4)


@jit
def _row(weight, K: tl.constexpr, BLOCK: tl.constexpr):
    """A row of pairs as a tuple of (BLOCK,), zero past its end."""
    parts = ()
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        if (chunk + 1) * BLOCK <= K:
            part = tl.load(weight + column, eviction_policy="evict_first")
        else:
            part = tl.load(weight + column, mask=column < K, other=0, eviction_policy="evict_first")
        parts = parts + (part,)  # noqa: RUF005
    return parts


@jit
def _add_product(
    x, weight, bias, out, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr
):
    """Rows 2 i and 2 i + 1 for program i; K and BLOCK count pairs."""
    _start_next(EARLY)
    low = tl.program_id(0) * 2
    high = low + 1
    if N % 2 == 1:
        high = tl.minimum(high, N - 1)  # the last row, alone in its program, is read twice
    low_weights = _row(weight + low * K, K, BLOCK)
    high_weights = _row(weight + high * K, K, BLOCK)
    low_start, high_start = 0.0, 0.0
    if BIAS:
        low_start, high_start = tl.load(bias + low).to(tl.float32), tl.load(bias + high).to(tl.float32)
    _wait(EARLY)
    low_start += tl.load(out + low)
    high_start += tl.load(out + high)
    total = tl.zeros((BLOCK,), tl.float32)
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        part = tl.load(x + column, mask=column < K, other=0)
        total = _multiplied(low_weights[chunk], high_weights[chunk], part, total)
    # Number 16 g + 4 t + 2 h + c of a warp is C's at row g + 8 h, column 2 t + c.
    number = _numbered(total)
    diagonal = number >> 4 == (number >> 1 & 6) + (number & 1)
    low_sum = tl.where(diagonal & (number & 2 == 0), total, 0.0)
    high_sum = tl.where(diagonal & (number & 2 == 2), total, 0.0)
    low_sum, high_sum = tl.reduce((low_sum, high_sum), 0, _add_both)
    tl.store(out + low, low_start + low_sum)
    tl.store(out + high, high_start + high_sum, mask=low + 1 < N)


def add_product(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, early: bool) -> None:
    """out += weight · x + bias, in place and in 32 bits, for one row of bf16 numbers and whole pairs of columns."""
    rows, columns = weight.shape
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    _add_product[(-(-rows // 2),)](
        x.view(torch.int32), weight.view(torch.int32), bias, out, N=rows, K=columns // 2, BLOCK=BLOCK,
        BIAS=bias is not None, EARLY=early, num_warps=WARPS, maxnreg=REGISTERS, **options,
    )  # fmt: skip
