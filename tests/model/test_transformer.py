"""The Transformer against plain formulas, and its parameters against arithmetic."""

from __future__ import annotations

import math

import pytest
import torch

from fledge.config import ModelConfig, load_recipe
from fledge.model import build_model
from fledge.model.attention import Attention
from fledge.model.layers import rotary_frequencies, rotate, rotation, sinusoids

from .cases import config, ids, small


@pytest.mark.parametrize("name", ["transformer", "grouped heads", "one key head", "bias"])
def test_attention_equals_a_naive_softmax(name):
    torch.manual_seed(0)
    settings = config(name)
    attention = Attention(settings).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    length, heads, size = 10, 4, 8
    x = torch.randn(2, length, 32, dtype=torch.double)
    turn = rotation(torch.arange(length), rotary_frequencies(size, 10_000.0))
    weights = attention.state_dict()

    def project(letter):
        out = x @ weights[f"{letter}_proj.weight"].T + weights.get(f"{letter}_proj.bias", 0)
        return out.view(2, length, -1, size)

    q, k, v = project("q"), project("k"), project("v")
    if settings.qk_norm:
        q = q / (q.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights["q_norm.weight"]
        k = k / (k.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights["k_norm.weight"]
    out = torch.zeros(2, length, heads, size, dtype=torch.double)
    q, k = rotate(q, *turn), rotate(k, *turn)
    for row in range(2):
        for head in range(heads):
            shared = head * k.shape[2] // heads
            for t in range(length):
                scores = k[row, : t + 1, shared] @ q[row, t, head] / math.sqrt(size)
                out[row, t, head] = torch.softmax(scores, 0) @ v[row, : t + 1, shared]
    wanted = out.flatten(2) @ weights["output_proj.weight"].T + weights.get("output_proj.bias", 0)
    torch.testing.assert_close(attention(x, turn, None, None, 0), wanted, atol=1e-6, rtol=1e-6)


def test_rope_turns_adjacent_pairs():
    x = torch.randn(1, 6, 2, 8, dtype=torch.double)
    turned = rotate(x, *rotation(torch.arange(6), rotary_frequencies(8, 10_000.0)))
    for t in range(6):
        for pair in range(4):
            angle = t * 10_000.0 ** (-2 * pair / 8)
            a, b = x[0, t, 1, 2 * pair], x[0, t, 1, 2 * pair + 1]
            wanted = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
            assert turned[0, t, 1, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(
                [float(w) for w in wanted], abs=1e-6
            )


def test_sinusoids():
    table = sinusoids(torch.arange(5), rotary_frequencies(6, 10_000.0), 6)
    for t in range(5):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            assert table[t, 2 * i : 2 * i + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "vocabulary_size", "context_length", "count"),
    [
        ({"layers": 48, "width": 1600, "heads": 25, "hidden": 6400}, 50257, 1024, 2_127_057_600),
        ({"layers": 4, "width": 512, "heads": 16, "hidden": 1344}, 10_000, 256, 22_696_448),
        ({"architecture": "bdh", "layers": 6, "width": 256, "heads": 4, "multiplier": 128}, 256, 512, 25_296_896),
    ],
)
def test_parameter_counts(settings, vocabulary_size, context_length, count):
    with torch.device("meta"):
        assert build_model(ModelConfig(**settings), vocabulary_size, context_length).parameters_count() == count


@pytest.mark.parametrize(
    ("recipe", "count"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("tinystories", 22_696_448),
    ],
)
def test_presets_have_the_known_sizes(recipe, count):
    config = load_recipe(recipe)
    with torch.device("meta"):
        model = build_model(config.model, config.tokenizer.vocabulary_size, config.tokens.context_length)
    assert model.parameters_count() == count


def test_weights_have_names_that_read_well():
    names = set(small("one layer").state_dict())
    layer = {f"attn.{part}_proj" for part in ("q", "k", "v", "output")} | {
        "ln1",
        "ln2",
        "ffn.w1",
        "ffn.w2",
        "ffn.w3",
    }
    wanted = {f"layers.0.{part}.weight" for part in layer}
    assert names == wanted | {"token_embeddings.weight", "ln_final.weight", "lm_head.weight"}


@pytest.mark.parametrize("name", ["transformer", "gpt2", "bdh", "lstm"])
def test_a_state_dict_loads_and_hides_the_padding(name):
    model, other = small(name), small(name)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    assert model.token_embeddings.weight.shape[0] == 64
    weights = model.state_dict()
    assert weights["token_embeddings.weight"].shape[0] == 61
    other.load_state_dict(weights)
    assert other.token_embeddings.weight[61:].abs().max() == 0
    inputs = ids(2, 8)
    assert torch.equal(model(inputs), other(inputs))
    assert model(inputs).shape == (2, 8, 61)
    assert sum(tensor.numel() for tensor in weights.values()) == model.parameters_count()


def test_the_vocabulary_is_padded_for_matrix_units():
    with torch.device("meta"):
        assert build_model(ModelConfig(), 50257, 8).head_weight.shape[0] == 50304
        assert build_model(ModelConfig(), 10_000, 8).head_weight.shape[0] == 10_112


@pytest.mark.parametrize(
    ("kind", "width", "hidden"),
    [("swiglu", 512, 1344), ("swiglu", 768, 2048), ("silu", 512, 2048), ("relu2", 64, 256)],
)
def test_hidden_sizes_match_in_parameters(kind, width, hidden):
    assert ModelConfig(feed_forward=kind, width=width).inner_size == hidden


def test_initial_weights_have_the_deviations_asked_for():
    torch.manual_seed(0)
    scaled = build_model(ModelConfig(layers=2, width=256), 2000, 16).state_dict()
    gpt2 = build_model(ModelConfig(layers=2, width=256, initialisation="gpt2"), 2000, 16).state_dict()
    query, down = "layers.0.attn.q_proj.weight", "layers.0.ffn.w2.weight"
    assert float(scaled[query].std()) == pytest.approx(math.sqrt(2 / 512), rel=0.03)
    assert float(scaled["token_embeddings.weight"].std()) == pytest.approx(1, rel=0.03)
    assert float(gpt2[query].std()) == pytest.approx(0.02, rel=0.03)
    assert float(gpt2[down].std()) == pytest.approx(0.02 / 2, rel=0.03)
    changed = ModelConfig(layers=2, width=256, embedding_deviation=0.5, residual_scaling=True)
    weights = build_model(changed, 2000, 16).state_dict()
    assert float(weights["token_embeddings.weight"].std()) == pytest.approx(0.5, rel=0.03)
    assert float(weights[down].std()) == pytest.approx(float(scaled[down].std()) / 2, rel=0.05)


def test_dropout_acts_while_training_only():
    for name in ("transformer", "gpt2", "bdh", "lstm"):
        model, inputs = small(name, dropout=0.5), ids(1, 8)
        assert torch.equal(model(inputs), model(inputs))
        model.train()
        assert not torch.equal(model(inputs), model(inputs))
        torch.manual_seed(3)
        first = model(inputs)
        torch.manual_seed(3)
        assert torch.equal(model(inputs), first)


def test_recomputation_changes_no_gradient():
    inputs = ids(2, 8)
    gradients = []
    for recompute in (False, True):
        model = small("transformer").train()
        model.recompute = recompute
        model(inputs).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)
