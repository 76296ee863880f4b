"""GGUF files, for llama.cpp and its relatives: the weights, the settings and the tokenizer in one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.errors import FledgeError, note
from fledge.extras import missing
from fledge.files import atomic_write
from fledge.model.exchange import export_weights, exported
from fledge.model.families import GGUF, Family, home, nearest_home
from fledge.model.layers import rotary_frequencies, stretch
from fledge.tokenizer.huggingface import DIGITS, QWEN, write_merges, write_vocabulary
from fledge.tokenizer.patterns import PATTERNS
from fledge.tokenizer.sentencepiece import BYTE, SentencePieceTokenizer
from fledge.tokenizer.spelling import FIRST_BYTE, FIRST_PIECE, SpellingTokenizer, written_names

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle
    from fledge.tokenizer import Tokenizer

QUANTISED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "mxfp4", "tq2_0", "tq1_0")
"All types that the package gguf can write."
SMALL = QUANTISED[1:]
GGML = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", **{kind: kind.upper() for kind in QUANTISED}}
TOKENS, HEAD, PLACES = "token_embd.weight", "output.weight", "position_embd.weight"
MODELFILE = ".Modelfile"
PRE_TOKENIZERS = {
    "gpt2": "gpt-2",
    "cl100k": "llama-bpe",
    "o200k": "granite-embed-multi-97m",
    DIGITS: "smollm",
    QWEN: "qwen2",
}
"What llama.cpp calls the patterns. Its gpt-4o leaves combining marks out of words, so another name stands for o200k."
SPACE = "\u2581"
"A space, in the vocabularies of characters."


def write_gguf(path: Path, bundle: Bundle, weights: dict[str, Tensor], kind: str) -> Path:
    """One file with the weights, the settings and the tokenizer; it appears under its name only when it is whole.

    A Modelfile for Ollama lies beside it. One tensor at a time is converted."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise missing("Exporting to GGUF", "gguf", "hub") from None
    config = bundle.config.model
    if bundle.tokenizer.kind == "word":
        raise FledgeError(
            "GGUF has no tokenizer that cuts text into words. Train with tokenizer.kind=bpe or character, or export a "
            "folder for transformers or an .onnx file."
        )
    family = home(config, GGUF)
    if family is None:
        raise FledgeError(f"No architecture of GGUF is like this model. {nearest_home(config, GGUF)}")
    length, extra = bundle.manifest.model.context_length, {}
    if config.position == "none" and "position_embeddings" not in family.top:
        # Pairs that turn by the 10^30th part of an angle stand still.
        extra["rope_freqs.weight"] = torch.full((config.head_width // 2,), 1e30)
    elif config.rope_scaling is not None:
        plain = rotary_frequencies(config.head_width, config.rope_theta)
        extra["rope_freqs.weight"] = stretch(plain, config.rope_scaling)
    named = export_weights(config, {name: tensor.to("meta") for name, tensor in weights.items()}, length, family)
    named |= extra
    with atomic_write(path) as file:
        writer = gguf.GGUFWriter(file.name, family.name)
        _write_settings(writer, bundle, family)
        _write_tokenizer(writer, bundle, gguf)
        kinds = {name: _kind_of(gguf, name, tensor, kind) for name, tensor in named.items()}
        _say_what_stays_wide(gguf, kinds, kind)
        for name, tensor in named.items():
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, kinds[name])
            raw = torch.empty(0, dtype=torch.uint8).numpy().dtype
            writer.add_tensor_info(name, shape, raw, math.prod(shape), raw_dtype=kinds[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in chain(exported(config, weights, length, family), extra.items()):
            writer.write_tensor_data(_converted(gguf, tensor, kinds[name]))
        writer.close()
    path.with_suffix(MODELFILE).write_text(modelfile(path.name, bundle), encoding="utf-8")
    return path


def rounded_as_stored(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """A model's own weights as they come out of a GGUF file of this type, to measure what it costs."""
    import gguf

    found = {}
    for name, tensor in weights.items():
        place = {"token_embeddings.weight": TOKENS, "lm_head.weight": HEAD, "position_embeddings.weight": PLACES}
        chosen = _kind_of(gguf, place.get(name, name), tensor, kind)
        values = gguf.quants.dequantize(_converted(gguf, tensor, chosen), chosen)
        found[name] = torch.from_numpy(values.reshape(tensor.shape)).to(tensor)
    return found


def _kind_of(gguf: Any, name: str, tensor: Tensor, kind: str) -> Any:
    """Norms, biases and positions stay wide: readers expect it. The two matrices of tokens have 8 bits at least."""
    types = gguf.GGMLQuantizationType
    if tensor.ndim == 1 or name == PLACES:
        return types.F32
    if name in (TOKENS, HEAD) and kind in SMALL:
        kind = "q8_0"
    block, _ = gguf.GGML_QUANT_SIZES[types[GGML[kind]]]
    return types[GGML[kind]] if tensor.shape[-1] % block == 0 else types.F16


def _say_what_stays_wide(gguf: Any, kinds: Mapping[str, Any], kind: str) -> None:
    if kind in QUANTISED and (wide := sum(found.name == "F16" for found in kinds.values())):
        block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[GGML[kind]]]
        all_ = sum(found.name not in ("F32", "BF16") for found in kinds.values())
        note(
            f"{kind} packs {block} numbers of a row at a time: {wide} of {all_} matrices have rows that do not divide "
            f"by that, and stay in 16 bits. Train with a model.width and model.hidden that are multiples of {block}, "
            "or give another type."
        )


def _converted(gguf: Any, tensor: Tensor, kind: Any) -> Any:
    tensor = tensor.detach().to("cpu").contiguous()
    if kind.name == "BF16":
        return tensor.to(torch.bfloat16).view(torch.uint8).numpy()
    if kind.name in ("F16", "F32"):
        return tensor.to(torch.float16 if kind.name == "F16" else torch.float32).view(torch.uint8).numpy()
    return gguf.quants.quantize(tensor.float().numpy(), kind)


def modelfile(name: str, bundle: Bundle) -> str:
    """What `ollama create` reads: the file, the prompt as it is, and the sampling settings."""
    sampling = bundle.config.sampling
    values: dict[str, object] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p or 1.0,
        "min_p": sampling.min_p or 0.0,
        "repeat_penalty": sampling.repetition_penalty,
        "num_predict": sampling.max_tokens,
        "num_ctx": bundle.manifest.model.context_length,
    }
    lines = [
        f"FROM ./{name}",
        'TEMPLATE """{{ .Prompt }}"""',
        *(f"PARAMETER {key} {value}" for key, value in values.items()),
    ]
    for text in sampling.stop:
        if '"""' in text or text.endswith('"'):
            note(f"A Modelfile can't express the stop text {text!r:.60}, so it is left out.")
        else:
            lines.append(f'PARAMETER stop """{text}"""')
    return "\n".join(lines) + "\n"


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
        writer.add_rope_dimension_count(config.head_width)
    if family.name == "qwen3" or config.head_size is not None:
        writer.add_key_length(config.head_width)
        writer.add_value_length(config.head_width)
    if family.name == "stablelm":
        writer.add_parallel_residual(False)
    writer.add_vocab_size(facts.vocabulary_size)


def _write_tokenizer(writer: Any, bundle: Bundle, gguf: Any) -> None:
    tokenizer, roles = bundle.tokenizer, bundle.tokenizer.roles
    size, types = bundle.manifest.model.vocabulary_size, gguf.TokenType
    if isinstance(tokenizer, SpellingTokenizer):
        names, kinds = _write_characters(writer, tokenizer, types)
        writer.add_token_scores([0.0] * size)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        names, kinds = _write_sentencepiece(writer, tokenizer, types, size)
    else:
        names, kinds = _write_bpe(writer, tokenizer, types)
    writer.add_token_list([names.get(token, f"[unused{token}]") for token in range(size)])
    writer.add_token_types([kinds.get(token, types.UNUSED) for token in range(size)])
    for add, role in (
        (writer.add_bos_token_id, roles.start),
        (writer.add_eos_token_id, roles.end),
        (writer.add_pad_token_id, roles.pad),
        (writer.add_unk_token_id, roles.unknown),
    ):
        if role is not None:
            add(role)
    writer.add_add_bos_token(roles.own_start is not None)  # as `generate` begins a text


def _write_bpe(writer: Any, tokenizer: Tokenizer, types: Any) -> tuple[dict[int, str], dict[int, Any]]:
    """How text is cut and joined; the names and kinds of the tokens."""
    parts = tokenizer.parts()
    names = {token: text for text, token in write_vocabulary(parts, "the GGUF file").items()}
    names |= {token: text for text, token in tokenizer.special_tokens.items()}
    kinds = dict.fromkeys(names, types.NORMAL)
    for text, token in tokenizer.special_tokens.items():
        kinds[token] = types.USER_DEFINED if text in parts.always else types.CONTROL
    writer.add_tokenizer_model("gpt2")
    if parts.composed:
        note(
            "GGUF does not say that text is composed to the Unicode form NFC first, so programs that read the file may "
            "give text in another form other ids."
        )
    if parts.pattern not in PRE_TOKENIZERS:
        note(
            "GGUF has no name for this tokenizer's pattern, so programs that read the file cut text their own way, and "
            f"may get other ids. It has names for {', '.join(PATTERNS)}."
        )
    elif parts.pattern == "o200k":
        note("The pattern o200k has had a name in GGUF since May 2026: older programs refuse the file.")
    writer.add_tokenizer_pre(PRE_TOKENIZERS.get(parts.pattern, "default"))
    writer.add_token_merges(write_merges(parts))
    return names, kinds


def _write_sentencepiece(
    writer: Any, tokenizer: SentencePieceTokenizer, types: Any, size: int
) -> tuple[dict[int, str], dict[int, Any]]:
    """Its names are those of the file; the score of a token is the place of the merge that makes it."""
    names = {token: name for name, token in tokenizer.names.items()}
    names |= {token: text for text, token in tokenizer.special_tokens.items()}
    kinds = {token: types.BYTE if BYTE.fullmatch(name) else types.NORMAL for token, name in names.items()}
    for text, token in tokenizer.special_tokens.items():
        kinds[token] = types.USER_DEFINED if text in tokenizer.always else types.CONTROL
    if tokenizer.roles.unknown is not None:
        kinds[tokenizer.roles.unknown] = types.UNKNOWN
    ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(tokenizer.merges)))}
    if tokenizer.prefix in ("first", "each") or not tokenizer.merges_all_splits():
        note(
            "Programs that read the GGUF file put a space before every stretch of text, and merge whatever makes a "
            "token: some texts may get other ids there."
        )
    writer.add_tokenizer_model("llama")
    writer.add_add_space_prefix(tokenizer.prefix != "none")
    writer.add_token_scores([-float(ranks.get(names.get(token, ""), len(ranks))) for token in range(size)])
    return names, kinds


def _write_characters(writer: Any, tokenizer: SpellingTokenizer, types: Any) -> tuple[dict[int, str], dict[int, Any]]:
    """As a SentencePiece model that joins nothing: a character is a token, or its bytes are."""
    names = written_names(tokenizer)
    if SPACE in tokenizer.pieces:
        note(f"GGUF writes a space as {SPACE} (U+2581), and the tokenizer knows that, too: it becomes a space there.")
    kinds = {token: types.BYTE if FIRST_BYTE + 128 <= token < FIRST_PIECE else types.NORMAL for token in names}
    kinds |= dict.fromkeys(tokenizer.special_tokens.values(), types.CONTROL)
    names = {token: f"[{SPACE}]" if text == SPACE else text for token, text in names.items()}
    names |= {FIRST_BYTE: "<0x00>", FIRST_BYTE + ord(" "): SPACE}  # names end at a zero byte there
    kinds[FIRST_BYTE] = types.BYTE
    writer.add_tokenizer_model("llama")
    writer.add_add_space_prefix(False)
    return names, kinds
