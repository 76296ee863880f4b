"""RNN, GRU and LSTM language models: embedding, stacked recurrent layers, head. The caller owns the hidden state.

Documents in one row are run as rows of their own, packed without padding, so that a state never crosses a boundary
and torch's fast kernels still see one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fledge.config import ModelConfig
from fledge.model.base import Model, VocabularyMatrix
from fledge.model.checks import check_batch, check_inputs, state_place
from fledge.model.dropout import Dropout
from fledge.model.layers import fill_matrix, initialise
from fledge.model.plan import Documents, Pieces, Plan, beginnings
from fledge.model.state import State

KINDS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
LAYERS: dict[str, Callable[..., Any]] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
CELLS: dict[str, Callable[..., Any]] = {"rnn": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}


class Recurrent(Model):
    """Which cell it is follows from `model.architecture`."""

    recorded = True
    settings = frozenset(["layers", "width", "tied", "bias", "dropout", "initialisation", "embedding_deviation"])

    def __init__(self, config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
        super().__init__(config, vocabulary_size, context_length)
        self.token_embeddings = VocabularyMatrix(vocabulary_size, config.width)
        self.recurrent = KINDS[config.architecture](
            config.width,
            config.width,
            num_layers=config.layers,
            bias=config.bias,
            batch_first=True,
            dropout=config.dropout if config.layers > 1 else 0.0,
        )
        self.dropout = Dropout(config.dropout)
        self.lm_head = None if config.tied else VocabularyMatrix(vocabulary_size, config.width)
        self.parts = ("hidden", "cell") if config.architecture == "lstm" else ("hidden",)
        initialise(self, config, config.layers)
        self._initialise_cells()

    def _initialise_cells(self) -> None:
        """Each gate's matrix on its own, and an LSTM that begins by remembering."""
        for name, parameter in self.recurrent.named_parameters():
            if name.startswith("weight"):
                for gate in torch.split(parameter, self.config.width):
                    fill_matrix(gate, self.config)
            else:
                nn.init.zeros_(parameter)
                if self.config.architecture == "lstm" and name.startswith("bias_ih"):
                    with torch.no_grad():
                        parameter[self.config.width : 2 * self.config.width].fill_(1.0)

    def hidden(
        self,
        inputs_BT: Tensor,
        plan: Plan | None = None,
        state: State | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        check_inputs(self, inputs_BT, plan, state, lengths)
        x_BTD = self.dropout(self.token_embeddings(inputs_BT))
        pieces = None if plan is None else plan.pieces
        if lengths is not None and bool((lengths < inputs_BT.shape[1]).any()):
            steps = torch.arange(inputs_BT.shape[1], device=lengths.device)
            pieces = cut_pieces(torch.where(steps < lengths[:, None], 0, -1), None, inputs_BT.device)
        carried = None if state is None else self._carried(state, x_BTD.dtype)
        if pieces is None and carried is not None and self._steps_singly(x_BTD):
            out_BTD, final = self._step(x_BTD, carried)
        elif pieces is None:
            out_BTD, final = self._run(x_BTD, carried)
        else:
            out_BTD, final = self._run_pieces(x_BTD, pieces, carried)
        if state is not None:
            # Only `lengths` counts on: a number of Python that changed at every step would be compiled in every time.
            seen = inputs_BT.shape[1] if pieces is None else pieces.counts
            state = State(self._tensors(final), state.lengths + seen, None, kind=self.state_kind)
        return self.dropout(out_BTD), state

    def _steps_singly(self, x_BTD: Tensor) -> bool:
        """Whether this is one token on the CPU: torch's LSTM lays out all its weights anew for every call."""
        on_cpu = x_BTD.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        return on_cpu and x_BTD.shape[1] == 1 and not self.training

    def _step(self, x_B1D: Tensor, carried: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One token through the cells of all layers."""
        cell, x_BD = CELLS[self.config.architecture], x_B1D[:, 0]
        found: list[tuple[Tensor, ...]] = []
        for number, weights in enumerate(self.recurrent.all_weights):
            before = tuple(part[number] for part in carried)
            after = cell(x_BD, before if len(before) == 2 else before[0], *weights)
            found.append(after if isinstance(after, tuple) else (after,))
            x_BD = found[-1][0]
        return x_BD[:, None], tuple(torch.stack(part) for part in zip(*found, strict=True))

    def _run(self, x: Tensor | PackedSequence, carried: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if isinstance(x, Tensor) and x.device.type == "cuda" and self.training and self.recurrent.dropout:
            return self._run_layers(x, carried)
        if carried is None:
            out, final = self.recurrent(x)
        else:
            out, final = self.recurrent(x, carried if len(carried) == 2 else carried[0])
        return out, final if isinstance(final, tuple) else (final,)

    def _run_layers(self, x_BTD: Tensor, carried: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Layer by layer, with our own dropout between: cuDNN's keeps random numbers of its own, which no seed repeats
        and no CUDA graph can take."""
        if carried is None:
            empty = x_BTD.new_zeros(self.config.layers, x_BTD.shape[0], self.config.width)
            carried = tuple(empty for _ in self.parts)
        found: list[tuple[Tensor, ...]] = []
        for number, weights in enumerate(self.recurrent.all_weights):
            before = [part[number : number + 1] for part in carried]
            begin = before if len(before) == 2 else before[0]
            x_BTD = self.dropout(x_BTD) if number else x_BTD
            layer = LAYERS[self.config.architecture]
            x_BTD, *after = layer(x_BTD, begin, weights, self.config.bias, 1, 0.0, True, False, True)
            found.append(tuple(after))
        return x_BTD, tuple(torch.cat(part) for part in zip(*found, strict=True))

    def _run_pieces(
        self, x_BTD: Tensor, pieces: Pieces, carried: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        packed = PackedSequence(x_BTD.flatten(0, 1)[pieces.order], pieces.sizes)
        begin = None
        if carried is not None:
            goes_on = (pieces.carried_row >= 0)[:, None]
            begin = tuple((part[:, pieces.carried_row] * goes_on).contiguous() for part in carried)
        out, ends = self._run(packed, begin)
        final = tuple(end[:, pieces.last_piece] for end in ends)
        if carried is not None:
            seen = (pieces.last_piece >= 0)[:, None]
            final = tuple(torch.where(seen, new, old) for new, old in zip(final, carried, strict=True))
        return out.data[pieces.inverse].view(x_BTD.shape), final

    def _carried(self, state: State, dtype: torch.dtype) -> tuple[Tensor, ...]:
        layers = range(self.config.layers)
        return tuple(
            torch.stack([state.tensors[f"layers.{n}.{part}"] for n in layers]).to(dtype) for part in self.parts
        )

    def _tensors(self, final: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {
            f"layers.{number}.{part}": tensor[number]
            for part, tensor in zip(self.parts, final, strict=True)
            for number in range(self.config.layers)
        }

    def plan(self, batch: Documents) -> Plan | None:
        if batch.documents_BT is None:
            return None
        check_batch(batch)
        pieces = cut_pieces(batch.documents_BT, batch.positions_BT, batch.inputs_BT.device)
        return Plan(pieces=pieces, kind=self.plan_kind, shape=tuple(batch.inputs_BT.shape))

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> State:
        place, kind = state_place(self, batch_size, device, dtype, capacity)
        zeros = torch.zeros(self.config.layers, batch_size, self.config.width, device=place, dtype=kind)
        tensors = self._tensors(tuple(zeros.clone() for _ in self.parts))
        return State(tensors, torch.zeros(batch_size, device=place, dtype=torch.long), None, kind=self.state_kind)


def cut_pieces(documents_BT: Tensor, positions_BT: Tensor | None, device: torch.device) -> Pieces:
    """Cut rows where the document changes. A row's first piece goes on from the carried state unless it starts at 0."""
    documents = documents_BT.cpu()
    batch, length = documents.shape
    begins = beginnings(documents).flatten()
    starts = begins.nonzero()[:, 0]
    sizes = torch.diff(starts, append=torch.tensor([batch * length]))
    by_size = torch.argsort(sizes, descending=True, stable=True)
    rank = torch.empty_like(by_size)
    rank[by_size] = torch.arange(len(by_size))
    piece = begins.cumsum(0) - 1
    step = torch.arange(batch * length) - starts[piece]
    order = torch.argsort(step * len(starts) + rank[piece])
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    row = starts // length
    first = starts % length == 0
    if positions_BT is not None:
        first &= positions_BT.cpu()[row, starts % length] != 0
    carried_row = torch.where(first, row, -1)[by_size]
    real = documents.flatten()[starts] >= 0
    last_piece = torch.full((batch,), -1)
    last_piece[row[real]] = rank[real]  # pieces lie in order within a row: the last one written stays
    moved = (tensor.to(device) for tensor in (carried_row, last_piece, (documents >= 0).sum(1)))
    return Pieces(order.to(device), inverse.to(device), torch.bincount(step), *moved)
