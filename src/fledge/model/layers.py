"""The parts Transformers are made of: norms, rotary and sinusoidal positions, fused projections, feed-forward, init."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fledge.config import ModelConfig
from fledge.errors import FledgeError, nearest
from fledge.model.activations import ACTIVATIONS, gelu_of_linear, swiglu
from fledge.model.base import VocabularyMatrix, wide

Form = TypeVar("Form")
NORMS: dict[str, Callable[[Tensor, Tensor, Tensor | None, float], Tensor]] = {
    "rms": lambda x, weight, bias, epsilon: functional.rms_norm(x, weight.shape, weight, epsilon),
    "layer": lambda x, weight, bias, epsilon: functional.layer_norm(x, weight.shape, weight, bias, epsilon),
}


def form(forms: Mapping[str, Form], setting: str, kind: str) -> Form:
    """The form that computes this value of a setting: where there is none, an error, and never another value's form."""
    if kind not in forms:
        raise FledgeError(f"There is no form of model.{setting} = {kind} here. {nearest(kind, forms)}")
    return forms[kind]


class Norm(nn.Module):
    """A norm with weights, computed in at least 32 bits and handed on as narrow as it came."""

    kind: ClassVar[str]

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        same = self.weight.dtype == x.dtype
        return NORMS[self.kind](x if same else wide(x), self.weight, self.bias, self.epsilon).to(x.dtype)


class RMSNorm(Norm):
    """x / rms(x) · weight."""

    kind = "rms"


class LayerNorm(Norm):
    """(x − mean) / deviation · weight, plus a bias where asked."""

    kind = "layer"


def make_norm(config: ModelConfig) -> nn.Module:
    if config.norm == "none":
        return nn.Identity()
    kind = form({"rms": RMSNorm, "layer": LayerNorm}, "norm", config.norm)
    return kind(config.width, config.norm_epsilon, config.bias and config.norm == "layer")


class FusedLinear(nn.Module):
    """Several projections of one input as one matrix in memory, and one matrix each, by name, in a state dict."""

    def __init__(self, width: int, parts: dict[str, int], bias: bool) -> None:
        super().__init__()
        self.names = list(parts)
        self.sizes = list(parts.values())
        self.weight = nn.Parameter(torch.empty(sum(self.sizes), width))
        self.bias = nn.Parameter(torch.zeros(sum(self.sizes))) if bias else None
        self.register_state_dict_post_hook(FusedLinear._split)  # type: ignore[no-untyped-call]

    def _split(self, state: dict[str, Any], prefix: str, _: Any) -> None:
        outer = prefix[: prefix.rstrip(".").rfind(".") + 1]
        for kind in ("weight", "bias"):
            if (fused := state.pop(prefix + kind, None)) is not None:
                names = [f"{outer}{name}.{kind}" for name in self.names]
                state.update(zip(names, fused.split(self.sizes), strict=True))

    def matrices(self) -> tuple[Tensor, ...]:
        """The projections' matrices, as views."""
        return torch.split(self.weight, self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def join_fused(owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The other direction of `FusedLinear`: a hook of the module that holds it, since the names are its siblings'."""
    for child_name, child in owner.named_children():
        if not isinstance(child, FusedLinear):
            continue
        for kind in ("weight", "bias"):
            whole = getattr(child, kind)
            names = [f"{prefix}{name}.{kind}" for name in child.names]
            missing = [name for name in names if name not in state]
            if whole is None or len(missing) == len(names):  # all of them are torch's to miss, by the matrix's name
                continue
            if missing:
                raise FledgeError(f"The weights lack {', '.join(missing)}: they are of another model, or not whole.")
            for name, size in zip(names, child.sizes, strict=True):
                found, wanted = getattr(state[name], "shape", None), (size, *whole.shape[1:])
                if found != wanted:
                    raise FledgeError(
                        f"{name} is {'no tensor' if found is None else f'of shape {list(found)}'}, and this model's is "
                        f"of shape {list(wanted)}."
                    )
            state[f"{prefix}{child_name}.{kind}"] = torch.cat([state.pop(name) for name in names])


class FeedForward(nn.Module):
    """w2(activation(w1 x)); with SwiGLU, w2(silu(w1 x) · w3 x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.inner_size
        self.kind = config.feed_forward
        form(ACTIVATIONS, "feed_forward", self.kind)
        self.gated = config.gated
        if self.gated:
            self.w13 = FusedLinear(config.width, {"w1": inner, "w3": inner}, config.bias)
        else:
            self.w1 = nn.Linear(config.width, inner, bias=config.bias)
        self.w2 = nn.Linear(inner, config.width, bias=config.bias)
        self.register_load_state_dict_pre_hook(join_fused)  # type: ignore[no-untyped-call]

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.kind == "gelu_tanh":
            return self.w2(gelu_of_linear(x_BTD, self.w1.weight, self.w1.bias))  # type: ignore[no-any-return]
        inner = (self.w13 if self.gated else self.w1)(x_BTD)
        return self.w2(swiglu(inner) if self.kind == "swiglu" else ACTIVATIONS[self.kind](inner))  # type: ignore[no-any-return]


def rotary_frequencies(head_size: int, theta: float, scaling: tuple[float, ...] | None = None) -> Tensor:
    """Angle per position of each adjacent pair (2i, 2i+1)."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    return frequencies if scaling is None else frequencies / stretch(frequencies, scaling)


def stretch(frequencies: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Llama 3's divisor of each frequency: 1 for fast turns, `factor` for slow ones, and a ramp between them."""
    factor, low, high, first_length = scaling
    turns = first_length * frequencies / (2 * math.pi)  # within the first context
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines at `positions`, with one more dimension for the pairs; always in 32 bits."""
    angles = positions[..., None].float() * frequencies
    return angles.cos(), angles.sin()


def rotate(x_BTHK: Tensor, cosines_TP: Tensor, sines_TP: Tensor) -> Tensor:
    """Turn the pairs (2i, 2i+1) of every head by the angle of its position (the same for all heads)."""
    cosines, sines = cosines_TP.unsqueeze(-2), sines_TP.unsqueeze(-2)
    if x_BTHK.device.type == "cpu" and x_BTHK.dtype == cosines.dtype and not torch.compiler.is_compiling():
        return turn(x_BTHK, torch.complex(cosines, sines))
    even, odd = x_BTHK.reshape(*x_BTHK.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
    return turned.flatten(-2).to(x_BTHK.dtype)


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """`rotate` as one complex product a pair: one pass on the CPU, where the four real products would be as many."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def sinusoids(positions: Tensor, frequencies: Tensor, width: int) -> Tensor:
    """The fixed position embedding of 2017: sines in the even places, cosines in the odd ones."""
    cosines, sines = rotation(positions, frequencies)
    return torch.stack((sines, cosines), dim=-1).flatten(-2)[..., :width]


def initialise(model: nn.Module, config: ModelConfig, layers: int) -> None:
    """Fill every matrix as `config.initialisation` says; the vocabulary's padding stays zero."""
    for name, module in model.named_modules():
        residual = name.endswith(("output_proj", "w2"))
        if isinstance(module, FusedLinear):
            for matrix in module.matrices():
                fill_matrix(matrix, config)
        elif isinstance(module, nn.Linear):
            fill_matrix(module.weight, config, layers if residual else None)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, VocabularyMatrix):
            if name.endswith("token_embeddings"):
                deviation = embedding_deviation(config)
                nn.init.trunc_normal_(module.used, std=deviation, a=-3 * deviation, b=3 * deviation)
            else:
                fill_matrix(module.used, config)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def embedding_deviation(config: ModelConfig) -> float:
    """As set; else 0.02 for GPT-2, small where the matrix is the head too, and 1 elsewhere."""
    if config.embedding_deviation is not None:
        return config.embedding_deviation
    if config.initialisation == "gpt2":
        return 0.02
    return config.width**-0.5 if config.tied else 1.0


def fill_matrix(matrix: Tensor, config: ModelConfig, layers: int | None = None) -> None:
    """Random values for one matrix; `layers` is given where it writes to the residual stream."""
    if config.initialisation == "gpt2":
        deviation = 0.02
    else:
        deviation = math.sqrt(2 / (matrix.shape[0] + matrix.shape[1]))
    shrink = config.residual_scaling if config.residual_scaling is not None else config.initialisation == "gpt2"
    if layers and shrink:
        deviation /= math.sqrt(2 * layers)
    with torch.no_grad():
        nn.init.trunc_normal_(matrix, std=deviation, a=-3 * deviation, b=3 * deviation)
