"""What happens inside a model as it reads: attention, what each layer would say, gates and neurons.

One forward pass is watched by hooks, or composed of the model's own parts; what the model computes stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from fledge.errors import FledgeError
from fledge.model.attention import Attention, additive, document_mask
from fledge.model.base import Model
from fledge.model.bdh import BDH
from fledge.model.bdh_layer import head_forward, normalise
from fledge.model.layers import rotate
from fledge.model.plan import Plan, beginnings, places_within
from fledge.model.recurrent import CELLS, Recurrent
from fledge.model.transformer import Block, Transformer

GREATEST = 8  # neurons that are named
SPOKEN = 128  # tokens whose logits are held at once: those of a thousand do not fit a cache


class Text(NamedTuple):
    """One row of ids, and the document of each; the form that `model.plan` reads."""

    inputs_BT: Tensor
    positions_BT: Tensor | None
    documents_BT: Tensor | None

    @staticmethod
    def of(documents: list[list[int]], device: torch.device) -> Text:
        """Documents one after the other; positions begin anew with each, as in training."""
        ids_BT = torch.tensor([[token for ids in documents for token in ids]], device=device)
        if len(documents) == 1:
            return Text(ids_BT, None, None)
        numbers = [number for number, ids in enumerate(documents) for _ in ids]
        documents_BT = torch.tensor([numbers], device=device)
        return Text(ids_BT, places_within(documents_BT), documents_BT)


class Neurons(NamedTuple):
    """Of one BDH layer: the share of neurons that fire at each token before and after the gate, the strongest of each
    head and token with their values, and those whose synapses grew most over the text."""

    share_T: Tensor
    gated_share_T: Tensor
    strongest_hTK: Tensor
    strength_hTK: Tensor
    grown_hK: Tensor
    growth_hK: Tensor


@dataclass
class Inside:
    """What was seen; `hidden` are the states that the head would read: before the first layer, and after each."""

    hidden: list[Tensor]
    attention: list[Callable[..., Tensor]] = field(default_factory=list)
    """For each layer what gives one head's T×T weights, or with a slice some rows of them: of BDH, its scores, which no
    softmax has touched."""
    heads: int = 0
    gates: list[dict[str, Tensor]] = field(default_factory=list)
    "For each recurrent layer its gates and states by name, T×D."
    neurons: list[Neurons] = field(default_factory=list)


@torch.inference_mode()
def look_inside(model: Model, text: Text) -> Inside:
    """Read a text and keep what happens on the way. `model` has to be one of ours, and is used as in `eval()`."""
    model.check_ids(text.inputs_BT)
    length = text.inputs_BT.shape[1]
    if length > model.context_length:
        raise FledgeError(f"The text has {length:,} tokens, and this model sees {model.context_length:,}. Shorten it.")
    look = {Transformer: _transformer, BDH: _bdh, Recurrent: _recurrent}.get(type(model))
    if look is None:
        raise FledgeError(f"The view Inside does not support model.architecture = {model.config.architecture}.")
    was_training = model.training
    model.eval()
    try:
        return cast(Callable[[Model, Text], Inside], look)(model, text)
    finally:
        model.train(was_training)


class Spoken(NamedTuple):
    """What a layer would say after each token: its likeliest tokens, and how likely it found the one that came."""

    ids_TK: Tensor
    logprobs_TK: Tensor
    next_logprob_T: Tensor
    "NaN at the last token of a document, after which nothing came."


@torch.inference_mode()
def speak(model: Model, hidden_TD: Tensor, text: Text, size: int, likeliest: int = 3) -> Spoken:
    """The logit lens: the model's own head on the states of any layer, among the first `size` ids."""
    came, last = _next(text)
    found = [
        _spoken(model.head(some_TD)[:, :size].float(), next_T, min(likeliest, size))
        for some_TD, next_T in zip(torch.split(hidden_TD, SPOKEN), torch.split(came, SPOKEN), strict=True)
    ]
    ids, logprobs, next_logprob = (torch.cat(each) for each in zip(*found, strict=True))
    return Spoken(ids, logprobs, next_logprob.masked_fill(last, torch.nan))


@torch.inference_mode()
def speak_at(model: Model, inside: Inside, text: Text, size: int, place: int, likeliest: int = 3) -> Spoken:
    """The same at one token, with a row for each layer: the head, which may be large, is read once for all of them."""
    came, last = _next(text)
    logits_LV = model.head(torch.stack([hidden_TD[place] for hidden_TD in inside.hidden]))[:, :size].float()
    ids, logprobs, next_logprob = _spoken(logits_LV, came[place].expand(len(logits_LV)), min(likeliest, size))
    return Spoken(ids, logprobs, next_logprob.masked_fill(last[place], torch.nan))


def _next(text: Text) -> tuple[Tensor, Tensor]:
    """The token after each, and where there is none: at the last one of a document."""
    came = functional.pad(text.inputs_BT[0, 1:], (0, 1))
    last = torch.zeros_like(came, dtype=torch.bool)
    last[-1] = True
    if text.documents_BT is not None:
        last[:-1] |= beginnings(text.documents_BT)[0, 1:]
    return came, last


def _spoken(logits_TV: Tensor, next_T: Tensor, likeliest: int) -> tuple[Tensor, Tensor, Tensor]:
    whole_T1 = logits_TV.logsumexp(dim=-1, keepdim=True)
    best_TK, ids_TK = logits_TV.topk(likeliest)
    return ids_TK, best_TK - whole_T1, (logits_TV.gather(1, next_T[:, None]) - whole_T1)[:, 0]


def _transformer(model: Transformer, text: Text) -> Inside:
    hidden: list[Tensor] = []
    turns: list[Any] = []
    rows: dict[torch.nn.Module, Tensor] = {}
    blocks = [cast(Block, block) for block in model.layers]
    here = get_ident()

    def mine(hook: Callable[..., None]) -> Callable[..., None]:
        """Others may use the model at the same time: a text may be in the making."""
        return lambda *given: hook(*given) if get_ident() == here else None

    hooks = [blocks[0].register_forward_pre_hook(mine(lambda _, given: hidden.append(given[0][0])))]
    for block in blocks:
        hooks.append(block.attn.register_forward_pre_hook(mine(lambda _, given: turns.append(given[1]))))
        hooks.append(block.attn.qkv.register_forward_hook(mine(lambda part, _, out: rows.update({part: out[0]}))))
        hooks.append(block.register_forward_hook(mine(lambda _, given, out: hidden.append(out[0]))))
    try:
        model.hidden(text.inputs_BT, model.plan(text))
    finally:
        for hook in hooks:
            hook.remove()
    mask_TT = additive(_allowed(text), torch.float32)
    weights = [
        _head_of(block.attn, rows[block.attn.qkv], turn, mask_TT) for block, turn in zip(blocks, turns, strict=True)
    ]
    return Inside([model.ln_final(x_TD) for x_TD in hidden], weights, model.config.heads)


def _allowed(text: Text) -> Tensor:
    """True where a token may look."""
    if text.documents_BT is not None:
        return document_mask(text.documents_BT)[0, 0]
    length = text.inputs_BT.shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=text.inputs_BT.device).tril()


def _head_of(attention: Attention, row_TC: Tensor, turn: Any, mask_TT: Tensor) -> Callable[[int], Tensor]:
    """Queries and keys are those of the pass; weights are made one head at a time: all of a large model at once would
    be more than it is itself."""
    heads_THK = row_TC.view(len(row_TC), -1, attention.head_size)[:, : attention.heads + attention.kv_heads].clone()

    @torch.inference_mode()
    def weights(head: int, rows: slice = slice(None)) -> Tensor:
        group = attention.heads + head // (attention.heads // attention.kv_heads)
        q, k = (heads_THK[None, :, place : place + 1] for place in (head, group))
        if attention.qk_norm:
            q, k = attention.q_norm(q), attention.k_norm(k)
        if turn is not None:
            q, k = rotate(q, *turn), rotate(k, *turn)
        q_RK, k_TK = q[0, rows, 0].float(), k[0, :, 0].float()
        return torch.softmax(torch.addmm(mask_TT[rows], q_RK, k_TK.T, alpha=attention.head_size**-0.5), dim=-1)

    return weights


def _bdh(model: BDH, text: Text) -> Inside:
    x_BTD = normalise(model.token_embeddings(text.inputs_BT))
    length, heads = x_BTD.shape[1], model.config.heads
    weights = model._halves(x_BTD.dtype)
    angles = model.cosines_TP[:length], model.sines_TP[:length]
    plan: Plan | None = model.plan(text)
    found = Inside([x_BTD[0]], heads=heads)
    places = torch.arange(model.neurons, device=x_BTD.device).view(-1, 2).T.flatten()  # even neurons come first there
    for _ in range(model.config.layers):
        mixed, scores, layer = torch.zeros_like(x_BTD), [], []
        for head in range(heads):
            parts = (weights[0][head], weights[1][head], weights[2][head])
            added, score, _, u, w = head_forward(
                x_BTD, parts, angles, None if plan is None else plan.mask, model.no_seeds[0, 0], 0.0
            )
            mixed += added
            scores.append(score[0])
            layer.append(_neurons(x_BTD[0], functional.relu(u[0]), functional.relu(w[0]), places))
        x_BTD = normalise(x_BTD + normalise(mixed))
        found.hidden.append(x_BTD[0])
        found.attention.append(lambda head, rows=slice(None), scores=scores: scores[head][rows])
        share, gated = (torch.stack([each[place] for each in layer]).mean(0) for place in (0, 1))
        found.neurons.append(
            Neurons(share, gated, *(torch.stack([each[place] for each in layer]) for place in range(2, 6)))
        )
    return found


def _neurons(x_TD: Tensor, u_TN: Tensor, w_TN: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """Of one head. A token adds u·xᵀ to the synapses: a neuron's have grown by the length of Σ u·x. RoPE spreads that
    over pairs of neurons, which is left out."""
    gated_TN = u_TN * w_TN
    strength, strongest = gated_TN.topk(min(GREATEST, u_TN.shape[1]))
    growth, grown = (u_TN.T @ x_TD).norm(dim=1).topk(min(GREATEST, u_TN.shape[1]))
    shares = (u_TN > 0).float().mean(1), (gated_TN > 0).float().mean(1)
    return *shares, places[strongest], strength, places[grown], growth


def _recurrent(model: Recurrent, text: Text) -> Inside:
    x_TD = model.token_embeddings(text.inputs_BT)[0]
    starts = beginnings(text.documents_BT)[0] if text.documents_BT is not None else torch.zeros(0)
    fresh = {0, *starts.nonzero()[:, 0].tolist()}
    found = Inside([x_TD])
    cell = CELLS[model.config.architecture]
    for weights in model.recurrent.all_weights:
        nothing = x_TD.new_zeros(1, model.config.width)
        states: list[tuple[Tensor, ...]] = []
        before: list[Tensor] = []
        state: tuple[Tensor, ...] = ()
        for place, x_D in enumerate(x_TD):
            if place in fresh:
                state = (nothing,) * len(model.parts)
            before.append(state[0])
            after = cell(x_D[None], state if len(state) == 2 else state[0], *weights)
            state = after if isinstance(after, tuple) else (after,)
            states.append(state)
        out_TD = torch.cat([each[0] for each in states])
        gates = _gates(model.config.architecture, x_TD, torch.cat(before), weights)
        if len(model.parts) == 2:
            gates["cell"] = torch.cat([each[1] for each in states])
        found.gates.append({**gates, "hidden": out_TD})
        found.hidden.append(out_TD)
        x_TD = out_TD
    return found


def _gates(kind: str, x_TD: Tensor, before_TD: Tensor, weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """As torch orders them in its matrices."""
    fresh, carried = x_TD @ weights[0].T, before_TD @ weights[1].T
    if len(weights) > 2:
        fresh, carried = fresh + weights[2], carried + weights[3]
    if kind == "lstm":
        gates = (fresh + carried).chunk(4, dim=-1)
        return {name: gates[place].sigmoid() for name, place in (("input", 0), ("forget", 1), ("output", 3))}
    if kind == "gru":
        gates = (fresh + carried).chunk(3, dim=-1)
        return {"reset": gates[0].sigmoid(), "update": gates[1].sigmoid()}
    return {}
