"""`config.json` as transformers writes it, both ways. Each key is checked before any of them is used."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model.exchange import require_home
from fledge.model.families import IMPORTED, LINEAR, TRAINING, Family
from fledge.model.registry import find_architecture

LARGEST = 2**31 - 1
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "silu": "silu", "relu2": "relu2", "swiglu": "silu"}
"Ours, and what transformers calls them."
OWN_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "relu2": "relu2",
}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"The parts of `model.rope_scaling`, as transformers calls them."


class Allowed(NamedTuple):
    """What a key may hold, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]
    required: bool = False
    nullable: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_SIZE = Allowed(f"a whole number from 1 to {LARGEST:,}", lambda value: type(value) is int and 1 <= value <= LARGEST)
_ABOVE_ZERO = Allowed("a number above 0", lambda value: _is_number(value) and 0 < value <= sys.float_info.max)
_SHARE = Allowed("a number from 0 to below 1", lambda value: _is_number(value) and 0 <= value < 1)
_NAME = Allowed("a name", lambda value: isinstance(value, str), required=True)
_CHOICE = Allowed("true or false", lambda value: isinstance(value, bool))
_TABLE = Allowed("a table of names and values, or null", lambda value: isinstance(value, dict), nullable=True)
_LIST = Allowed("a list, or null", lambda value: isinstance(value, list), nullable=True)
_NEEDED_SIZE = _SIZE._replace(required=True)
_SIZE_OR_NULL = _SIZE._replace(words=f"{_SIZE.words}, or null", nullable=True)
_CHOICE_OR_NULL = _CHOICE._replace(words=f"{_CHOICE.words}, or null", nullable=True)

GPT2 = {
    "n_layer": _NEEDED_SIZE,
    "n_embd": _NEEDED_SIZE,
    "n_head": _NEEDED_SIZE,
    "vocab_size": _NEEDED_SIZE,
    "n_positions": _SIZE,
    "n_inner": _SIZE_OR_NULL,
    "layer_norm_epsilon": _ABOVE_ZERO,
    "tie_word_embeddings": _CHOICE,
    "resid_pdrop": _SHARE,
}
LLAMA = {
    "num_hidden_layers": _NEEDED_SIZE,
    "hidden_size": _NEEDED_SIZE,
    "num_attention_heads": _NEEDED_SIZE,
    "intermediate_size": _NEEDED_SIZE,
    "vocab_size": _NEEDED_SIZE,
    "max_position_embeddings": _SIZE,
    "num_key_value_heads": _SIZE_OR_NULL,
    "head_dim": _SIZE_OR_NULL,
    "rms_norm_eps": _ABOVE_ZERO,
    "norm_epsilon": _ABOVE_ZERO,
    "layer_norm_eps": _ABOVE_ZERO,
    "rope_theta": _ABOVE_ZERO,
    "rope_parameters": _TABLE,
    "rope_scaling": _TABLE,
    "tie_word_embeddings": _CHOICE,
    "attention_bias": _CHOICE_OR_NULL,
    "mlp_bias": _CHOICE_OR_NULL,
    "use_bias": _CHOICE,
    "use_qkv_bias": _CHOICE,
    "sliding_window": _SIZE_OR_NULL,
    "layer_types": _LIST,
    "no_rope_layers": _LIST,
}
_NO_WINDOW = {"use_sliding_window": (False, False)}
_USUAL: dict[str, dict[str, tuple[Any, Any]]] = {
    "gpt2": {"scale_attn_weights": (True, True), "scale_attn_by_inverse_layer_idx": (False, False)},
    "qwen2": _NO_WINDOW,
    "qwen3": {"attention_bias": (False, False), **_NO_WINDOW},
    "smollm3": _NO_WINDOW,
    "stablelm": {
        "qk_layernorm": (False, False),
        "use_parallel_residual": (False, False),
        "partial_rotary_factor": (1.0, 0.25),
    },
    "gpt_neox": {"use_parallel_residual": (False, True), "rotary_pct": (1.0, 0.25)},
}
"""Keys that make another model of it, by `model_type`: the value that is read, and the one that is meant without it."""
_DEFAULT_EPSILON = {"llama": 1e-6, "qwen2": 1e-6, "qwen3": 1e-6, "mistral": 1e-6, "smollm3": 1e-6}
_UNDIVIDED = ("mistral", "qwen2", "qwen3", "smollm3", "starcoder2")
"Their heads need not divide the width."
_TIED = ("gpt2", "openai-gpt", "starcoder2", "smollm3")
"Tied, unless config.json says otherwise."


def hub_settings(config: ModelConfig, vocabulary_size: int, context_length: int) -> dict[str, Any]:
    """What `config.json` says of such a model, for transformers."""
    family = require_home(config)
    if family.file:
        return _own_file_settings(config, family, vocabulary_size, context_length)
    values: dict[str, Any] = {
        "model_type": family.name,
        "architectures": [family.model],
        "vocab_size": vocabulary_size,
        "tie_word_embeddings": config.tied,
        family.epsilon: config.norm_epsilon,
    }
    if family.name in ("gpt2", "openai-gpt"):
        activation = ACTIVATIONS[config.feed_forward].replace("gelu_pytorch_tanh", "gelu_new")
        values |= {
            "n_positions": context_length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.dropout,
            "attn_pdrop": config.attention_share,
        }
        if family.name == "gpt2":
            return {**values, "n_inner": config.inner_size, "activation_function": activation}
        return {**values, "afn": "gelu" if activation == "gelu_new" else activation}
    values |= {
        "max_position_embeddings": context_length,
        "hidden_size": config.width,
        "intermediate_size": config.inner_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.head_width,
        "hidden_act": ACTIVATIONS[config.feed_forward],
        "rope_theta": config.rope_theta,
    }
    if config.rope_scaling is not None:
        values["rope_scaling"] = {"rope_type": "llama3", **dict(zip(SCALING, config.rope_scaling, strict=True))}
        values["rope_scaling"][SCALING[3]] = int(config.rope_scaling[3])
    return values | _own_keys(family.name, config)


_RENAMED = {"rope_theta": "rotary_theta", "rope_scaling": "rotary_scaling"}
"Settings that transformers would make tables of its own of, under their own names."


def _own_file_settings(
    config: ModelConfig, family: Family, vocabulary_size: int, context_length: int
) -> dict[str, Any]:
    """What the file of ours that holds such a model reads: its settings, all of them spelled out."""
    module = family.file.removesuffix(".py")
    classes = {"AutoConfig": family.model.replace("ForCausalLM", "Config"), "AutoModelForCausalLM": family.model}
    values: dict[str, Any] = {
        "model_type": family.name,
        "architectures": [family.model],
        "auto_map": {kind: f"{module}.{name}" for kind, name in classes.items()},
        "vocab_size": vocabulary_size,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": config.tied and config.architecture != "bdh",
        "dropout": config.dropout,
    }
    names = find_architecture(config.architecture).settings
    for name in sorted((names - TRAINING - {"tied"}) | {"architecture"}):
        values[_RENAMED.get(name, name)] = getattr(config, name)
    if config.architecture == "transformer":
        more = {"kv_heads": config.kv_heads or config.heads, "hidden": config.inner_size}
        values |= {**more, "head_size": config.head_width, "attention_dropout": config.attention_share}
    return values


def _config_from_own_file(settings: Mapping[str, Any], family: Family) -> tuple[ModelConfig, int, int]:
    _check(settings, {"vocab_size": _NEEDED_SIZE, "max_position_embeddings": _NEEDED_SIZE, "architecture": _NAME})
    architecture = settings["architecture"]
    if architecture not in family.architectures:
        known = ", ".join(family.architectures)
        raise FledgeError(f"architecture = {architecture!r:.40} is not allowed in a {family.name}: it is {known}.")
    names = find_architecture(architecture).settings - (TRAINING - {"dropout", "attention_dropout"})
    values = {name: settings[key] for name in names if (key := _RENAMED.get(name, name)) in settings}
    if "tied" in names:
        _check(settings, {"tie_word_embeddings": _CHOICE})
        values["tied"] = settings.get("tie_word_embeddings", False)
    config = ModelConfig(architecture=architecture, **values)
    plain: dict[str, Any] = {"kv_heads": None} if config.kv_heads == config.heads else {}
    if config.head_size == config.width / config.heads:
        plain |= {"head_size": None}
    return config.model_copy(update=plain), settings["vocab_size"], settings["max_position_embeddings"]


def _own_keys(name: str, config: ModelConfig) -> dict[str, Any]:
    if name == "starcoder2":
        dropout = {"residual_dropout": config.dropout, "embedding_dropout": config.dropout}
        return {"use_bias": config.bias, "sliding_window": None, **dropout}
    if name == "stablelm":
        whole = {"partial_rotary_factor": 1.0, "use_parallel_residual": False, "qk_layernorm": False}
        return {"use_qkv_bias": False, **whole}
    if name == "qwen3":
        return {"attention_bias": False, "use_sliding_window": False}
    nowhere = {"no_rope_layers": [0] * config.layers} if name == "smollm3" else {}
    return {"attention_bias": config.bias, "mlp_bias": config.bias, **nowhere}


def family_from_hub(settings: Mapping[str, Any]) -> Family:
    """How the weights beside such a `config.json` are called, and which biases are among them."""
    name = settings.get("model_type")
    if not isinstance(name, str) or name not in IMPORTED:
        raise FledgeError(f"model_type = {name!r:.40} can't be imported. Known: {', '.join(IMPORTED)}.")
    family = IMPORTED[name]
    attention = frozenset(part for part in LINEAR if part.startswith("attn."))
    if name in ("llama", "arcee", "smollm3"):
        lacking = frozenset() if settings.get("attention_bias") else attention
        return family._replace(unbiased=lacking | (frozenset() if settings.get("mlp_bias") else LINEAR - attention))
    if name == "gpt_neox":
        return family._replace(unbiased=frozenset() if settings.get("attention_bias", True) else attention)
    if name == "starcoder2":
        return family._replace(unbiased=frozenset() if settings.get("use_bias", True) else LINEAR)
    if name == "stablelm":
        qkv = attention - {"attn.output_proj"}
        return family._replace(unbiased=LINEAR - (qkv if settings.get("use_qkv_bias") else frozenset()))
    return family


def config_from_hub(settings: Mapping[str, Any]) -> tuple[ModelConfig, int, int]:
    """Our settings, vocabulary size and context length from a `config.json` of transformers.

    A bias that only some layers have there is one that all of them have here, zero where there was none."""
    family = family_from_hub(settings)
    name = family.name
    shown = {"gpt2": "GPT-2", "llama": "Llama"}.get(name, name)
    if family.file:
        return _config_from_own_file(settings, family)
    check_settings(settings)
    for key, (usual, default) in _USUAL.get(name, {}).items():
        table = settings.get("rope_parameters") or {}
        said = (
            table.get("partial_rotary_factor", default) if key in ("rotary_pct", "partial_rotary_factor") else default
        )
        _require_usual(shown, key, settings.get(key, said), usual)
    if name in ("gpt2", "openai-gpt"):
        return _config_from_gpt2(settings, shown, family)
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    theta, scaling = _rope(settings, shown)
    head_size = _head_size(settings)
    if family.holds.get("head_size", (None,)) is not None:
        _require_usual(shown, "head_dim", head_size, width // heads)
    kv_heads = settings.get("num_key_value_heads") or heads
    gated = "ffn.w3" in family.parts
    biased = family.unbiased != LINEAR and name != "qwen3"
    position = _position(settings, shown)
    config = ModelConfig(
        norm="layer" if "layer" in (family.holds["norm"] or ()) else "rms",
        feed_forward=_activation(shown, "hidden_act", settings.get("hidden_act"), gated, name),
        qk_norm=name == "qwen3",
        bias=biased or (bool(family.zeros) and name != "gpt_neox"),
        position=position,
        layers=settings["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        head_size=None if head_size == width / heads else head_size,
        hidden=settings["intermediate_size"],
        norm_epsilon=settings.get(family.epsilon, _DEFAULT_EPSILON.get(name, 1e-5)),
        rope_theta=theta,
        rope_scaling=scaling if position == "rope" else None,
        tied=settings.get("tie_word_embeddings", name in _TIED),
    )
    return config, settings["vocab_size"], _context(settings, name)


def _config_from_gpt2(settings: Mapping[str, Any], shown: str, family: Family) -> tuple[ModelConfig, int, int]:
    if family.name == "gpt2":
        activation = _activation(shown, "activation_function", settings.get("activation_function"), False, "gpt2")
    else:  # its "gelu" is the one by tanh
        activation = {"gelu": "gelu_tanh"}.get(settings.get("afn", "gelu"), settings.get("afn"))
        if activation not in ("gelu_tanh", "silu"):
            raise FledgeError(f"openai-gpt with afn = {settings['afn']!r:.40} is not supported: it is gelu or silu.")
    config = ModelConfig(
        norm="layer",
        norm_place="pre" if family.name == "gpt2" else "post",
        position="learned",
        feed_forward=activation,
        bias=True,
        layers=settings["n_layer"],
        width=settings["n_embd"],
        heads=settings["n_head"],
        hidden=settings.get("n_inner") or 4 * settings["n_embd"],
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
        tied=settings.get("tie_word_embeddings", True),
        dropout=settings.get("resid_pdrop", 0.1),
        initialisation="gpt2",
    )
    return config, settings["vocab_size"], settings.get("n_positions", 1024 if family.name == "gpt2" else 512)


def _activation(shown: str, key: str, value: Any, gated: bool, name: str) -> Any:
    default = {"gpt2": "gelu_new", "arcee": "relu2", "starcoder2": "gelu_pytorch_tanh", "gpt_neox": "gelu"}.get(
        name, "silu"
    )
    value = default if value is None else value
    if gated:
        _require_usual(shown, key, value, "silu")
        return "swiglu"
    if not isinstance(value, str) or value not in OWN_ACTIVATIONS:
        allowed = f"{', '.join(list(OWN_ACTIVATIONS)[:-1])} or {list(OWN_ACTIVATIONS)[-1]}"
        raise FledgeError(f"{shown} with {key} = {value!r:.40} is not supported: it is {allowed}.")
    return OWN_ACTIVATIONS[value]


def _rope(settings: Mapping[str, Any], shown: str) -> tuple[float, tuple[float, ...] | None]:
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    scaled = False
    for key in ("rope_parameters", "rope_scaling"):
        table = settings.get(key) or rope
        for name in ("rope_type", "type"):
            kind = table.get(name, "default")
            scaled = scaled or kind == "llama3"
            if kind not in (None, "default", "llama3"):
                raise FledgeError(
                    f"{shown} with {key}.{name} = {kind!r:.40} is not supported: it is default or llama3."
                )
        if table.get("rope_theta") != rope.get("rope_theta"):
            raise FledgeError("rope_parameters and rope_scaling have another rope_theta each: keep one of the two.")
        if shown not in ("stablelm", "gpt_neox"):
            _require_usual(shown, f"{key}.partial_rotary_factor", table.get("partial_rotary_factor", 1.0), 1.0)
    theta = rope.get("rope_theta", settings.get("rope_theta", settings.get("rotary_emb_base", 10_000.0)))
    if not scaled:
        return theta, None
    where = "rope_parameters." if settings.get("rope_parameters") else "rope_scaling."
    _check(rope, {key: _ABOVE_ZERO._replace(required=True) for key in SCALING}, where)
    if rope[SCALING[1]] >= rope[SCALING[2]]:
        raise FledgeError(f"{where}{SCALING[1]} = {rope[SCALING[1]]} is not allowed: it is below {SCALING[2]}.")
    return theta, tuple(float(rope[key]) for key in SCALING)


def _position(settings: Mapping[str, Any], shown: str) -> Any:
    if settings["model_type"] != "smollm3":
        return "rope"
    layers, every = settings["num_hidden_layers"], settings.get("no_rope_layer_interval", 4)
    default = [int(type(every) is not int or every < 1 or (n + 1) % every != 0) for n in range(min(layers, 4096))]
    rotated = settings.get("no_rope_layers")
    rotated = default if rotated is None else rotated[:layers]
    if all(each in (0, 1) for each in rotated) and len({bool(each) for each in rotated}) == 1:
        return "rope" if rotated[0] else "none"
    raise FledgeError(f"{shown} with no_rope_layers = {rotated!s:.40} is not supported: it is 1 for every layer, or 0.")


def _context(settings: Mapping[str, Any], name: str) -> int:
    """Up to the window, in which attention to the last tokens is attention to all of them."""
    kinds = settings.get("layer_types") or []
    windowed = name in ("mistral", "starcoder2") and settings.get("sliding_window") is not None
    if not windowed:
        _require_usual(
            name, "layer_types", sorted({str(kind) for kind in kinds} or {"full_attention"}), ["full_attention"]
        )
    longest: int = settings.get("max_position_embeddings", 2048)
    return min(longest, settings["sliding_window"]) if windowed else longest


def _require_usual(model: str, key: str, value: Any, usual: Any) -> None:
    """Refuse a model that would be another one here."""
    if value is not None and value != usual:
        raise FledgeError(
            f"{model} with {key} = {value!r:.40} is not supported: it is {usual} in a model that can be imported."
        )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a description whose values are of the wrong kind, out of range, or at odds with each other."""
    rotary = settings["model_type"] not in ("gpt2", "openai-gpt")
    _check(settings, LLAMA if rotary else GPT2)
    for table in ("rope_parameters", "rope_scaling") if rotary else ():
        _check(settings.get(table) or {}, {"rope_theta": _ABOVE_ZERO}, f"{table}.")
    width, heads = ("hidden_size", "num_attention_heads") if rotary else ("n_embd", "n_head")
    if settings["model_type"] not in _UNDIVIDED:
        _check_divides(settings, heads, width)
    if rotary and settings.get("num_key_value_heads"):
        _check_divides(settings, "num_key_value_heads", heads)
    if rotary and ((size := _head_size(settings)) % 2 or size < 1):
        said = "head_dim" if settings.get("head_dim") else f"{width} / {heads} = {settings[width]} / {settings[heads]}"
        raise FledgeError(f"{said} = {size} is not allowed: a head's size is an even number.")


def _head_size(settings: Mapping[str, Any]) -> int:
    if settings["model_type"] == "qwen3" and "head_dim" not in settings:
        return 128
    return int(settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"])


def _check(settings: Mapping[str, Any], keys: Mapping[str, Allowed], prefix: str = "") -> None:
    for key, allowed in keys.items():
        if key not in settings:
            if allowed.required:
                raise FledgeError(f"it lacks {prefix}{key}, which a model of its type has: {allowed.words}.")
            continue
        value = settings[key]
        if not (allowed.holds(value) or (value is None and allowed.nullable)):
            raise FledgeError(f"{prefix}{key} = {json.dumps(value):.40} is not allowed: it is {allowed.words}.")


def _check_divides(settings: Mapping[str, Any], part: str, whole: str) -> None:
    if settings[whole] % settings[part]:
        raise FledgeError(
            f"{part} = {settings[part]} is not allowed: it divides {whole}, which is {settings[whole]} here."
        )
