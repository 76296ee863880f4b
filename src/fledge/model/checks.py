"""What a model is given, refused in a sentence where it can't fit: from shapes and types, and of values only those that
are on the CPU, since a look at a GPU's would mean to wait."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.errors import FledgeError
from fledge.model.plan import PADDING, Documents, Plan, beginnings
from fledge.model.state import WHOLE, State

if TYPE_CHECKING:
    from fledge.model.base import Model


def check_inputs(
    model: Model, inputs_BT: Tensor, plan: Plan | None, state: State | None, lengths: Tensor | None = None
) -> None:
    """Refuse what cannot fit, from shapes alone; of values, only those that are on the CPU."""
    if inputs_BT.ndim != 2 or inputs_BT.dtype not in WHOLE or not inputs_BT.numel():
        raise FledgeError(
            f"Ids of shape {list(inputs_BT.shape)} and type {inputs_BT.dtype} are not allowed: a model takes rows "
            "of whole numbers, [batch, tokens], at least one. One text is ids[None], and other types become it "
            "with .long()."
        )
    if plan is not None and plan.kind not in (None, model.plan_kind):
        raise FledgeError(
            f"The plan is of another model ({plan.kind}) than this one ({model.plan_kind}). "
            "Make one with this model's plan(batch)."
        )
    if plan is not None and plan.shape not in (None, tuple(inputs_BT.shape)):
        raise FledgeError(
            f"The plan is of a batch of shape {list(plan.shape or ())}, and the inputs are "
            f"{list(inputs_BT.shape)}. Make one for each batch."
        )
    if state is None and inputs_BT.shape[1] > model.context_length:
        raise FledgeError(
            f"{inputs_BT.shape[1]} tokens are more than the context length of {model.context_length}. "
            "Cut the text, or go through it piece by piece with a state."
        )
    if state is not None and state.batch_size != inputs_BT.shape[0]:
        raise FledgeError(
            f"The state is of {state.batch_size} sequences and the inputs are {inputs_BT.shape[0]}. "
            "Make one with init_state(batch_size), or select its rows."
        )
    if state is not None and state.kind not in (None, model.state_kind):
        raise FledgeError(
            f"The state is of another model ({state.kind}) than this one ({model.state_kind}). "
            "Make one with this model's init_state."
        )
    if lengths is not None:
        rows, steps = inputs_BT.shape
        if state is None:
            raise FledgeError("lengths needs a state: make one with init_state, or do not pass the padding.")
        if lengths.shape != (rows,) or lengths.dtype not in WHOLE:
            raise FledgeError(
                f"lengths of shape {list(lengths.shape)} and type {lengths.dtype} is not allowed: it is one whole "
                f"number for each of {rows} rows."
            )
        if lengths.device.type == "cpu" and rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= steps:
            raise FledgeError(
                f"lengths = {lengths.tolist()} is not allowed: a row of these inputs has from 0 to {steps} tokens."
            )


def check_batch(batch: Documents) -> None:
    """Refuse documents and positions that do not fit the inputs; of values, only those that are on the CPU."""
    shape = batch.inputs_BT.shape
    for name, tensor in (("positions", batch.positions_BT), ("documents", batch.documents_BT)):
        if tensor is not None and tensor.shape != shape:
            raise FledgeError(
                f"{name} of shape {list(tensor.shape)} do not fit inputs of shape {list(shape)}: every token has one."
            )
    documents = batch.documents_BT
    if documents is None or documents.device.type != "cpu":
        return
    # As many runs as documents, padding left out, which may lie anywhere.
    runs, kinds = ((beginnings(ids) & (ids != PADDING)).sum(-1) for ids in (documents, documents.sort(dim=-1).values))
    if bool((runs != kinds).any()):
        row = int((runs != kinds).nonzero()[0])
        raise FledgeError(
            f"A document of row {row} lies in several pieces: each is one piece, one after the other. Give the "
            "second piece a number of its own."
        )


def state_place(
    model: Model, batch_size: Any, device: Any, dtype: Any, capacity: Any
) -> tuple[torch.device, torch.dtype]:
    """Where a new state lies and in which type, its sizes checked."""
    if not _is_count(batch_size, 0) or not (capacity is None or _is_count(capacity, 1)):
        raise FledgeError(
            f"A state of {batch_size!r:.40} rows and a capacity of {capacity!r:.40} is not allowed: rows are a whole "
            "number from 0 on, and a window remembers at least 1 token."
        )
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise FledgeError(f"A state in {dtype!r:.40} is not allowed: use torch.float32, bfloat16, float16 or float64.")
    weight = model.token_embeddings.weight
    return torch.device(device) if device is not None else weight.device, dtype or weight.dtype


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
