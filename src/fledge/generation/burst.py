"""Many tokens without looking: decoding steps of a Transformer on a GPU, recorded once and replayed.

At one token a step a GPU spends most of its time waiting for the next launch. Here the whole step, the draw included,
is a CUDA graph whose inputs (token, place, count) advance on the device, so that the processor only says "again", and
reads a burst of tokens at once. For a few rows the step is made of our own kernels (`decode_step.py`); else it is the
plain formula of `block.py`, whose products are torch's and whose attention is our kernel too where the GPU has it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from fledge.config import SamplingConfig
from fledge.generation.block import BlockShape, Mix, Place, attend, block_step, block_weights, head_step, norm_weights
from fledge.generation.decode_step import ACTIVATIONS, NORMS, AttentionStep, DecodeStep
from fledge.generation.sampling import choose
from fledge.model.base import capability
from fledge.model.layers import rotation
from fledge.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from fledge.model import Model, State

WARM_UPS = 3
STEPS = 4  # in a graph, for long texts: starting one costs a large model 60 µs, recording a step some milliseconds
LONG = 512  # tokens
MOST_ROWS = 8  # for products by our own kernels; beyond, matrix units pay
MOST_LINES = 65_535  # programs along the second side of a CUDA grid
LARGEST_HEAD, LARGEST_MATRIX = 256, 16_384  # what they hold in registers: entries of a head, columns of a matrix


class Written(NamedTuple):
    """What a burst finds, on its way to the processor: the tokens, their log-probabilities, and the likeliest tokens
    with theirs."""

    found: tuple[Tensor, ...]
    ready: torch.cuda.Event | None

    def columns(self) -> Iterator[tuple[list[Any], ...]]:
        """The values of all rows, token by token, once they are there."""
        if self.ready is not None:
            self.ready.synchronize()
        return zip(*(tensor.transpose(0, 1).tolist() for tensor in self.found), strict=True)


class Bursts:
    """The decoding of a batch; `burst` gives its next tokens and how likely they were."""

    def __init__(
        self,
        model: Transformer,
        state: State,
        sampling: SamplingConfig,
        numbers_BN: Tensor,
        vocabulary_size: int,
        holes: Tensor | None = None,
        alternatives: int = 0,
    ) -> None:
        """`holes` are ids below the `vocabulary_size` that are no token."""
        assert state.capacity is not None
        self.model, self.state, self.sampling, self.vocabulary_size = model, state, sampling, vocabulary_size
        self.capacity, self.holes = state.capacity, holes
        self.shape = BlockShape.of(model.config)
        self.device = state.lengths.device
        self.weights = [block_weights(cast(Block, block)) for block in model.layers]
        self.final = norm_weights(model.ln_final)
        self.numbers_BN, self.ready = numbers_BN, numbers_BN.shape[1]
        batch = state.batch_size
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=self.device)
        self.place_B, self.count_B = torch.zeros_like(self.tokens_B), torch.zeros_like(self.tokens_B)
        # Rows that are equally long stand at one place: the plain formula then writes one slot for all of them.
        self.place = self.place_B[:1] if state.even else self.place_B
        self.count = self.count_B[:1]
        self.found_BN = torch.zeros_like(numbers_BN, dtype=torch.long)
        self.logprobs_BN = torch.zeros_like(numbers_BN, dtype=torch.float32)
        self.alternatives = alternatives
        shape = (*numbers_BN.shape, alternatives)
        self.others_BNA = torch.zeros(shape, dtype=torch.long, device=self.device)
        self.other_logprobs_BNA = torch.zeros(shape, device=self.device)
        self.slots = torch.arange(self.capacity, device=self.device)
        self.kernels: DecodeStep | None = None
        self.attention: AttentionStep | None = None
        if has_decode_kernels(model, state):
            early = capability(self.device) >= (9, 0)
            self.kernels = DecodeStep(model, state, self.shape, self.weights, self.final, vocabulary_size, early)
        elif has_attention_kernel(model, state):
            self.attention = AttentionStep(model, state, self.shape, dtype=model.head_weight.dtype)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @staticmethod
    def fit(model: Model, state: State, sampling: SamplingConfig) -> bool:
        """Whether this text can be decoded so: a Transformer on a GPU, nothing asked of the processor between two
        tokens, and room for all of it."""
        return (
            type(model) is Transformer
            and state.lengths.device.type == "cuda"
            and sampling.repetition_penalty == 1
            and (model.endless or state.longest + sampling.max_tokens <= model.context_length)
        )

    def start(self, tokens_B: Tensor, count: int) -> None:
        """Go on from these tokens, the `count`-th of each row, which the state has not read yet."""
        self._reset(tokens_B, count)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                self._record()
            self._reset(tokens_B, count)

    @property
    def left(self) -> int:
        """Tokens of each row that numbers lie ready for."""
        return self.ready - self.done

    def refill(self, numbers_BN: Tensor) -> None:
        """Go on with the next numbers, at most as many as the first were: what was found by those is on its way."""
        self.ready, self.done = numbers_BN.shape[1], 0
        self.numbers_BN[:, : self.ready].copy_(numbers_BN)
        self.count_B.fill_(0)

    def burst(self, length: int) -> Written:
        """The next `length` tokens of each row; on a GPU they are asked for, and nothing waits until they are read."""
        first, left = self.done, length
        for steps, graph in self.graphs.items():
            for _ in range(left // steps):
                graph.replay()
            left %= steps
        for _ in range(left):
            self.step()
        self.done += length
        self.state.advance(length)
        part = slice(first, self.done)
        found = self.found_BN, self.logprobs_BN, self.others_BNA, self.other_logprobs_BNA
        copies = tuple(tensor[:, part].to("cpu", non_blocking=True, copy=True) for tensor in found)
        on_gpu = self.device.type == "cuda"
        return Written(copies, torch.cuda.current_stream(self.device).record_event() if on_gpu else None)

    def _reset(self, tokens_B: Tensor, count: int) -> None:
        self.done = count
        self.tokens_B.copy_(tokens_B)
        self.place_B.copy_(self.state.lengths)
        self.count_B.fill_(count)

    def _record(self) -> None:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.step()
                # The same place again: a rehearsal must not write over keys that are still needed.
                self.place_B.copy_(self.state.lengths)
                self.count_B.fill_(self.done)
        torch.cuda.current_stream(self.device).wait_stream(side)
        for steps in (STEPS, 1) if self.numbers_BN.shape[1] >= LONG else (1,):
            self.graphs[steps] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[steps], capture_error_mode="thread_local"):
                for _ in range(steps):
                    self.step()

    def step(self) -> None:
        """One token a row, from and into the fixed tensors that a graph can be replayed on."""
        if self.kernels is None:
            logits_BV = self._scores()
        else:
            logits_BV = self.kernels.scores(self.tokens_B, self.place_B)
            if self.sampling.temperature == 0 and self.holes is None and not self.alternatives:
                fixed = self.tokens_B, self.place_B, self.count_B, self.found_BN, self.logprobs_BN
                self.kernels.take_likeliest(*fixed)
                return
        if self.holes is not None:
            logits_BV = logits_BV.index_fill(1, self.holes, -torch.inf)
        numbers_B = self.numbers_BN.index_select(1, self.count)[:, 0]
        chosen_B = choose(logits_BV, self.sampling, numbers_B)
        whole_B1 = logits_BV.logsumexp(dim=-1, keepdim=True)
        logprobs_B = (logits_BV.gather(1, chosen_B[:, None]) - whole_B1)[:, 0]
        if self.alternatives:
            best_BA, others_BA = logits_BV.topk(self.alternatives)
            self.others_BNA.index_copy_(1, self.count, others_BA[:, None])
            self.other_logprobs_BNA.index_copy_(1, self.count, (best_BA - whole_B1)[:, None])
        self.found_BN.index_copy_(1, self.count, chosen_B[:, None])
        self.logprobs_BN.index_copy_(1, self.count, logprobs_B[:, None])
        self.tokens_B.copy_(chosen_B)
        self.place_B.add_(1)
        self.count_B.add_(1)

    def _scores(self) -> Tensor:
        """The plain formula of `DecodeStep.scores`."""
        model = self.model
        x_BD = model.add_places(functional.embedding(self.tokens_B, model.token_embeddings.weight), self.place)
        for weights, mix in zip(self.weights, self._mixes(), strict=True):
            x_BD = block_step(x_BD, weights, mix, self.shape)
        logits_BV = head_step(x_BD, self.final, model.head_weight.detach(), self.shape)
        return logits_BV[:, : self.vocabulary_size].float()

    def _mixes(self) -> Iterator[Mix]:
        """The attention of each block, at the place of the next tokens."""
        if self.attention is not None:
            for number, weights in enumerate(self.weights):
                yield partial(self.attention, number, weights, self.place_B)
            return
        place, tensors = self._where(), self.state.tensors
        for number, weights in enumerate(self.weights):
            keys, values = tensors[f"layers.{number}.keys"], tensors[f"layers.{number}.values"]
            yield partial(attend, w=weights, keys=keys, values=values, place=place, shape=self.shape)

    def _where(self) -> Place:
        held = (self.slots < (self.place + 1).clamp(max=self.capacity)[:, None])[:, None, None]
        turned = self.model.config.position == "rope"
        angles = rotation(self.place, self.model.rotary_frequencies) if turned else None
        return Place(self.place % self.capacity, held, angles)


def has_decode_kernels(model: Transformer, state: State) -> bool:
    """Whether our own kernels decode this: a few rows of a pre-norm Transformer, on a GPU with a recent Triton."""
    config = model.config
    return (
        has_attention_kernel(model, state)
        and config.norm_place == "pre"
        and config.norm in NORMS
        and config.feed_forward in ACTIVATIONS
        and state.batch_size <= MOST_ROWS
        and max(config.width, config.attention_width, config.inner_size) <= LARGEST_MATRIX
        and all(parameter.is_contiguous() for parameter in model.parameters())
    )


def has_attention_kernel(model: Transformer, state: State) -> bool:
    weight = model.token_embeddings.weight
    return (
        capability(weight.device) >= (8, 0)
        and _has_triton()
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and model.config.head_width <= LARGEST_HEAD
        and state.batch_size <= MOST_LINES
        and all(tensor.is_contiguous() for tensor in state.tensors.values())
        and state.tensors["layers.0.keys"].dtype == weight.dtype
    )


@cache
def _has_triton() -> bool:
    """Triton with what our kernels use: tuples of tiles, and kernels that begin early (3.4 and up)."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    from triton.language.extra import cuda  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return hasattr(cuda, "gdc_wait")
