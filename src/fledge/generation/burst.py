"""Many tokens without looking: decoding steps of a Transformer on a GPU, recorded once and replayed.

At one token a step a GPU spends most of its time waiting for the next launch. Here the whole step, the draw included,
is a CUDA graph whose inputs (token, place, count) advance on the device, so that the processor only says "again", and
reads a burst of tokens at once. For a few rows the step is made of our own kernels (`decode_step.py`); else it is the
plain formula below, which `compiled` fuses by torch.compile: the first use then takes longer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig, SamplingConfig
from fledge.generation.decode_step import DecodeStep
from fledge.generation.sampling import choose
from fledge.model.base import capability
from fledge.model.layers import LayerNorm, RMSNorm, sinusoids
from fledge.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from fledge.model import Model, State

WARM_UPS = 3
STEPS = 4  # in a graph, for long texts: starting one costs a large model 60 µs, recording a step some milliseconds
LONG = 512  # tokens
MOST_ROWS = 8  # for our own kernels; beyond, matrix units pay
LARGEST_HEAD, LARGEST_MATRIX = 256, 16_384  # what they hold in registers: entries of a head, columns of a matrix


class Shape(NamedTuple):
    """What of the settings a block's mathematics depends on, as plain values that a compiler can take for constants."""

    heads: int
    kv_heads: int
    head_size: int
    norm: str
    epsilon: float
    pre_norm: bool
    qk_norm: bool
    feed_forward: str

    @staticmethod
    def of(config: ModelConfig) -> Shape:
        return Shape(
            config.heads,
            config.kv_heads or config.heads,
            config.width // config.heads,
            config.norm,
            config.norm_epsilon,
            config.norm_place == "pre",
            config.qk_norm,
            config.feed_forward,
        )


class Norm(NamedTuple):
    """The weights of one norm; none at all for no norm."""

    weight: Tensor | None
    bias: Tensor | None


class Product(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class Weights(NamedTuple):
    """One block as plain tensors: equal for all blocks but for their values, so that one compilation serves all."""

    norm1: Norm
    qkv: Product
    query_norm: Norm
    key_norm: Norm
    output: Product
    norm2: Norm
    inner: Product
    outer: Product


class Place(NamedTuple):
    """Where the next token stands: its slot in the ring, which slots hold keys, and its rotary angles."""

    slot: Tensor
    held: Tensor
    cosines: Tensor | None
    sines: Tensor | None


class Bursts:
    """The decoding of a batch whose rows are equally long; `burst` gives its next tokens and how likely they were."""

    def __init__(
        self,
        model: Transformer,
        state: State,
        sampling: SamplingConfig,
        numbers_BN: Tensor,
        vocabulary_size: int,
        compiled: bool,
        holes: Tensor | None = None,
    ) -> None:
        """`holes` are ids below the `vocabulary_size` that are no token."""
        assert state.capacity is not None
        self.model, self.state, self.sampling, self.vocabulary_size = model, state, sampling, vocabulary_size
        self.capacity, self.holes = state.capacity, holes
        self.shape = Shape.of(model.config)
        self.device = state.lengths.device
        self.weights = [_weights(cast(Block, block)) for block in model.layers]
        self.final = _norm_weights(model.ln_final)
        self.numbers_BN = numbers_BN
        batch = state.batch_size
        self.tokens_B = torch.zeros(batch, dtype=torch.long, device=self.device)
        self.place_B, self.count_B = torch.zeros_like(self.tokens_B), torch.zeros_like(self.tokens_B)
        self.place, self.count = self.place_B[:1], self.count_B[:1]  # the rows are equally long
        self.found_BN = torch.zeros_like(numbers_BN, dtype=torch.long)
        self.logprobs_BN = torch.zeros_like(numbers_BN, dtype=torch.float32)
        self.slots = torch.arange(self.capacity, device=self.device)
        self.block: Callable[..., Tensor] = _block
        self.finish: Callable[..., Tensor] = _finish
        self.kernels: DecodeStep | None = None
        if has_kernels(model, state):
            early = capability(self.device) >= (9, 0)
            self.kernels = DecodeStep(model, state, self.shape, self.weights, self.final, vocabulary_size, early)
        elif compiled:
            self.block, self.finish = compiled_parts()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @staticmethod
    def fit(model: Model, state: State, sampling: SamplingConfig, alternatives: int) -> bool:
        """Whether this text can be decoded so: a Transformer on a GPU, rows of equal length, nothing asked of the
        processor between two tokens, and room for all of it."""
        return (
            type(model) is Transformer
            and state.lengths.device.type == "cuda"
            and state.even
            and not alternatives
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

    def burst(self, length: int) -> tuple[Tensor, Tensor]:
        """The next `length` tokens of each row and their log-probabilities, on the processor."""
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
        return self.found_BN[:, part].cpu(), self.logprobs_BN[:, part].cpu()

    def _reset(self, tokens_B: Tensor, count: int) -> None:
        self.done = count
        self.tokens_B.copy_(tokens_B)
        self.place_B.fill_(self.state.longest)
        self.count_B.fill_(count)

    def _record(self) -> None:
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.step()
                # The same place again: a rehearsal must not write over keys that are still needed.
                self.place_B.fill_(self.state.longest)
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
            if self.sampling.temperature == 0 and self.holes is None:
                fixed = self.tokens_B, self.place_B, self.count_B, self.found_BN, self.logprobs_BN
                self.kernels.take_likeliest(*fixed)
                return
        if self.holes is not None:
            logits_BV = logits_BV.index_fill(1, self.holes, -torch.inf)
        numbers_B = self.numbers_BN.index_select(1, self.count)[:, 0]
        chosen_B = choose(logits_BV, self.sampling, numbers_B)
        logprobs_B = logits_BV.gather(1, chosen_B[:, None])[:, 0] - logits_BV.logsumexp(dim=-1)
        self.found_BN.index_copy_(1, self.count, chosen_B[:, None])
        self.logprobs_BN.index_copy_(1, self.count, logprobs_B[:, None])
        self.tokens_B.copy_(chosen_B)
        self.place_B.add_(1)
        self.count_B.add_(1)

    def _scores(self) -> Tensor:
        """The plain formula of `DecodeStep.scores`."""
        config, model = self.model.config, self.model
        x_BD = functional.embedding(self.tokens_B, model.token_embeddings.weight)
        place = self._where()
        if config.position == "learned":
            x_BD = x_BD + functional.embedding(self.place, model.position_embeddings.weight)
        elif config.position == "sinusoidal":
            x_BD = x_BD + sinusoids(self.place, model.sinusoid_frequencies, config.width).to(x_BD.dtype)
        for number, weights in enumerate(self.weights):
            keys, values = self.state.tensors[f"layers.{number}.keys"], self.state.tensors[f"layers.{number}.values"]
            x_BD = self.block(x_BD, weights, keys, values, place, self.shape)
        logits_BV = self.finish(x_BD, self.final, model.head_weight.detach(), self.shape)
        return logits_BV[:, : self.vocabulary_size].float()

    def _where(self) -> Place:
        held = self.slots < (self.place + 1).clamp(max=self.capacity)
        if self.model.config.position != "rope":
            return Place(self.place % self.capacity, held, None, None)
        angles = self.place.float() * self.model.rotary_frequencies
        return Place(self.place % self.capacity, held, angles.cos(), angles.sin())


def has_kernels(model: Transformer, state: State) -> bool:
    """Whether our own kernels decode this: a few rows of a pre-norm Transformer, on a GPU with a recent Triton."""
    weight, config = model.token_embeddings.weight, model.config
    return (
        capability(weight.device) >= (8, 0)
        and _has_triton()
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and config.norm_place == "pre"
        and state.batch_size <= MOST_ROWS
        and config.width // config.heads <= LARGEST_HEAD
        and max(config.width, config.inner_size) <= LARGEST_MATRIX
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


@cache
def compiled_parts() -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A block and the head, fused. So tuned, a product with one vector becomes a kernel that streams the matrix."""
    options: dict[str, Any] = {"coordinate_descent_tuning": True}
    return (
        torch.compile(_block, dynamic=False, options=options),
        torch.compile(_finish, dynamic=False, options=options),
    )


def _weights(block: Block) -> Weights:
    attention, feed_forward = block.attn, block.ffn
    none = Norm(None, None)
    inner = feed_forward.w13 if feed_forward.kind == "swiglu" else feed_forward.w1
    return Weights(
        norm1=_norm_weights(block.ln1),
        qkv=_product(attention.qkv),
        query_norm=_norm_weights(attention.q_norm) if attention.qk_norm else none,
        key_norm=_norm_weights(attention.k_norm) if attention.qk_norm else none,
        output=_product(attention.output_proj),
        norm2=_norm_weights(block.ln2),
        inner=_product(inner),
        outer=_product(feed_forward.w2),
    )


def _norm_weights(module: nn.Module) -> Norm:
    if isinstance(module, RMSNorm):
        return Norm(module.weight.detach(), None)
    if isinstance(module, LayerNorm):
        return Norm(module.weight.detach(), None if module.bias is None else module.bias.detach())
    return Norm(None, None)


def _product(module: Any) -> Product:
    return Product(module.weight.detach(), None if module.bias is None else module.bias.detach())


def _block(x_BD: Tensor, w: Weights, keys: Tensor, values: Tensor, place: Place, shape: Shape) -> Tensor:
    """One block for one token a row: see `Block` in the model, whose mathematics this is."""
    if shape.pre_norm:
        x_BD = x_BD + _attend(_norm(x_BD, w.norm1, shape), w, keys, values, place, shape)
        return x_BD + _feed_forward(_norm(x_BD, w.norm2, shape), w, shape)
    x_BD = _norm(x_BD + _attend(x_BD, w, keys, values, place, shape), w.norm1, shape)
    return _norm(x_BD + _feed_forward(x_BD, w, shape), w.norm2, shape)


def _finish(x_BD: Tensor, norm: Norm, head: Tensor, shape: Shape) -> Tensor:
    if shape.pre_norm:
        x_BD = _norm(x_BD, norm, shape)
    return functional.linear(x_BD, head)


def _norm(x: Tensor, norm: Norm, shape: Shape) -> Tensor:
    if norm.weight is None:
        return x
    wide, size = x.float(), x.shape[-1:]
    if shape.norm == "rms":
        return functional.rms_norm(wide, size, norm.weight.float(), shape.epsilon).to(x.dtype)
    bias = None if norm.bias is None else norm.bias.float()
    return functional.layer_norm(wide, size, norm.weight.float(), bias, shape.epsilon).to(x.dtype)


def _attend(x_BD: Tensor, w: Weights, keys: Tensor, values: Tensor, place: Place, shape: Shape) -> Tensor:
    heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_size
    batch, groups, capacity = x_BD.shape[0], heads // kv_heads, place.held.shape[0]
    heads_BHK = functional.linear(x_BD, *w.qkv).view(batch, -1, size)
    q, k, v = torch.split(heads_BHK, [heads, kv_heads, kv_heads], dim=1)
    if shape.qk_norm:
        q, k = _head_norm(q, w.query_norm, shape), _head_norm(k, w.key_norm, shape)
    if place.cosines is not None and place.sines is not None:
        q, k = _turn(q, place.cosines, place.sines), _turn(k, place.cosines, place.sines)
    keys.index_copy_(2, place.slot, k[:, :, None].to(keys.dtype))
    values.index_copy_(2, place.slot, v[:, :, None].to(values.dtype))
    q = q.reshape(batch, kv_heads, groups, size) * size**-0.5
    if torch.compiler.is_compiling():
        # Sums of products become one pass over the keys each, spread over the whole GPU.
        scores = (q[:, :, :, None].float() * keys[:, :, None, :capacity].float()).sum(-1)
        scores = scores.masked_fill(~place.held, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        mixed = (weights[..., None] * values[:, :, None, :capacity].float()).sum(-2)
    else:
        scores = torch.matmul(q, keys[:, :, :capacity].transpose(-1, -2).to(q.dtype)).float()
        weights = torch.softmax(scores.masked_fill(~place.held, -torch.inf), dim=-1)
        mixed = torch.matmul(weights.to(q.dtype), values[:, :, :capacity].to(q.dtype))
    return functional.linear(mixed.to(x_BD.dtype).reshape(batch, -1), *w.output)


def _head_norm(x: Tensor, norm: Norm, shape: Shape) -> Tensor:
    assert norm.weight is not None
    return functional.rms_norm(x.float(), x.shape[-1:], norm.weight.float(), shape.epsilon).to(x.dtype)


def _turn(x_BHK: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    even, odd = x_BHK.float().view(*x_BHK.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
    return turned.flatten(-2).to(x_BHK.dtype)


def _feed_forward(x_BD: Tensor, w: Weights, shape: Shape) -> Tensor:
    inner = functional.linear(x_BD, *w.inner)
    if shape.feed_forward == "swiglu":
        gate, up = inner.chunk(2, dim=-1)
        inner = functional.silu(gate) * up
    elif shape.feed_forward == "silu":
        inner = functional.silu(inner)
    elif shape.feed_forward == "relu2":
        inner = functional.relu(inner).square()
    else:
        inner = functional.gelu(inner, approximate="tanh" if shape.feed_forward == "gelu_tanh" else "none")
    return functional.linear(inner, *w.outer)
