"""What every model is to the other rooms: ids in, hidden states out, a plan for documents, a state for decoding.

An architecture subclasses `Model` and fills in `hidden`; whoever needs documents fills in `plan`, whoever can decode
`init_state`. Nothing here knows text, losses, optimizers or sampling.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.errors import FledgeError

if TYPE_CHECKING:
    from typing_extensions import Self


WHOLE = (torch.int32, torch.int64)
PADDING = -1  # the document of what is no text
_HAS_TRITON = importlib.util.find_spec("triton") is not None


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


class State:
    """What a model remembers of the tokens it has seen, one row per sequence.

    A state is spent by `model.hidden(…, state=state)`: go on with the one it returns, and `clone` first to keep both.
    `tensors` have the rows first, so that selecting rows, copying and saving are the same for every architecture.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        lengths: Tensor,
        capacity: int | None,
        longest: int = 0,
        even: bool = True,
        kind: str | None = None,
    ) -> None:
        self.tensors = tensors
        self.lengths = lengths
        self.capacity = capacity
        # No row of a window is longer. Known, like `even`, without asking a GPU, so that decoding never waits; there,
        # after padding, it may be too large until `measure`.
        self.longest = longest
        self.even = even
        self.kind = kind  # the `state_kind` of the model it was made for

    @property
    def batch_size(self) -> int:
        return int(self.lengths.shape[0])

    def _with(self, tensors: dict[str, Tensor], lengths: Tensor) -> State:
        return State(tensors, lengths, self.capacity, self.longest, self.even, self.kind)

    def select(self, rows: Tensor | Sequence[int]) -> State:
        """The state of these rows, in this order; a row may be named more than once. A mask takes the rows it marks."""
        rows = torch.as_tensor(rows, device=self.lengths.device)
        if rows.dtype == torch.bool and rows.shape == self.lengths.shape:
            rows = rows.nonzero()[:, 0]
        if rows.ndim != 1 or (rows.dtype not in WHOLE and rows.numel()):
            raise FledgeError(
                f"Rows of shape {list(rows.shape)} and type {rows.dtype} are not allowed: name them by number, such as "
                f"[0, 0, 2], or mark each of the {self.batch_size} with true or false."
            )
        rows = rows.long()
        if rows.device.type == "cpu" and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.batch_size:
            raise FledgeError(f"rows = {rows.tolist()} is not allowed: the state has rows 0 to {self.batch_size - 1}.")
        chosen = self._with({name: tensor[rows] for name, tensor in self.tensors.items()}, self.lengths[rows])
        if not self.even and self.lengths.device.type == "cpu":
            chosen.measure()
        return chosen

    def clone(self) -> State:
        """A copy that shares nothing."""
        return self._with({name: tensor.clone() for name, tensor in self.tensors.items()}, self.lengths.clone())

    def detach(self) -> State:
        """The same values, cut off from the graph: what is carried from one training window to the next."""
        return self._with({name: tensor.detach() for name, tensor in self.tensors.items()}, self.lengths)

    def load(self, tensors: dict[str, Tensor], lengths: Tensor) -> State:
        """This state with saved `tensors` and `lengths` in place of its own."""
        if tensors.keys() != self.tensors.keys() or any(tensors[n].shape != t.shape for n, t in self.tensors.items()):
            raise FledgeError("The saved state is of another model or another batch size; start from an empty one.")
        like = self.lengths
        if lengths.shape != like.shape or lengths.dtype not in WHOLE or bool((lengths < 0).any()):
            raise FledgeError(
                f"The saved lengths {lengths.tolist()} are not those of a state of {self.batch_size} rows; start from "
                "an empty one."
            )
        loaded = {name: tensors[name].to(tensor) for name, tensor in self.tensors.items()}
        found = self._with(loaded, lengths.to(like))
        found.measure()
        return found

    def advance(self, steps: int, lengths: Tensor | None = None) -> None:
        """Count `steps` more tokens in every row, or `lengths` of them row by row."""
        self.lengths = self.lengths + (steps if lengths is None else lengths)
        self.longest += steps
        if lengths is not None:
            self.even = False
            if self.lengths.device.type == "cpu":
                self.measure()

    def measure(self) -> None:
        """Look at the lengths themselves, which waits for a GPU."""
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0
        self.even = bool((self.lengths == self.longest).all())


class VocabularyMatrix(nn.Module):
    """One row per id, padded in memory to a size that matrix units like. The padding is zero and is never saved."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        step = 128 if vocabulary_size >= 2048 else 8
        self.weight = nn.Parameter(torch.zeros(-(-vocabulary_size // step) * step, width))
        self.register_state_dict_post_hook(VocabularyMatrix._cut)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(VocabularyMatrix._pad)  # type: ignore[no-untyped-call]

    @property
    def used(self) -> Tensor:
        """The rows that stand for ids."""
        return self.weight[: self.vocabulary_size]

    @property
    def padding_count(self) -> int:
        return (self.weight.shape[0] - self.vocabulary_size) * self.weight.shape[1]

    def _cut(self, state: dict[str, Any], prefix: str, _: Any) -> None:
        name = prefix + "weight"
        if name in state:
            state[name] = state[name][: self.vocabulary_size]

    def _pad(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        name = prefix + "weight"
        rows = self.weight.shape[0]
        if name not in state or rows == self.vocabulary_size:
            return
        if state[name].shape[0] == rows:
            raise FledgeError(
                f"{name} has {rows:,} rows, and the vocabulary has {self.vocabulary_size:,} ids. If the rest is "
                f"padding, cut it off: weights[{name!r}][:{self.vocabulary_size}]."
            )
        if state[name].shape[0] == self.vocabulary_size:
            state[name] = functional.pad(state[name], (0, 0, 0, rows - self.vocabulary_size))

    def forward(self, inputs_BT: Tensor) -> Tensor:
        return functional.embedding(inputs_BT, self.weight)


class Model(nn.Module):
    """Token ids to logits. Built by `build_model` from its settings, a vocabulary size and a context length."""

    settings: ClassVar[frozenset[str]] = frozenset()
    "The fields of `ModelConfig` that this architecture reads."
    endless: bool = True
    "Whether decoding may go on past the context length (with the oldest tokens forgotten, where there is a window)."
    token_embeddings: VocabularyMatrix
    lm_head: VocabularyMatrix | None

    def __init__(self, config: ModelConfig, vocabulary_size: int, context_length: int) -> None:
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.context_length = context_length
        sizes = [
            f"{name} {getattr(config, name)}"
            for name in ("layers", "width", "heads", "multiplier")
            if name in self.settings
        ]
        if "kv_heads" in self.settings:
            sizes.append(f"kv_heads {config.kv_heads or config.heads}")
        self.state_kind = ", ".join((config.architecture, *sizes))
        "What the form of a state follows from, in words: a state of another kind is refused."
        places = [f"{name} {getattr(config, name)}" for name in ("position", "rope_theta") if name in self.settings]
        self.plan_kind = ", ".join((self.state_kind, *places, f"context {context_length}"))
        "What the meaning of a plan follows from, likewise."
        self.recompute = False
        "Set by training: keep only what enters each layer, and compute the rest again in the backward pass."

    def hidden(
        self,
        inputs_BT: Tensor,
        plan: Plan | None = None,
        state: State | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """Hidden states before the head, and the state after these tokens where one was given.

        With a state, `lengths` says how many tokens of each row are real; the rest, on the right, is padding whose
        output means nothing, and the state goes on after the real ones.
        """
        raise NotImplementedError

    def head(self, hidden_BTD: Tensor) -> Tensor:
        """Logits over the vocabulary, without the padding."""
        logits = functional.linear(hidden_BTD, self.head_weight.to(hidden_BTD.dtype))
        return logits[..., : self.vocabulary_size]

    def forward(self, inputs_BT: Tensor, plan: Plan | None = None) -> Tensor:
        return self.head(self.hidden(inputs_BT, plan)[0])

    @property
    def head_weight(self) -> Tensor:
        """The matrix of the head, one row per id and then padding rows, for a loss that fuses it."""
        return (self.lm_head or self.token_embeddings).weight

    def tables(self) -> dict[str, Tensor]:
        """Constants that follow from the settings (angles and the like): made once, kept as buffers, never saved."""
        return {}

    def make_tables(self) -> None:
        """Compute the tables again, where the model is: after it left the meta device, or changed its precision."""
        device = self.token_embeddings.weight.device
        for name, table in self.tables().items():
            self.register_buffer(name, table.to(device), persistent=False)

    def _apply(self, function: Any, recurse: bool = True) -> Self:
        super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        if any(
            buffer.dtype in (torch.bfloat16, torch.float16) for buffer in self._buffers.values() if buffer is not None
        ):
            self.make_tables()  # 8 bits cannot hold the angle of a far position
        return self

    def plan(self, batch: Documents) -> Plan | None:
        """What this batch's positions and documents mean here; None when it has neither."""
        if batch.positions_BT is None and batch.documents_BT is None:
            return None
        raise FledgeError(
            f"model.architecture = {self.config.architecture} does not separate documents. "
            "Use tokens.policy = stream, or an architecture with a plan."
        )

    def init_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        capacity: int | None = None,
    ) -> State:
        """An empty state for `batch_size` sequences; `capacity` tokens are remembered where there is a window."""
        raise FledgeError(f"model.architecture = {self.config.architecture} cannot decode token by token.")

    def parameters_count(self) -> int:
        """Trainable numbers, vocabulary padding left out."""
        padding = sum(m.padding_count for m in self.modules() if isinstance(m, VocabularyMatrix))
        return sum(parameter.numel() for parameter in self.parameters()) - padding

    def check_ids(self, ids: Tensor) -> None:
        """Refuse ids outside the vocabulary: for where they enter, never inside `forward`."""
        ids = torch.as_tensor(ids)
        if ids.is_floating_point() or ids.is_complex():
            raise FledgeError(
                f"Ids of type {ids.dtype} are not allowed: they are whole numbers, as a tokenizer encodes."
            )
        ids = ids.long()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary_size:
            bad = ids[(ids < 0) | (ids >= self.vocabulary_size)].flatten()[0]
            raise FledgeError(
                f"The id {int(bad)} is outside the model's vocabulary of {self.vocabulary_size}. "
                "Encode the text with the tokenizer that the model was trained with."
            )

    def check_inputs(
        self, inputs_BT: Tensor, plan: Plan | None, state: State | None, lengths: Tensor | None = None
    ) -> None:
        """Refuse what cannot fit, from shapes alone; of values, only those that are on the CPU."""
        if inputs_BT.ndim != 2 or inputs_BT.dtype not in WHOLE or not inputs_BT.numel():
            raise FledgeError(
                f"Ids of shape {list(inputs_BT.shape)} and type {inputs_BT.dtype} are not allowed: a model takes rows "
                "of whole numbers, [batch, tokens], at least one. One text is ids[None], and other types become it "
                "with .long()."
            )
        if plan is not None and plan.kind not in (None, self.plan_kind):
            raise FledgeError(
                f"The plan is of another model ({plan.kind}) than this one ({self.plan_kind}). "
                "Make one with this model's plan(batch)."
            )
        if plan is not None and plan.shape not in (None, tuple(inputs_BT.shape)):
            raise FledgeError(
                f"The plan is of a batch of shape {list(plan.shape or ())}, and the inputs are "
                f"{list(inputs_BT.shape)}. Make one for each batch."
            )
        if state is None and inputs_BT.shape[1] > self.context_length:
            raise FledgeError(
                f"{inputs_BT.shape[1]} tokens are more than the context length of {self.context_length}. "
                "Cut the text, or go through it piece by piece with a state."
            )
        if state is not None and state.batch_size != inputs_BT.shape[0]:
            raise FledgeError(
                f"The state is of {state.batch_size} sequences and the inputs are {inputs_BT.shape[0]}. "
                "Make one with init_state(batch_size), or select its rows."
            )
        if state is not None and state.kind not in (None, self.state_kind):
            raise FledgeError(
                f"The state is of another model ({state.kind}) than this one ({self.state_kind}). "
                "Make one with this model's init_state."
            )
        if lengths is not None:
            rows, steps = inputs_BT.shape
            if state is None:
                raise FledgeError("lengths goes with a state: make one with init_state, or leave the padding unread.")
            if lengths.shape != (rows,) or lengths.dtype not in WHOLE:
                raise FledgeError(
                    f"lengths of shape {list(lengths.shape)} and type {lengths.dtype} is not allowed: it is one whole "
                    f"number for each of {rows} rows."
                )
            if lengths.device.type == "cpu" and rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= steps:
                raise FledgeError(
                    f"lengths = {lengths.tolist()} is not allowed: a row of these inputs has from 0 to {steps} tokens."
                )

    def check_batch(self, batch: Documents) -> None:
        """Refuse documents and positions that do not fit the inputs; of values, only those that are on the CPU."""
        shape = batch.inputs_BT.shape
        for name, tensor in (("positions", batch.positions_BT), ("documents", batch.documents_BT)):
            if tensor is not None and tensor.shape != shape:
                raise FledgeError(
                    f"{name} of shape {list(tensor.shape)} do not fit inputs of shape {list(shape)}: every token has "
                    "one."
                )
        documents = batch.documents_BT
        if documents is None or documents.device.type != "cpu":
            return
        # As many runs as documents, padding left out, which may lie anywhere.
        runs, kinds = (_beginnings(ids).sum(-1) for ids in (documents, documents.sort(dim=-1).values))
        if bool((runs != kinds).any()):
            row = int((runs != kinds).nonzero()[0])
            raise FledgeError(
                f"A document of row {row} lies in several pieces: each is one piece, one after the other. Give the "
                "second piece a number of its own."
            )

    def _home(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None, capacity: int | None
    ) -> tuple[torch.device, torch.dtype]:
        """Where a state lies and in which type, its sizes checked."""
        if batch_size < 0 or (capacity is not None and capacity < 1):
            raise FledgeError(
                f"A state of {batch_size} rows and a capacity of {capacity} is not allowed: rows are counted from 0, "
                "and a window remembers at least 1 token."
            )
        if dtype is not None and not dtype.is_floating_point:
            raise FledgeError(f"A state in {dtype} is not allowed: use torch.float32, bfloat16, float16 or float64.")
        weight = self.token_embeddings.weight
        return torch.device(device) if device is not None else weight.device, dtype or weight.dtype


def _beginnings(documents_BT: Tensor) -> Tensor:
    """True where a run of one document begins."""
    return functional.pad(documents_BT.diff(dim=1) != 0, (1, 0), value=True) & (documents_BT != PADDING)


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The type of activations: autocast's where it is on, so that the residual stream is as narrow as the rest."""
    kind = tensor.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return tensor.dtype


def wide(tensor: Tensor) -> Tensor:
    """At least 32 bits: sums of squares and the like are not taken in 16."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def capability(device: torch.device) -> tuple[int, int]:
    """What a CUDA device can do, as NVIDIA counts it, such as (9, 0) for Hopper; (0, 0) for all others."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def has_kernels(tensor: Tensor) -> bool:
    """Whether our Triton kernels take this tensor: bf16 on a CUDA device, which means compute capability 8.0 and up."""
    return _HAS_TRITON and tensor.device.type == "cuda" and tensor.dtype == torch.bfloat16
