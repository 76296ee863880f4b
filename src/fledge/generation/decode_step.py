"""One more token a row through a Transformer on a GPU, by the kernels of `decode_kernels.py` and `decode_matrix.py`:
five a layer.

This holds what they work on (the residual stream, queries, parts of the attention, scores) and says how each matrix is
cut into programs. `burst.py` records it, and has the plain formula, for which the attention kernel alone serves too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fledge.generation.block import NO_NORM, Norm
from fledge.model.layers import form

if TYPE_CHECKING:
    from fledge.generation.block import BlockShape, Linear, Weights
    from fledge.model import State
    from fledge.model.transformer import Transformer

KEYS = 384  # of the capacity for one program of a head: every program of the next product reads what all of them found
MOST_SPLITS = 16
TILE = 256  # keys that a program holds at once
LOG2E = 1.4426950408889634
NORMS = {"none": "plain", "rms": "rms", "layer": "layer"}
"What the kernel `product` calls each `model.norm`, as an input."
ACTIVATIONS = {"swiglu": "gated", "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu2": "relu2"}
"What it calls each `model.feed_forward`, as an output."


class Cut(NamedTuple):
    """How a matrix is cut: rows a program, columns a tile, warps."""

    rows: int
    block: int
    warps: int


def cut(rows: int, columns: int, itemsize: int = 2, batch: int = 1) -> Cut:
    """So that the programs are on the chip at once, each with all its weights in registers.

    The fastest of those tried on an H200 with the shapes of GPT-2 (docs/decoding-speed.md). Half the rows in 32 bits,
    and for several texts, where the compiler keeps the weights in 32 bits.

    >>> cut(6400, 1600), cut(768, 3072)
    (Cut(rows=16, block=256, warps=4), Cut(rows=2, block=1024, warps=4))
    """
    if columns > 8192:
        found = Cut(2, 2048, 8)
    elif columns > 2048:
        found = Cut(2, 1024, 4)
    elif columns > 1024:
        # 396 programs of 16 rows are on the chip at once; that four wait costs less than twice as many programs.
        found = Cut(16 if 132 <= rows // 16 <= 400 else 8, 256, 4)
    elif rows < 1024:
        found = Cut(4, 256, 4)
    elif rows > 16_384:
        found = Cut(16, 256, 4)
    else:
        found = Cut(32 if rows >= 3072 else 16, 256, 8)
    return found if itemsize < 4 and batch == 1 else found._replace(rows=found.rows // 2)


def on_matrix_units(weight: Tensor, batch: int, early: bool) -> bool:
    """Whether `decode_matrix.py` adds the product with this matrix to the residual stream: a bf16 one, as wide as was
    found to gain by it, that fits the registers of its programs and whose rows are read 16 bytes at a time."""
    return (
        early
        and batch == 1
        and weight.dtype == torch.bfloat16
        and 5120 < weight.shape[1] <= 6656
        and weight.shape[1] % 8 == weight.storage_offset() % 8 == 0
    )


class AttentionStep:
    """What the heads find, for one new token a row: in so many parts of the keys held, with the weight of each."""

    def __init__(
        self,
        model: Transformer,
        state: State,
        shape: BlockShape,
        splits: int = 1,
        early: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is that of the parts: of one alone, which is the result, it may be the weights' own."""
        from fledge.generation import decode_kernels  # needs Triton

        assert state.capacity is not None
        self.kernel = decode_kernels.attention
        self.state, self.shape, self.splits, self.early = state, shape, splits, early
        self.options: dict[str, Any] = {"launch_pdl": True} if early else {}
        self.capacity, batch, weight = state.capacity, state.batch_size, model.head_weight
        self.frequencies = model.rotary_frequencies if model.config.position == "rope" else None
        self.mixed_BSE = torch.zeros(batch, splits, shape.heads * shape.head_size, device=weight.device, dtype=dtype)
        self.part_weights_BSH = torch.zeros(batch, splits, shape.heads, device=weight.device)
        # Four warps take a fifth fewer registers than eight: of a large model, that leaves room for the kernels around.
        self.light = model.config.width > 1024 and batch == 1 and weight.element_size() == 2

    def __call__(self, number: int, w: Weights, place_B: Tensor, qkv_BE: Tensor) -> Tensor:
        """In the layer of this number; with one part, what the heads find."""
        shape = self.shape
        keys, values = self.state.tensors[f"layers.{number}.keys"], self.state.tensors[f"layers.{number}.values"]
        tile = max(16, min(TILE, _power(-(-self.capacity // self.splits))) * 64 // max(64, _power(shape.head_size)))
        self.kernel[(shape.heads * self.splits, self.state.batch_size)](
            qkv_BE, keys, values, w.query_norm.weight, w.key_norm.weight, self.frequencies, place_B, self.mixed_BSE,
            self.part_weights_BSH,
            self.capacity, keys.stride(0), keys.stride(1), LOG2E * shape.head_size**-0.5, shape.epsilon,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, SIZE=shape.head_size, WIDE=_power(shape.head_size),
            SPLITS=self.splits, TILE=tile, NORM=shape.qk_norm, ROPE=self.frequencies is not None, EARLY=self.early,
            num_warps=4 if self.light else 8, **self.options,
        )  # fmt: skip
        return self.mixed_BSE[:, 0]


class DecodeStep:
    """The scores of every row's next token, from fixed tensors into fixed tensors."""

    def __init__(
        self,
        model: Transformer,
        state: State,
        shape: BlockShape,
        weights: list[Weights],
        final: Norm,
        vocabulary_size: int,
        early: bool,
    ) -> None:
        """With `early`, kernels begin before those in front of them have ended: for compute capability 9.0 and up."""
        self.activation = form(ACTIVATIONS, "feed_forward", shape.feed_forward)
        from fledge.generation import decode_kernels, decode_matrix  # need Triton

        assert state.capacity is not None
        self.kernels, self.add_product = decode_kernels, decode_matrix.add_product
        self.model, self.state, self.shape, self.weights, self.final = model, state, shape, weights, final
        self.vocabulary_size, self.early = vocabulary_size, early
        self.options: dict[str, Any] = {"launch_pdl": True} if early else {}
        self.head = model.head_weight.detach()
        self.batch = state.batch_size
        self.splits = min(MOST_SPLITS, -(-state.capacity // KEYS))
        self.attention = AttentionStep(model, state, shape, self.splits, early)

        def room(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(self.batch, *sizes, device=self.head.device, dtype=dtype)

        self.x_BD = room(model.config.width)
        self.qkv_BE = room((shape.heads + 2 * shape.kv_heads) * shape.head_size)
        self.inner_BF = room(model.config.inner_size, dtype=self.head.dtype)
        self.logits_BV = room(self.head.shape[0])
        programs = -(-self.head.shape[0] // self._cut(self.head).rows)
        self.best_BP, self.best_mass_BP = room(programs), room(programs)
        self.best_row_BP = room(programs, dtype=torch.int32)

    def scores(self, tokens_B: Tensor, place_B: Tensor) -> Tensor:
        """The scores after these tokens, which stand at these places; their keys and values are stored."""
        self._enter(tokens_B, place_B)
        for number, w in enumerate(self.weights):
            self._product(self.x_BD, w.qkv, self.qkv_BE, norm=w.norm1)
            self.attention(number, w, place_B, self.qkv_BE)
            self._product(self.attention.mixed_BSE, w.output, self.x_BD, parts=True, output="add")
            self._product(self.x_BD, w.inner, self.inner_BF, norm=w.norm2, output=self.activation)
            if on_matrix_units(w.outer.weight, self.batch, self.early):
                self.add_product(self.x_BD, self.inner_BF, *w.outer, self.early)
            else:
                self._product(self.inner_BF, w.outer, self.x_BD, output="add")
        self._product(self.x_BD, (self.head, None), self.logits_BV, norm=self.final, output="scores")
        return self.logits_BV[:, : self.vocabulary_size]

    def take_likeliest(
        self, tokens_B: Tensor, place_B: Tensor, count_B: Tensor, found_BN: Tensor, logprobs_BN: Tensor
    ) -> None:
        """After `scores`: write down each row's likeliest token and how likely it was, and move on to it."""
        programs = self.best_BP.shape[1]
        self.kernels.take_likeliest[(self.batch,)](
            self.best_BP, self.best_row_BP, self.best_mass_BP, tokens_B, place_B, count_B, found_BN, logprobs_BN,
            programs, self.vocabulary_size, found_BN.shape[1], BLOCK=_power(programs), EARLY=self.early, num_warps=8,
            **self.options,
        )  # fmt: skip

    def _cut(self, weight: Tensor) -> Cut:
        return cut(weight.shape[0], weight.shape[1], weight.element_size(), self.batch)

    def _enter(self, tokens_B: Tensor, place_B: Tensor) -> None:
        width, positions = self.model.config.width, self.model.config.position
        learned = self.model.position_embeddings.weight.detach() if positions == "learned" else None
        # Not launched early: kernels of this step read the place before they wait, when the last step must have ended.
        self.kernels.enter[(self.batch,)](
            tokens_B, place_B, self.model.token_embeddings.weight.detach(), learned, self.x_BD,
            WIDTH=width, BLOCK=_power(width), LEARNED=learned is not None, EARLY=self.early, num_warps=8,
        )  # fmt: skip
        if learned is None:
            placed_BD = self.model.add_places(self.x_BD, place_B)
            if placed_BD is not self.x_BD:
                self.x_BD.copy_(placed_BD)

    def _product(
        self,
        x: Tensor,
        product: Linear | tuple[Tensor, None],
        out: Tensor,
        *,
        norm: Norm = NO_NORM,
        parts: bool = False,
        output: str = "plain",
    ) -> None:
        weight, bias = product
        shape, (kind, gain, shift) = self.shape, norm
        taken = "parts" if parts else form(NORMS, "norm", kind)
        (rows, columns), how, size = weight.shape, self._cut(weight), shape.head_size
        given = [tensor for tensor in (weight, gain, shift) if tensor is not None]
        even = not any(number % 2 for number in (columns, size, *(tensor.storage_offset() for tensor in given)))
        pairs = even and weight.dtype == torch.bfloat16
        if pairs:
            weight, x = _in_pairs(weight), _in_pairs(x)
            gain, shift = None if gain is None else _in_pairs(gain), None if shift is None else _in_pairs(shift)
            columns, size, how = columns // 2, size // 2, how._replace(block=how.block // 2)
        if output == "gated":  # a program holds the rows of two matrices
            rows, how = rows // 2, how._replace(rows=max(1, how.rows // 2))
        self.kernels.product[(-(-rows // how.rows),)](
            x, self.attention.part_weights_BSH, weight, bias, gain, shift, out, self.best_BP, self.best_row_BP,
            self.best_mass_BP, self.batch, shape.epsilon,
            N=rows, REAL=self.vocabulary_size if output == "scores" else rows, K=columns, ROWS=how.rows,
            BLOCK=how.block, INPUT=taken, SIZE=size,
            SPLITS=self.splits, OUTPUT=output, BIAS=bias is not None, SHIFT=shift is not None, PAIRS=pairs,
            EARLY=self.early, num_warps=how.warps, **self.options,
        )  # fmt: skip


def _in_pairs(tensor: Tensor) -> Tensor:
    """The same memory as numbers of twice the size."""
    return tensor.view(torch.int32 if tensor.element_size() == 2 else torch.int64)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
