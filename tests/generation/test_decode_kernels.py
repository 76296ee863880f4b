"""Our Triton kernels for decoding against the plain formula: on a GPU, or by the interpreter."""

from __future__ import annotations

import pytest
import torch

from fledge.config import ModelConfig, SamplingConfig
from fledge.generation import burst, decode_step
from fledge.generation.burst import Bursts
from fledge.generation.decode_step import Cut
from fledge.model import build_model
from tests.kernels import DEVICE, INTERPRETED, distance, on_gpu_or_interpreted

pytestmark = on_gpu_or_interpreted
assembly = pytest.mark.skipif(INTERPRETED, reason="the interpreter does not read assembly")

KERNEL_SHAPES = [
    {"norm": "layer", "bias": True, "position": "learned", "feed_forward": "gelu_tanh", "tied": True},
    {"kv_heads": 2, "qk_norm": True},
    {"kv_heads": 1, "bias": True, "width": 240, "hidden": 2100},
    {"head_size": 24, "kv_heads": 2, "qk_norm": True, "bias": True},
    {"norm": "layer", "position": "sinusoidal", "feed_forward": "relu2"},
    {"norm": "none", "position": "none", "feed_forward": "silu", "bias": True},
    {"feed_forward": "gelu", "hidden": 9000},
]


@pytest.mark.parametrize("batch", [2] if INTERPRETED else [1, 3])
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", KERNEL_SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))
def test_our_kernels_equal_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, object], dtype: torch.dtype, bar: float, batch: int
) -> None:
    """Token by token, from an empty state to past the context, for heads and matrices of odd sizes."""
    compare_with_the_plain_formula(monkeypatch, shape, dtype, bar, batch)


@pytest.mark.parametrize("shape", KERNEL_SHAPES[:2], ids=lambda shape: "-".join(map(str, shape.values())))
def test_our_kernels_take_rows_at_different_places(monkeypatch: pytest.MonkeyPatch, shape: dict[str, object]) -> None:
    compare_with_the_plain_formula(monkeypatch, shape, torch.float32, 1e-4, batch=2, apart=1)


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "shape", [*KERNEL_SHAPES[:4], {"norm_place": "post"}], ids=lambda shape: "-".join(map(str, shape.values()))
)
def test_our_attention_beside_products_of_torch_equals_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, object], dtype: torch.dtype, bar: float
) -> None:
    """What writes many texts, here at different places, past the context where there is no end to it."""
    torch.manual_seed(0)
    batch, context, vocabulary = (3, 4, 30) if INTERPRETED else (20, 150, 500)
    config = ModelConfig(**{"layers": 2, "width": 320, "heads": 10, **shape})
    if INTERPRETED:
        config = config.model_copy(update={"layers": 1, "width": 24, "heads": 4, "hidden": 40})
    model = build_model(config, vocabulary, context).to(DEVICE, dtype).eval()
    tokens = context - 2 * batch if config.position == "learned" and not INTERPRETED else context
    if INTERPRETED:
        monkeypatch.setattr(burst, "capability", lambda _: (9, 0))
        monkeypatch.setattr(burst, "_has_triton", lambda: True)
        monkeypatch.setattr(burst, "MOST_ROWS", 0)
        monkeypatch.setattr(decode_step, "TILE", 2)
        tokens = 2 if config.position == "learned" else tokens
    numbers = torch.zeros(batch, 2, device=DEVICE)
    ids, places_B = torch.randint(vocabulary, (tokens, batch), device=DEVICE), torch.arange(batch, device=DEVICE)
    with torch.inference_mode():
        states = model.init_state(batch), model.init_state(batch)
        for state in states:
            state.even = False
        ours = Bursts(model, states[0], SamplingConfig(), numbers, vocabulary)
        monkeypatch.setattr(burst, "has_attention_kernel", lambda *_: False)
        plain = Bursts(model, states[1], SamplingConfig(), numbers, vocabulary)
        assert ours.attention is not None
        assert (ours.kernels, plain.kernels, plain.attention) == (None, None, None)
        for place, tokens_B in enumerate(ids):
            for one in (ours, plain):
                one.tokens_B.copy_(tokens_B)
                one.place_B.copy_(place + places_B)
            assert distance(ours._scores(), plain._scores()) < bar, place


def test_an_activation_without_a_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(ModelConfig(layers=1, width=24, heads=4, hidden=40, feed_forward="silu"), 30, 4).to(DEVICE)
    monkeypatch.setattr(burst, "has_decode_kernels", lambda *_: True)
    numbers = torch.zeros(1, 2, device=DEVICE)
    with torch.inference_mode():
        steps = Bursts(model, model.init_state(1), SamplingConfig(temperature=0), numbers, 30)
        assert steps.kernels is not None
        steps.kernels.activation = "mish"
        with pytest.raises(Exception, match="") as raised:  # Triton's own kind; on a GPU the reason is its cause's
            steps.step()
    assert "an activation without a kernel" in f"{raised.value} {raised.value.__cause__}"


def compare_with_the_plain_formula(
    monkeypatch: pytest.MonkeyPatch,
    shape: dict[str, object],
    dtype: torch.dtype,
    bar: float,
    batch: int,
    apart: int = 0,
) -> None:
    """Each row stands `apart` tokens behind the one before it."""
    torch.manual_seed(0)
    config = ModelConfig(**{"layers": 2, "width": 320, "heads": 10, **shape})
    vocabulary, context, keys = 500, 150, 64
    if INTERPRETED:  # some ten thousand times slower
        config = config.model_copy(update={"layers": 1, "width": 24, "heads": 4, "hidden": 40})
        vocabulary, context, keys = 30, 4, 2
    model = build_model(config, vocabulary, context).to(DEVICE, dtype).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    tokens = context - apart * (batch - 1) if config.position == "learned" else context + 3
    places_B = apart * torch.arange(batch, device=DEVICE)
    ids, numbers = torch.randint(vocabulary - 10, (tokens, batch), device=DEVICE), torch.zeros(batch, 2, device=DEVICE)
    sampling = SamplingConfig(temperature=0)
    with torch.inference_mode():
        monkeypatch.setattr(decode_step, "KEYS", keys)  # three programs a head
        monkeypatch.setattr(decode_step, "TILE", keys // 2)  # and several tiles for each
        if INTERPRETED:
            monkeypatch.setattr(burst, "has_decode_kernels", lambda *_: True)
            monkeypatch.setattr(decode_step, "cut", lambda *_: Cut(rows=8, block=32, warps=4))
        states = model.init_state(batch), model.init_state(batch)
        for state in states:
            state.even = not apart
        ours = Bursts(model, states[0], sampling, numbers, vocabulary - 10)
        monkeypatch.setattr(burst, "has_decode_kernels", lambda *_: False)
        plain = Bursts(model, states[1], sampling, numbers, vocabulary - 10)
        assert ours.kernels is not None
        assert plain.kernels is None
        for place, tokens_B in enumerate(ids):
            for one in (ours, plain):
                one.tokens_B.copy_(tokens_B)
                one.place_B.copy_(place + places_B)
                one.count_B.fill_(1)
            found, wanted = ours.kernels.scores(ours.tokens_B, ours.place_B).clone(), plain._scores()
            assert distance(found, wanted) < bar, place
            ours.step()
            assert ours.found_BN[:, 1].tolist() == found.argmax(-1).tolist() == ours.tokens_B.tolist()
            torch.testing.assert_close(ours.logprobs_BN[:, 1], found.log_softmax(-1).amax(-1), rtol=1e-4, atol=1e-4)
            assert (ours.place_B == place + places_B + 1).all()
            assert (ours.count_B == 2).all()


XL_BLOCK = {"layers": 1, "width": 1600, "heads": 25, **KERNEL_SHAPES[0]}


@assembly
@pytest.mark.parametrize("shape", [XL_BLOCK, {"hidden": 5128}], ids=["gpt2-xl", "swiglu"])
def test_wide_feed_forwards_equal_the_plain_formula(monkeypatch: pytest.MonkeyPatch, shape: dict[str, object]) -> None:
    from fledge.generation import decode_matrix

    calls, add_product = [], decode_matrix.add_product
    monkeypatch.setattr(decode_matrix, "add_product", lambda *given: calls.append(add_product(*given)))
    compare_with_the_plain_formula(monkeypatch, shape, torch.bfloat16, 5e-2, batch=1)
    assert bool(calls) == (torch.cuda.get_device_capability() >= (9, 0))


@assembly
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
