"""Random small configurations of every architecture, for properties that must hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fledge.config import ModelConfig


@st.composite
def transformers(draw: Any) -> ModelConfig:
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    return ModelConfig(
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.sampled_from([2, 4, 8])),
        heads=heads,
        kv_heads=draw(st.sampled_from([None, *(k for k in range(1, heads + 1) if heads % k == 0)])),
        head_size=draw(st.sampled_from([None, None, 2, 10])),
        hidden=draw(st.sampled_from([None, 7, 24])),
        feed_forward=draw(st.sampled_from(["swiglu", "silu", "gelu", "gelu_tanh", "relu2"])),
        norm=draw(st.sampled_from(["rms", "layer", "none"])),
        norm_place=draw(st.sampled_from(["pre", "post"])),
        position=draw(st.sampled_from(["rope", "learned", "sinusoidal", "none"])),
        qk_norm=draw(st.booleans()),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
    )


@st.composite
def dragons(draw: Any) -> ModelConfig:
    heads = draw(st.sampled_from([1, 2, 4]))
    return ModelConfig(
        architecture="bdh",
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.sampled_from([2, 4])),
        heads=heads,
        multiplier=draw(st.sampled_from([2, 8])),
    )


@st.composite
def recurrents(draw: Any) -> ModelConfig:
    return ModelConfig(
        architecture=draw(st.sampled_from(["rnn", "gru", "lstm"])),
        layers=draw(st.integers(1, 3)),
        width=draw(st.sampled_from([4, 6, 16])),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
    )


def configurations() -> st.SearchStrategy[ModelConfig]:
    return st.one_of(transformers(), dragons(), recurrents())
