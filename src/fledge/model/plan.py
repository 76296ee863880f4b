"""What a batch's documents mean to a model, and how documents lie in its rows."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

PADDING = -1  # the document of what is no text


class Documents(Protocol):
    """The part of a batch that a plan is made from; padding has document −1."""

    @property
    def inputs_BT(self) -> Tensor: ...
    @property
    def positions_BT(self) -> Tensor | None: ...
    @property
    def documents_BT(self) -> Tensor | None: ...


class Pieces(NamedTuple):
    """Runs of one document, longest first, in the order that a packed sequence wants them."""

    order: Tensor
    "Where each entry of the packed sequence lies in the flattened batch."
    inverse: Tensor
    "Where each place of the flattened batch lies in the packed sequence."
    sizes: Tensor
    "Pieces that are still running at each step (on the CPU, as torch wants it)."
    carried_row: Tensor
    "The row whose state a piece goes on from, or −1 for a fresh start."
    last_piece: Tensor
    "The piece whose final state each row keeps, or −1 where the row has padding only."
    counts: Tensor
    "Tokens of each row that are not padding."


class Plan(NamedTuple):
    """What a batch's documents mean to a model: made once, outside the compiled graph, as each architecture needs."""

    positions_BT: Tensor | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    "Cosines and sines of the rotary positions."
    mask: Tensor | None = None
    "True where a token may look."
    blocks: Any = None
    "FlexAttention's block mask, where the device has it."
    pieces: Pieces | None = None
    kind: str | None = None
    "The `plan_kind` of the model it was made by."
    shape: tuple[int, ...] | None = None
    "Of the batch it was made for."


def beginnings(documents_BT: Tensor) -> Tensor:
    """True where a run of one document, or of padding, begins."""
    return functional.pad(documents_BT.diff(dim=1) != 0, (1, 0), value=True)


def places_within(documents_BT: Tensor) -> Tensor:
    """Each token's place in its document.

    >>> places_within(torch.tensor([[5, 5, 5, 6, 6, -1]]))
    tensor([[0, 1, 2, 0, 1, 0]])
    """
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    return places_T - (places_T * beginnings(documents_BT)).cummax(dim=1).values
