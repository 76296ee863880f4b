"""Many tokens without looking: decoding steps of a Transformer on a GPU, recorded once and replayed.

At one token a step a GPU spends most of its time waiting for the next launch. Here the whole step, the draw included,
is a CUDA graph whose inputs (token, place, count) advance on the device, so that the processor only says "again", and
reads a burst of tokens at once. For a few rows the step is made of our own kernels (`decode_step.py`); else it is the
plain formula of `block.py`, which `compiled` fuses by torch.compile: the first use then takes longer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from fledge.config import SamplingConfig
from fledge.generation.block import (
    BlockShape,
    Place,
    block_step,
    block_weights,
    compiled_parts,
    head_step,
    norm_weights,
)
from fledge.generation.decode_step import ACTIVATIONS, NORMS, DecodeStep
from fledge.generation.sampling import choose
from fledge.model.base import capability
from fledge.model.layers import rotation
from fledge.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from fledge.model import Model, State

WARM_UPS = 3
STEPS = 4  # in a graph, for long texts: starting one costs a large model 60 µs, recording a step some milliseconds
LONG = 512  # tokens
MOST_ROWS = 8  # for our own kernels; beyond, matrix units pay
LARGEST_HEAD, LARGEST_MATRIX = 256, 16_384  # what they hold in registers: entries of a head, columns of a matrix


class Written(NamedTuple):
    """What a burst found, on the processor: tokens and their log-probabilities, and the likeliest ones beside them."""

    tokens_BN: Tensor
    logprobs_BN: Tensor
    others_BNA: Tensor
    other_logprobs_BNA: Tensor


class Bursts:
    """The decoding of a batch; `burst` gives its next tokens and how likely they were."""

    def __init__(
        self,
        model: Transformer,
        state: State,
        sampling: SamplingConfig,
        numbers_BN: Tensor,
        vocabulary_size: int,
        compiled: bool,
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
        self.block: Callable[..., Tensor] = block_step
        self.finish: Callable[..., Tensor] = head_step
        self.kernels: DecodeStep | None = None
        if has_decode_kernels(model, state):
            early = capability(self.device) >= (9, 0)
            self.kernels = DecodeStep(model, state, self.shape, self.weights, self.final, vocabulary_size, early)
        elif compiled:
            self.block, self.finish = compiled_parts()
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
        """Go on with the next numbers, at most as many as the first were: what was found by those has been fetched."""
        self.ready, self.done = numbers_BN.shape[1], 0
        self.numbers_BN[:, : self.ready].copy_(numbers_BN)
        self.count_B.fill_(0)

    def burst(self, length: int) -> Written:
        """The next `length` tokens of each row."""
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
        return Written(*(tensor[:, part].cpu() for tensor in found))

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
        place = self._where()
        for number, weights in enumerate(self.weights):
            keys, values = self.state.tensors[f"layers.{number}.keys"], self.state.tensors[f"layers.{number}.values"]
            x_BD = self.block(x_BD, weights, keys, values, place, self.shape)
        logits_BV = self.finish(x_BD, self.final, model.head_weight.detach(), self.shape)
        return logits_BV[:, : self.vocabulary_size].float()

    def _where(self) -> Place:
        held = (self.slots < (self.place + 1).clamp(max=self.capacity)[:, None])[:, None, None]
        turned = self.model.config.position == "rope"
        angles = rotation(self.place, self.model.rotary_frequencies) if turned else None
        return Place(self.place % self.capacity, held, angles)


def has_decode_kernels(model: Transformer, state: State) -> bool:
    """Whether our own kernels decode this: a few rows of a pre-norm Transformer, on a GPU with a recent Triton."""
    weight, config = model.token_embeddings.weight, model.config
    return (
        capability(weight.device) >= (8, 0)
        and _has_triton()
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and config.norm_place == "pre"
        and config.norm in NORMS
        and config.feed_forward in ACTIVATIONS
        and state.batch_size <= MOST_ROWS
        and config.head_width <= LARGEST_HEAD
        and max(config.width, config.attention_width, config.inner_size) <= LARGEST_MATRIX
        and all(tensor.is_contiguous() for tensor in (*state.tensors.values(), *model.parameters()))
        and state.tensors["layers.0.keys"].dtype == weight.dtype
    )


@cache
def _has_triton() -> bool:
    """Triton with what our kernels use: tuples of tiles, and kernels that begin early (3.4 and up)."""
    if torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    from triton.language.extra import cuda  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return hasattr(cuda, "gdc_wait")
