"""GGUF files, for llama.cpp and its relatives: the weights, the settings and the tokenizer in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.errors import FledgeError, note
from fledge.extras import missing
from fledge.files import atomic_write
from fledge.model.exchange import export_weights
from fledge.model.families import GGUF, Family, home, nearest_home
from fledge.model.layers import rotary_frequencies, stretch
from fledge.tokenizer.huggingface import write_merges, write_vocabulary

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle

PRE_TOKENIZERS = {"gpt2": "gpt-2", "cl100k": "llama-bpe", "o200k": "gpt-4o"}


def write_gguf(path: Path, bundle: Bundle, weights: dict[str, Tensor], dtype: torch.dtype) -> Path:
    """One file with the weights, the settings and the tokenizer; it appears under its name only when it is whole."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise missing("Exporting to GGUF", "gguf", "hub") from None
    config = bundle.config.model
    family = home(config, GGUF)
    if family is None:
        raise FledgeError(f"No architecture of GGUF is like this model. {nearest_home(config, GGUF)}")
    named = export_weights(config, weights, bundle.manifest.model.context_length, family)
    if config.position == "none" and "position_embeddings" not in family.top:
        # Pairs that turn by the 10^30th part of an angle stand still.
        named["rope_freqs.weight"] = torch.full((config.width // config.heads // 2,), 1e30)
    elif config.rope_scaling is not None:
        plain = rotary_frequencies(config.width // config.heads, config.rope_theta)
        named["rope_freqs.weight"] = stretch(plain, config.rope_scaling)
    with atomic_write(path) as file:
        writer = gguf.GGUFWriter(file.name, family.name)
        _write_settings(writer, bundle, family)
        _write_tokenizer(writer, bundle, gguf)
        for name, tensor in named.items():
            _write_tensor(writer, name, tensor, dtype, gguf)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def _write_settings(writer: Any, bundle: Bundle, family: Family) -> None:
    config, facts = bundle.config.model, bundle.manifest.model
    writer.add_name(bundle.config.name)
    writer.add_context_length(facts.context_length)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.inner_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads or config.heads)
    if config.norm == "rms":
        writer.add_layer_norm_rms_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_eps(config.norm_epsilon)
    if "position_embeddings" not in family.top:
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_rope_dimension_count(config.width // config.heads)
    if family.name == "qwen3":  # its heads have a size of their own there
        writer.add_key_length(config.width // config.heads)
        writer.add_value_length(config.width // config.heads)
    if family.name == "stablelm":
        writer.add_parallel_residual(False)
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
        note(
            "GGUF has no name for this tokenizer's pattern, so programs that read the file cut text their own way, and "
            f"may get other ids. It has names for {', '.join(PRE_TOKENIZERS)}."
        )
    elif parts.pattern == "o200k":
        note(
            "llama.cpp cuts words with combining marks, as in Hindi, in its own way under the pattern o200k, and gets "
            "other ids for them. Its gpt2 and cl100k are as here."
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
    # Norms and biases stay wide, and so do positions, which some programs add before they convert: readers expect it.
    kind = torch.float32 if tensor.ndim == 1 or name == "position_embd.weight" else dtype
    tensor = tensor.detach().to("cpu", kind).contiguous()
    if tensor.dtype == torch.bfloat16:
        raw = tensor.view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_shape=raw.shape, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.numpy())
