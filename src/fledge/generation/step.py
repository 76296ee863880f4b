"""One token through a Transformer on the CPU, in as few operations as it takes.

At one token a call the floor is the weights' way through memory, and what torch spends on each small operation comes on
top of it. This is the mathematics of `model.hidden` and `model.head` on the same state, for up to eight rows of equal
length, the products and the attention by the native core; whatever does not fit goes through the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge import _core
from fledge.model.layers import FeedForward, LayerNorm, RMSNorm, rotation, sinusoids
from fledge.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from fledge.model import Model, State

Map = Callable[[Tensor], Tensor]
MOST_ROWS = 8  # of the native products; beyond, the model's own are faster


class Layer(NamedTuple):
    """One block, taken apart: plain functions and tensors cost less to reach than modules."""

    norm1: Map
    qkv: Product
    query_norm: Map | None
    key_norm: Map | None
    output: Product
    norm2: Map
    inner: Map
    outer: Product


class Product:
    """x · weightᵀ (+ bias) (+ residual) for a few rows, at the speed at which the weights come from memory."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach().contiguous()
        self.outputs, inputs = self.weight.shape
        bias_at = 0 if self.bias is None else self.bias.data_ptr()
        self.native = _core.Product(self.weight.data_ptr(), bias_at, self.outputs, inputs)
        self.threads = torch.get_num_threads()

    def __call__(self, x_BK: Tensor, residual_BN: Tensor | None = None) -> Tensor:
        x_BK, rows = x_BK.contiguous(), x_BK.shape[0]
        out_BN = torch.empty(rows, self.outputs)
        residual_at = 0 if residual_BN is None else residual_BN.data_ptr()
        self.native(x_BK.data_ptr(), residual_at, out_BN.data_ptr(), rows, self.threads)
        return out_BN


class Stepper:
    """The next-token scores of a Transformer's state; `fits` says for which states."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.config = model.config
        blocks = [cast(Block, block) for block in model.layers]
        attention = blocks[0].attn
        self.heads, self.kv_heads, self.head_size = attention.heads, attention.kv_heads, attention.head_size
        self.scale = 1 / math.sqrt(self.head_size)
        self.threads = torch.get_num_threads()
        self.pre_norm = self.config.norm_place == "pre"
        self.layers = [_take_apart(block) for block in blocks]
        self.final_norm = _norm(model.ln_final)
        self.head = Product(model.head_weight[: model.vocabulary_size])
        self.turns: Tensor | None = None
        if self.config.position == "rope":
            self.turns = torch.complex(model.cosines_TP, model.sines_TP)

    @staticmethod
    def make(model: Model) -> Stepper | None:
        """A stepper for a model that it knows: a Transformer in 32 bits on the CPU."""
        weight = next(model.parameters())
        if type(model) is Transformer and weight.device.type == "cpu" and weight.dtype == torch.float32:
            return Stepper(model)
        return None

    def fits(self, state: State) -> bool:
        """Whether the next token stands at the same place in all of a few rows, and is computed as it is."""
        exact = not torch.is_autocast_enabled("cpu") and state.tensors["layers.0.keys"].dtype == torch.float32
        return state.even and state.batch_size <= MOST_ROWS and exact

    def __call__(self, state: State, tokens_B: Tensor) -> Tensor:
        """The scores after one more token a row; the state goes on by that token."""
        assert state.capacity is not None
        place = state.longest
        slot, used = place % state.capacity, min(place + 1, state.capacity)
        x_BD, turn = self._enter(tokens_B, place)
        for number, layer in enumerate(self.layers):
            keys, values = state.tensors[f"layers.{number}.keys"], state.tensors[f"layers.{number}.values"]
            if self.pre_norm:
                mixed = self._attend(layer, layer.norm1(x_BD), turn, keys, values, slot, used)
                x_BD = layer.output(mixed, x_BD)
                x_BD = layer.outer(layer.inner(layer.norm2(x_BD)), x_BD)
            else:
                mixed = self._attend(layer, x_BD, turn, keys, values, slot, used)
                x_BD = layer.norm1(layer.output(mixed, x_BD))
                x_BD = layer.norm2(layer.outer(layer.inner(x_BD), x_BD))
        state.advance(1)
        return self.head(self.final_norm(x_BD))

    def _enter(self, tokens_B: Tensor, place: int) -> tuple[Tensor, Tensor | None]:
        """The embeddings at this place, and its rotary angles as complex numbers: turning a pair is one product."""
        model, kind = self.model, self.config.position
        x_BD = functional.embedding(tokens_B, model.token_embeddings.weight)
        if self.turns is not None:
            if place < len(self.turns):
                return x_BD, self.turns[place]
            return x_BD, torch.complex(*rotation(torch.tensor(place), model.rotary_frequencies))
        if kind == "learned":
            x_BD = x_BD + model.position_embeddings.weight[place]
        elif kind == "sinusoidal":
            x_BD = x_BD + sinusoids(torch.tensor(place), model.sinusoid_frequencies, self.config.width)
        return x_BD, None

    def _attend(
        self, layer: Layer, x_BD: Tensor, turn: Tensor | None, keys: Tensor, values: Tensor, slot: int, used: int
    ) -> Tensor:
        batch, turned = x_BD.shape[0], self.heads + self.kv_heads
        heads_BHK = layer.qkv(x_BD).view(batch, -1, self.head_size)
        q_k_BHK = heads_BHK[:, :turned]
        if layer.query_norm is not None and layer.key_norm is not None:
            parts = (layer.query_norm(q_k_BHK[:, : self.heads]), layer.key_norm(q_k_BHK[:, self.heads :]))
            q_k_BHK = torch.cat(parts, dim=1)
        if turn is not None:
            pairs = torch.view_as_complex(q_k_BHK.reshape(batch, turned, -1, 2))
            q_k_BHK = torch.view_as_real(pairs * turn).flatten(-2)
        keys.select(2, slot).copy_(q_k_BHK[:, self.heads :])
        values.select(2, slot).copy_(heads_BHK[:, turned:])
        out_BD = torch.empty(batch, self.heads * self.head_size)
        attend = _core.Attention(self.heads, self.kv_heads, self.head_size, keys.shape[2], self.scale)
        attend(
            q_k_BHK.data_ptr(),
            q_k_BHK.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            used,
            out_BD.data_ptr(),
            batch,
            self.threads,
        )
        return out_BD


def _take_apart(block: Block) -> Layer:
    attention, feed_forward = block.attn, block.ffn
    return Layer(
        norm1=_norm(block.ln1),
        qkv=Product(attention.qkv.weight, attention.qkv.bias),
        query_norm=_norm(attention.q_norm) if attention.qk_norm else None,
        key_norm=_norm(attention.k_norm) if attention.qk_norm else None,
        output=Product(attention.output_proj.weight, attention.output_proj.bias),
        norm2=_norm(block.ln2),
        inner=_inner(feed_forward),
        outer=Product(feed_forward.w2.weight, feed_forward.w2.bias),
    )


def _norm(module: nn.Module) -> Map:
    if isinstance(module, RMSNorm):
        weight, epsilon = module.weight.detach(), module.epsilon
        shrink = 1 / module.weight.shape[0]

        def rms(x: Tensor) -> Tensor:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            factor: Tensor = length.square_().mul_(shrink).add_(epsilon).rsqrt_()
            return x * factor * weight

        return rms
    if isinstance(module, LayerNorm):
        shape, bias = tuple(module.weight.shape), None if module.bias is None else module.bias.detach()
        gain, small = module.weight.detach(), module.epsilon
        return lambda x: functional.layer_norm(x, shape, gain, bias, small)
    return lambda x: x


def _inner(module: FeedForward) -> Map:
    """The feed-forward up to its last matrix."""
    if module.kind == "swiglu":
        both = Product(module.w13.weight, module.w13.bias)
        width = module.w13.sizes[0]

        def gated(x: Tensor) -> Tensor:
            found = both(x)
            return functional.silu(found[:, :width]).mul_(found[:, width:])

        return gated
    first = Product(module.w1.weight, module.w1.bias)
    if module.kind == "silu":
        return lambda x: functional.silu(first(x))
    if module.kind == "relu2":
        return lambda x: functional.relu(first(x)).square_()
    approximation = "tanh" if module.kind == "gelu_tanh" else "none"
    return lambda x: functional.gelu(first(x), approximate=approximation)
