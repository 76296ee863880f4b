"""Dropout that costs little on a CPU, where torch draws one slow random number for every value it may drop."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """A share of the values, chosen at random, set to zero while training; the others grow to make up for it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x
        return x * kept_factor(x, self.share) if x.device.type == "cpu" else functional.dropout(x, self.share)


class RowDropout(nn.Module):
    """A residual branch left out for a share of the rows while training; for the others it grows to make up for it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, branch_BTD: Tensor) -> Tensor:
        if not self.training or not self.share:
            return branch_BTD
        rows = torch.rand(branch_BTD.shape[0], 1, 1, device=branch_BTD.device) >= self.share
        return branch_BTD * rows.to(branch_BTD.dtype).mul_(1 / (1 - self.share))


class TokenDropout(nn.Module):
    """Whole embeddings set to zero while training: of each row a share of its own, drawn between none and `share`."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x_BTD: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x_BTD
        batch, length, _ = x_BTD.shape
        shares = self.share * torch.rand(batch, 1, 1, device=x_BTD.device)
        return x_BTD * (torch.rand(batch, length, 1, device=x_BTD.device) >= shares).to(x_BTD.dtype)


def kept_factor(like: Tensor, share: float) -> Tensor:
    """The factor of each value: 0 for what is dropped, else 1 / (1 - share). One random number serves four values."""
    bits = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    stays = bits.view(torch.int16)[: like.numel()] >= round(share * 65536) - 32768
    return stays.view(like.shape).to(like.dtype).mul_(1 / (1 - share))


def attention_with_dropout(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask: Tensor | None, share: float) -> Tensor:
    """Causal attention, a share of its weights dropped: torch has no fused kernel for that on a CPU."""
    groups = q_BHTK.shape[1] // k_BHTK.shape[1]
    if groups > 1:
        k_BHTK, v_BHTK = (x.repeat_interleave(groups, dim=1) for x in (k_BHTK, v_BHTK))
    scores_BHTT = q_BHTK @ (k_BHTK / sqrt(q_BHTK.shape[-1])).transpose(-2, -1)
    scores_BHTT += (later(q_BHTK.shape[-2]) if mask is None else mask).to(scores_BHTT.dtype)
    weights_BHTT = scores_BHTT.softmax(-1)
    return (weights_BHTT * kept_factor(weights_BHTT, share)) @ v_BHTK


@lru_cache(maxsize=4)
def later(length: int) -> Tensor:
    """The term of the scores that hides from every token what comes after it."""
    return torch.full((length, length), -torch.inf).triu(1)
