"""One BDH layer, forward and backward by hand, a head at a time: of the tensors with N = 8,192 neurons per head, one
head's worth exists at once, and nothing of size T×T×N ever does.

Neurons stand in half-split order here (all even ones, then all odd ones), so that RoPE's pairs are two contiguous
halves; the order of neurons changes no result. Both directions are operators of their own: a compiler that saw inside
would merge the recomputation in the backward pass with the forward pass, and keep what is meant to be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fledge.model.base import wide

EPSILON = 1e-5


def normalise(x: Tensor) -> Tensor:
    """LayerNorm without weights."""
    return functional.layer_norm(wide(x), x.shape[-1:], eps=EPSILON).to(x.dtype)


def rotate_halves(x_BTN: Tensor, cosines_TP: Tensor, sines_TP: Tensor, back: bool = False) -> Tensor:
    """RoPE on half-split neurons; `back` turns the other way, which is also its gradient."""
    first, second = x_BTN.chunk(2, dim=-1)
    sines = -sines_TP if back else sines_TP
    turned = torch.cat((first * cosines_TP - second * sines, second * cosines_TP + first * sines), dim=-1)
    return turned.to(x_BTN.dtype)


def kept(like_BTN: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """Dropout as a factor, from a hash of the seed and the place: the backward pass finds the same without storing it."""
    rows = torch.arange(like_BTN.shape[0] * like_BTN.shape[1], device=like_BTN.device, dtype=torch.int32)
    columns = torch.arange(like_BTN.shape[2], device=like_BTN.device, dtype=torch.int32)
    mixed = (rows.view(*like_BTN.shape[:2], 1) * like_BTN.shape[2] + columns) ^ seed.to(torch.int32)
    for factor in (0x7FEB352D, 0x846CA68B - (1 << 32)):
        mixed = (mixed ^ ((mixed >> 16) & 0xFFFF)) * factor
    mixed = (mixed ^ ((mixed >> 15) & 0x1FFFF)) & 0x7FFFFFFF
    return (mixed >= int(dropout * (1 << 31))).to(like_BTN.dtype) / (1 - dropout)


def visible(scores_BTT: Tensor, allowed_BTT: Tensor | None) -> Tensor:
    """Strictly earlier tokens, of the same document where documents are given."""
    scores_BTT = torch.tril(scores_BTT, diagonal=-1)
    return scores_BTT if allowed_BTT is None else scores_BTT * allowed_BTT


def head_forward(
    x_BTD: Tensor,
    encoder_DN: Tensor,
    encoder_v_DN: Tensor,
    decoder_ND: Tensor,
    cosines_TP: Tensor,
    sines_TP: Tensor,
    allowed_BTT: Tensor | None,
    seed: Tensor,
    dropout: float,
    kept_u_BTN: Tensor | None,
    kept_w_BTN: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What one head adds before the last norms; and the scores, and what they read. Fills `kept` where given."""
    u_BTN = functional.relu(x_BTD @ encoder_DN)
    q_BTN = rotate_halves(u_BTN, cosines_TP, sines_TP)
    scores_BTT = visible(q_BTN @ q_BTN.transpose(1, 2), allowed_BTT)
    read_BTD = scores_BTT @ x_BTD
    w_BTN = functional.relu(normalise(read_BTD) @ encoder_v_DN)
    gated_BTN = u_BTN * w_BTN
    if dropout:
        gated_BTN = gated_BTN * kept(gated_BTN, seed, dropout)
    if kept_u_BTN is not None and kept_w_BTN is not None:
        kept_u_BTN.copy_(u_BTN)
        kept_w_BTN.copy_(w_BTN)
    return gated_BTN @ decoder_ND, scores_BTT, read_BTD


def head_backward(
    grad_BTD: Tensor,
    x_BTD: Tensor,
    encoder_DN: Tensor,
    encoder_v_DN: Tensor,
    decoder_ND: Tensor,
    cosines_TP: Tensor,
    sines_TP: Tensor,
    allowed_BTT: Tensor | None,
    seed: Tensor,
    dropout: float,
    scores_BTT: Tensor,
    read_BTD: Tensor,
    u_BTN: Tensor | None,
    w_BTN: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, encoder, encoder_v and decoder. Queries are keys: one product serves both sides of the scores."""
    x_MD, grad_MD = x_BTD.flatten(0, 1), grad_BTD.flatten(0, 1)
    attended_BTD = normalise(read_BTD)
    if u_BTN is None:
        u_BTN = functional.relu(x_BTD @ encoder_DN)
    if w_BTN is None:
        w_BTN = functional.relu(attended_BTD @ encoder_v_DN)
    through_BTN = grad_BTD @ decoder_ND.T
    gated_BTN = u_BTN * w_BTN
    if dropout:
        factor = kept(gated_BTN, seed, dropout)
        gated_BTN, through_BTN = gated_BTN * factor, through_BTN * factor
    decoder_grad = gated_BTN.flatten(0, 1).T @ grad_MD
    w_grad_BTN = torch.where(w_BTN > 0, through_BTN * u_BTN, 0)
    encoder_v_grad = attended_BTD.flatten(0, 1).T @ w_grad_BTN.flatten(0, 1)
    read_grad_BTD = _normalise_backward(w_grad_BTN @ encoder_v_DN.T, read_BTD)
    scores_grad_BTT = visible(read_grad_BTD @ x_BTD.transpose(1, 2), allowed_BTT)
    q_BTN = rotate_halves(u_BTN, cosines_TP, sines_TP)
    q_grad_BTN = (scores_grad_BTT + scores_grad_BTT.transpose(1, 2)) @ q_BTN
    turned_BTN = rotate_halves(q_grad_BTN, cosines_TP, sines_TP, back=True)
    u_grad_BTN = torch.where(u_BTN > 0, turned_BTN + through_BTN * w_BTN, 0)
    encoder_grad = x_MD.T @ u_grad_BTN.flatten(0, 1)
    x_grad_BTD = wide(scores_BTT.transpose(1, 2) @ read_grad_BTD) + wide(u_grad_BTN @ encoder_DN.T)
    return x_grad_BTD, encoder_grad, encoder_v_grad, decoder_grad


def _normalise_backward(grad: Tensor, x: Tensor) -> Tensor:
    wide_x, wide_grad = wide(x), wide(grad)
    centred = wide_x - wide_x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    unit = centred * scale
    mean, along = wide_grad.mean(-1, keepdim=True), (wide_grad * unit).mean(-1, keepdim=True)
    return (scale * (wide_grad - mean - unit * along)).to(x.dtype)


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def _fast(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compiled on a GPU, where the passes between the products would cost as much as the products."""
    if device.type != "cuda":
        return function
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=False)
    return _compiled[function]


@torch.library.custom_op("fledge::bdh_mix", mutates_args=())
def bdh_mix(
    x: Tensor,
    encoder: Tensor,
    encoder_v: Tensor,
    decoder: Tensor,
    cosines: Tensor,
    sines: Tensor,
    allowed: Tensor | None,
    seeds: Tensor,
    dropout: float,
    keep_reads: bool,
    keep_neurons: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All heads' sum, and what the backward pass is given: scores and reads, and the neurons where memory allows."""
    heads, _, neurons = encoder.shape
    batch, length, width = x.shape
    out = torch.zeros(x.shape, dtype=wide(x[:0]).dtype, device=x.device)
    scores = x.new_empty((heads, batch, length, length) if keep_reads else (0,))
    reads = x.new_empty((heads, batch, length, width) if keep_reads else (0,))
    u = x.new_empty((heads, batch, length, neurons) if keep_neurons else (0,))
    w = torch.empty_like(u)
    with torch.autocast(x.device.type, enabled=False), torch.no_grad():
        run = _fast(head_forward, x.device)
        for h in range(heads):
            weights = (encoder[h], encoder_v[h], decoder[h])
            neurons_kept = (u[h], w[h]) if keep_neurons else (None, None)
            part, head_scores, head_reads = run(
                x, *weights, cosines, sines, allowed, seeds[h], dropout, *neurons_kept
            )
            out += part
            if keep_reads:
                scores[h], reads[h] = head_scores, head_reads
    return out.to(x.dtype), scores, reads, u, w


@bdh_mix.register_fake
def _(
    x: Tensor,
    encoder: Tensor,
    encoder_v: Tensor,
    decoder: Tensor,
    cosines: Tensor,
    sines: Tensor,
    allowed: Tensor | None,
    seeds: Tensor,
    dropout: float,
    keep_reads: bool,
    keep_neurons: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    heads, _, neurons = encoder.shape
    batch, length, width = x.shape
    scores = x.new_empty((heads, batch, length, length) if keep_reads else (0,))
    reads = x.new_empty((heads, batch, length, width) if keep_reads else (0,))
    u = x.new_empty((heads, batch, length, neurons) if keep_neurons else (0,))
    return torch.empty_like(x), scores, reads, u, torch.empty_like(u)


@torch.library.custom_op("fledge::bdh_mix_backward", mutates_args=())
def bdh_mix_backward(
    grad: Tensor,
    x: Tensor,
    encoder: Tensor,
    encoder_v: Tensor,
    decoder: Tensor,
    cosines: Tensor,
    sines: Tensor,
    allowed: Tensor | None,
    seeds: Tensor,
    dropout: float,
    scores: Tensor,
    reads: Tensor,
    u: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_grad = torch.zeros(x.shape, dtype=wide(x[:0]).dtype, device=x.device)
    grads = [torch.empty_like(weight) for weight in (encoder, encoder_v, decoder)]
    with torch.autocast(x.device.type, enabled=False), torch.no_grad():
        run = _fast(head_backward, x.device)
        for h in range(encoder.shape[0]):
            weights = (encoder[h], encoder_v[h], decoder[h])
            neurons = (u[h], w[h]) if u.numel() else (None, None)
            part, *found = run(
                grad, x, *weights, cosines, sines, allowed, seeds[h], dropout, scores[h], reads[h], *neurons
            )
            x_grad += part
            for whole, tensor in zip(grads, found, strict=True):
                whole[h] = tensor
    return x_grad.to(x.dtype), grads[0], grads[1], grads[2]


@bdh_mix_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    encoder: Tensor,
    encoder_v: Tensor,
    decoder: Tensor,
    cosines: Tensor,
    sines: Tensor,
    allowed: Tensor | None,
    seeds: Tensor,
    dropout: float,
    scores: Tensor,
    reads: Tensor,
    u: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(x),
        torch.empty_like(encoder),
        torch.empty_like(encoder_v),
        torch.empty_like(decoder),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, dropout, _, _ = inputs
    ctx.dropout = dropout
    ctx.save_for_backward(x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, *found = ctx.saved_tensors
    grads = bdh_mix_backward(
        grad.to(x.dtype).contiguous(),
        x,
        encoder,
        encoder_v,
        decoder,
        cosines,
        sines,
        allowed,
        seeds,
        ctx.dropout,
        *found,
    )
    return (*grads, *[None] * 7)


bdh_mix.register_autograd(_backward, setup_context=_keep)
