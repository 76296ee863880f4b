"""Steps that can be recorded give the tokens and log-probabilities of the plain loop, for every ablation."""

from __future__ import annotations

import warnings

import pytest
import torch

from fledge.config import SamplingConfig
from fledge.generation import generate
from fledge.generation.burst import Bursts
from fledge.generation.prepare import prepare
from fledge.model import Model, build_model
from fledge.model.base import State
from fledge.tokenizer import Tokenizer
from tests.generation.conftest import CONTEXT, small_model
from tests.generation.test_step import SHAPES


def anywhere(model: Model, state: State, sampling: SamplingConfig, alternatives: int) -> bool:
    """Like `Bursts.fit`, but on any device."""
    room = model.endless or state.longest + sampling.max_tokens <= model.context_length
    return state.even and not alternatives and room


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_equal_to_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, shape: dict[str, object]
) -> None:
    from fledge.config import ModelConfig

    torch.manual_seed(0)
    config = ModelConfig(layers=2, width=32, heads=4, **shape)
    model = build_model(config, tokenizer.vocab_size, CONTEXT).eval()
    prepare(model)
    tokens = 18 if config.position == "learned" else 40
    for sampling in (
        SamplingConfig(temperature=0, max_tokens=tokens, stop_at_end=False),
        SamplingConfig(temperature=1.0, top_p=0.9, max_tokens=tokens, samples=3, stop=("e",)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = generate(model, tokenizer, ["In"], sampling)
            with monkeypatch.context() as patch:
                patch.setattr(Bursts, "fit", staticmethod(anywhere))
                burst = generate(model, tokenizer, ["In"], sampling)
        for one, other in zip(plain, burst, strict=True):
            assert (other.ids, other.text, other.stopped) == (one.ids, one.text, one.stopped)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)


@pytest.mark.slow
def test_equal_when_compiled(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer)
    sampling = SamplingConfig(temperature=0, max_tokens=10, stop_at_end=False)
    plain = generate(model, tokenizer, ["In"], sampling)[0]
    monkeypatch.setattr(Bursts, "fit", staticmethod(anywhere))
    compiled = generate(model, tokenizer, ["In"], sampling, compiled=True)[0]
    assert compiled.ids == plain.ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_equal_when_recorded(tokenizer: Tokenizer, compiled: bool) -> None:
    model = small_model("rope", tokenizer)
    sampling = SamplingConfig(temperature=1.0, top_k=20, max_tokens=40, samples=2, stop_at_end=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = generate(model, tokenizer, ["In", "An"], sampling)
        recorded = generate(prepare(model.to("cuda")), tokenizer, ["In", "An"], sampling, compiled=compiled)
    assert [result.ids for result in recorded] == [result.ids for result in plain]


def test_on_the_cpu_the_plain_loop_is_taken(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer)
    assert not Bursts.fit(model, model.init_state(1), SamplingConfig(), 0)
