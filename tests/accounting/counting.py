"""What torch really multiplies: every matrix product of a pass, by its shape, and torch's own FLOP count."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, relu
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fledge.config import ModelConfig
from fledge.model import build_model

aten = torch.ops.aten
Products = Counter[tuple[int, int, int]]


class ProductRecorder(TorchDispatchMode):
    """Counts products by (rows, inner, columns); a batched product counts once per entry of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Products = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        packet = function.overloadpacket
        if packet in (aten.mm, aten.bmm):
            self._record(arguments[0], arguments[1])
        elif packet in (aten.addmm, aten.baddbmm):
            self._record(arguments[1], arguments[2])
        return function(*arguments, **(keywords or {}))

    def _record(self, left: Tensor, right: Tensor) -> None:
        times = left.shape[0] if left.dim() == 3 else 1
        self.products[(left.shape[-2], left.shape[-1], right.shape[-1])] += times


def plain_bdh(model: Any, inputs: Tensor) -> Tensor:
    """BDH's hidden states by its equations and the model's weights: its operators are opaque to a counter."""
    heads, width, neurons = model.encoder.shape
    place = torch.arange(inputs.shape[1], dtype=torch.float32)[:, None]
    frequency = 2.0 ** (-16 * 2 * (torch.arange(neurons) // 2) / neurons) / (2 * math.pi)
    angle = 2 * math.pi * (place * frequency % 1.0)
    x = norm(model.token_embeddings(inputs))
    for _ in range(model.config.layers):
        u = relu(x[:, None] @ model.encoder)
        swapped = torch.stack((-u[..., 1::2], u[..., ::2]), dim=-1).flatten(-2)
        q = u * angle.cos() + swapped * angle.sin()
        read = norm((q @ q.mT).tril(-1) @ x[:, None])
        gated = u * relu(read @ model.encoder_v)
        mixed = (gated @ model.decoder.view(heads, neurons, width)).sum(1)
        x = norm(x + norm(mixed))
    return x


def norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def build(config: ModelConfig, vocabulary_size: int, context_length: int, device: str = "cpu") -> Any:
    """A model whose unused settings are not worth a warning here."""
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        return build_model(config, vocabulary_size, context_length)


def run(config: ModelConfig, vocabulary_size: int, context_length: int, mode: Any, backward: bool) -> Any:
    """One window forward, and backward, under a counting mode, everything as plain mathematics."""
    model = build(config, vocabulary_size, context_length)
    inputs = torch.zeros((1, context_length), dtype=torch.long)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # oneDNN's recurrent kernels are one opaque call; without them torch does the products one by one.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(mode)
        logits = model.head(plain_bdh(model, inputs)) if config.architecture == "bdh" else model(inputs)
        if backward:
            logits.sum().backward()
    return mode


def torch_flops(config: ModelConfig, vocabulary_size: int, context_length: int, backward: bool = True) -> int:
    """FLOPs of one window by torch's own counter."""
    counter = FlopCounterMode(display=False)
    return int(run(config, vocabulary_size, context_length, counter, backward).get_total_flops())


def torch_products(config: ModelConfig, vocabulary_size: int, context_length: int) -> Products:
    """The forward products of one window, by shape."""
    recorder = ProductRecorder()
    return run(config, vocabulary_size, context_length, recorder, backward=False).products  # type: ignore[no-any-return]
