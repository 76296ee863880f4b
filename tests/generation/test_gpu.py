"""Decoding on a GPU: recorded steps write the text of the CPU's plain loop."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from fledge.bundle import save_bundle
from fledge.config import ModelConfig, RunConfig, SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import burst, generate
from fledge.generation.burst import has_decode_kernels
from fledge.generation.prepare import prepare
from fledge.model import build_model
from fledge.run import load
from fledge.tokenizer import Tokenizer
from tests.generation.conftest import CONTEXT, small_model
from tests.kernels import on_gpu

pytestmark = on_gpu


@pytest.mark.parametrize("name", ["rope", "learned", "sinusoidal"])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("prompts", [["In", "An"], ["In", "And the earth"]], ids=["even", "uneven"])
def test_equal_when_recorded(
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: Tokenizer,
    name: str,
    samples: int,
    temperature: float,
    prompts: list[str],
) -> None:
    """The text of the CPU's plain loop, in 32 bits: past the context, and with a graph of several steps."""
    monkeypatch.setattr(burst, "LONG", 50)
    model = small_model(name, tokenizer)
    tokens = 14 if name == "learned" else 55
    sampling = SamplingConfig(temperature=temperature, top_k=20, max_tokens=tokens, samples=samples, stop_at_end=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = generate(model, tokenizer, prompts, sampling, alternatives=2)
        recorded = generate(prepare(model.to("cuda")), tokenizer, prompts, sampling, alternatives=2)
    assert [result.ids for result in recorded] == [result.ids for result in plain]
    for one, other in zip(plain, recorded, strict=True):
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)
        assert [len(others) for others in other.alternatives] == [2] * tokens


def test_a_loaded_model_decodes_in_recorded_steps(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """`fledge.load(...).generate(...)`, with nothing else to call."""
    save_bundle(
        tmp_path / "bundle",
        RunConfig(model=small_model("rope", tokenizer).config),
        tokenizer,
        small_model("rope", tokenizer),
    )
    bursts = []
    monkeypatch.setattr(
        burst.Bursts,
        "burst",
        lambda self, length, plain=burst.Bursts.burst: (bursts.append(length), plain(self, length))[1],
    )
    text = load(tmp_path / "bundle", device="cuda").generate(["In"], temperature=0, max_tokens=20, stop_at_end=False)[0]
    assert len(text.ids) == 20
    assert sum(bursts) == 19


def test_what_our_kernels_do_not_take_is_recorded_all_the_same(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    after = build_model(ModelConfig(layers=1, width=32, heads=4, norm_place="post"), tokenizer.vocab_size, CONTEXT)
    before = small_model("rope", tokenizer)
    sampling = SamplingConfig(temperature=0, max_tokens=20, stop_at_end=False)
    for model, texts in ((after.eval(), 1), (before, 9)):
        plain = generate(model, tokenizer, ["In"] * texts, sampling)
        model.to("cuda")
        assert not has_decode_kernels(model, model.init_state(texts))
        recorded = generate(prepare(model), tokenizer, ["In"] * texts, sampling)
        assert [result.ids for result in recorded] == [result.ids for result in plain]


def test_scores_that_are_not_finite_are_refused(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer).to("cuda")
    model.layers[1].attn.output_proj.weight.data.fill_(torch.nan)
    with pytest.raises(FledgeError, match="not finite"):
        generate(prepare(model), tokenizer, ["In"], SamplingConfig(temperature=0, max_tokens=20))
