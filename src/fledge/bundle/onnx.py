"""ONNX files: the forward pass as one graph, ids in and scores out, for onnxruntime and programs without Python.

A recurrent network takes its state, too, and gives the one after these tokens. The tokenizer's two files travel inside,
as texts among the file's metadata.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.bundle.layout import fill, lay_out_model
from fledge.errors import FledgeError
from fledge.extras import missing
from fledge.files import atomic_write, readable_bytes, temporary_folder
from fledge.model.recurrent import KINDS
from fledge.tokenizer.disk import CONFIGURATION, VOCABULARY
from fledge.tokenizer.save import write_hub_tokenizer

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle
    from fledge.model import Model

LARGEST = 2_000_000_000  # such a file is one message of Protocol Buffers, which ends at 2 GiB
ARCHITECTURES = ("transformer", "bdh", *KINDS)


def write_onnx(path: Path, bundle: Bundle, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Path:
    """One file with the graph, the weights and the tokenizer; it appears under its name only when it is whole."""
    try:
        import onnxscript  # noqa: F401  (torch's exporter needs it, and says so less clearly)
    except ModuleNotFoundError:
        raise missing("Exporting to ONNX", "onnxscript", "hub") from None
    config, facts = bundle.config, bundle.manifest.model
    if config.model.architecture not in ARCHITECTURES:
        raise FledgeError(
            f"model.architecture = {config.model.architecture} can't be exported to ONNX. "
            f"Allowed: {', '.join(ARCHITECTURES)}."
        )
    if dtype == torch.bfloat16:
        raise FledgeError("Programs that run ONNX files do not calculate in bfloat16. Give --dtype float32 or float16.")
    size = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize
    if size > LARGEST:
        raise FledgeError(
            f"The weights take {readable_bytes(size)}, and an ONNX file holds at most {readable_bytes(LARGEST)}. "
            "Give --dtype float16 if that is less, or export to another format."
        )
    narrow = {name: tensor.to(dtype) for name, tensor in weights.items()}
    about = {"name": config.name, "context_length": str(facts.context_length), **_tokenizer_files(bundle)}
    if config.model.architecture in KINDS:
        from fledge.bundle.onnx_recurrent import recurrent_graph

        proto = recurrent_graph(config.model, narrow)
        for key, value in about.items():
            proto.metadata_props.add(key=key, value=value)
    else:
        with _quiet():
            model = lay_out_model(config.model, facts.vocabulary_size, facts.context_length)
        fill(model, narrow)
        program = _graph(model.eval())
        program.model.metadata_props.update(about)
        proto = program.model_proto
    with atomic_write(path) as file:
        file.write(proto.SerializeToString())
    return path


def _graph(model: Model) -> Any:
    """The traced model, for any number of texts and any length up to the context's."""
    from fledge.model.bdh_layer import mix

    sizes = {0: torch.export.Dim("batch", min=1)}
    if model.context_length > 1:
        sizes[1] = torch.export.Dim("length", min=1, max=model.context_length)
    sample = torch.zeros(2, min(3, model.context_length), dtype=torch.long)
    with _quiet(), torch.no_grad():
        traced = torch.export.export(model, (sample,), dynamic_shapes=(sizes,))
        traced = traced.run_decompositions({torch.ops.fledge.bdh_mix.default: mix})
        program = torch.onnx.export(
            traced, dynamo=True, input_names=["input_ids"], output_names=["logits"], verbose=False
        )
    assert program is not None
    for value in (*program.model.graph.inputs, *program.model.graph.outputs):
        assert value.shape is not None
        for place, size in sizes.items():
            value.shape[place] = size.__name__
    return program


def _tokenizer_files(bundle: Bundle) -> dict[str, str]:
    with temporary_folder("fledge-tokenizer-") as folder:
        write_hub_tokenizer(Path(folder), bundle.tokenizer, bundle.manifest.model.context_length)
        return {name: (Path(folder) / name).read_text("utf-8") for name in (VOCABULARY, CONFIGURATION)}


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter tells of packages that it does not need here, and what the settings lack was said on loading."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
