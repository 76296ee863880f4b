"""Models to and from other programs: Hugging Face folders for Llama-shaped and GPT-2 models, GGUF and ONNX files."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from fledge.bundle.card import IMPORTED
from fledge.bundle.fit import require_fit
from fledge.bundle.load import Bundle, fill, lay_out_for
from fledge.bundle.sampling import GENERATION, hub_sampling, sampling_from_hub
from fledge.bundle.save import MODEL, save_bundle
from fledge.bundle.weights import Shape, check_shapes, read_headers, read_tensors, tensor_files, write_sharded
from fledge.config import RunConfig, TokenizerConfig, TokensConfig
from fledge.errors import FledgeError, nearest
from fledge.files import atomic_folder, read_json, require_space, write_json
from fledge.model.exchange import config_from_hub, export_weights, format_of, hub_settings, import_weights
from fledge.tokenizer import load_tokenizer

FORMATS = ("huggingface", "gguf", "onnx")
FILES = {".gguf": "gguf", ".onnx": "onnx"}  # formats of one file, which its name tells
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_bundle(bundle: Bundle, target: Path | str, format: str | None = None, dtype: str | None = None) -> Path:
    """Write the bundle's model and tokenizer for other programs; a `target` that ends in .gguf or .onnx says so."""
    target = Path(target)
    named = FILES.get(target.suffix.lower())
    if format is None:
        format = named or "huggingface"
    if format not in FORMATS:
        raise FledgeError(f"{format!r} is not a format to export to. {nearest(format, FORMATS)}")
    if named is not None and format != named:
        raise FledgeError(
            f"{target} is the name of {'an' if named == 'onnx' else 'a'} {named.upper()} file, and {format} writes "
            f"{'a folder' if format == 'huggingface' else 'another'}. Choose another name, or leave the format out."
        )
    if dtype is not None and dtype not in DTYPES:
        raise FledgeError(f"{dtype!r} is not a type for weights. {nearest(dtype, DTYPES)}")
    if target.exists():
        raise FledgeError(f"{target} exists already. Choose another name, or remove it first.")
    if bundle.tokenizer.kind != "bpe":
        raise FledgeError(
            f"The bundle has a {bundle.tokenizer.kind} tokenizer, and other programs read BPE only. "
            "It can't be exported."
        )
    weights = bundle.model.state_dict()
    kind = DTYPES[dtype] if dtype is not None else next(iter(weights.values())).dtype
    size = sum(tensor.numel() for tensor in weights.values()) * kind.itemsize
    require_space(target.parent, size + 1_000_000, f"The export {target.name}")
    if format == "gguf":
        from fledge.bundle.gguf import write_gguf

        return write_gguf(target, bundle, weights, kind)
    if format == "onnx":
        from fledge.bundle.onnx import write_onnx

        return write_onnx(target, bundle, weights, kind)
    return _write_hub_folder(target, bundle, {name: tensor.to(kind) for name, tensor in weights.items()})


def _write_hub_folder(target: Path, bundle: Bundle, weights: dict[str, Tensor]) -> Path:
    config, facts, roles = bundle.config.model, bundle.manifest.model, bundle.tokenizer.roles
    if format_of(config) not in ("gpt2", "llama"):
        raise FledgeError(
            "transformers knows no model like this one. GPT-2's shape has layer norms, biases, learned positions and "
            "gelu_tanh; Llama's has rms norms, no biases, rope and swiglu; both are pre-norm and without qk_norm."
        )
    settings = hub_settings(config, facts.vocabulary_size, facts.context_length)
    precision = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    tokens = {"bos_token_id": roles.start, "eos_token_id": roles.end, "pad_token_id": roles.pad}
    known = {name: value for name, value in tokens.items() if value is not None}
    generation = {**known, **hub_sampling(bundle.config, facts.context_length)}
    with atomic_folder(target) as work:
        write_json(work / "config.json", {**settings, **tokens, "dtype": precision})
        write_json(work / GENERATION, generation)
        bundle.tokenizer.save(work)
        _name_for_hub(work / "tokenizer_config.json", facts.context_length)
        named = export_weights(config, weights)
        if settings.get("tie_word_embeddings"):
            named.pop("lm_head.weight", None)  # it is the embedding matrix, and is said to be
        write_sharded(work, MODEL, named)
    return target


def _name_for_hub(path: Path, context_length: int) -> None:
    values = read_json(path)
    write_json(path, {**values, "model_max_length": context_length})


def import_bundle(source: Path | str, target: Path | str, tokenizer: Path | str | None = None) -> Path:
    """A bundle of the model in a Hugging Face folder. Only safetensors are read: pickled weights may run code."""
    source = Path(source)
    if not (source / "config.json").is_file():
        raise FledgeError(f"{source} is not a Hugging Face folder: there is no config.json in it.")
    settings = read_json(source / "config.json")
    if not isinstance(settings, dict):
        raise FledgeError(f"{source / 'config.json'} is not the description of a model.")
    try:
        config, vocabulary_size, context_length = config_from_hub(settings)
    except FledgeError as error:
        raise FledgeError(f"{source / 'config.json'}: {error}") from None
    if not list(source.glob("model*.safetensors")):
        pickled = next((p.name for p in source.iterdir() if p.suffix in (".bin", ".pt", ".pth")), None)
        advice = (
            f"{pickled} is a pickled file, which may run code when it is read: save the model as safetensors."
            if pickled
            else "There is no model.safetensors in it."
        )
        raise FledgeError(f"{source} can't be imported. {advice}")
    paths = tensor_files(source, MODEL)
    headers = read_headers(paths)
    found = load_tokenizer(source if tokenizer is None else tokenizer)
    require_fit(found.vocab_size, vocabulary_size, advice="Name the right one with --tokenizer.")
    sampling = sampling_from_hub(source, found)
    model = lay_out_for(headers, config, vocabulary_size, context_length, source / "config.json")
    try:
        weights = import_weights(config, read_tensors(paths))
    except FledgeError as error:
        raise FledgeError(f"{source}: {error}") from None
    shapes = {name: Shape(tensor.dtype, tuple(tensor.shape)) for name, tensor in weights.items()}
    check_shapes(shapes, {name: tuple(t.shape) for name, t in model.state_dict().items()}, source)
    # Some folders keep a few weights wider than the others. A bundle's are all of one type: the widest loses nothing.
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in weights.values()))
    fill(model, {name: tensor.to(widest) for name, tensor in weights.items()})
    name = source.resolve().name or "imported"
    run = RunConfig(
        name=name,
        model=config,
        tokens=TokensConfig(context_length=context_length),
        tokenizer=TokenizerConfig(vocabulary_size=found.vocab_size, special_tokens=tuple(found.special_tokens)),
        sampling=sampling,
    )
    return save_bundle(target, run, found, model, metrics={IMPORTED: name})
