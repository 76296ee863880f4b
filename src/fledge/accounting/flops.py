"""The matrix products of one pass over one window, their shapes and costs; and the arithmetic of an optimizer's step.

A product of m×k and k×n is 2·m·k·n FLOPs; everything else (norms, activations, softmax, lookups) is not
counted, as is the custom. Attention is counted over the whole T×T square; flash kernels skip the masked half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fledge.accounting.built import built_products
from fledge.accounting.memory import inner_matrix
from fledge.accounting.parameters import Parameter, Parameters
from fledge.config import ModelConfig
from fledge.config.sizes import NEWTON_SCHULZ, RECURRENT_GATES

JOINED = {"attn.k_proj": "attn.q_proj", "attn.v_proj": "attn.q_proj", "ffn.w3": "ffn.w1"}
"Matrices that lie in memory, and are updated, as one with another."


@dataclass(frozen=True)
class Product:
    """`times` products of rows×inner and inner×columns; the backward pass makes two of each.

    `first_state` is the number of those whose left side is the initial state, which needs no gradient.
    """

    name: str
    component: str
    rows: int
    inner: int
    columns: int
    times: int = 1
    first_state: int = 0

    @property
    def flops(self) -> int:
        """Forward, all `times` together."""
        return 2 * self.rows * self.inner * self.columns * self.times

    @property
    def backward_flops(self) -> int:
        """One product for the gradient of each side; none for a side that needs no gradient."""
        return 2 * self.flops - 2 * self.rows * self.inner * self.columns * self.first_state

    @property
    def shape(self) -> str:
        return f"{self.rows}×{self.inner} · {self.inner}×{self.columns}"


def list_products(config: ModelConfig, vocabulary_size: int, context_length: int) -> list[Product]:
    """The products of a forward pass over one window of `context_length` tokens."""
    if config.architecture not in _LISTERS:
        return [Product(*each) for each in built_products(config, vocabulary_size, context_length)]
    return list(_LISTERS[config.architecture](config, vocabulary_size, context_length))


def _transformer(config: ModelConfig, vocabulary_size: int, tokens: int) -> Iterator[Product]:
    width, layers, heads = config.width, config.layers, config.heads
    head_size, all_heads = config.head_width, config.attention_width
    kv_width = head_size * (config.kv_heads or heads)
    inner = config.inner_size
    yield Product("q_proj", "attention projections", tokens, width, all_heads, layers)
    yield Product("k_proj", "attention projections", tokens, width, kv_width, layers)
    yield Product("v_proj", "attention projections", tokens, width, kv_width, layers)
    yield Product("scores q·kᵀ", "attention scores", tokens, head_size, tokens, heads * layers)
    yield Product("weights·v", "attention values", tokens, tokens, head_size, heads * layers)
    yield Product("output_proj", "attention projections", tokens, all_heads, width, layers)
    yield Product("w1", "feed-forward", tokens, width, inner, layers)
    if config.gated:
        yield Product("w3", "feed-forward", tokens, width, inner, layers)
    yield Product("w2", "feed-forward", tokens, inner, width, layers)
    yield Product("lm_head", "head", tokens, width, vocabulary_size)


def _bdh(config: ModelConfig, vocabulary_size: int, tokens: int) -> Iterator[Product]:
    width, heads = config.width, config.heads
    neurons = config.multiplier * width // heads
    times = heads * config.layers
    yield Product("encoder", "neurons", tokens, width, neurons, times)
    yield Product("scores q·qᵀ", "attention scores", tokens, neurons, tokens, times)
    yield Product("scores·x", "attention values", tokens, tokens, width, times)
    yield Product("encoder_v", "neurons", tokens, width, neurons, times)
    yield Product("decoder", "neurons", tokens, neurons, width, times)
    yield Product("lm_head", "head", tokens, width, vocabulary_size)


def _recurrent(config: ModelConfig, vocabulary_size: int, tokens: int) -> Iterator[Product]:
    width, layers = config.width, config.layers
    outputs = RECURRENT_GATES[config.architecture] * width
    yield Product("weight_ih", "recurrent", tokens, width, outputs, layers)
    yield Product("weight_hh", "recurrent", 1, width, outputs, tokens * layers, first_state=layers)
    yield Product("lm_head", "head", tokens, width, vocabulary_size)


Lister = Callable[[ModelConfig, int, int], Iterator[Product]]

_LISTERS: dict[str, Lister] = {
    "transformer": _transformer,
    "bdh": _bdh,
    "rnn": _recurrent,
    "gru": _recurrent,
    "lstm": _recurrent,
}


def product_flops(optimizer: str, parameters: Parameters) -> int:
    """Of the Newton–Schulz steps that make each of Muon's matrices orthogonal; other optimizers multiply none."""
    if optimizer != "muon":
        return 0
    rows: dict[str, int] = {}
    found: dict[str, Parameter] = {}
    for tensor in parameters.tensors:
        if inner_matrix(tensor):
            name = next((tensor.name.replace(k, v) for k, v in JOINED.items() if k in tensor.name), tensor.name)
            rows[name] = rows.get(name, 0) + tensor.shape[-2]
            found.setdefault(name, tensor)
    return sum(_newton_schulz(rows[name], tensor) for name, tensor in found.items())


def _newton_schulz(rows: int, tensor: Parameter) -> int:
    """With m the shorter side and n the longer: x·xᵀ is 2·m²·n, its square 2·m³, and their product with x 2·m²·n."""
    columns = tensor.shape[-1]
    matrices = tensor.count // (tensor.shape[-2] * columns)
    short, long = min(rows, columns), max(rows, columns)
    return len(NEWTON_SCHULZ) * matrices * (4 * short * short * long + 2 * short**3)
