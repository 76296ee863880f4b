"""Steps that can be recorded give the tokens and log-probabilities of the plain loop, for every ablation."""

from __future__ import annotations

import warnings

import pytest
import torch

from fledge.config import ModelConfig, SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import burst, decode_step, generate
from fledge.generation.burst import Bursts, has_kernels
from fledge.generation.decode_step import Cut, cut, on_matrix_units
from fledge.generation.generate import holes_of
from fledge.generation.prepare import prepare
from fledge.model import Model, build_model
from fledge.model.base import State
from fledge.tokenizer import BPETokenizer, Tokenizer
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


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("way", ["plain", "bursts", pytest.param("cuda", marks=[pytest.mark.gpu, gpu])])
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
    for result in generate(model, holed, ["In"], sampling, alternatives=999 if way == "plain" else 0):
        assert len(result.ids) == 20
        assert set(result.ids) <= vocab.keys()
        assert min(result.logprobs) > -20
        assert all({other.id for other in others} == vocab.keys() for others in result.alternatives)


@pytest.mark.slow
def test_equal_when_compiled(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer)
    sampling = SamplingConfig(temperature=0, max_tokens=10, stop_at_end=False)
    plain = generate(model, tokenizer, ["In"], sampling)[0]
    monkeypatch.setattr(Bursts, "fit", staticmethod(anywhere))
    compiled = generate(model, tokenizer, ["In"], sampling, compiled=True)[0]
    assert compiled.ids == plain.ids


KERNEL_SHAPES = [
    {"norm": "layer", "bias": True, "position": "learned", "feed_forward": "gelu_tanh", "tied": True},
    {"kv_heads": 2, "qk_norm": True},
    {"kv_heads": 1, "bias": True, "width": 240, "hidden": 2100},
    {"norm": "layer", "position": "sinusoidal", "feed_forward": "relu2"},
    {"norm": "none", "position": "none", "feed_forward": "silu", "bias": True},
    {"feed_forward": "gelu", "hidden": 9000},
]


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", KERNEL_SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_our_kernels_equal_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, object], dtype: torch.dtype, bar: float, batch: int
) -> None:
    """Token by token, from an empty state to past the context, for heads and matrices of odd sizes."""
    compare_with_the_plain_formula(monkeypatch, shape, dtype, bar, batch)


def compare_with_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, object], dtype: torch.dtype, bar: float, batch: int
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(**{"layers": 2, "width": 320, "heads": 10, **shape})
    model = build_model(config, 500, 150).to("cuda", dtype).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    tokens = 150 if config.position == "learned" else 170
    ids, numbers = torch.randint(490, (tokens, batch), device="cuda"), torch.zeros(batch, 2, device="cuda")
    sampling = SamplingConfig(temperature=0)
    with torch.inference_mode():
        monkeypatch.setattr(decode_step, "KEYS", 64)  # three programs a head
        monkeypatch.setattr(decode_step, "TILE", 32)  # and several tiles for each
        ours = Bursts(model, model.init_state(batch), sampling, numbers, 490, compiled=False)
        monkeypatch.setattr(burst, "has_kernels", lambda *_: False)
        plain = Bursts(model, model.init_state(batch), sampling, numbers, 490, compiled=False)
        assert ours.kernels is not None
        assert plain.kernels is None
        for place, tokens_B in enumerate(ids):
            for one in (ours, plain):
                one.tokens_B.copy_(tokens_B)
                one.place_B.fill_(place)
                one.count_B.fill_(1)
            found, wanted = ours.kernels.scores(ours.tokens_B, ours.place_B).clone(), plain._scores()
            assert (found - wanted).norm() < bar * wanted.norm(), place
            ours.step()
            assert ours.found_BN[:, 1].tolist() == found.argmax(-1).tolist() == ours.tokens_B.tolist()
            torch.testing.assert_close(ours.logprobs_BN[:, 1], found.log_softmax(-1).amax(-1), rtol=1e-4, atol=1e-4)
            assert (ours.place_B == place + 1).all()
            assert (ours.count_B == 2).all()


XL_BLOCK = {"layers": 1, "width": 1600, "heads": 25, **KERNEL_SHAPES[0]}


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("shape", [XL_BLOCK, {"hidden": 5128}], ids=["gpt2-xl", "swiglu"])
def test_wide_feed_forwards_equal_the_plain_formula(monkeypatch: pytest.MonkeyPatch, shape: dict[str, object]) -> None:
    from fledge.generation import decode_matrix

    calls, add_product = [], decode_matrix.add_product
    monkeypatch.setattr(decode_matrix, "add_product", lambda *given: calls.append(add_product(*given)))
    compare_with_the_plain_formula(monkeypatch, shape, torch.bfloat16, 5e-2, batch=1)
    assert bool(calls) == (torch.cuda.get_device_capability() >= (9, 0))


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize(("rows", "columns", "bias"), [(1600, 6400, True), (325, 5128, False), (1, 6656, True)])
def test_the_product_on_matrix_units(rows: int, columns: int, bias: bool) -> None:
    """For any number of rows and whole or cut blocks of columns, next to memory that is neither read nor written."""
    from fledge.generation.decode_matrix import add_product

    torch.manual_seed(0)
    nan, cuda = torch.nan, {"device": "cuda"}
    weights = torch.randn(rows + 1, columns, **cuda).bfloat16()
    inputs, outputs = torch.randn(columns + 1024, **cuda).bfloat16(), torch.randn(rows + 4, **cuda)
    offsets = torch.randn(rows + 1, **cuda).bfloat16()
    weights[rows:], inputs[columns:], outputs[rows:], offsets[rows:] = nan, nan, nan, nan
    weight, x, out, offset = weights[:rows], inputs[None, :columns], outputs[None, :rows], offsets[:rows]
    wanted = out.double() + x.double() @ weight.double().T + (offset.double() if bias else 0)
    early = torch.cuda.get_device_capability() >= (9, 0)
    add_product(out, x, weight, offset if bias else None, early)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=5e-3)
    assert outputs[rows:].isnan().all()


@pytest.mark.gpu
@gpu
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


@pytest.mark.gpu
@gpu
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


@pytest.mark.gpu
@gpu
def test_scores_that_are_not_finite_are_refused(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer).to("cuda")
    model.layers[1].attn.output_proj.weight.data.fill_(torch.nan)
    with pytest.raises(FledgeError, match="not finite"):
        generate(prepare(model), tokenizer, ["In"], SamplingConfig(temperature=0, max_tokens=20))


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [32, 768, 1600, 2048, 2049, 6400, 8192, 16_384])
def test_a_programs_weights_fit_its_registers(columns: int, itemsize: int) -> None:
    """Half of the 255 that a thread has at most: the rest is for sums, inputs and addresses."""
    for rows in (64, 768, 2304, 4800, 6400, 50_304):
        for batch in (1, 8):
            how = cut(rows, columns, itemsize, batch)
            held = how.rows * -(-columns // how.block) * how.block * itemsize
            assert held / (how.warps * 32) <= 4 * 128
            assert how.rows >= 1


def test_matrices_are_cut_as_was_measured() -> None:
    """Those of GPT-2 and of its XL shape, and the same with more programs than the chip holds."""
    small = {(2304, 768): (16, 256, 8), (768, 768): (4, 256, 4), (3072, 768): (32, 256, 8), (768, 3072): (2, 1024, 4)}
    large = {(4800, 1600): (16, 256, 4), (1600, 1600): (8, 256, 4), (6400, 1600): (16, 256, 4)}
    heads = {(50_304, 768): (16, 256, 4), (50_304, 1600): (8, 256, 4), (6416, 1600): (8, 256, 4)}
    for shape, wanted in {**small, **large, **heads}.items():
        assert cut(*shape) == Cut(*wanted), shape


def test_matrix_units_are_for_one_text_and_wide_bf16_matrices() -> None:
    def taken(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16, batch: int = 1, early: bool = True) -> bool:
        return on_matrix_units(torch.empty(rows, columns, dtype=dtype, device="meta"), batch, early)

    assert all(taken(*shape) for shape in [(1600, 6400), (325, 5128), (1, 6656)])
    assert not any(taken(*shape) for shape in [(768, 3072), (1024, 4096), (1280, 5120), (1600, 6402), (1600, 6664)])
    assert not taken(1600, 6400, torch.float16)
    assert not taken(1600, 6400, torch.float32)
    assert not taken(1600, 6400, batch=2)
    assert not taken(1600, 6400, early=False)
    shifted = torch.empty(6400 * 1600 + 2, dtype=torch.bfloat16, device="meta")[2:].view(1600, 6400)
    assert not on_matrix_units(shifted, 1, True)


def test_on_the_cpu_the_plain_loop_is_taken(tokenizer: Tokenizer) -> None:
    model = small_model("rope", tokenizer)
    assert not Bursts.fit(model, model.init_state(1), SamplingConfig(), 0)
    assert not has_kernels(model, model.init_state(1))
