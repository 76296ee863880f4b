"""Models to and from other programs: Hugging Face folders, GGUF and ONNX files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fledge.bundle.archive import is_archive
from fledge.bundle.card import IMPORTED
from fledge.bundle.fit import require_fit
from fledge.bundle.gguf import MODELFILE, QUANTISED, write_gguf
from fledge.bundle.layout import lay_out_for
from fledge.bundle.manifest import MODEL
from fledge.bundle.sampling import GENERATION, hub_sampling, sampling_from_hub
from fledge.bundle.save import WeightsToCome, save_bundle
from fledge.bundle.weights import (
    OnDisk,
    TensorHeader,
    check_shapes,
    read_headers,
    tensor_files,
    without_memory,
    write_sharded,
)
from fledge.config import ModelConfig, RunConfig, TokenizerConfig, TokensConfig
from fledge.errors import FledgeError, nearest, note
from fledge.files import atomic_folder, did_you_mean, read_json, require_space, write_json
from fledge.model.exchange import TABLES, export_weights, exported, import_weights, imported, require_home
from fledge.model.families import HUB, Family, nearest_home
from fledge.model.hub import config_from_hub, family_from_hub, hub_settings
from fledge.tokenizer import load_tokenizer
from fledge.tokenizer.save import write_hub_tokenizer

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle
    from fledge.model import Model

FORMATS = ("huggingface", "gguf", "onnx")
FILES = {".gguf": "gguf", ".onnx": "onnx"}  # formats of one file, which its name tells
SHORT = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export_bundle(bundle: Bundle, target: Path | str, format: str | None = None, dtype: str | None = None) -> Path:
    """Write the bundle's model and tokenizer for other programs; a `target` that ends in .gguf or .onnx says so."""
    target = Path(target)
    named = FILES.get(target.suffix.lower())
    if format is None:
        if named is None and re.fullmatch(r"\.[A-Za-z]\w*", target.suffix):
            raise FledgeError(
                f"No export format has the extension {target.suffix}. Name a .gguf file (for llama.cpp and "
                "Ollama) or an .onnx file. For a transformers folder, give a name without an extension, or "
                "--format huggingface."
            )
        format = named or "huggingface"
    if format not in FORMATS:
        raise FledgeError(f"{format!r} is not an export format. {nearest(format, FORMATS)}")
    if named is not None and format != named:
        raise FledgeError(
            f"{target} is the name of {'an' if named == 'onnx' else 'a'} {named.upper()} file, and {format} writes "
            f"{'a folder' if format == 'huggingface' else 'another'}. Choose another name, or leave the format out."
        )
    types = [*DTYPES, *QUANTISED] if format == "gguf" else [*DTYPES]
    if dtype is not None:
        dtype = SHORT.get(dtype.lower(), dtype.lower())
    if dtype is not None and dtype not in types:
        if dtype in QUANTISED:
            raise FledgeError(
                f"{dtype} is a type of GGUF files: name the file {target.name}.gguf, or give another type."
            )
        raise FledgeError(f"{dtype!r} is not a type for weights. {nearest(dtype, types)}")
    for place in (target, *([target.with_suffix(MODELFILE)] if format == "gguf" else ())):
        if place.exists():
            raise FledgeError(f"{place} exists already. Choose another name, or remove it first.")
    weights = bundle.model.state_dict()
    own = next(iter(weights.values())).dtype
    kind = DTYPES.get(dtype or "", own)
    for name, tensor in weights.items():
        most = torch.stack(tensor.aminmax()).abs().max().item()  # one pass, and not a number where one is none
        if not math.isfinite(most):
            raise FledgeError(
                f"{bundle.source}: {name} holds numbers that are not finite, so its training diverged. Export "
                "an earlier checkpoint."
            )
        if most > torch.finfo(kind).max:
            raise FledgeError(f"{name} holds {most:.3g}, which is too large for {dtype}. Export with --dtype float32.")
    size = sum(tensor.numel() for tensor in weights.values()) * kind.itemsize
    require_space(target.parent, size + 1_000_000, f"The export {target.name}")
    if format == "gguf":
        return write_gguf(target, bundle, weights, dtype or str(kind).removeprefix("torch."))
    if format == "onnx":
        from fledge.bundle.onnx import write_onnx

        return write_onnx(target, bundle, weights, kind)
    return _write_hub_folder(target, bundle, weights, kind)


def _write_hub_folder(target: Path, bundle: Bundle, weights: dict[str, Tensor], kind: torch.dtype) -> Path:
    config, facts, roles = bundle.config.model, bundle.manifest.model, bundle.tokenizer.roles
    settings = hub_settings(config, facts.vocabulary_size, facts.context_length)
    family = require_home(config)
    precision = str(kind).removeprefix("torch.")
    tokens = {"bos_token_id": roles.start, "eos_token_id": roles.end, "pad_token_id": roles.pad}
    known = {name: value for name, value in tokens.items() if value is not None}
    generation = {**known, **hub_sampling(bundle.config, facts.context_length)}
    with atomic_folder(target) as work:
        write_json(work / "config.json", {**settings, **tokens, "dtype": precision})
        write_json(work / GENERATION, generation)
        write_hub_tokenizer(work, bundle.tokenizer, facts.context_length)
        if family.file:
            (work / family.file).write_bytes(files("fledge.model").joinpath("standalone", family.file).read_bytes())
        forms = {name: tensor.to("meta", kind) for name, tensor in weights.items()}
        named = export_weights(config, forms, facts.context_length, family)
        if settings.get("tie_word_embeddings"):
            named.pop("lm_head.weight", None)  # it is the embedding matrix, and is said to be
        pairs = exported(config, weights, facts.context_length, family)
        write_sharded(work, MODEL, named, values=(tensor.to(kind) for name, tensor in pairs if name in named))
    if family.file:
        nearest_one = f" {nearest_home(config, HUB)}" if config.architecture == "transformer" else ""
        note(
            f"transformers has no model like this one, so the folder contains its own code, {family.file}: "
            f"load it with trust_remote_code=True.{nearest_one}"
        )
    return target


def _check_hub_shapes(
    config: ModelConfig, model: Model, headers: Mapping[str, TensorHeader], source: Path, family: Family
) -> None:
    """The file's weights are those of its config.json, by the names that they have there, and no others."""
    named = export_weights(config, model.state_dict(), model.context_length, family)
    wanted = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if config.tied:
        wanted.pop("lm_head.weight", None)
    if family.file:
        return check_shapes(headers, wanted, source)
    prefix = next(iter(wanted)).partition(".")[0] + "."
    short = {name: name.removeprefix(prefix) for name in wanted}  # as GPT-2's own files have them
    found = {name: headers[key] for name in wanted if (key := name if name in headers else short[name]) in headers}
    check_shapes(found, wanted, source)
    known = wanted.keys() | short.values()
    for name in headers.keys() - known:
        if re.search(r"\.(?:layers|h)\.\d+\.|^h\.\d+\.", name) and not TABLES.search(name):
            raise FledgeError(f"{source} holds {name}, which a model of its config.json does not have.")


def import_bundle(
    source: Path | str, target: Path | str, tokenizer: Path | str | None = None, origin: str | None = None
) -> Path:
    """A bundle of the model in a Hugging Face folder, with the note that it came from `origin`.

    Only safetensors are read: pickled weights may run code."""
    source = Path(source)
    if is_archive(source):
        raise FledgeError(f"{source} is a packed fledge bundle. It needs no import: use it as it is.")
    if not (source / "config.json").is_file():
        why = "there is no config.json in it." if source.exists() else "there is nothing at that path."
        meant = "" if source.exists() else did_you_mean(source)
        raise FledgeError(f"{source} is not a Hugging Face folder: {why}{meant}")
    settings = read_json(source / "config.json")
    if not isinstance(settings, dict):
        raise FledgeError(f"{source / 'config.json'} is not the description of a model.")
    try:
        family = family_from_hub(settings)
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
    sampling = sampling_from_hub(source, found, context_length)
    model = lay_out_for(headers, config, vocabulary_size, context_length, source / "config.json")
    _check_hub_shapes(config, model, headers, source, family)
    try:
        named = import_weights(config, without_memory(headers), family)
    except FledgeError as error:
        raise FledgeError(f"{source}: {error}") from None
    shapes = {name: TensorHeader(tensor.dtype, tuple(tensor.shape)) for name, tensor in named.items()}
    check_shapes(shapes, {name: tuple(t.shape) for name, t in model.state_dict().items()}, source)
    # Some folders keep a few weights wider than the others. A bundle's are all of one type: the widest loses nothing.
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in named.values()))

    def values() -> Iterator[Tensor]:
        for name, tensor in imported(config, OnDisk(paths), family, named):
            if not tensor.isfinite().all():
                raise FledgeError(
                    f"{source} holds numbers that are not finite, in the weights that fledge calls {name}. Do not "
                    "use it."
                )
            yield tensor.to(widest)

    name = Path(target).name if origin else source.resolve().name or "imported"
    run = RunConfig(
        name=name,
        model=config,
        tokens=TokensConfig(context_length=context_length),
        tokenizer=TokenizerConfig(vocabulary_size=found.vocab_size, special_tokens=tuple(found.special_tokens)),
        sampling=sampling,
    )
    written = WeightsToCome({name: tensor.to(widest) for name, tensor in named.items()}, values())
    return save_bundle(target, run, found, model, metrics={IMPORTED: origin or name}, weights=written)
