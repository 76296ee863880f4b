"""Every parameter a model will have, by the name it has in the weights file, without building the model; and shapes
with a name, to account for and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from fledge.accounting.built import built_parameters, is_registered
from fledge.config import ModelConfig
from fledge.config.sizes import RECURRENT_GATES
from fledge.errors import FledgeError, nearest


@dataclass(frozen=True)
class Parameter:
    """One tensor, or one per layer: then `N` in its name stands for the layer and `times` is their number."""

    name: str
    component: str
    shape: tuple[int, ...]
    times: int = 1

    @property
    def count(self) -> int:
        return prod(self.shape) * self.times


@dataclass(frozen=True)
class Parameters:
    """All parameters of a model, and their numbers by component."""

    tensors: tuple[Parameter, ...]

    @property
    def total(self) -> int:
        return sum(tensor.count for tensor in self.tensors)

    @property
    def inside(self) -> int:
        """All but embeddings and head: what computes between them."""
        around = ("token embeddings", "position embeddings", "head")
        return sum(count for component, count in self.by_component.items() if component not in around)

    @property
    def by_component(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            counts[tensor.component] = counts.get(tensor.component, 0) + tensor.count
        return counts


def list_parameters(config: ModelConfig, vocabulary_size: int, context_length: int) -> Parameters:
    """The parameters of the model that `build_model` makes of the same three.

    >>> list_parameters(ModelConfig(architecture="bdh", layers=6), 256, 512).total
    25296896
    """
    return Parameters(tuple(_lister(config.architecture)(config, vocabulary_size, context_length)))


def _transformer(config: ModelConfig, vocabulary_size: int, context_length: int) -> Iterator[Parameter]:
    width, layers = config.width, config.layers
    head_size, all_heads = config.head_width, config.attention_width
    kv_width = head_size * (config.kv_heads or config.heads)
    inner = config.inner_size

    def norm(name: str, component: str, size: int, times: int) -> Iterator[Parameter]:
        if config.norm != "none":
            yield Parameter(f"{name}.weight", component, (size,), times)
        if config.norm == "layer" and config.bias:
            yield Parameter(f"{name}.bias", component, (size,), times)

    def linear(name: str, component: str, outputs: int, inputs: int) -> Iterator[Parameter]:
        yield Parameter(f"layers.N.{name}.weight", component, (outputs, inputs), layers)
        if config.bias:
            yield Parameter(f"layers.N.{name}.bias", component, (outputs,), layers)

    yield Parameter("token_embeddings.weight", "token embeddings", (vocabulary_size, width))
    if config.position == "learned":
        yield Parameter("position_embeddings.weight", "position embeddings", (context_length, width))
    yield from norm("layers.N.ln1", "norms", width, layers)
    yield from linear("attn.q_proj", "attention", all_heads, width)
    yield from linear("attn.k_proj", "attention", kv_width, width)
    yield from linear("attn.v_proj", "attention", kv_width, width)
    yield from linear("attn.output_proj", "attention", width, all_heads)
    if config.qk_norm:
        yield Parameter("layers.N.attn.q_norm.weight", "norms", (head_size,), layers)
        yield Parameter("layers.N.attn.k_norm.weight", "norms", (head_size,), layers)
    yield from norm("layers.N.ln2", "norms", width, layers)
    yield from linear("ffn.w1", "feed-forward", inner, width)
    yield from linear("ffn.w2", "feed-forward", width, inner)
    if config.gated:
        yield from linear("ffn.w3", "feed-forward", inner, width)
    if config.norm_place == "pre":  # a post-norm block already ends in a norm
        yield from norm("ln_final", "norms", width, 1)
    if not config.tied:
        yield Parameter("lm_head.weight", "head", (vocabulary_size, width))


def _bdh(config: ModelConfig, vocabulary_size: int, context_length: int) -> Iterator[Parameter]:
    """One set of weights serves all layers, so the count does not depend on them."""
    width, heads = config.width, config.heads
    neurons = config.multiplier * width // heads
    yield Parameter("token_embeddings.weight", "token embeddings", (vocabulary_size, width))
    yield Parameter("encoder", "neurons", (heads, width, neurons))
    yield Parameter("encoder_v", "neurons", (heads, width, neurons))
    yield Parameter("decoder", "neurons", (heads * neurons, width))
    yield Parameter("lm_head.weight", "head", (vocabulary_size, width))


def _recurrent(config: ModelConfig, vocabulary_size: int, context_length: int) -> Iterator[Parameter]:
    width = config.width
    outputs = RECURRENT_GATES[config.architecture] * width
    yield Parameter("token_embeddings.weight", "token embeddings", (vocabulary_size, width))
    for side in ("ih", "hh"):
        yield Parameter(f"recurrent.weight_{side}_lN", "recurrent", (outputs, width), config.layers)
        if config.bias:
            yield Parameter(f"recurrent.bias_{side}_lN", "recurrent", (outputs,), config.layers)
    if not config.tied:
        yield Parameter("lm_head.weight", "head", (vocabulary_size, width))


Lister = Callable[[ModelConfig, int, int], Iterator[Parameter]]

_LISTERS: dict[str, Lister] = {
    "transformer": _transformer,
    "bdh": _bdh,
    "rnn": _recurrent,
    "gru": _recurrent,
    "lstm": _recurrent,
}


class UnknownArchitecture(FledgeError, KeyError):
    """No account is kept for it: whoever can do without one may catch this."""

    __str__ = Exception.__str__  # a KeyError would show its message in quotes


def _lister(architecture: str) -> Lister:
    if architecture not in _LISTERS:
        if is_registered(architecture):
            return lambda *sizes: (Parameter(*each) for each in built_parameters(*sizes))
        raise UnknownArchitecture(
            f"No account is kept for the architecture {architecture!r}. {nearest(architecture, _LISTERS)}"
        )
    return _LISTERS[architecture]


@dataclass(frozen=True)
class Shape:
    """A model's settings with the two facts it is built from."""

    model: ModelConfig
    vocabulary_size: int = 50_257
    context_length: int = 1_024


_SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}


def _course(layers: int, width: int, heads: int) -> ModelConfig:
    """GPT-2's sizes with RMSNorm, RoPE and a SwiGLU of inner size 4·width: three matrices for GPT-2's two."""
    return ModelConfig(layers=layers, width=width, heads=heads, hidden=4 * width)


SHAPES: dict[str, Shape] = {name: Shape(_course(*size)) for name, size in _SIZES.items()}
