"""One token through a Transformer or a BDH on the CPU, in as few operations as it takes.

At one token a call the floor is the way of weights and state through memory, and what torch spends on each small
operation comes on top of it. This is the mathematics of `model.hidden` and `model.head` on the same state, for up to
eight rows, with the large operations by the native core; whatever does not fit goes through the model itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn import functional

from fledge import _core
from fledge.generation.block import BlockShape, Norm, block_weights, norm_weights
from fledge.generation.prepare import large_pages
from fledge.model.activations import ACTIVATIONS
from fledge.model.bdh import BDH, angles_at
from fledge.model.bdh_layer import EPSILON
from fledge.model.layers import form, rotation, turn
from fledge.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from fledge.model import Model, State

Map = Callable[[Tensor], Tensor]
MOST_ROWS = 8  # of the native products; beyond, the model's own are faster
FAR = 256  # tokens from which on moving the keys and values to large pages pays
LARGE_STATE = 1 << 24  # bytes; what is smaller stays in the processor's caches


class Layer(NamedTuple):
    """One block, taken apart: plain functions and tensors cost less to reach than modules."""

    norm1: Map
    qkv: NativeProduct
    query_norm: Map | None
    key_norm: Map | None
    output: NativeProduct
    norm2: Map
    inner: Map
    outer: NativeProduct


class NativeProduct:
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


class NativeStep(ABC):
    """The next-token scores of a state, one token a row and call; `fits` says for which states."""

    def __init__(self, model: Model) -> None:
        self.threads = torch.get_num_threads()
        self.head = NativeProduct(model.head_weight[: model.vocabulary_size])

    @staticmethod
    def make(model: Model) -> NativeStep | None:
        """The step of a model that there is one for: a Transformer or a BDH in 32 bits on the CPU."""
        # Every one of them: native code takes each for 32 bits, and would read past the end of a narrower one.
        if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in model.parameters()):
            return None
        if type(model) is Transformer:
            return TransformerStep(model)
        return BDHStep(model) if type(model) is BDH else None

    def fits(self, state: State) -> bool:
        """Whether the next token of these rows can be computed here, as exactly as the model does it."""
        if state.batch_size > MOST_ROWS or torch.is_autocast_enabled("cpu"):
            return False
        return all(part.dtype == torch.float32 and part.is_contiguous() for part in state.tensors.values())

    @abstractmethod
    def __call__(self, state: State, tokens_B: Tensor) -> Tensor:
        """The scores after one more token a row; the state goes on by that token."""


class TransformerStep(NativeStep):
    """For rows of equal length: their next token stands at the same place."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.model = model
        self.config = model.config
        blocks = [cast(Block, block) for block in model.layers]
        shape = BlockShape.of(model.config)
        self.heads, self.kv_heads, self.head_size = shape.heads, shape.kv_heads, shape.head_size
        self.scale = 1 / math.sqrt(self.head_size)
        self.pre_norm = shape.pre_norm
        self.layers = [_native(block, shape) for block in blocks]
        self.final_norm = _norm(norm_weights(model.ln_final), shape.epsilon)
        self.placed: WeakSet[State] = WeakSet()
        self.turns: Tensor | None = None
        if self.config.position == "rope":
            self.turns = torch.complex(model.cosines_TP, model.sines_TP)

    def fits(self, state: State) -> bool:
        return state.even and super().fits(state)

    def __call__(self, state: State, tokens_B: Tensor) -> Tensor:
        assert state.capacity is not None
        place = state.longest
        if place >= FAR:
            self._into_large_pages(state)
        slot, used = place % state.capacity, min(place + 1, state.capacity)
        x_BD, angle = self._enter(tokens_B, place)
        for number, layer in enumerate(self.layers):
            keys, values = state.tensors[f"layers.{number}.keys"], state.tensors[f"layers.{number}.values"]
            if self.pre_norm:
                mixed = self._attend(layer, layer.norm1(x_BD), angle, keys, values, slot, used)
                x_BD = layer.output(mixed, x_BD)
                x_BD = layer.outer(layer.inner(layer.norm2(x_BD)), x_BD)
            else:
                mixed = self._attend(layer, x_BD, angle, keys, values, slot, used)
                x_BD = layer.norm1(layer.output(mixed, x_BD))
                x_BD = layer.norm2(layer.outer(layer.inner(x_BD), x_BD))
        state.advance(1)
        return self.head(self.final_norm(x_BD))

    def _into_large_pages(self, state: State) -> None:
        """Move a state, when it is first met, to where its many keys and values are read at the speed of memory."""
        if state in self.placed:
            return
        self.placed.add(state)
        tensors = state.tensors
        if sum(tensor.nbytes for tensor in tensors.values()) >= LARGE_STATE:
            for name, home in zip(tensors, large_pages(tensors.values()), strict=False):
                tensors[name] = home.copy_(tensors[name])

    def _enter(self, tokens_B: Tensor, place: int) -> tuple[Tensor, Tensor | None]:
        """The embeddings at this place, and its rotary angles as complex numbers: turning a pair is one product."""
        x_BD = functional.embedding(tokens_B, self.model.token_embeddings.weight)
        if self.turns is None:
            return self.model.add_places(x_BD, torch.tensor(place)), None
        if place < len(self.turns):
            return x_BD, self.turns[place]
        return x_BD, torch.complex(*rotation(torch.tensor(place), self.model.rotary_frequencies))

    def _attend(
        self, layer: Layer, x_BD: Tensor, angle: Tensor | None, keys: Tensor, values: Tensor, slot: int, used: int
    ) -> Tensor:
        batch, turned = x_BD.shape[0], self.heads + self.kv_heads
        heads_BHK = layer.qkv(x_BD).view(batch, -1, self.head_size)
        q_k_BHK = heads_BHK[:, :turned]
        if layer.query_norm is not None and layer.key_norm is not None:
            parts = (layer.query_norm(q_k_BHK[:, : self.heads]), layer.key_norm(q_k_BHK[:, self.heads :]))
            q_k_BHK = torch.cat(parts, dim=1)
        if angle is not None:
            q_k_BHK = turn(q_k_BHK, angle)
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


class BDHStep(NativeStep):
    """Synapses are read and written in one pass, and only those of neurons that fire; so are the weights after them."""

    def __init__(self, model: BDH) -> None:
        super().__init__(model)
        self.model, self.width = model, model.config.width
        heads, neurons = model.config.heads, model.neurons
        self.shape = (heads, neurons)
        self.encoder = NativeProduct(model.encoder.detach().transpose(1, 2).reshape(heads * neurons, self.width))
        self.inner = model.encoder_v.detach().transpose(1, 2).contiguous()
        self.outer = model.decoder.detach().contiguous()
        self.synapses = _core.Synapses(heads, neurons, self.width)
        self.gated_sum = _core.GatedSum(self.inner.data_ptr(), self.outer.data_ptr(), heads, neurons, self.width)

    def __call__(self, state: State, tokens_B: Tensor) -> Tensor:
        rows, threads = tokens_B.shape[0], self.threads
        angles_B1P = angles_at(state.lengths[:, None], self.model.frequencies)
        turns_B1P = torch.polar(torch.ones_like(angles_B1P), angles_B1P)
        x_BD = _layer_norm(functional.embedding(tokens_B, self.model.token_embeddings.weight))
        for number in range(self.model.config.layers):
            synapses_BhND = state.tensors[f"layers.{number}.synapses"]
            u_BhN = self.encoder(x_BD).relu_().view(rows, *self.shape)
            q_BhN = turn(u_BhN, turns_B1P)
            read_BhD, mixed_BD = torch.empty(rows, self.shape[0], self.width), torch.empty_like(x_BD)
            self.synapses(
                q_BhN.data_ptr(), x_BD.data_ptr(), synapses_BhND.data_ptr(), read_BhD.data_ptr(), rows, threads
            )
            read_BhD = _layer_norm(read_BhD)
            self.gated_sum(u_BhN.data_ptr(), read_BhD.data_ptr(), mixed_BD.data_ptr(), rows, threads)
            x_BD = _layer_norm(x_BD + _layer_norm(mixed_BD))
        state.advance(1)
        return self.head(x_BD)


def _layer_norm(x: Tensor, gain: Tensor | None = None, bias: Tensor | None = None, epsilon: float = EPSILON) -> Tensor:
    """Without torch's own threads, which it wakes for two vectors, however short: they then wait with open eyes for a
    while, on the processors that the native core is about to use."""
    if x.numel() == x.shape[-1]:
        return functional.layer_norm(x, x.shape[-1:], gain, bias, epsilon)
    centred = x - x.mean(-1, keepdim=True)
    found = centred.mul_(centred.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_())
    if gain is not None:
        found.mul_(gain)
    return found if bias is None else found.add_(bias)


def _rms_norm(x: Tensor, gain: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    factor: Tensor = length.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()
    return x * factor * gain


NORMS = {"rms": _rms_norm, "layer": _layer_norm}


def _norm(norm: Norm, epsilon: float) -> Map:
    kind, gain, bias = norm
    if gain is None:
        return lambda x: x
    function = form(NORMS, "norm", kind)
    return lambda x: function(x, gain, bias, epsilon)


def _native(block: Block, shape: BlockShape) -> Layer:
    w = block_weights(block)
    inner, activation = NativeProduct(*w.inner), form(ACTIVATIONS, "feed_forward", shape.feed_forward)
    return Layer(
        norm1=_norm(w.norm1, shape.epsilon),
        qkv=NativeProduct(*w.qkv),
        query_norm=_norm(w.query_norm, shape.epsilon) if shape.qk_norm else None,
        key_norm=_norm(w.key_norm, shape.epsilon) if shape.qk_norm else None,
        output=NativeProduct(*w.output),
        norm2=_norm(w.norm2, shape.epsilon),
        inner=lambda x: activation(inner(x)),
        outer=NativeProduct(*w.outer),
    )
