"""The models of other programs that hold ours: which settings each of them has, and what it calls our weights.

A setting that no entry here names must have its default value, so what is new to `ModelConfig` is refused by all of
them until somebody has looked where it can go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fledge.config import ModelConfig

SIZES = frozenset({"architecture", "layers", "width", "heads", "hidden", "norm_epsilon", "tied"})
"Settings that every family has."
TRAINING = frozenset(
    {
        "dropout",
        "attention_dropout",
        "layer_dropout",
        "token_dropout",
        "initialisation",
        "embedding_deviation",
        "residual_scaling",
    }
)
"Settings that change how a model is trained, and not what it calculates."
LINEAR = frozenset({"attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.output_proj", "ffn.w1", "ffn.w2", "ffn.w3"})
NORMS = frozenset({"ln1", "ln2", "ln_final"})
PLAIN = ("gelu", "gelu_tanh", "silu", "relu2")
FIXED_PLACES = ("learned", "sinusoidal", "none")
BOTH = (False, True)


class Family(NamedTuple):
    """One kind of model elsewhere."""

    name: str
    "`model_type` in a config.json, or the architecture in a GGUF file."
    holds: Mapping[str, tuple[Any, ...] | None]
    "The values that each setting may have; None for any."
    top: Mapping[str, str]
    parts: Mapping[str, str]
    layer: str
    "What stands before a layer's part, with a place for its number."
    model: str = ""
    "The class in transformers."
    epsilon: str = ""
    "The key of `norm_epsilon` in a config.json."
    halves: bool = False
    "RoPE turns pairs half a head apart there, and neighbours here."
    inputs_first: bool = False
    "Matrices have the inputs first."
    fused: str = ""
    "Queries, keys and values are one matrix: all of each (`rows`), or head by head (`heads`)."
    zeros: frozenset[str] = frozenset()
    "Parts that have a bias even where ours have none: it is zero."
    unbiased: frozenset[str] = frozenset()
    "Parts that have no bias even where ours have one: it must be zero."
    architectures: tuple[str, ...] = ("transformer",)
    "Which of ours it holds."
    file: str = ""
    "Our own file with the model, in `standalone`, which travels with the weights: they keep their names."


def _llama_parts(
    up: str = "mlp.up_proj", down: str = "mlp.down_proj", gate: str | None = "mlp.gate_proj"
) -> dict[str, str]:
    attention = {f"attn.{letter}_proj": f"self_attn.{letter}_proj" for letter in "qkv"}
    norms = {"ln1": "input_layernorm", "ln2": "post_attention_layernorm"}
    gated = {"ffn.w1": gate, "ffn.w3": up} if gate else {"ffn.w1": up}
    return {**norms, **attention, "attn.output_proj": "self_attn.o_proj", **gated, "ffn.w2": down}


_LLAMA_TOP = {
    "token_embeddings": "model.embed_tokens",
    "ln_final": "model.norm",
    "lm_head": "lm_head",
}
_GPT2_PARTS = {
    "ln1": "ln_1",
    "ln2": "ln_2",
    "attn.qkv": "attn.c_attn",
    "attn.output_proj": "attn.c_proj",
    "ffn.w1": "mlp.c_fc",
    "ffn.w2": "mlp.c_proj",
}
_QK_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
_HUB: dict[str, Any] = {"layer": "model.layers.{}.", "top": _LLAMA_TOP, "halves": True}
_ROTARY: dict[str, tuple[Any, ...] | None] = {
    "kv_heads": None,
    "head_size": None,
    "rope_theta": None,
    "rope_scaling": None,
    "position": ("rope",),
}
_LLAMA = {**_ROTARY, "norm": ("rms",), "norm_place": ("pre",), "feed_forward": ("swiglu",), "qk_norm": (False,)}
_STARCODER = {**_LLAMA, "norm": ("layer",), "feed_forward": PLAIN, "bias": BOTH}
_GPT2: dict[str, tuple[Any, ...] | None] = {
    "norm": ("layer",),
    "norm_place": ("pre",),
    "position": FIXED_PLACES,
    "feed_forward": PLAIN,
    "qk_norm": (False,),
    "kv_heads": (None,),
    "bias": BOTH,
}

HUB = (
    Family(
        "llama",
        {**_LLAMA, "bias": BOTH},
        parts=_llama_parts(),
        model="LlamaForCausalLM",
        epsilon="rms_norm_eps",
        **_HUB,
    ),
    Family(
        "qwen3",
        {**_LLAMA, "bias": (False,), "qk_norm": (True,)},
        parts={**_llama_parts(), **_QK_NORMS},
        model="Qwen3ForCausalLM",
        epsilon="rms_norm_eps",
        **_HUB,
    ),
    Family(
        "gpt2",
        _GPT2,
        top={
            "token_embeddings": "transformer.wte",
            "position_embeddings": "transformer.wpe",
            "ln_final": "transformer.ln_f",
            "lm_head": "lm_head",
        },
        parts=_GPT2_PARTS,
        layer="transformer.h.{}.",
        model="GPT2LMHeadModel",
        epsilon="layer_norm_epsilon",
        inputs_first=True,
        fused="rows",
        zeros=LINEAR | NORMS,
    ),
    Family(
        "arcee",
        {**_LLAMA, "feed_forward": PLAIN, "bias": BOTH},
        parts=_llama_parts(gate=None),
        model="ArceeForCausalLM",
        epsilon="rms_norm_eps",
        **_HUB,
    ),
    Family(
        "starcoder2",
        _STARCODER,
        parts=_llama_parts("mlp.c_fc", "mlp.c_proj", gate=None),
        model="Starcoder2ForCausalLM",
        epsilon="norm_epsilon",
        zeros=NORMS,
        **_HUB,
    ),
    Family(
        "stablelm",
        {**_STARCODER, "feed_forward": ("swiglu",), "bias": (False,), "head_size": (None,)},
        parts=_llama_parts(),
        model="StableLmForCausalLM",
        epsilon="layer_norm_eps",
        zeros=NORMS,
        **_HUB,
    ),
    Family(
        "smollm3",
        {**_LLAMA, "position": ("none",), "bias": BOTH},
        parts=_llama_parts(),
        model="SmolLM3ForCausalLM",
        epsilon="rms_norm_eps",
        **_HUB,
    ),
    Family(
        "openai-gpt",
        {**_GPT2, "norm_place": ("post",), "feed_forward": ("gelu_tanh", "silu")},
        top={
            "token_embeddings": "transformer.tokens_embed",
            "position_embeddings": "transformer.positions_embed",
            "lm_head": "lm_head",
        },
        parts=_GPT2_PARTS,
        layer="transformer.h.{}.",
        model="OpenAIGPTLMHeadModel",
        epsilon="layer_norm_epsilon",
        inputs_first=True,
        fused="rows",
        zeros=LINEAR | NORMS,
    ),
)
"The models of transformers that hold ours, the first one that does being taken."

_EVERY = dict.fromkeys(
    (
        "kv_heads",
        "head_size",
        "feed_forward",
        "norm",
        "norm_place",
        "position",
        "rope_theta",
        "rope_scaling",
        "qk_norm",
        "bias",
    )
)


def _own(kind: str, holds: Mapping[str, None], architectures: tuple[str, ...]) -> Family:
    name = f"fledge_{kind.lower()}"
    whole = {"top": {}, "parts": {}, "layer": "", "model": f"Fledge{kind}ForCausalLM", "file": f"modeling_{name}.py"}
    return Family(name, holds, architectures=architectures, **whole)  # type: ignore[arg-type]


OWN = (
    _own("Transformer", _EVERY, ("transformer",)),
    _own("BDH", {"multiplier": None}, ("bdh",)),
    _own("Recurrent", {"bias": None}, ("rnn", "gru", "lstm")),
)
"What no model of transformers holds: it reads these with `trust_remote_code`, from the file that lies beside them."

_BY_NAME = {family.name: family for family in HUB}
IMPORTED = {
    **_BY_NAME,
    **{family.name: family for family in OWN},
    "mistral": _BY_NAME["llama"]._replace(name="mistral", unbiased=LINEAR),
    "qwen2": _BY_NAME["llama"]._replace(name="qwen2", unbiased=LINEAR - {"attn.q_proj", "attn.k_proj", "attn.v_proj"}),
    "gpt_neox": _BY_NAME["starcoder2"]._replace(
        name="gpt_neox",
        holds={**_BY_NAME["starcoder2"].holds, "head_size": (None,)},
        top={"token_embeddings": "gpt_neox.embed_in", "ln_final": "gpt_neox.final_layer_norm", "lm_head": "embed_out"},
        parts={
            "ln1": "input_layernorm",
            "ln2": "post_attention_layernorm",
            "attn.qkv": "attention.query_key_value",
            "attn.output_proj": "attention.dense",
            "ffn.w1": "mlp.dense_h_to_4h",
            "ffn.w2": "mlp.dense_4h_to_h",
        },
        layer="gpt_neox.layers.{}.",
        fused="heads",
        epsilon="layer_norm_eps",
    ),
}
"The models of transformers that can be ours, by the `model_type` of their config.json."

_GGUF_PARTS = {
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn.output_proj": "attn_output",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "ffn.w2": "ffn_down",
}
_GGUF_GATED = {**_GGUF_PARTS, "ffn.w1": "ffn_gate", "ffn.w3": "ffn_up"}
_GGUF_PLAIN = {**_GGUF_PARTS, "ffn.w1": "ffn_up"}
_GGUF_TOP = {"token_embeddings": "token_embd", "ln_final": "output_norm", "lm_head": "output"}
_GGUF: dict[str, Any] = {"top": _GGUF_TOP, "layer": "blk.{}."}
_PLAIN_ROPE: dict[str, tuple[Any, ...] | None] = {"rope_scaling": (None,)}
_SHARED: dict[str, tuple[Any, ...] | None] = {**_PLAIN_ROPE, "head_size": (None,)}
# Its programs have one activation for each: GELU is the one by tanh, of which the other differs in the fourth digit.
GGUF = (
    Family("llama", {**_LLAMA, "position": ("rope", "none"), "bias": BOTH}, parts=_GGUF_GATED, **_GGUF),
    Family("qwen3", {**_BY_NAME["qwen3"].holds, **_PLAIN_ROPE}, parts=_GGUF_GATED, halves=True, **_GGUF),
    Family(
        "gpt2",
        {**_GPT2, "feed_forward": ("gelu_tanh",)},
        parts={**_GGUF_PLAIN, "attn.qkv": "attn_qkv"},
        top={**_GGUF_TOP, "position_embeddings": "position_embd"},
        layer="blk.{}.",
        fused="rows",
        zeros=LINEAR | NORMS,
    ),
    Family(
        "arcee", {**_BY_NAME["arcee"].holds, "feed_forward": ("relu2",), "bias": (False,)}, parts=_GGUF_PLAIN, **_GGUF
    ),
    Family(
        "starcoder2",
        {**_STARCODER, **_SHARED, "feed_forward": ("gelu_tanh",)},
        parts=_GGUF_PLAIN,
        halves=True,
        zeros=LINEAR | NORMS,
        **_GGUF,
    ),
    Family(
        "nemotron",
        {**_STARCODER, **_SHARED, "feed_forward": ("relu2",)},
        parts=_GGUF_PLAIN,
        halves=True,
        zeros=NORMS,
        **_GGUF,
    ),
    Family("stablelm", {**_BY_NAME["stablelm"].holds, **_SHARED}, parts=_GGUF_GATED, halves=True, zeros=NORMS, **_GGUF),
)
"The architectures of GGUF files, as llama.cpp calculates them."


def home(config: ModelConfig, families: Iterable[Family]) -> Family | None:
    """The first family that holds such a model, or None."""
    return next((family for family in families if not obstacles(config, family)), None)


def obstacles(config: ModelConfig, family: Family) -> dict[str, Any]:
    """The settings that the family does not hold as they are, each with a value that it does."""
    from fledge.model.registry import find_architecture

    if config.architecture not in family.architectures:
        return {"architecture": family.architectures[0]}
    found: dict[str, Any] = {}
    for name in sorted(find_architecture(config.architecture).settings - SIZES - TRAINING):
        value, default = getattr(config, name), type(config).model_fields[name].default
        allowed = family.holds.get(name, (default,))
        if name in ("rope_theta", "rope_scaling") and config.position != "rope":
            continue
        if name == "kv_heads" and value == config.heads:
            value = None
        if name == "head_size" and value == config.width / config.heads:
            value = None
        if allowed is not None and value not in allowed:
            found[name] = default if default in allowed else allowed[0]
    if family.name == "openai-gpt" and config.inner_size != 4 * config.width:
        found["hidden"] = 4 * config.width
    if family.model in ("LlamaForCausalLM", "ArceeForCausalLM") and config.width % config.heads:  # they insist
        found["width"] = config.width - config.width % config.heads or config.heads
    return found


def nearest_home(config: ModelConfig, families: Iterable[Family]) -> str:
    """The end of a sentence that refuses a model: the fewest settings to change, and what it is called then."""
    family = min(families, key=lambda each: len(obstacles(config, each)))
    changes = ", ".join(f"model.{name}={_written(value)}" for name, value in obstacles(config, family).items())
    return f"The nearest one that does is {family.name}: train with {changes}."


def _written(value: Any) -> str:
    return {None: "none", True: "true", False: "false"}.get(value, str(value))
