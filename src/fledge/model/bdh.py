"""BDH, the Baby Dragon Hatchling of Pathway: one set of weights for all layers, linear attention between neurons.

Training runs over whole windows; decoding uses the exact recurrent form, whose state per layer and head is an N×D
matrix of synapses: 201 MB a sequence at the default size in 32 bits, half of that with `dtype=torch.bfloat16`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge import devices
from fledge.config import ModelConfig
from fledge.config.sizes import KEPT_SHARE
from fledge.errors import FledgeError
from fledge.model.base import Model, VocabularyMatrix, compute_dtype
from fledge.model.bdh_layer import bdh_mix, normalise
from fledge.model.checks import check_batch, check_inputs, state_place
from fledge.model.layers import rotate
from fledge.model.plan import Documents, Plan
from fledge.model.state import State

if TYPE_CHECKING:
    from typing_extensions import Self

THETA = 2.0**16
DEVIATION = 0.02


class BDH(Model):
    """x ← LN(x + LN(Σ_heads dropout(u ⊙ w) · decoder)), `layers` times with the same weights."""

    recorded = True
    settings = frozenset(["layers", "width", "heads", "multiplier", "dropout"])
    frequencies: Tensor
    cosines_TP: Tensor
    sines_TP: Tensor
    no_seeds: Tensor

    def __init__(self, config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
        super().__init__(config, vocabulary_size, context_length)
        neurons = config.multiplier * config.width // config.heads
        if neurons % 2 or config.multiplier * config.width % config.heads:
            raise FledgeError(
                f"model.multiplier · model.width / model.heads = {config.multiplier}·{config.width}/{config.heads} "
                "must be an even number of neurons per head. Change one of the three."
            )
        self.neurons = neurons
        self.token_embeddings = VocabularyMatrix(vocabulary_size, config.width)
        self.encoder = nn.Parameter(torch.empty(config.heads, config.width, neurons))
        self.encoder_v = nn.Parameter(torch.empty(config.heads, config.width, neurons))
        self.decoder = nn.Parameter(torch.empty(config.heads * neurons, config.width))
        self.lm_head = VocabularyMatrix(vocabulary_size, config.width)
        for matrix in (
            self.encoder,
            self.encoder_v,
            self.decoder,
            self.token_embeddings.used,
            self.lm_head.used,
        ):
            nn.init.normal_(matrix, std=DEVIATION)
        self.make_tables()
        self.device_memory = 0  # known once the model is on a GPU
        self.keep_neurons: bool | None = None
        "Keep every layer's neurons for the backward pass, for a sixth less work; None to do so on a GPU with room."

    def _apply(self, function: Any, recurse: bool = True) -> Self:
        super()._apply(function, recurse)
        device = self.encoder.device
        if devices.is_gpu(device):
            self.device_memory = devices.total_memory(device) or 0
        return self

    def tables(self) -> dict[str, Tensor]:
        even = torch.arange(0, self.neurons, 2, dtype=torch.float32)
        frequencies = THETA ** (-even / self.neurons) / (2 * math.pi)
        cosines, sines = turns(torch.arange(self.context_length), frequencies)
        no_seeds = torch.zeros(self.config.layers, self.config.heads, dtype=torch.int64)
        return {"frequencies": frequencies, "cosines_TP": cosines, "sines_TP": sines, "no_seeds": no_seeds}

    def hidden(
        self,
        inputs_BT: Tensor,
        plan: Plan | None = None,
        state: State | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        check_inputs(self, inputs_BT, plan, state, lengths)
        x_BTD = self.token_embeddings(inputs_BT)
        x_BTD = normalise(x_BTD.to(compute_dtype(x_BTD)))
        if state is not None:
            if plan is not None:
                raise FledgeError("BDH takes a plan or a state, not both: decode each document on its own.")
            return self._decode(x_BTD, state, lengths)
        return self._windows(x_BTD, None if plan is None else plan.mask), None

    def _windows(self, x_BTD: Tensor, allowed_BTT: Tensor | None) -> Tensor:
        length = x_BTD.shape[1]
        encoder, encoder_v, decoder = self._halves(x_BTD.dtype)
        cosines, sines = self.cosines_TP[:length], self.sines_TP[:length]
        dropout = self.config.dropout if self.training else 0.0
        seeds = torch.randint_like(self.no_seeds, 1 << 31) if dropout else self.no_seeds
        grad = torch.is_grad_enabled()
        keep = self.keep_neurons
        if self.recompute:
            keep = False
        elif keep is None:
            neurons = 2 * x_BTD.shape[0] * length * self.neurons * self.config.heads * self.config.layers
            keep = neurons * x_BTD.element_size() <= self.device_memory // KEPT_SHARE
        for layer_seeds in seeds.unbind(0):
            mixed = bdh_mix(
                x_BTD,
                encoder,
                encoder_v,
                decoder,
                cosines,
                sines,
                allowed_BTT,
                layer_seeds,
                dropout,
                grad,
                grad and keep,
            )[0]
            x_BTD = normalise(x_BTD + normalise(mixed))
        return x_BTD

    def _halves(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The weights with even neurons first, as the layer wants them; small beside the activations."""
        heads, width = self.config.heads, self.config.width
        encoders = (
            weight.to(dtype).view(heads, width, -1, 2).transpose(-1, -2).reshape(heads, width, self.neurons)
            for weight in (self.encoder, self.encoder_v)
        )
        decoder = self.decoder.to(dtype).view(heads, -1, 2, width).transpose(1, 2).reshape(heads, self.neurons, width)
        return next(encoders), next(encoders), decoder

    def _decode(self, x_BTD: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The recurrent form: read what the synapses hold, add what these tokens read of each other, then write."""
        steps, dtype = x_BTD.shape[1], x_BTD.dtype
        places = torch.arange(steps, device=x_BTD.device)
        cosines, sines = turns(state.lengths[:, None] + places, self.frequencies)
        real_BT = None if lengths is None else places < lengths[:, None]
        encoder, encoder_v = self.encoder.to(dtype), self.encoder_v.to(dtype)
        decoder = self.decoder.to(dtype).view(self.config.heads, self.neurons, -1)
        for number in range(self.config.layers):
            synapses_BhND = state.tensors[f"layers.{number}.synapses"]
            x_B1TD = x_BTD[:, None]
            u_BhTN = functional.relu(x_B1TD @ encoder)
            q_BhTN = rotate(u_BhTN.transpose(1, 2), cosines, sines).transpose(1, 2)
            read = (q_BhTN.to(synapses_BhND.dtype) @ synapses_BhND).to(dtype)
            if steps > 1:
                read = read + torch.tril(q_BhTN @ q_BhTN.transpose(-1, -2), diagonal=-1) @ x_B1TD
            keys = q_BhTN if real_BT is None else q_BhTN * real_BT[:, None, :, None]
            state.tensors[f"layers.{number}.synapses"] = write(synapses_BhND, keys, x_BTD)
            w_BhTN = functional.relu(normalise(read) @ encoder_v)
            mixed = (functional.dropout(u_BhTN * w_BhTN, self.config.dropout, self.training) @ decoder).sum(1)
            x_BTD = normalise(x_BTD + normalise(mixed))
        state.advance(steps, lengths)
        return x_BTD, state

    def plan(self, batch: Documents) -> Plan | None:
        """Documents mask the scores. Positions need no reset: only their differences count."""
        if batch.documents_BT is None:
            return None
        check_batch(batch)
        mask = batch.documents_BT[:, :, None] == batch.documents_BT[:, None, :]
        return Plan(mask=mask, kind=self.plan_kind, shape=tuple(batch.inputs_BT.shape))

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> State:
        place, kind = state_place(self, batch_size, device, dtype, capacity)
        shape = (batch_size, self.config.heads, self.neurons, self.config.width)
        tensors = {
            f"layers.{number}.synapses": torch.zeros(shape, device=place, dtype=kind)
            for number in range(self.config.layers)
        }
        return State(tensors, torch.zeros(batch_size, device=place, dtype=torch.long), None, kind=self.state_kind)


def angles_at(positions: Tensor, frequencies: Tensor) -> Tensor:
    """The angle of every pair at `positions`; whole turns are dropped first, so that far positions stay exact."""
    return 2 * math.pi * ((positions[..., None].float() * frequencies) % 1.0)


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    angles = angles_at(positions, frequencies)
    return angles.cos(), angles.sin()


def write(synapses_BhND: Tensor, keys_BhTN: Tensor, x_BTD: Tensor) -> Tensor:
    """The synapses after these tokens: where no gradient is wanted the same ones, written in one pass."""
    kind = synapses_BhND.dtype
    keys_BhNT, values_B1TD = keys_BhTN.to(kind).transpose(-1, -2), x_BTD.to(kind)[:, None]
    if torch.is_grad_enabled():
        return synapses_BhND + keys_BhNT @ values_B1TD
    heads = synapses_BhND.shape[1]
    values = values_B1TD.expand(-1, heads, -1, -1).flatten(0, 1)
    written = synapses_BhND.flatten(0, 1).baddbmm_(keys_BhNT.flatten(0, 1), values)
    return written.view(synapses_BhND.shape)
