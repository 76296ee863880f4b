"""GGUF files of Llama-shaped models, for llama.cpp and its relatives. Their RoPE turns adjacent pairs, as ours does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.errors import FledgeError
from fledge.extras import missing
from fledge.files import atomic_write
from fledge.model.exchange import format_of
from fledge.tokenizer.huggingface import write_merges, write_vocabulary

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle

TOP = {
    "token_embeddings.weight": "token_embd.weight",
    "ln_final.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.output_proj": "attn_output",
    "ln1": "attn_norm",
    "ln2": "ffn_norm",
    "ffn.w1": "ffn_gate",
    "ffn.w2": "ffn_down",
    "ffn.w3": "ffn_up",
}
PRE_TOKENIZERS = {"gpt2": "gpt-2", "cl100k": "llama-bpe", "o200k": "gpt-4o"}


def write_gguf(path: Path, bundle: Bundle, weights: dict[str, Tensor], dtype: torch.dtype) -> Path:
    """One file with the weights, the settings and the tokenizer; it appears under its name only when it is whole."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise missing("Exporting to GGUF", "gguf", "hub") from None
    if format_of(bundle.config.model) != "llama":
        raise FledgeError("GGUF holds Llama-shaped models: rms norms, no biases, rope, swiglu, pre-norm, no qk_norm.")
    with atomic_write(path) as file:
        writer = gguf.GGUFWriter(file.name, "llama")
        _write_settings(writer, bundle)
        _write_tokenizer(writer, bundle, gguf)
        for name, tensor in weights.items():
            _write_tensor(writer, gguf_name(name), tensor, dtype, gguf)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def gguf_name(name: str) -> str:
    """
    >>> gguf_name("layers.3.attn.q_proj.weight")
    'blk.3.attn_q.weight'
    """
    if name in TOP:
        return TOP[name]
    _, number, *part, kind = name.split(".")
    return f"blk.{number}.{PARTS['.'.join(part)]}.{kind}"


def _write_settings(writer: Any, bundle: Bundle) -> None:
    config, facts = bundle.config.model, bundle.manifest.model
    writer.add_name(bundle.config.name)
    writer.add_context_length(facts.context_length)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.inner_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads or config.heads)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.width // config.heads)
    writer.add_vocab_size(facts.vocabulary_size)


def _write_tokenizer(writer: Any, bundle: Bundle, gguf: Any) -> None:
    from fledge.tokenizer.files import _parts

    tokenizer, roles = bundle.tokenizer, bundle.tokenizer.roles
    parts = _parts(tokenizer)
    names = {token: text for text, token in write_vocabulary(parts, "the GGUF file").items()}
    names |= {token: text for text, token in tokenizer.special_tokens.items()}
    size, types = bundle.manifest.model.vocabulary_size, gguf.TokenType
    kinds = dict.fromkeys(names, types.NORMAL)
    for text, token in tokenizer.special_tokens.items():
        kinds[token] = types.USER_DEFINED if text in parts.always else types.CONTROL
    writer.add_tokenizer_model("gpt2")
    if parts.pattern not in PRE_TOKENIZERS:
        warnings.warn(
            "GGUF has no name for this tokenizer's pattern, so programs that read the file cut text their own way, and "
            f"may get other ids. It has names for {', '.join(PRE_TOKENIZERS)}."
        )
    writer.add_tokenizer_pre(PRE_TOKENIZERS.get(parts.pattern, "default"))
    writer.add_token_list([names.get(token, f"[unused{token}]") for token in range(size)])
    writer.add_token_types([kinds.get(token, types.UNUSED) for token in range(size)])
    writer.add_token_merges(write_merges(parts))
    for add, token in (
        (writer.add_bos_token_id, roles.start),
        (writer.add_eos_token_id, roles.end),
        (writer.add_pad_token_id, roles.pad),
        (writer.add_unk_token_id, roles.unknown),
    ):
        if token is not None:
            add(token)
    writer.add_add_bos_token(roles.own_start is not None)  # as `generate` begins a text


def _write_tensor(writer: Any, name: str, tensor: Tensor, dtype: torch.dtype, gguf: Any) -> None:
    # Norms stay wide: readers expect it.
    kind = torch.float32 if tensor.ndim == 1 else dtype
    tensor = tensor.detach().to("cpu", kind).contiguous()
    if tensor.dtype == torch.bfloat16:
        raw = tensor.view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())
