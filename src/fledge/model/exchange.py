"""Weights under the names other programs use: GPT-2's, Llama's and Pathway's BDH's, both ways, and their settings.

Our RoPE turns adjacent pairs, Llama's files turn pairs half a head apart: the rows of queries and keys are permuted on
the way, which changes no result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model.hub import check_settings

Weights = Mapping[str, Tensor]

_GPT2_LAYER = {
    "ln1": "ln_1",
    "ln2": "ln_2",
    "attn.output_proj": "attn.c_proj",
    "ffn.w1": "mlp.c_fc",
    "ffn.w2": "mlp.c_proj",
}
_GPT2_TOP = {
    "token_embeddings.weight": "transformer.wte.weight",
    "position_embeddings.weight": "transformer.wpe.weight",
    "ln_final.weight": "transformer.ln_f.weight",
    "ln_final.bias": "transformer.ln_f.bias",
    "lm_head.weight": "lm_head.weight",
}
_LLAMA_LAYER = {
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.output_proj": "self_attn.o_proj",
    "ffn.w1": "mlp.gate_proj",
    "ffn.w3": "mlp.up_proj",
    "ffn.w2": "mlp.down_proj",
}
_LLAMA_TOP = {
    "token_embeddings.weight": "model.embed_tokens.weight",
    "ln_final.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_BDH_TOP = {"token_embeddings.weight": "embed.weight"}
_BDH_NAMES = {"token_embeddings.weight", "encoder", "encoder_v", "decoder", "lm_head"}

_GPT2_SHAPE = {
    "architecture": "transformer",
    "norm": "layer",
    "norm_place": "pre",
    "position": "learned",
    "feed_forward": "gelu_tanh",
    "bias": True,
    "qk_norm": False,
}
_LLAMA_SHAPE = {
    "architecture": "transformer",
    "norm": "rms",
    "norm_place": "pre",
    "position": "rope",
    "feed_forward": "swiglu",
    "bias": False,
    "qk_norm": False,
}


def format_of(config: ModelConfig) -> str | None:
    """`gpt2`, `llama` or `bdh`: the format that can hold such a model, or None."""
    if config.architecture == "bdh":
        return "bdh"
    for name, shape in (("gpt2", _GPT2_SHAPE), ("llama", _LLAMA_SHAPE)):
        grouped = config.kv_heads not in (None, config.heads)
        if all(getattr(config, key) == value for key, value in shape.items()) and not (name == "gpt2" and grouped):
            return name
    return None


def export_weights(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    """A model's state dict under the names of its format."""
    kind = _require_format(config)
    if kind == "gpt2":
        return _to_gpt2(weights)
    if kind == "llama":
        return _to_llama(config, weights)
    renamed = {_BDH_TOP.get(name, name): tensor for name, tensor in weights.items()}
    renamed["lm_head"] = renamed.pop("lm_head.weight").T.contiguous()
    return renamed


def import_weights(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    """Weights in the names of `config`'s format as a state dict that the built model loads."""
    kind = _require_format(config)
    if kind == "gpt2":
        return _from_gpt2(config, weights)
    if kind == "llama":
        return _from_llama(config, weights)
    back = {foreign: own for own, foreign in _BDH_TOP.items()}
    skipped = ("attn.", "ln.")  # tables, computed here
    renamed = {back.get(name, name): tensor for name, tensor in weights.items() if not name.startswith(skipped)}
    if strange := renamed.keys() - _BDH_NAMES:
        raise FledgeError(f"{min(strange)} is not a weight of BDH.")
    if lacking := _BDH_NAMES - renamed.keys():
        raise FledgeError(f"{_BDH_TOP.get(min(lacking), min(lacking))} is missing: it is a weight of BDH.")
    renamed["lm_head.weight"] = renamed.pop("lm_head").T.contiguous()
    return renamed


def _require_format(config: ModelConfig) -> str:
    kind = format_of(config)
    if kind is None:
        raise FledgeError(
            "No known weight format holds this model. GPT-2's needs layer norms, biases, learned positions and "
            "gelu_tanh; Llama's needs rms norms, no biases, rope and swiglu; both are pre-norm and without qk_norm."
        )
    return kind


def _to_gpt2(weights: Weights) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name in _GPT2_TOP:
            found[_GPT2_TOP[name]] = tensor
            continue
        number, part, kind = _layer_name(name)
        if part in ("attn.k_proj", "attn.v_proj"):
            continue
        prefix = f"transformer.h.{number}."
        if part == "attn.q_proj":
            parts = [weights[f"layers.{number}.attn.{letter}_proj.{kind}"] for letter in "qkv"]
            part, tensor = "attn.c_attn", torch.cat(parts)
        else:
            part = _GPT2_LAYER[part]
        # GPT-2 keeps its matrices with the inputs first.
        found[f"{prefix}{part}.{kind}"] = tensor.T.contiguous() if tensor.ndim == 2 else tensor
    found.setdefault("lm_head.weight", found["transformer.wte.weight"])
    return found


def _from_gpt2(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    back = {foreign.removeprefix("transformer."): own for own, foreign in _GPT2_TOP.items()}
    layer_back = {foreign: own for own, foreign in _GPT2_LAYER.items()}
    found: dict[str, Tensor] = {}
    for full_name, tensor in weights.items():
        name = full_name.removeprefix("transformer.")
        if name == "lm_head.weight" and config.tied:
            _require_tied(tensor, weights.get("transformer.wte.weight", weights.get("wte.weight")))
            continue
        if name in back:
            found[back[name]] = tensor
            continue
        match = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None or match[2] == "attn":
            if re.fullmatch(r"h\.\d+\.attn\.(bias|masked_bias)", name):
                continue  # the causal mask, which old files carry along
            raise FledgeError(f"{full_name} is not a weight of GPT-2.")
        number, part, kind = match.groups()
        straight = tensor.T.contiguous() if tensor.ndim == 2 else tensor
        if part == "attn.c_attn":
            if straight.ndim == 0 or straight.shape[0] % 3:
                raise FledgeError(
                    f"{full_name} has the shape {list(tensor.shape)}: it does not hold three equal parts."
                )
            for letter, piece in zip("qkv", straight.chunk(3), strict=True):
                found[f"layers.{number}.attn.{letter}_proj.{kind}"] = piece.contiguous()
        elif part in layer_back:
            found[f"layers.{number}.{layer_back[part]}.{kind}"] = straight
        else:
            raise FledgeError(f"{full_name} is not a weight of GPT-2.")
    for number in range(config.layers):
        for kind in ("weight", "bias"):  # fused in our modules too, whose own error would name neither file's tensor
            if f"layers.{number}.attn.q_proj.{kind}" not in found:
                raise FledgeError(f"h.{number}.attn.c_attn.{kind} is missing: it is a weight of GPT-2.")
    return found


def _require_tied(head: Tensor, embeddings: Tensor | None) -> None:
    """A head beside embeddings that it is said to be one with must be so: some programs would use it, others not."""
    if embeddings is not None and not torch.equal(head, embeddings):
        raise FledgeError(
            "tie_word_embeddings is true, and lm_head.weight is another matrix than the embeddings. Set "
            "tie_word_embeddings to false in config.json to import it as it is, or remove lm_head.weight."
        )


def _to_llama(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name in _LLAMA_TOP:
            found[_LLAMA_TOP[name]] = tensor
            continue
        number, part, kind = _layer_name(name)
        if part in ("attn.q_proj", "attn.k_proj"):
            tensor = halves_from_pairs(tensor, config.width // config.heads)
        found[f"model.layers.{number}.{_LLAMA_LAYER[part]}.{kind}"] = tensor
    return found


def _from_llama(config: ModelConfig, weights: Weights) -> dict[str, Tensor]:
    back = {foreign: own for own, foreign in _LLAMA_TOP.items()}
    layer_back = {foreign: own for own, foreign in _LLAMA_LAYER.items()}
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith("rotary_emb.inv_freq"):
            continue
        if name == "lm_head.weight" and config.tied:
            _require_tied(tensor, weights.get("model.embed_tokens.weight"))
            continue
        if name in back:
            found[back[name]] = tensor
            continue
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None or match[2] not in layer_back:
            raise FledgeError(f"{name} is not a weight of Llama.")
        part = layer_back[match[2]]
        if part in ("attn.q_proj", "attn.k_proj"):
            head_size = config.width // config.heads
            if tensor.ndim == 0 or tensor.shape[0] % head_size:
                raise FledgeError(f"{name} has the shape {list(tensor.shape)}: heads of {head_size} do not fill it.")
            tensor = pairs_from_halves(tensor, head_size)
        found[f"layers.{match[1]}.{part}.{match[3]}"] = tensor
    return found


def _layer_name(name: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        raise FledgeError(f"{name} is not a weight of this model.")
    return match[1], match[2], match[3]


def halves_from_pairs(rows: Tensor, head_size: int) -> Tensor:
    """Rows of each head in half-split order: all even ones, then all odd ones."""
    return rows.reshape(-1, head_size // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def pairs_from_halves(rows: Tensor, head_size: int) -> Tensor:
    """The inverse of `halves_from_pairs`."""
    return rows.reshape(-1, 2, head_size // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def hub_settings(config: ModelConfig, vocabulary_size: int, context_length: int) -> dict[str, Any]:
    """What `config.json` says of such a model, for `transformers`."""
    kind = _require_format(config)
    if kind == "gpt2":
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": vocabulary_size,
            "n_positions": context_length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.inner_size,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": config.norm_epsilon,
            "tie_word_embeddings": config.tied,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.dropout,
        }
    if kind == "llama":
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocabulary_size,
            "max_position_embeddings": context_length,
            "hidden_size": config.width,
            "intermediate_size": config.inner_size,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads or config.heads,
            "head_dim": config.width // config.heads,
            "hidden_act": "silu",
            "rms_norm_eps": config.norm_epsilon,
            "rope_theta": config.rope_theta,
            "tie_word_embeddings": config.tied,
            "attention_bias": False,
            "mlp_bias": False,
        }
    raise FledgeError("transformers has no model for BDH; its weights alone can be exported.")


def config_from_hub(settings: Mapping[str, Any]) -> tuple[ModelConfig, int, int]:
    """Our settings, vocabulary size and context length from a `config.json` of GPT-2 or Llama."""
    kind = settings.get("model_type")
    if kind not in ("gpt2", "llama"):
        raise FledgeError(f"model_type = {kind!r:.40} can't be imported. Known: gpt2, llama.")
    check_settings(settings)
    if kind == "gpt2":
        if settings.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
            raise FledgeError(
                f"GPT-2 with activation_function = {settings['activation_function']!r:.40} is not supported: it is "
                "gelu_new or gelu_pytorch_tanh."
            )
        # `reorder_and_upcast_attn` changes precision only.
        for key, usual in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            _require_usual("GPT-2", key, settings.get(key, usual), usual)
        config = ModelConfig(
            **_GPT2_SHAPE,
            layers=settings["n_layer"],
            width=settings["n_embd"],
            heads=settings["n_head"],
            hidden=settings.get("n_inner") or 4 * settings["n_embd"],
            norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
            tied=settings.get("tie_word_embeddings", True),
            dropout=settings.get("resid_pdrop", 0.1),
            initialisation="gpt2",
        )
        return config, settings["vocab_size"], settings.get("n_positions", 1024)
    return _config_from_llama(settings)


def _require_usual(model: str, key: str, value: Any, usual: Any) -> None:
    """Refuse a model that would be another one here."""
    if value != usual:
        raise FledgeError(
            f"{model} with {key} = {value!r:.40} is not supported: it is {usual} in a model that can be imported."
        )


def _config_from_llama(settings: Mapping[str, Any]) -> tuple[ModelConfig, int, int]:
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    for key in ("rope_parameters", "rope_scaling"):
        table = settings.get(key) or rope
        for name in ("rope_type", "type"):
            _require_usual("Llama", f"{key}.{name}", table.get(name, "default"), "default")
        if table.get("rope_theta") != rope.get("rope_theta"):
            raise FledgeError("rope_parameters and rope_scaling have another rope_theta each: keep one of the two.")
    for key, usual in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        value = settings.get(key)
        _require_usual("Llama", key, usual if value is None else value, usual)
    _require_usual("Llama", "head_dim", settings.get("head_dim") or width // heads, width // heads)
    kv_heads = settings.get("num_key_value_heads") or heads
    config = ModelConfig(
        **_LLAMA_SHAPE,
        layers=settings["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        hidden=settings["intermediate_size"],
        norm_epsilon=settings.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", settings.get("rope_theta", 10_000.0)),
        tied=settings.get("tie_word_embeddings", False),
    )
    return config, settings["vocab_size"], settings.get("max_position_embeddings", 2048)
