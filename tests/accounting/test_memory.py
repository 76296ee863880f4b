"""Memory: the list of activations is what torch's compiler really saves; sums and limits follow from it."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge import loss
from fledge.accounting import SHAPES, account
from fledge.accounting.activations import activations, recomputed
from fledge.accounting.memory import Memory, optimizer_numbers, padded, training_memory
from fledge.accounting.parameters import list_parameters
from fledge.config import ModelConfig, OptimizerConfig
from fledge.errors import FledgeError
from fledge.model.base import VocabularyMatrix
from fledge.training.optimizers import build_optimizer
from tests.accounting.configurations import configurations
from tests.accounting.counting import build

TRANSFORMER: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "hidden": 176}


def saved_bytes(config: ModelConfig, tokens: int, batch: int, precision: str, recompute: bool = False) -> int:
    """Bytes that the compiled model keeps between its passes, parameters and tables left out."""
    torch._dynamo.reset()
    model = build(config, 256, tokens)
    model.recompute = recompute

    def hidden(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            return model.hidden(inputs)[0]  # type: ignore[no-any-return]

    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    compiled = torch.compile(hidden, backend="aot_eager_decomp_partition", dynamic=False)
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        warnings.simplefilter("ignore")
        out = compiled(torch.zeros((batch, tokens), dtype=torch.long))
    assert out.requires_grad
    return sum(seen.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 2, "head_size": 24},
        {"qk_norm": True, "feed_forward": "relu2"},
        {"norm_place": "post", "feed_forward": "gelu", "position": "none"},
        {"norm": "layer", "position": "learned", "feed_forward": "gelu_tanh", "bias": True, "tied": True},
        {"architecture": "bdh", "width": 16, "heads": 2, "multiplier": 8, "hidden": None},
    ],
    ids=lambda changes: ",".join(f"{k}={v}" for k, v in changes.items()) or "plain",
)
def test_activations_are_what_the_compiler_saves(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, in bf16 as on a GPU: the list, the ids, and the narrow copies of the matrices."""
    monkeypatch.setattr("fledge.model.attention.has_slow_backward", lambda q: False)
    config = ModelConfig(**{**TRANSFORMER, **changes})
    tokens, batch = 32, 5
    per_window = 8 * tokens + sum(b for _, b in activations(config, tokens, 2))
    assert saved_bytes(config, tokens, batch, "bf16") == batch * per_window + copies(config)


def test_fp32_keeps_twice_as_much_and_no_copies() -> None:
    config = ModelConfig(**TRANSFORMER)
    per_window = 8 * 32 + sum(b for _, b in activations(config, 32, 4))
    assert saved_bytes(config, 32, 5, "fp32") == 5 * per_window


def test_attention_in_bf16_keeps_fp32_on_a_cpu() -> None:
    """Queries, keys, values and what comes of them, without the narrow ones that a GPU keeps."""
    config = ModelConfig(**TRANSFORMER)
    parts = dict(activations(config, 32, 2))
    narrow = parts["queries, keys, values"] + parts["queries and keys, turned"]
    wide = 4 * 32 * config.layers * 4 * config.width
    per_window = 8 * 32 + sum(parts.values()) - narrow + wide
    assert saved_bytes(config, 32, 5, "bf16") == 5 * per_window + copies(config)


def copies(config: ModelConfig) -> float:
    memory = training_memory(config, 256, 32)
    return next(part.constant for part in memory.moments[0].parts if "copies of the matrices" in part.name)


@pytest.mark.parametrize("changes", [{}, {"layers": 3}, {"norm_place": "post"}, {"norm": "none"}])
def test_recomputation_keeps_the_inputs_of_the_layers_and_no_copies(changes: dict[str, Any]) -> None:
    """To the byte, beside the ids, the final norm's statistics and a random state for each layer."""
    config = ModelConfig(**{**TRANSFORMER, **changes})
    inputs = sum(b for _, b in recomputed(config, 32, 2))
    final = 4 * 32 if config.norm == "rms" and config.norm_place == "pre" else 0
    random_state = torch.get_rng_state().nbytes
    found = saved_bytes(config, 32, 5, "bf16", recompute=True)
    assert found == 5 * (inputs + 8 * 32 + final) + config.layers * random_state
    assert inputs < 0.15 * sum(b for _, b in activations(config, 32, 2))
    kept = {part.name for part in training_memory(config, 256, 32, recompute=True).moments[1].parts}
    assert not any("copies" in name for name in kept)


def test_recomputation_holds_one_layer_again_as_the_backward_pass_begins() -> None:
    """All of it but its input, which was kept; its matrices are narrowed once more."""
    config = ModelConfig(**TRANSFORMER)
    whole, again = (training_memory(config, 256, 32, recompute=recompute).moments[2] for recompute in (False, True))
    parts = {part.name: part for part in again.parts}
    layer = parts["a layer, computed again"]
    listed = sum(b for name, b in activations(config, 32, 2, kernels=True) if name != "input of the final norm")
    assert layer.per_window == listed / 2 - 32 * 64 * 2
    assert layer.constant == copies(config) / 2
    assert "input of the final norm" not in {part.name for part in (*whole.parts, *again.parts)}


def test_bdh_keeps_no_neurons_with_recomputation() -> None:
    config = ModelConfig(architecture="bdh", layers=6, width=256, heads=4)
    few = training_memory(config, 256, 512, batch=8, recompute=True, device_memory=141e9)
    assert "neurons" not in {part.name for part in few.parts}
    assert few.total < 0.5 * training_memory(config, 256, 512, batch=8, device_memory=141e9).total


@pytest.mark.parametrize("memory", [float("nan"), float("inf"), -1, "80 GB", None, True])
def test_a_largest_batch_needs_a_number_of_bytes(memory: Any) -> None:
    found = account(ModelConfig(), 256, 16).memory
    with pytest.raises(FledgeError, match="memory = .* is not allowed: it is a number of bytes"):
        found.largest_batch(memory)
    with pytest.raises(FledgeError, match=r"batch = '3' is not allowed"):
        found.at("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 8, 9, 257, 2047, 2048, 10_000, 50_257])
def test_padding_is_the_models(size: int) -> None:
    assert padded(size) == VocabularyMatrix(size, 1).weight.shape[0]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied": True, "bias": True, "position": "learned"},
        {"architecture": "bdh"},
        {"architecture": "gru"},
    ],
)
def test_optimizer_state_is_what_the_optimizer_keeps(optimizer: str, changes: dict[str, Any]) -> None:
    config = ModelConfig(**{**TRANSFORMER, "hidden": None, **changes})
    built = build_optimizer(build(config, 256, 16), OptimizerConfig(name=optimizer))  # type: ignore[arg-type]
    kept = sum(tensor.numel() for tensors in built.state.values() for tensor in tensors)
    assert optimizer_numbers(optimizer, list_parameters(config, 256, 16)) == kept


@settings(max_examples=150, deadline=None)
@given(
    configurations(),
    st.sampled_from([8, 64, 1_000]),
    st.sampled_from([64, 5_000, 50_257]),
    st.integers(1, 5_000),
    st.sampled_from(["bf16", "fp32"]),
    st.booleans(),
    st.sampled_from([None, 3e8, 8e9, 80e9]),
)
def test_the_printed_formula_is_the_peak_for_the_batches_it_names(
    config: ModelConfig,
    tokens: int,
    vocabulary: int,
    batch: int,
    precision: str,
    recompute: bool,
    device: float | None,
) -> None:
    """a·batch + b, to the byte, at both ends, between them and at this batch; beyond them something else begins."""
    memory = training_memory(
        config, vocabulary, tokens, batch=batch, precision=precision, recompute=recompute, device_memory=device
    )
    formula = memory.formula
    assert 1 <= formula.first <= batch <= formula.last
    for each in {formula.first, (formula.first + batch) // 2, batch, (batch + formula.last) // 2, formula.last}:
        assert formula.at(each) == memory.at(each)
    assert memory.total == formula.at(batch)
    for outside in (formula.first - 1, formula.last + 1):
        around = replace(memory, batch=max(1, outside)).formula
        assert outside < 1 or around.last <= formula.first or around.first >= formula.last  # equal at a crossing


@settings(max_examples=150, deadline=None)
@given(
    configurations(),
    st.sampled_from([8, 64, 1_000]),
    st.sampled_from([64, 5_000, 50_257]),
    st.floats(1e7, 2e11),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["bf16", "fp32"]),
)
def test_the_largest_batch_fits_by_the_formula_and_one_more_does_not(
    config: ModelConfig, tokens: int, vocabulary: int, limit: float, recompute: bool, named: bool, precision: str
) -> None:
    """By the formula that is printed for those batches, with the device named and without."""

    def memory(batch: int, device: float | None) -> Memory:
        return training_memory(
            config, vocabulary, tokens, batch=batch, precision=precision, recompute=recompute, device_memory=device
        )

    largest = memory(1, limit if named else None).largest_batch(limit)
    assert largest == 0 or memory(largest, limit).formula.at(largest) <= limit
    assert memory(largest + 1, limit).formula.at(largest + 1) > limit
    for batch in (largest + 2, 2 * largest + 1, 3 * largest + 7):  # nor does any larger one
        assert memory(batch, limit).total > limit


def test_a_larger_batch_may_fit_where_a_smaller_one_does_not() -> None:
    """One window more, and the logits are cut into two chunks of half the size: the largest batch is the largest."""
    config = ModelConfig(layers=1, width=8, heads=1)
    memory = training_memory(config, 50_257, 1_024, device_memory=80e9)
    edge = replace(memory, batch=1).formula.last
    limit = memory.at(edge) - 1
    assert memory.at(edge) > limit >= memory.at(edge + 1)
    assert memory.largest_batch(limit) > edge


def test_without_a_device_the_largest_batch_is_that_of_one_with_this_memory() -> None:
    """Not that of an 80 GB device, which would cut the logits into larger chunks."""
    config, sizes = SHAPES["small"].model, (50_257, 1_024)
    for limit in (8e9, 16e9, 24e9, 141e9):
        named = training_memory(config, *sizes, device_memory=limit).largest_batch(limit)
        assert training_memory(config, *sizes).largest_batch(limit) == named
    eight = training_memory(config, *sizes, device_memory=80e9).largest_batch(8e9)
    assert eight < training_memory(config, *sizes).largest_batch(8e9)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", [False, True])
def test_the_largest_batch_fits_and_a_larger_one_does_not(name: str, recompute: bool) -> None:
    shape = SHAPES[name]
    limit = 80e9
    largest = training_memory(shape.model, 50_257, 1_024, recompute=recompute).largest_batch(limit)
    assert largest > 0
    assert training_memory(shape.model, 50_257, 1_024, recompute=recompute, batch=largest).total <= limit
    assert training_memory(shape.model, 50_257, 1_024, recompute=recompute, batch=largest + 1).total > limit


def test_what_saves_memory_saves_memory() -> None:
    shape = SHAPES["large"]

    def total(**options: Any) -> float:
        return account(shape.model, 50_257, 1_024, batch=8, **options).memory.total

    assert total(recompute=True) < 0.7 * total()
    assert total(precision="fp32") > 1.4 * total()
    assert total(flash=False) > 1.5 * total()
    assert total(optimizer="sgd") < total(optimizer="muon") < total(optimizer="adamw")


def test_the_loss_works_in_equal_chunks() -> None:
    """A chunk has at most 2³⁰ logits, and is freed before the next is made: never more than one."""
    shape = SHAPES["small"]

    def logits(batch: int) -> float:
        parts = training_memory(shape.model, 50_257, 1_024, batch=batch).moments[0].parts
        return parts[-1].at(batch)

    one = (1 << 30) // (1_024 * padded(50_257))
    assert logits(one) == 2 * one * 1_024 * padded(50_257)
    assert logits(2 * one) == pytest.approx(logits(one))
    assert logits(3 * one) == pytest.approx(logits(one))
    assert logits(one + 1) == pytest.approx(logits(one) * (one + 1) / one / 2)


def test_the_loss_frees_a_chunk_before_it_makes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two chunks of logits are alive at once, however many there are."""
    alive: list[weakref.ref[torch.Tensor]] = []
    seen = []

    def watched(logits: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(sum(chunk() is not None for chunk in alive))
        found = loss._chunk(logits, *rest)
        alive.append(weakref.ref(found[1]))
        return found

    monkeypatch.setattr(loss, "_way", lambda hidden: (watched, 1 << 12))
    hidden, weight = torch.randn(512, 8), torch.randn(64, 8)
    loss._head_cross_entropy(hidden, weight, torch.zeros(512, dtype=torch.long), 64, 0.0, 0.0, True)
    assert seen == [0] * len(seen)
    assert len(seen) > 2


def test_a_cpu_holds_a_cache_full_of_logits() -> None:
    shape = SHAPES["small"]
    cpu = training_memory(shape.model, 50_257, 1_024, batch=8, precision="fp32", cpu=True)
    assert cpu.moments[0].parts[-1].at(8) == pytest.approx(4 << 21, rel=0.01)
    assert cpu.total < training_memory(shape.model, 50_257, 1_024, batch=8, precision="fp32").total


def test_shards_share_what_is_held() -> None:
    shape = SHAPES["xl"]
    whole, quarter = (training_memory(shape.model, 50_257, 1_024, shards=shards) for shards in (1, 4))
    held = {part.name: part.constant for part in quarter.moments[0].parts}
    assert held["parameters"] == pytest.approx(whole.moments[0].parts[0].constant / 4)
    assert quarter.total < 0.5 * whole.total


def test_bdh_keeps_its_neurons_where_a_quarter_of_the_device_holds_them() -> None:
    config = ModelConfig(architecture="bdh", layers=6, width=256, heads=4)
    neurons = 2 * 6 * 512 * 128 * 256 * 2
    most = int(80e9 / 4 // neurons)
    few, more = (training_memory(config, 256, 512, batch=batch, device_memory=80e9) for batch in (most, most + 1))
    assert few.slope - more.slope > 0.8 * neurons
    assert more.total < 0.5 * few.total
    assert few.largest_batch(80e9) == more.largest_batch(80e9) > 4 * most


def test_bad_words_are_refused() -> None:
    config = ModelConfig()
    with pytest.raises(FledgeError, match=r"precision = 'bf61'.*bf16"):
        training_memory(config, 256, 16, precision="bf61")
    with pytest.raises(FledgeError, match=r"optimizer = 'adam'.*adamw"):
        training_memory(config, 256, 16, optimizer="adam")
