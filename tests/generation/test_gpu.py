"""Decoding on a GPU: recorded steps write the text of the CPU's plain loop."""

from __future__ import annotations

import warnings

import pytest
import torch

from fledge.config import ModelConfig, SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import burst, generate
from fledge.generation.burst import has_kernels
from fledge.generation.prepare import prepare
from fledge.model import build_model
from fledge.tokenizer import Tokenizer
from tests.generation.conftest import CONTEXT, small_model
from tests.kernels import on_gpu

pytestmark = on_gpu


@pytest.mark.parametrize("name", ["rope", "learned", "sinusoidal"])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("temperature", [0, 1])
def test_equal_when_recorded(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, name: str, samples: int, temperature: float
) -> None:
    """The text of the CPU's plain loop, in 32 bits: past the context, and with a graph of several steps."""
    monkeypatch.setattr(burst, "LONG", 50)
    model = small_model(name, tokenizer)
    tokens = 18 if name == "learned" else 55
    sampling = SamplingConfig(temperature=temperature, top_k=20, max_tokens=tokens, samples=samples, stop_at_end=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = generate(model, tokenizer, ["In", "An"], sampling)
        recorded = generate(prepare(model.to("cuda")), tokenizer, ["In", "An"], sampling)
    assert [result.ids for result in recorded] == [result.ids for result in plain]
    for one, other in zip(plain, recorded, strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


def test_what_our_kernels_do_not_take_is_recorded_all_the_same(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    after = build_model(ModelConfig(layers=1, width=32, heads=4, norm_place="post"), tokenizer.vocab_size, CONTEXT)
    before = small_model("rope", tokenizer)
    sampling = SamplingConfig(temperature=0, max_tokens=20, stop_at_end=False)
    for model, texts in ((after.eval(), 1), (before, 9)):
        plain = generate(model, tokenizer, ["In"] * texts, sampling)
        model.to("cuda")
        assert not has_kernels(model, model.init_state(texts))
        recorded = generate(prepare(model), tokenizer, ["In"] * texts, sampling)
        assert [result.ids for result in recorded] == [result.ids for result in plain]


def test_scores_that_are_not_finite_are_refused(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer).to("cuda")
    model.layers[1].attn.output_proj.weight.data.fill_(torch.nan)
    with pytest.raises(FledgeError, match="not finite"):
        generate(prepare(model), tokenizer, ["In"], SamplingConfig(temperature=0, max_tokens=20))
