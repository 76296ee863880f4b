"""Tensors on disk as safetensors: written in one pass while they are hashed, read memory-mapped, never unpickled.

A file's header is read and held against the file's size before anything else; large models go into several files with
an index, under the names other programs expect.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fledge.bundle.manifest import Entry
from fledge.errors import FledgeError
from fledge.files import require_utf8

LARGEST_HEADER = 100_000_000
SHARD_BYTES = 5_000_000_000
ALIGNMENT = 64  # bytes, as torch allocates: elsewhere its kernels may round differently

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorHeader(NamedTuple):
    """What a header says of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    values: Iterable[Tensor] | None = None,
) -> Entry:
    """One safetensors file, with one tensor's worth of memory besides the tensors; its size and SHA-256.

    With `values`, in the same order, `tensors` say only what is where, and need no memory."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {})}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for block in _blocks(struct.pack("<Q", len(text)) + text, tensors.values() if values is None else values):
            digest.update(block)
            file.write(block)
    return Entry(size=8 + len(text) + offset, sha256=digest.hexdigest())


def _blocks(header: bytes, tensors: Iterable[Tensor]) -> Iterable[bytes | memoryview]:
    yield header
    for tensor in tensors:
        if tensor.numel():
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            yield flat.view(torch.uint8).numpy().data


def write_sharded(
    folder: Path,
    stem: str,
    tensors: Mapping[str, Tensor],
    limit: int = SHARD_BYTES,
    values: Iterable[Tensor] | None = None,
) -> dict[str, Entry]:
    """`stem.safetensors`, or numbered shards below `limit` bytes each with `stem.safetensors.index.json`; `values` as
    for one file."""
    metadata = {"format": "pt"}
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if filled and filled + size > limit:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += size
    if len(shards) == 1:
        name = f"{stem}.safetensors"
        return {name: write_tensors(folder / name, shards[0], metadata, values)}
    values = iter(tensors.values() if values is None else values)
    entries: dict[str, Entry] = {}
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        entries[name] = write_tensors(folder / name, shard, metadata, itertools.islice(values, len(shard)))
        places.update(dict.fromkeys(shard, name))
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=1).encode()
    (folder / f"{stem}.safetensors.index.json").write_bytes(index)
    entries[f"{stem}.safetensors.index.json"] = Entry(size=len(index), sha256=hashlib.sha256(index).hexdigest())
    return entries


def tensor_files(folder: Path, stem: str) -> list[Path]:
    """The one file, or the shards that the index names; the index may name files of the same folder only."""
    single = folder / f"{stem}.safetensors"
    if single.is_file():
        return [single]
    index = folder / f"{stem}.safetensors.index.json"
    if not index.is_file():
        raise FledgeError(f"{folder} holds neither {single.name} nor {index.name}: there are no weights in it.")
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        paths = [folder / name for name in names if name == Path(name).name and name.endswith(".safetensors")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FledgeError(f"{index} is not an index of safetensors files: it was cut or changed.") from None
    if not names:
        raise FledgeError(f"{index} names no files: there are no weights in {folder}.")
    if len(paths) != len(names):
        raise FledgeError(f"{index} names files that are not beside it. Do not trust it.")
    if not all(path.is_file() for path in paths):
        raise FledgeError(f"{index} names files that are missing: the folder was not copied completely.")
    return paths


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The names, types and shapes in a safetensors file, refused unless they fill the file exactly."""
    size = path.stat().st_size
    broken = FledgeError(f"{path} is not a whole safetensors file: it was cut or changed.")
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise broken
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        spans, shapes = [], {}
        for name, entry in header.items():
            if entry["dtype"] not in DTYPES:
                raise FledgeError(
                    f"{path}: {name} is of the type {entry['dtype']}, which is not read here. Convert it to one of "
                    f"{', '.join(DTYPES)}."
                )
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
                raise broken
            if end - begin != prod(shape) * torch.empty((), dtype=dtype).element_size():
                raise broken
            spans.append((begin, end))
            shapes[name] = TensorHeader(dtype, shape)
    except FledgeError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise broken from None
    spans.sort()
    contiguous = all(first[1] == second[0] for first, second in itertools.pairwise(spans))
    filled = spans[0][0] == 0 and spans[-1][1] == size - 8 - length if spans else size == 8 + length
    if not (contiguous and filled):
        raise broken
    return shapes


def read_headers(paths: Iterable[Path]) -> dict[str, TensorHeader]:
    """The tensors of several shards; one that lies in two of them is refused."""
    shapes: dict[str, TensorHeader] = {}
    for path in paths:
        for name, shape in read_header(path).items():
            if name in shapes:
                raise FledgeError(f"{path} holds {name} a second time: the shards do not belong together.")
            shapes[name] = shape
    return shapes


def read_tensors(paths: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of the files, memory-mapped: pages are read when used, and a write never reaches the file."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        require_utf8(path, "weights")
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (safe_open is no mapping)
                    tensor = file.get_tensor(name)
                    tensors[name] = tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
        except SafetensorError as error:
            raise FledgeError(f"{path} is not a whole safetensors file ({error}).") from None
    return tensors


class OnDisk(Mapping[str, Tensor]):
    """The tensors of some files, each read when it is asked for and not kept."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.places = {name: path for path in paths for name in read_header(path)}

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.places[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def without_memory(shapes: Mapping[str, TensorHeader]) -> dict[str, Tensor]:
    """Tensors that say what a header says and hold nothing."""
    return {name: torch.empty(shape.shape, dtype=shape.dtype, device="meta") for name, shape in shapes.items()}


def check_shapes(found: Mapping[str, TensorHeader], wanted: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """The weights are those of the configured model: the same names and shapes, nothing more and nothing less."""
    for name, shape in wanted.items():
        if name not in found:
            raise FledgeError(
                f"{where} has no tensor {name}: these weights are of another model than its settings say. Copy both "
                "from the same place."
            )
        if not found[name].dtype.is_floating_point:
            raise FledgeError(f"{where}: {name} holds {found[name].dtype}, and weights are floating-point numbers.")
        if found[name].shape != shape:
            raise FledgeError(
                f"{where}: {name} has the shape {list(found[name].shape)} where the settings ask for {list(shape)}: "
                "these weights are of another model. Copy both from the same place."
            )
    if surplus := sorted(set(found) - set(wanted)):
        raise FledgeError(f"{where} holds {surplus[0]}, which the model of these settings does not have.")


def total_bytes(shapes: Mapping[str, TensorHeader]) -> int:
    return sum(prod(s.shape) * torch.empty((), dtype=s.dtype).element_size() for s in shapes.values())
