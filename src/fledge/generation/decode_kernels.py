"""Triton kernels for one more token a row: every matrix passes once through the chip, at the speed of its memory.

A product loads its weights into registers while the kernel before it still runs (where the GPU can: EARLY), and then
normalises, or combines, its input on the way. Attention is split over the keys that are held. `burst.py` has the plain
formula of all of it, which the tests compare with. Imported only where there is a CUDA device and Triton.
"""

# The bodies of kernels are Triton's language, which has no types of its own, and joins tuples by + alone.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

jit: Any = triton.jit


@jit
def _start_next(EARLY: tl.constexpr):
    """Let the next kernel begin: all that it does before `_wait` needs nothing of this one."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def _wait(EARLY: tl.constexpr):
    """Until the kernels before this one have ended and all that they wrote can be seen."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@jit
def _apart(pair):
    """The two numbers of a pair, the first one first: bf16 in 32 bits, or fp32 in 64. A bf16 is the upper half of an
    fp32, so that one shift or mask makes one; the compiler's own way takes half as many instructions again."""
    if pair.dtype == tl.int32:
        first, second = pair << 16, pair & -65536
    else:
        first, second = pair.to(tl.int32), (pair >> 32).to(tl.int32)
    return first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True)


@jit
def _tiles(weight, row, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Some rows of a matrix, in registers: a tuple of (ROWS, BLOCK)."""
    place = weight + row.to(tl.int64)[:, None] * K
    tiles = ()
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        if N % ROWS == 0 and (chunk + 1) * BLOCK <= K:
            tile = tl.load(place + column[None, :], eviction_policy="evict_first")
        else:
            inside = (row < N)[:, None] & (column < K)[None, :]
            tile = tl.load(place + column[None, :], mask=inside, other=0, eviction_policy="evict_first")
        tiles = tiles + (tile,)
    return tiles


@jit
def _vector(x, K: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr):
    """A vector as a tuple of (BLOCK,), zero past its end; with PAIRS, first and second numbers in turns."""
    parts = ()
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        if (chunk + 1) * BLOCK <= K:
            part = tl.load(x + column)
        else:
            part = tl.load(x + column, mask=column < K, other=0)
        if PAIRS:
            parts = parts + _apart(part)
        else:
            parts = parts + (part.to(tl.float32),)
    return parts


@jit
def _combined(
    mixed, weights, K: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """What attention gives, from parts that looked at some of the keys each; their weights are exponents of 2."""
    parts = ()
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        column = chunk * BLOCK + tl.arange(0, BLOCK)
        inside = column < K
        head = column // SIZE
        top = tl.full((BLOCK,), -1e30, tl.float32)
        exponents = ()
        for split in tl.static_range(SPLITS):
            exponents = exponents + (tl.load(weights + split * (K // SIZE) + head, mask=inside, other=0.0),)
            top = tl.maximum(top, exponents[split])
        mass = tl.zeros((BLOCK,), tl.float32)
        first = tl.zeros((BLOCK,), tl.float32)
        second = tl.zeros((BLOCK,), tl.float32)
        for split in tl.static_range(SPLITS):
            share = tl.exp2(exponents[split] - top)
            mass += share
            part = tl.load(mixed + split * K + column, mask=inside, other=0)
            if PAIRS:
                one, other = _apart(part)
                first += share * one
                second += share * other
            else:
                first += share * part
        if PAIRS:
            parts = parts + (first / mass, second / mass)
        else:
            parts = parts + (first / mass,)
    return parts


@jit
def _add_both(a, b, c, d):
    return a + c, b + d


@jit
def _normed(
    x, parts, gains, shifts, epsilon, K: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr, LAYER: tl.constexpr
):
    """RMSNorm or LayerNorm. Deviations are taken from the first entry: squares then lose nothing to a large mean."""
    each: tl.constexpr = 2 if PAIRS else 1
    pivot = 0.0
    if LAYER:
        pivot = tl.load(x)
        if PAIRS:
            pivot, _ = _apart(pivot)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range((K + BLOCK - 1) // BLOCK * each):
        away = parts[part] - pivot
        if (part // each + 1) * BLOCK > K:
            away = tl.where(part // each * BLOCK + tl.arange(0, BLOCK) < K, away, 0.0)
        total += away
        squares += away * away
    total, squares = tl.reduce((total, squares), 0, _add_both)
    mean = 0.0
    variance = squares / (K * each)
    if LAYER:
        away = total / (K * each)
        mean = pivot + away
        variance = tl.maximum(variance - away * away, 0.0)
    factor = tl.rsqrt(variance + epsilon)
    out = ()
    for part in tl.static_range((K + BLOCK - 1) // BLOCK * each):
        out = out + ((parts[part] - mean) * factor * gains[part] + shifts[part],)
    return out


@jit
def _times(tiles, parts, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr):
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for chunk in tl.static_range((K + BLOCK - 1) // BLOCK):
        if PAIRS:
            first, second = _apart(tiles[chunk])
            total += first * parts[2 * chunk][None, :]
            total += second * parts[2 * chunk + 1][None, :]
        else:
            total += tiles[chunk].to(tl.float32) * parts[chunk][None, :]
    return tl.sum(total, 1)


@jit
def _activated(y, KIND: tl.constexpr):
    if KIND == "silu":
        y = y * tl.sigmoid(y)
    elif KIND == "relu2":
        y = tl.maximum(y, 0.0) * tl.maximum(y, 0.0)
    elif KIND == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif KIND == "gelu_tanh":
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    else:
        tl.static_assert(KIND == "plain" or KIND == "scores", "an activation without a kernel")
    return y


@jit
def product(
    x, part_weights, weight, bias, gain, shift, out, best, best_row, best_mass, batch, epsilon,
    N: tl.constexpr, REAL: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    INPUT: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, OUTPUT: tl.constexpr, BIAS: tl.constexpr,
    SHIFT: tl.constexpr, PAIRS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Some rows of out = weight · input(x) + bias a program, for each row of the batch; rows from REAL on are padding.

    With PAIRS, everything along K comes as pairs of numbers (see `_apart`), and K, BLOCK and SIZE count pairs.
    INPUT: `plain`, `rms`, `layer`, or `parts` of an attention. OUTPUT: an activation, `gated` (the matrix has 2 N
    rows: gates first), `add` to what is there, `scores` (the greatest of each program beside them), or `plain`.
    """
    _start_next(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < REAL
    tiles = _tiles(weight, row, N, K, ROWS, BLOCK)
    if OUTPUT == "gated":
        more_tiles = _tiles(weight + N * K, row, N, K, ROWS, BLOCK)
    offset = tl.zeros((ROWS,), tl.float32)
    if BIAS:
        offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32)
        if OUTPUT == "gated":
            more_offset = tl.load(bias + N + row, mask=real, other=0.0).to(tl.float32)
    if INPUT == "rms" or INPUT == "layer":
        gains = _vector(gain, K, BLOCK, PAIRS)
        shifts = (0.0,) * ((K + BLOCK - 1) // BLOCK * 2)
        if SHIFT:
            shifts = _vector(shift, K, BLOCK, PAIRS)
    _wait(EARLY)
    for line in range(batch):
        if OUTPUT == "add":
            before = tl.load(out + line * N + row, mask=real, other=0.0)
        if INPUT == "parts":
            start = line * SPLITS * K
            parts = _combined(x + start, part_weights + start // SIZE, K, SIZE, SPLITS, BLOCK, PAIRS)
        else:
            parts = _vector(x + line * K, K, BLOCK, PAIRS)
        if INPUT == "rms" or INPUT == "layer":
            parts = _normed(x + line * K, parts, gains, shifts, epsilon, K, BLOCK, PAIRS, INPUT == "layer")
        y = _times(tiles, parts, K, ROWS, BLOCK, PAIRS) + offset
        if OUTPUT == "gated":
            up = _times(more_tiles, parts, K, ROWS, BLOCK, PAIRS)
            if BIAS:
                up += more_offset
            y = y * tl.sigmoid(y) * up
        elif OUTPUT == "add":
            y += before
        else:
            y = _activated(y, OUTPUT)
        tl.store(out + line * N + row, y.to(out.dtype.element_ty), mask=real)
        if OUTPUT == "scores":
            y = tl.where(real, y, -1e30)
            top, which = tl.max(y, 0, return_indices=True)
            home = line * tl.num_programs(0) + tl.program_id(0)
            tl.store(best + home, top)
            tl.store(best_row + home, tl.program_id(0) * ROWS + which)
            tl.store(best_mass + home, tl.sum(tl.exp(y - top), 0))


@jit
def _headed(x, gain, other_gain, cosine, sine, d, epsilon, SIZE: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr):
    """One head of queries or keys, normalised and turned; the partner of entry d in its pair is entry d ^ 1."""
    inside = d < SIZE
    y = tl.load(x + d, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(y * y, 0) / SIZE + epsilon)
        y = y * factor * gain
    if ROPE:
        partner = tl.load(x + (d ^ 1), mask=inside, other=0.0).to(tl.float32)
        if NORM:
            partner = partner * factor * other_gain
        y = y * cosine + tl.where(d % 2 == 0, -partner, partner) * sine
    return y


@jit
def _held(keys, values, base, start, last, slot, d, SIZE: tl.constexpr, TILE: tl.constexpr):
    """A tile of the keys and values held, and which of them count: the slot of the new key may hold the oldest one,
    which is out of sight now."""
    there = start + tl.arange(0, TILE)
    present = (there < last) & (there != slot)
    where = base + there[:, None] * SIZE + d[None, :]
    inside = present[:, None] & (d < SIZE)[None, :]
    return tl.load(keys + where, mask=inside, other=0.0), tl.load(values + where, mask=inside, other=0.0), present


@jit
def _look(q, k, v, present, top, mass, sums):
    """Take a tile of keys and values into a running softmax; exponents are of 2."""
    scores = tl.where(present, tl.sum(k.to(tl.float32) * q[None, :], 1), -1e30)
    above = tl.maximum(top, tl.max(scores, 0))
    p = tl.where(present, tl.exp2(scores - above), 0.0)
    fade = tl.exp2(top - above)
    return above, mass * fade + tl.sum(p, 0), sums * fade + tl.sum(p[:, None] * v.to(tl.float32), 0)


@jit
def attention(
    qkv, keys, values, query_gain, key_gain, frequencies, place, mixed, part_weights, capacity,
    batch_stride, head_stride, scale, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr,
    TILE: tl.constexpr, NORM: tl.constexpr, ROPE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head, one part of the keys held a program. The first part also takes the new key, and stores it."""
    _start_next(EARLY)
    head, split, line = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS, tl.program_id(1)
    shared = head // (HEADS // KV_HEADS)
    here = tl.load(place + line)
    slot = here % capacity
    held = tl.minimum(here, capacity)
    share = (held + SPLITS - 1) // SPLITS
    first = split * share
    last = tl.minimum(first + share, held)
    d = tl.arange(0, WIDE)
    inside = d < SIZE
    row_start = line.to(tl.int64) * batch_stride  # of thousands of rows, beyond 32 bits
    keys += row_start
    values += row_start
    base = shared * head_stride
    k, v, present = _held(keys, values, base, first, last, slot, d, SIZE, TILE)
    cosine, sine = 1.0, 0.0
    if ROPE:
        angle = here.to(tl.float32) * tl.load(frequencies + d // 2, mask=inside, other=0.0)
        cosine, sine = tl.cos(angle), tl.sin(angle)
    gain, other_gain, key_gains, other_key_gains = 1.0, 1.0, 1.0, 1.0
    if NORM:
        gain = tl.load(query_gain + d, mask=inside, other=0.0).to(tl.float32)
        other_gain = tl.load(query_gain + (d ^ 1), mask=inside, other=0.0).to(tl.float32)
        key_gains = tl.load(key_gain + d, mask=inside, other=0.0).to(tl.float32)
        other_key_gains = tl.load(key_gain + (d ^ 1), mask=inside, other=0.0).to(tl.float32)
    _wait(EARLY)
    row = qkv + line * (HEADS + 2 * KV_HEADS) * SIZE
    q = _headed(row + head * SIZE, gain, other_gain, cosine, sine, d, epsilon, SIZE, NORM, ROPE) * scale
    new = row + (HEADS + shared) * SIZE
    new_key = _headed(new, key_gains, other_key_gains, cosine, sine, d, epsilon, SIZE, NORM, ROPE)
    new_key = new_key.to(keys.dtype.element_ty)
    new_value = tl.load(new + KV_HEADS * SIZE + d, mask=inside, other=0.0).to(values.dtype.element_ty)
    own = split == 0
    kept = d < tl.where(own & (head % (HEADS // KV_HEADS) == 0), SIZE, 0)
    tl.store(keys + base + slot * SIZE + d, new_key, mask=kept)
    tl.store(values + base + slot * SIZE + d, new_value, mask=kept)
    top = tl.where(own, tl.sum(q * new_key.to(tl.float32), 0), -1e30)
    mass = tl.where(own, 1.0, 0.0)
    sums = tl.where(own, new_value.to(tl.float32), 0.0)
    top, mass, sums = _look(q, k, v, present, top, mass, sums)
    for start in range(first + TILE, last, TILE):
        k, v, present = _held(keys, values, base, start, last, slot, d, SIZE, TILE)
        top, mass, sums = _look(q, k, v, present, top, mass, sums)
    part = (line * SPLITS + split) * HEADS + head
    seen_any = mass > 0  # of a short text, some parts have no keys
    tl.store(mixed + part * SIZE + d, sums / tl.where(seen_any, mass, 1.0), mask=inside)
    tl.store(part_weights + part, tl.where(seen_any, top + tl.log2(mass), -1e30))


@jit
def enter(tokens, place, embeddings, positions, x, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEARNED: tl.constexpr,
          EARLY: tl.constexpr):  # fmt: skip
    """The residual stream of a new token. It waits for all before it: a step begins when the last one has ended."""
    _start_next(EARLY)
    line = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    y = tl.load(embeddings + tl.load(tokens + line) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if LEARNED:
        y += tl.load(positions + tl.load(place + line) * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + line * WIDTH + column, y, mask=inside)


@jit
def take_likeliest(
    best, best_row, best_mass, tokens, place, count, found, logprobs, programs, vocabulary, length,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The likeliest token of each row, the lowest id among equals; and on to the next place."""
    _wait(EARLY)
    line = tl.program_id(0)
    number, here = tl.load(count + line), tl.load(place + line)
    lane = tl.arange(0, BLOCK)
    inside = lane < programs
    home = line * programs + lane
    tops = tl.load(best + home, mask=inside, other=-1e30)
    mass = tl.load(best_mass + home, mask=inside, other=0.0)
    top, which = tl.max(tops, 0, return_indices=True)
    token = tl.minimum(tl.load(best_row + line * programs + which), vocabulary - 1)
    logprob = -tl.log(tl.sum(mass * tl.exp(tops - top), 0))
    tl.store(found + line * length + number, token.to(tl.int64))
    tl.store(logprobs + line * length + number, logprob)
    tl.store(tokens + line, token.to(tl.int64))
    tl.store(count + line, number + 1)
    tl.store(place + line, here + 1)
