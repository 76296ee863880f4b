"""The same weights give the same logits elsewhere: transformers' GPT-2 and Llama are the judges."""

from __future__ import annotations

import pytest
import torch

from fledge.config import ModelConfig, load_recipe
from fledge.errors import FledgeError
from fledge.model import build_model
from fledge.model.exchange import export_weights, halves_from_pairs, import_weights, pairs_from_halves, require_home
from fledge.model.families import GGUF, HUB, OWN, nearest_home, obstacles
from fledge.model.hub import config_from_hub, hub_settings
from fledge.model.transformer import Transformer

from .cases import CASES, small

GPT2_PRESETS = ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"]


def shrunk(recipe: str, layers: int = 2) -> ModelConfig:
    """A preset with its head count and all its choices, and narrow heads."""
    config = load_recipe(recipe).model
    return config.model_copy(update={"layers": layers, "width": config.heads * 8, "hidden": None})


def perturbed(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.load_state_dict(model.state_dict())  # the vocabulary's padding back to zero
    return model.eval()


def peer(config: ModelConfig, vocabulary_size: int, context_length: int):
    transformers = pytest.importorskip("transformers")
    settings = hub_settings(config, vocabulary_size, context_length)
    kind = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}[settings["model_type"]]
    model = kind(kind.config_class(**settings))
    return model.eval()


@pytest.mark.parametrize(
    "config",
    [
        *(shrunk(name) for name in GPT2_PRESETS),
        shrunk("gpt2-small").model_copy(update={"tied": False}),
        shrunk("llama-small"),
        shrunk("tinystories"),
        ModelConfig(layers=2, width=64, heads=8, kv_heads=1, hidden=96, rope_theta=500_000.0, norm_epsilon=1e-6),
        ModelConfig(layers=2, width=64, heads=4, tied=True),
    ],
    ids=[*GPT2_PRESETS, "gpt2 untied", "llama-small", "tinystories", "llama grouped", "llama tied"],
)
def test_logits_equal_those_of_transformers(config):
    torch.manual_seed(0)
    vocabulary_size, context_length = 503, 40
    model = perturbed(build_model(config, vocabulary_size, context_length))
    other = peer(config, vocabulary_size, context_length)
    weights = export_weights(config, model.state_dict())
    missing, unexpected = other.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not [
        name for name in missing if not name.endswith(("attn.bias", "masked_bias", "inv_freq", "lm_head.weight"))
    ]
    inputs = torch.randint(vocabulary_size, (2, context_length))
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), other(inputs).logits, atol=1e-4, rtol=0)
    back = import_weights(config, other.state_dict())
    fresh = build_model(config, vocabulary_size, context_length).eval()
    fresh.load_state_dict(back)
    with torch.no_grad():
        assert torch.equal(fresh(inputs), model(inputs))
    assert config_from_hub(other.config.to_dict())[1:] == (vocabulary_size, context_length)


@pytest.mark.parametrize("config", [shrunk("gpt2-small"), shrunk("llama-small")], ids=["gpt2", "llama"])
def test_settings_come_back(config):
    settings = hub_settings(config, 100, 32)
    found, vocabulary_size, context_length = config_from_hub(settings)
    assert (vocabulary_size, context_length) == (100, 32)
    for name in ("layers", "width", "heads", "kv_heads", "norm", "position", "feed_forward", "tied", "bias"):
        assert getattr(found, name) == getattr(config, name)


def test_old_gpt2_files_load():
    """Without the prefix, and with the causal masks that they carry."""
    config = shrunk("gpt2-small")
    model = perturbed(build_model(config, 100, 16))
    weights = {k.removeprefix("transformer."): v for k, v in export_weights(config, model.state_dict()).items()}
    weights["h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    fresh = build_model(config, 100, 16).eval()
    fresh.load_state_dict(import_weights(config, weights))
    inputs = torch.randint(100, (1, 16))
    assert torch.equal(fresh(inputs), model(inputs))


def test_bdh_weights_round_trip():
    model = small("bdh")
    weights = export_weights(model.config, model.state_dict())
    assert set(weights) == {"embed.weight", "encoder", "encoder_v", "decoder", "lm_head"}
    assert weights["lm_head"].shape == (32, 61)
    back = import_weights(model.config, weights)
    for name, tensor in model.state_dict().items():
        assert torch.equal(back[name], tensor)


def test_shapes_without_memory_are_found_without_joining(monkeypatch):
    """torch.cat of tensors without memory imports for a second, a fifth of a small model's export."""
    config = shrunk("gpt2-small")
    weights = build_model(config, 280, 16).state_dict()
    expected = {name: tensor.shape for name, tensor in export_weights(config, weights, 16).items()}
    forms = {name: tensor.to("meta") for name, tensor in weights.items()}
    monkeypatch.setattr(torch, "cat", None)
    assert {name: tensor.shape for name, tensor in export_weights(config, forms, 16).items()} == expected


def test_permutations_are_inverse():
    rows = torch.randn(3 * 8, 5)
    assert torch.equal(pairs_from_halves(halves_from_pairs(rows, 8), 8), rows)
    assert halves_from_pairs(torch.arange(8), 8).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_what_no_format_holds_is_refused():
    for name, change in (
        ("post-norm", "norm_place=pre"),
        ("no norm", "norm=rms"),
        ("learned positions", "position=rope"),
    ):
        config = small(name).config
        assert require_home(config).name == "fledge_transformer"
        assert nearest_home(config, HUB).endswith(f"llama: train with model.{change}.")
    strange = ModelConfig(architecture="of-my-own")
    with pytest.raises(FledgeError, match="transformers has no model like this one"):
        export_weights(strange, {})
    with pytest.raises(FledgeError, match="model_type = 'mamba' can't be imported"):
        config_from_hub({"model_type": "mamba"})
    with pytest.raises(FledgeError, match="is not a weight of Llama"):
        import_weights(ModelConfig(), {"strange": torch.zeros(1)})
    assert set(CASES) >= {"gpt2", "bdh"}


def test_a_setting_that_nobody_placed_is_refused_everywhere():
    """What is new to the settings has no home until somebody gives it one."""

    class Later(ModelConfig):
        gates: bool = False

    shape = {"gates": True, "layers": 2}
    family, settings = HUB[0], Transformer.settings
    Transformer.settings = settings | {"gates"}
    try:
        assert obstacles(Later(layers=2), family) == {}
        for each in (*HUB, *GGUF, OWN[0]):
            assert obstacles(Later(**shape), each)["gates"] is False
    finally:
        Transformer.settings = settings


@pytest.mark.parametrize(
    ("key", "value"),
    [("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False), ("activation_function", "relu")],
)
def test_a_gpt2_of_another_kind_is_refused(key, value):
    settings = hub_settings(shrunk("gpt2-small"), 100, 32)
    harmless = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": True}
    assert config_from_hub(settings | harmless) == config_from_hub(settings)
    assert config_from_hub(settings | {"layer_norm_epsilon": 1e-3})[0].norm_epsilon == 1e-3
    with pytest.raises(FledgeError, match=f"GPT-2 with {key} = {value!r} is not supported"):
        config_from_hub(settings | {key: value})


def test_weights_that_are_not_those_of_bdh_are_refused():
    model = small("bdh")
    weights = export_weights(model.config, model.state_dict())
    with pytest.raises(FledgeError, match="junk is not a weight of BDH"):
        import_weights(model.config, weights | {"junk": torch.zeros(1)})
    for name in weights:
        with pytest.raises(FledgeError, match=f"{name} is missing: it is a weight of BDH"):
            import_weights(model.config, {other: weights[other] for other in weights if other != name})


def test_a_missing_fused_weight_has_the_name_of_its_file():
    model = small("gpt2")
    weights = export_weights(model.config, model.state_dict())
    del weights["transformer.h.1.attn.c_attn.bias"]
    with pytest.raises(FledgeError, match="h.1.attn.c_attn.bias is missing: it is a weight of GPT-2"):
        import_weights(model.config, weights)
