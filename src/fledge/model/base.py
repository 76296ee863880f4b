"""What every model is to the other rooms: ids in, hidden states out, a plan for documents, a state for decoding.

An architecture subclasses `Model` and fills in `hidden`; whoever needs documents fills in `plan`, whoever can decode
token by token `init_state`. Nothing here knows text, losses, optimizers or sampling.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.config.sizes import padded
from fledge.errors import FledgeError
from fledge.model.plan import Documents, Plan
from fledge.model.state import State

if TYPE_CHECKING:
    from typing_extensions import Self


_HAS_TRITON = importlib.util.find_spec("triton") is not None


class VocabularyMatrix(nn.Module):
    """One row per id, padded in memory to a size that matrix units like. The padding is zero and is never saved."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.weight = nn.Parameter(torch.zeros(padded(vocabulary_size), width))
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
        if not self.padding_count or is_compiling():
            return functional.embedding(inputs_BT, self.weight)
        # torch refuses ids outside a matrix by itself; those of the padding are outside too, and need this. On a CPU
        # looking costs nothing that counts. Elsewhere it would mean waiting, and torch looks on the device: at the
        # rows that stand for ids, which costs nothing forward. Compiled steps take ids that the store has checked.
        if inputs_BT.device.type != "cpu":
            return functional.embedding(inputs_BT, self.used)
        if inputs_BT.numel() and (largest := int(inputs_BT.max())) >= self.vocabulary_size:
            raise FledgeError(
                f"The id {largest} is outside the model's vocabulary of {self.vocabulary_size}. "
                "Encode the text with the tokenizer that the model was trained with."
            )
        return functional.embedding(inputs_BT, self.weight)


class Model(nn.Module):
    """Token ids to logits. Built by `build_model` from its settings, a vocabulary size and a context length."""

    settings: ClassVar[frozenset[str]] = frozenset()
    "The fields of `ModelConfig` that this architecture reads."
    endless: bool = True
    "Whether decoding may go on past the context length (with the oldest tokens forgotten, where there is a window)."
    recorded: ClassVar[bool] = False
    """Whether a GPU may record a training step and replay it: nothing may then change from step to step but tensors on
    the device, no number of Python and no buffer put in place of another. A subclass says it anew."""
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
        if "head_size" in self.settings and config.head_size is not None:
            sizes.append(f"head_size {config.head_size}")
        self.state_kind = ", ".join((config.architecture, *sizes))
        "What the form of a state follows from, in words: a state of another kind is refused."
        places = [
            f"{name} {getattr(config, name)}"
            for name in ("position", "rope_theta", "rope_scaling")
            if name in self.settings
        ]
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

    @property
    def decodes(self) -> bool:
        """Whether there is a state to decode token by token with; else the whole context is read for each token."""
        return type(self).init_state is not Model.init_state

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
