"""Causal attention: full rows, documents through a mask made once per batch, decoding through a ring buffer.

Which kernel runs is decided by what `Plan` and `Ring` carry, never by looking at values on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.model.base import capability, compute_dtype
from fledge.model.dropout import attention_with_dropout
from fledge.model.layers import FusedLinear, RMSNorm, join_fused, rotate
from fledge.model.plan import Plan
from fledge.model.short_attention import is_short, short_attention
from fledge.model.state import State

BLOCK = 128  # FlexAttention's block, in tokens


class Attention(nn.Module):
    """Queries, keys and values from one fused product; optional QK-norm, rotary positions and grouped heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_size = config.head_width
        self.dropout = config.attention_share
        inner, narrow = self.heads * self.head_size, self.kv_heads * self.head_size
        self.qkv = FusedLinear(config.width, {"q_proj": inner, "k_proj": narrow, "v_proj": narrow}, config.bias)
        self.output_proj = nn.Linear(inner, config.width, bias=config.bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_size, config.norm_epsilon)
            self.k_norm = RMSNorm(self.head_size, config.norm_epsilon)
        self.qk_norm, self.norm_epsilon = config.qk_norm, config.norm_epsilon
        self.register_load_state_dict_pre_hook(join_fused)  # type: ignore[no-untyped-call]

    def forward(
        self,
        x_BTD: Tensor,
        rotation: tuple[Tensor, Tensor] | None = None,
        plan: Plan | None = None,
        ring: Ring | None = None,
        layer: int = 0,
    ) -> Tensor:
        batch, length, _ = x_BTD.shape
        fused_BTC = self.qkv(x_BTD)
        plain = ring is None and plan is None and not (self.training and self.dropout)
        if plain and is_short(fused_BTC, self.head_size):
            gains = torch.stack((self.q_norm.weight, self.k_norm.weight)) if self.qk_norm else None
            cosines, sines = rotation if rotation is not None else (None, None)
            mixed_BTD, _ = short_attention(
                fused_BTC, gains, cosines, sines, self.heads, self.kv_heads, self.norm_epsilon
            )
            return self.output_proj(mixed_BTD)  # type: ignore[no-any-return]
        heads_BTHK = fused_BTC.view(batch, length, -1, self.head_size)
        both, v = torch.split(heads_BTHK, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.qk_norm:
            q, k = torch.split(both, [self.heads, self.kv_heads], dim=2)
            both = torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        if rotation is not None:
            both = rotate(both, *rotation)
        q, k = torch.split(both, [self.heads, self.kv_heads], dim=2)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out_BHTK = self._attend(q, k, v, plan) if ring is None else self._decode(q, k, v, ring, layer)
        return self.output_proj(out_BHTK.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan | None) -> Tensor:
        if plan is not None and plan.blocks is not None and not (self.training and self.dropout):
            dtype = compute_dtype(q)
            grouped = self.heads != self.kv_heads
            return flex_attention(q.to(dtype), k.to(dtype), v.to(dtype), block_mask=plan.blocks, enable_gqa=grouped)
        mask = None if plan is None else plan.mask
        if self.training and self.dropout and q.device.type == "cpu":
            return attention_with_dropout(q, k, v, mask, self.dropout)
        return self._sdpa(q, k, v, mask)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = True) -> Tensor:
        if has_slow_backward(q):
            with torch.autocast("cpu", enabled=False):
                return self._sdpa(q.float(), k.float(), v.float(), mask, causal).to(q.dtype)
        return functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal and mask is None,
            enable_gqa=self.heads != self.kv_heads,
        )

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, ring: Ring, layer: int) -> Tensor:
        k, v = ring.extend(layer, k, v)
        return self._sdpa(q, k.to(q.dtype), v.to(q.dtype), ring.mask, ring.causal)


class Ring:
    """One call's view of a ring-buffered state: where new keys go, and which keys each query may look at.

    Made once per call and used by every layer. A token sees the last `capacity` tokens, itself included.
    """

    def __init__(self, state: State, steps: int, lengths: Tensor | None, dtype: torch.dtype) -> None:
        assert state.capacity is not None
        capacity = self.capacity = state.capacity
        self.state = state
        device = state.lengths.device
        self.single = steps == 1
        self.empty = state.longest == 0 and steps <= capacity  # nothing to look back to: plain causal attention
        self.causal = self.empty
        self.used = min(state.longest + (1 if self.single else 0), capacity)
        self.mask: Tensor | None = None
        before_B1 = state.lengths[:, None]
        step_T = torch.arange(steps, device=device)
        query_BT = before_B1 + step_T
        real_BT = step_T < (steps if lengths is None else lengths[:, None])
        kept_BT = (
            real_BT
            if steps <= capacity
            else real_BT & (step_T >= (steps if lengths is None else lengths[:, None]) - capacity)
        )
        # What is not kept goes to a slot of its own, one past the ring.
        self.slot_BT = torch.where(kept_BT, query_BT % capacity, capacity)
        if self.empty or (self.single and state.even and lengths is None):
            return
        slot_S = torch.arange(self.used, device=device)
        newest_B1 = before_B1 - 1 + (real_BT.long() if self.single else 0)
        held_BS = newest_B1 - (newest_B1 - slot_S) % capacity  # the position whose key lies in each slot
        if self.single:
            self.mask = additive((held_BS >= 0)[:, None, None, :], dtype)
        else:
            old_BTS = ((held_BS >= 0)[:, None, :]) & (held_BS[:, None, :] > query_BT[:, :, None] - capacity)
            back_TT = step_T[:, None] - step_T
            new_BTT = ((back_TT >= 0) & (back_TT < capacity)).expand(len(query_BT), -1, -1)
            self.mask = additive(torch.cat((old_BTS, new_BTT), dim=-1)[:, None], dtype)

    def extend(self, layer: int, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values; return those that the queries look at."""
        found = []
        for kind, new in (("keys", k_BHTK), ("values", v_BHTK)):
            ring = self.state.tensors[f"layers.{layer}.{kind}"]
            index = self.slot_BT[:, None, :, None].expand(-1, ring.shape[1], -1, ring.shape[3])
            if self.empty:
                seen = new
            elif not self.single:
                seen = torch.cat((ring[:, :, : self.used].to(new.dtype), new), dim=2)
            else:
                seen = ring[:, :, : self.used]
            ring.scatter_(2, index, new.to(ring.dtype))
            found.append(seen)
        return found[0], found[1]


def has_slow_backward(q: Tensor) -> bool:
    """Whether attention computes in float32: in bfloat16, torch's backward pass on a CPU takes four times as long."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad


def document_mask(documents_BT: Tensor) -> Tensor:
    """True where a token may look: at itself and before, within its document. Padding is a document of its own."""
    return torch.tril(documents_BT[:, :, None] == documents_BT[:, None, :])[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as a term of the scores: SDPA would make it so from a boolean one again in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def has_flex(device: torch.device) -> bool:
    """FlexAttention compiles to kernels of its own from compute capability 8.0 on."""
    return capability(device) >= (8, 0)


def document_blocks(documents_BT: Tensor) -> Any:
    """FlexAttention's view of `document_mask`, from the first and last document of each block: no T×T mask is made.

    Documents lie in one piece each, so two blocks share one exactly when the earlier block's last document is the later
    block's first. Padding may lie on both sides of a document: what padding sees there is never read.
    """
    from torch.nn.attention.flex_attention import BlockMask

    batch, length = documents_BT.shape
    count = -(-length // BLOCK)
    padded = functional.pad(documents_BT, (0, count * BLOCK - length), value=-2).view(batch, count, BLOCK)
    first, last = padded[:, :, 0], padded[:, :, -1]
    here = torch.arange(count, device=documents_BT.device)
    earlier = here[:, None] > here
    touching = (first[:, :, None] == last[:, None, :]) & earlier
    uniform = (padded == first[:, :, None]).all(-1)
    full = touching & uniform[:, :, None] & uniform[:, None, :]
    partial = (touching & ~full) | (here[:, None] == here)

    def mask(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents_BT[row, query] == documents_BT[row, key])

    def ordered(blocks_BQK: Tensor) -> tuple[Tensor, Tensor]:
        counts = blocks_BQK.sum(-1, dtype=torch.int32)
        indices = torch.argsort(blocks_BQK.int(), dim=-1, descending=True, stable=True).int()
        return counts[:, None], indices[:, None].contiguous()

    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(full), BLOCK_SIZE=BLOCK, mask_mod=mask, seq_lengths=(length, length)
    )


_compiled_flex: Any = None


def flex_attention(*arguments: Any, **options: Any) -> Tensor:
    """torch's flex_attention, compiled once: its plain form would make all scores."""
    global _compiled_flex
    from torch.nn.attention import flex_attention as module

    if torch.compiler.is_compiling():
        return module.flex_attention(*arguments, **options)  # type: ignore[return-value,no-any-return]
    if _compiled_flex is None:
        _compiled_flex = torch.compile(module.flex_attention)
    return _compiled_flex(*arguments, **options)  # type: ignore[no-any-return]
