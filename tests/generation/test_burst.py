"""Steps that can be recorded give the tokens and log-probabilities of the plain loop, for every ablation."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

from fledge.config import ModelConfig, OptimizerConfig, SamplingConfig
from fledge.generation import generate
from fledge.generation.burst import Bursts, has_decode_kernels
from fledge.generation.generate import holes_of
from fledge.generation.prepare import is_prepared, prepare
from fledge.model import Model, build_model
from fledge.model.state import State
from fledge.tokenizer import BPETokenizer, Tokenizer
from fledge.training.optimizers import build_optimizer
from tests.generation.conftest import CONTEXT, small_model
from tests.generation.test_step import SHAPES
from tests.kernels import on_gpu

loop = sys.modules["fledge.generation.generate"]  # the name of the package is the function's


def anywhere(model: Model, state: State, sampling: SamplingConfig) -> bool:
    """Like `Bursts.fit`, but on any device."""
    return model.endless or state.longest + sampling.max_tokens <= model.context_length


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_equal_to_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, shape: dict[str, object]
) -> None:
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


@pytest.mark.parametrize("name", ["rope", "learned", "sinusoidal"])
def test_prompts_of_any_length_and_their_alternatives(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, name: str
) -> None:
    """Rows that stand at different places, past the context where the model has no end, with what else was likely."""
    model = prepare(small_model(name, tokenizer))
    prompts = ["In", "And the earth was without form", "", "God"]
    tokens = 9 if name == "learned" else 40
    for temperature in (0, 1):
        sampling = SamplingConfig(temperature=temperature, max_tokens=tokens, samples=2, stop_at_end=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = generate(model, tokenizer, prompts, sampling, alternatives=3)
            with monkeypatch.context() as patch:
                patch.setattr(Bursts, "fit", staticmethod(anywhere))
                burst = generate(model, tokenizer, prompts, sampling, alternatives=3)
        for one, other in zip(plain, burst, strict=True):
            assert (other.ids, other.text, other.stopped) == (one.ids, one.text, one.stopped)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
            assert len(other.alternatives) == len(one.alternatives) == len(one.ids)
            for ours, theirs in zip(other.alternatives, one.alternatives, strict=True):
                assert [each.id for each in ours] == [each.id for each in theirs]
                assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-4)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_recording_that_fails_costs_a_note_and_no_text(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, samples: int
) -> None:
    model = prepare(small_model("rope", tokenizer))
    sampling = SamplingConfig(temperature=1, max_tokens=300, samples=samples, stop=("zz",))

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = generate(model, tokenizer, ["In", "And the"], sampling)
    monkeypatch.setattr(Bursts, "fit", staticmethod(anywhere))
    monkeypatch.setattr(Bursts, "start", fail)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert generate(model, tokenizer, ["In", "And the"], sampling) == plain
    told = [str(note.message) for note in notes if "Fast decoding failed" in str(note.message)]
    assert told == [
        f"Fast decoding failed, and the text is written more slowly: {'CUDA error: operation not permitted'}"
    ]


def test_a_prepared_model_is_so_until_its_weights_move(tokenizer: Tokenizer) -> None:
    """Training lays them out anew, and nothing is recorded of a model in training."""
    model = prepare(small_model("rope", tokenizer))
    assert is_prepared(model)
    places = [weight.data_ptr() for weight in model.parameters()]
    assert [weight.data_ptr() for weight in prepare(model).parameters()] == places
    optimizer = build_optimizer(model, OptimizerConfig())
    assert not is_prepared(model)
    prepare(model)  # what an optimizer holds stays where it is, or its steps would move nothing
    before = model.token_embeddings.weight.detach().clone()
    model(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    assert not torch.equal(model.token_embeddings.weight, before)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("way", ["plain", "bursts", pytest.param("cuda", marks=on_gpu)])
def test_ids_that_are_no_token_are_never_taken(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, way: str, temperature: float
) -> None:
    """However likely the model finds them: they have no text."""
    vocab = {token + 3 * (token > 100): data for token, data in tokenizer.vocab.items()}
    end = {text: token + 3 * (token > 100) for text, token in tokenizer.special_tokens.items()}
    holed = BPETokenizer(vocab, tokenizer.merges, end)
    assert holes_of(holed) == [101, 102, 103]
    model = prepare(small_model("rope", holed).to("cuda" if way == "cuda" else "cpu"))
    if way == "bursts":
        monkeypatch.setattr(Bursts, "fit", staticmethod(anywhere))
    with torch.no_grad():
        model.head_weight[101:104].mul_(50)  # far above all others, half of the time
    sampling = SamplingConfig(temperature=temperature, max_tokens=20, samples=4, stop_at_end=False)
    for result in generate(model, holed, ["In"], sampling, alternatives=999):
        assert len(result.ids) == 20
        assert set(result.ids) <= vocab.keys()
        assert min(result.logprobs) > -20
        assert all({other.id for other in others} == vocab.keys() for others in result.alternatives)


def test_on_the_cpu_the_plain_loop_is_taken(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer)
    assert not Bursts.fit(model, model.init_state(1), SamplingConfig())
    assert not has_decode_kernels(model, model.init_state(1))


def test_numbers_are_refilled_on_the_way(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    """A long text needs no more memory for them than a short one."""
    model = prepare(small_model("rope", tokenizer))
    sampling = SamplingConfig(temperature=1.0, max_tokens=60, samples=2, stop_at_end=False)
    monkeypatch.setattr(Bursts, "fit", staticmethod(anywhere))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = generate(model, tokenizer, ["In"], sampling)
        monkeypatch.setattr(loop, "ON_DEVICE", 2)
        monkeypatch.setattr(loop, "LONG", 21)
        assert generate(model, tokenizer, ["In"], sampling) == whole


def test_a_model_is_made_ready_by_whoever_writes_with_it_but_not_in_training(tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(max_tokens=2)
    model = small_model("rope", tokenizer).train()
    first = generate(model, tokenizer, ["In"], sampling)
    assert (model.training, is_prepared(model)) == (True, False)
    again = generate(model.eval(), tokenizer, ["In"], sampling)
    assert is_prepared(model)
    assert [one.ids for one in again] == [one.ids for one in first]
