"""One BDH layer, forward and backward by hand: nothing of size T×T×N ever exists, and what is kept is chosen.

On the CPU a head at a time, in plain torch; on a GPU all heads at once, with Triton for the passes between products.
Neurons stand in half-split order here (all even ones, then all odd ones), so that RoPE's pairs are two contiguous
halves; the order of neurons changes no result. Both directions are operators of their own: a compiler that saw
inside would merge the recomputation in the backward pass with the forward pass, and keep what should be recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fledge.model.base import has_kernels, wide

EPSILON = 1e-5


def normalise(x: Tensor) -> Tensor:
    """LayerNorm without weights; torch takes its sums in 32 bits."""
    return functional.layer_norm(x, x.shape[-1:], eps=EPSILON).to(x.dtype)


def normalise_backward(grad: Tensor, x: Tensor) -> Tensor:
    _, mean, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    back = torch.ops.aten.native_layer_norm_backward
    return back(grad, x, x.shape[-1:], mean, scale, None, None, [True, False, False])[0]  # type: ignore[no-any-return]


def rotate_halves(x_BTN: Tensor, cosines_TP: Tensor, sines_TP: Tensor, back: bool = False) -> Tensor:
    """RoPE on half-split neurons; `back` turns the other way, which is also its gradient."""
    first, second = x_BTN.chunk(2, dim=-1)
    sines = -sines_TP if back else sines_TP
    turned = torch.cat((first * cosines_TP - second * sines, second * cosines_TP + first * sines), dim=-1)
    return turned.to(x_BTN.dtype)


def kept(like_BTN: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """Dropout as a factor, from a hash of seed and place: the backward pass finds the same one without storing it.

    One hash serves a pair of neurons, 16 bits each.
    """
    batch, length, neurons = like_BTN.shape
    place = torch.arange(batch * length * (neurons // 2), device=like_BTN.device, dtype=torch.int32)
    mixed = place.view(batch, length, -1) ^ seed.to(torch.int32)
    for factor in (0x7FEB352D, 0x846CA68B - (1 << 32)):
        mixed = (mixed ^ ((mixed >> 16) & 0xFFFF)) * factor
    mixed = mixed ^ ((mixed >> 15) & 0x1FFFF)
    halves = torch.cat((mixed & 0xFFFF, (mixed >> 16) & 0xFFFF), dim=-1)
    return (halves >= int(dropout * 65536)).to(like_BTN.dtype) / (1 - dropout)


def visible(scores: Tensor, allowed_BTT: Tensor | None) -> Tensor:
    """Strictly earlier tokens, of the same document where documents are given."""
    scores = torch.tril(scores, diagonal=-1)
    return scores if allowed_BTT is None else scores * allowed_BTT


def head_forward(
    x_BTD: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    allowed_BTT: Tensor | None,
    seed: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What one head adds before the last norms; the scores, what they read, and both neurons before rectifying."""
    encoder_DN, encoder_v_DN, decoder_ND = weights
    u_BTN = x_BTD @ encoder_DN
    active_BTN = functional.relu(u_BTN)
    q_BTN = rotate_halves(active_BTN, *angles)
    scores_BTT = visible(q_BTN @ q_BTN.transpose(1, 2), allowed_BTT)
    read_BTD = scores_BTT @ x_BTD
    w_BTN = normalise(read_BTD) @ encoder_v_DN
    gated_BTN = active_BTN * functional.relu(w_BTN)
    if dropout:
        gated_BTN = gated_BTN * kept(gated_BTN, seed, dropout)
    return gated_BTN @ decoder_ND, scores_BTT, read_BTD, u_BTN, w_BTN


def head_backward(
    grad_BTD: Tensor,
    x_BTD: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    allowed_BTT: Tensor | None,
    seed: Tensor,
    dropout: float,
    scores_BTT: Tensor,
    read_BTD: Tensor,
    neurons: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, encoder, encoder_v and decoder. Queries are keys: one product serves both sides of the scores."""
    encoder_DN, encoder_v_DN, decoder_ND = weights
    x_MD, grad_MD = x_BTD.flatten(0, 1), grad_BTD.flatten(0, 1)
    attended_BTD = normalise(read_BTD)
    u_BTN, w_BTN = neurons or (x_BTD @ encoder_DN, attended_BTD @ encoder_v_DN)
    u_BTN, w_BTN = functional.relu(u_BTN), functional.relu(w_BTN)
    through_BTN = grad_BTD @ decoder_ND.T
    gated_BTN = u_BTN * w_BTN
    if dropout:
        factor = kept(gated_BTN, seed, dropout)
        gated_BTN, through_BTN = gated_BTN * factor, through_BTN * factor
    decoder_grad = gated_BTN.flatten(0, 1).T @ grad_MD
    w_grad_BTN = torch.where(w_BTN > 0, through_BTN * u_BTN, 0)
    encoder_v_grad = attended_BTD.flatten(0, 1).T @ w_grad_BTN.flatten(0, 1)
    read_grad_BTD = normalise_backward(w_grad_BTN @ encoder_v_DN.T, read_BTD)
    scores_grad_BTT = visible(read_grad_BTD @ x_BTD.transpose(1, 2), allowed_BTT)
    q_grad_BTN = (scores_grad_BTT + scores_grad_BTT.transpose(1, 2)) @ rotate_halves(u_BTN, *angles)
    turned_BTN = rotate_halves(q_grad_BTN, *angles, back=True)
    u_grad_BTN = torch.where(u_BTN > 0, turned_BTN + through_BTN * w_BTN, 0)
    encoder_grad = x_MD.T @ u_grad_BTN.flatten(0, 1)
    x_grad_BTD = wide(scores_BTT.transpose(1, 2) @ read_grad_BTD) + wide(u_grad_BTN @ encoder_DN.T)
    return x_grad_BTD, encoder_grad, encoder_v_grad, decoder_grad


def both_sides(scores_grad: Tensor, allowed_BTT: Tensor | None) -> Tensor:
    """The gradient of the scores for queries and for keys at once, which are the same tensor."""
    below = visible(scores_grad, allowed_BTT)
    return below + below.transpose(-1, -2)


def heads_forward(
    x_BTD: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    allowed_BTT: Tensor | None,
    seeds_h: Tensor,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`head_forward` of all heads together, on a GPU."""
    from fledge.model import kernels

    encoder, encoder_v, decoder = weights
    (heads, width, neurons), (batch, length, _) = encoder.shape, x_BTD.shape
    tokens = batch * length
    u = torch.bmm(x_BTD.view(1, tokens, width).expand(heads, -1, -1), encoder)
    q = kernels.rope_of_rectified(u.view(heads, batch, length, neurons), *angles).view(-1, length, neurons)
    scores = torch.bmm(q, q.transpose(1, 2)).view(heads, batch, length, length)
    del q
    scores = _fused(visible)(scores, allowed_BTT)
    read = torch.matmul(scores, x_BTD)
    w = torch.bmm(normalise(read).view(heads, tokens, width), encoder_v)
    out = torch.bmm(kernels.gate(u, w, seeds_h, dropout), decoder).sum(0, dtype=torch.float32)
    shape = (heads, batch, length, neurons)
    return out.view(x_BTD.shape), scores, read, u.view(shape), w.view(shape)


def heads_backward(
    grad_BTD: Tensor,
    x_BTD: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    allowed_BTT: Tensor | None,
    seeds_h: Tensor,
    dropout: float,
    scores: Tensor,
    read: Tensor,
    kept_neurons: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`head_backward` on a GPU: a head at a time where tensors have neurons, all heads together where they don't."""
    from fledge.model import kernels

    encoder, encoder_v, decoder = weights
    (heads, width, neurons), (batch, length, _) = encoder.shape, x_BTD.shape
    tokens = batch * length
    x_MD, grad_MD = x_BTD.view(tokens, width), grad_BTD.view(tokens, width)
    attended = normalise(read).view(heads, tokens, width)
    if kept_neurons is None:
        u = torch.bmm(x_MD.expand(heads, -1, -1), encoder)
    else:
        u = kept_neurons[0].view(heads, tokens, neurons)
    encoder_grad, encoder_v_grad, decoder_grad = (torch.empty_like(weight) for weight in weights)
    attended_grad, through_gate = torch.empty_like(attended), torch.empty_like(u)
    for h in range(heads):
        one = slice(h, h + 1)
        w = torch.mm(attended[h], encoder_v[h]) if kept_neurons is None else kept_neurons[1][h]
        torch.mm(grad_MD, decoder[h].T, out=through_gate[h])
        gated, w_grad, _ = kernels.gate_backward(
            through_gate[one], u[one], w.view(1, tokens, neurons), seeds_h[one], dropout
        )
        torch.mm(gated[0].T, grad_MD, out=decoder_grad[h])
        torch.mm(attended[h].T, w_grad[0], out=encoder_v_grad[h])
        torch.mm(w_grad[0], encoder_v[h].T, out=attended_grad[h])
        del gated, w_grad, w
    read_grad = normalise_backward(attended_grad.view(read.shape), read)
    scores_grad = _fused(both_sides)(torch.matmul(read_grad, x_BTD.transpose(1, 2)), allowed_BTT)
    x_grad = torch.matmul(scores.transpose(2, 3), read_grad).sum(0, dtype=torch.float32).view(tokens, width)
    for h in range(heads):
        one, shape = slice(h, h + 1), (1, batch, length, neurons)
        q = kernels.rope_of_rectified(u[one].view(shape), *angles)
        q_grad = torch.bmm(scores_grad[h], q[0]).view(shape)
        del q
        u_grad = kernels.rope_backward(q_grad, through_gate[one].view(shape), u[one].view(shape), *angles)
        u_grad = u_grad.view(tokens, neurons)
        torch.mm(x_MD.T, u_grad, out=encoder_grad[h])
        x_grad += u_grad @ encoder[h].T
        del q_grad, u_grad
    return x_grad.view(x_BTD.shape), encoder_grad, encoder_v_grad, decoder_grad


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one compiled kernel."""
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=False)
    return _compiled[function]


def mix(
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
    """All heads' sum, and what the backward pass is given: scores and reads, and the neurons where asked."""
    weights, angles, nothing = (encoder, encoder_v, decoder), (cosines, sines), x.new_empty(0)
    with torch.autocast(x.device.type, enabled=False), torch.no_grad():
        if has_kernels(x):
            out, *found = heads_forward(x.contiguous(), weights, angles, allowed, seeds, dropout)
        else:
            parts: list[list[Tensor]] = []
            out = torch.zeros(x.shape, dtype=wide(x[:0]).dtype, device=x.device)
            for h in range(encoder.shape[0]):
                head = (encoder[h], encoder_v[h], decoder[h])
                part, *rest = head_forward(x, head, angles, allowed, seeds[h], dropout)
                out = out + part  # not in place: torch.export takes this apart
                parts.append(rest[: 2 * keep_reads + 2 * keep_neurons])
            found = [torch.stack(tensors) for tensors in zip(*parts, strict=True)] + [nothing] * 4
    scores, reads = found[:2] if keep_reads else (nothing, nothing.clone())
    u, w = found[2:4] if keep_neurons else (nothing.clone(), nothing.clone())
    return out.to(x.dtype), scores, reads, u, w


bdh_mix = torch.library.custom_op("fledge::bdh_mix", mix, mutates_args=())


@bdh_mix.register_fake
def _(x: Tensor, encoder: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    keep_reads, keep_neurons = others[-2:]
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
    weights, angles = (encoder, encoder_v, decoder), (cosines, sines)
    with torch.autocast(x.device.type, enabled=False), torch.no_grad():
        if has_kernels(x):
            neurons = (u, w) if u.numel() else None
            x_grad, *grads = heads_backward(
                grad, x.contiguous(), weights, angles, allowed, seeds, dropout, scores, reads, neurons
            )
            return x_grad.to(x.dtype), grads[0], grads[1], grads[2]
        x_grad = torch.zeros(x.shape, dtype=wide(x[:0]).dtype, device=x.device)
        grads = [torch.empty_like(weight) for weight in weights]
        for h in range(encoder.shape[0]):
            head, neurons = (encoder[h], encoder_v[h], decoder[h]), (u[h], w[h]) if u.numel() else None
            part, *found = head_backward(
                grad, x, head, angles, allowed, seeds[h], dropout, scores[h], reads[h], neurons
            )
            x_grad += part
            for whole, tensor in zip(grads, found, strict=True):
                whole[h] = tensor
    return x_grad.to(x.dtype), grads[0], grads[1], grads[2]


@bdh_mix_backward.register_fake
def _(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(tensor) for tensor in inputs[:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, dropout, _, _ = inputs
    ctx.dropout = dropout
    ctx.save_for_backward(x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, *output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, encoder, encoder_v, decoder, cosines, sines, allowed, seeds, *found = ctx.saved_tensors
    weights, tables = (encoder, encoder_v, decoder), (cosines, sines, allowed, seeds)
    grad = grad.to(x.dtype).contiguous()
    return (*bdh_mix_backward(grad, x, *weights, *tables, ctx.dropout, *found), *[None] * 7)


bdh_mix.register_autograd(_backward, setup_context=_keep)
