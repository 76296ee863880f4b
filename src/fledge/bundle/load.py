"""Reading a bundle: checked first, then built. `load_bundle` takes a folder or a packed bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fledge import devices
from fledge.bundle.archive import UNPACKED, is_archive, named_as, unpack
from fledge.bundle.fit import require_fit
from fledge.bundle.hub import place_of
from fledge.bundle.layout import fill, lay_out_for
from fledge.bundle.manifest import MANIFEST, MODEL, STATE, TRAINING, Manifest, read_manifest, verify_files
from fledge.bundle.save import TrainingState
from fledge.bundle.weights import check_shapes, read_headers, read_tensors, tensor_files
from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.files import read_json, temporary_folder

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer


@dataclass(frozen=True)
class Bundle:
    """A model with its tokenizer and settings, ready to use."""

    path: Path
    manifest: Manifest
    config: RunConfig
    tokenizer: Tokenizer
    model: Model
    _archive: Path | None = field(default=None, repr=False)
    _home: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @property
    def source(self) -> Path:
        """What it was read from: its folder, or the packed bundle that people know by its name."""
        return self._archive or self.path

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured when the bundle was written: step, losses, tokens seen."""
        return self.manifest.metrics

    @cached_property
    def training(self) -> TrainingState | None:
        """Optimizer tensors and counters, read and verified when first asked for; None in a bundle without them."""
        with named_as(self.source, self.path):
            return read_training(self.path, self.manifest)


def load_bundle(
    path: Path | str, device: str | torch.device = "cpu", dtype: torch.dtype | None = None, verify: bool = True
) -> Bundle:
    """The bundle at `path`: its folder, or a .zip or .tar.zst of it; of a run, `fledge.runs.find_bundle` names one.

    Weights are memory-mapped. `verify=False` skips the checksums' pass over them; sizes and shapes are always checked.
    """
    device, place = usable(device), place_of(path)
    if not is_archive(place):
        return _load(place.parent if place.name == MANIFEST else place, device, dtype, verify)
    home = temporary_folder(UNPACKED)
    folder = unpack(place, Path(home.name) / "bundle")
    with named_as(place, folder):
        return replace(_load(folder, device, dtype, verify), _archive=place, _home=home)


def usable(device: str | torch.device) -> torch.device:
    """The device, refused with a sentence where torch does not know it or has none."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        if "out of memory" in str(error):
            raise
        raise FledgeError(
            f"device = {str(device)!r} is no device, or there is none here. Use {' or '.join(devices.names())}."
        ) from None
    return found


def _load(folder: Path, device: torch.device, dtype: torch.dtype | None, verify: bool) -> Bundle:
    from fledge.tokenizer import load_tokenizer

    manifest = read_manifest(folder)
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith(f"{TRAINING}/")}
    verify_files(folder, files, contents=verify)
    config = parse(RunConfig, manifest.config, where=str(folder / MANIFEST))
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != manifest.tokenizer.fingerprint:
        raise FledgeError(
            f"The tokenizer in {folder} is not the one this model was trained with: its fingerprint differs from the "
            "one in the manifest. Copy the tokenizer's files from the original bundle."
        )
    found = {"kind": tokenizer.kind, "vocabulary_size": tokenizer.vocab_size}
    require_facts(folder, "tokenizer", manifest.tokenizer.model_dump(), found)
    where = f"The tokenizer in {folder}"
    require_fit(tokenizer.vocab_size, manifest.model.vocabulary_size, where, "Do not trust it.")
    model = load_model(folder, config, manifest, device, dtype)
    return Bundle(folder, manifest, config, tokenizer, model)


def require_facts(folder: Path, group: str, said: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """What the manifest says of a part is what was found in its files: people and programs go by it."""
    for name, value in found.items():
        if said[name] != value:
            raise FledgeError(
                f"{folder / MANIFEST} says {group}.{name} = {said[name]!r}, and its files hold {value!r}. "
                "Do not trust it."
            )


def load_model(
    folder: Path,
    config: RunConfig,
    manifest: Manifest,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Model:
    """The model with its weights. It is first laid out without memory, and compared with the file's header."""
    paths = listed_tensors(folder, MODEL, manifest)
    shapes, facts = read_headers(paths), manifest.model
    model = lay_out_for(shapes, config.model, facts.vocabulary_size, facts.context_length, folder / MANIFEST)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_shapes(shapes, wanted, paths[0])
    require_facts(folder, "model", facts.model_dump(), {"parameters": model.parameters_count()})
    for dtype_found in {shape.dtype for shape in shapes.values()}:  # one for all: native code reads every weight alike
        require_facts(folder, "model", facts.model_dump(), {"dtype": str(dtype_found).removeprefix("torch.")})
    fill(model, read_tensors(paths))
    return model.to(device=device, dtype=dtype).eval()


def read_training(folder: Path, manifest: Manifest) -> TrainingState | None:
    files = {name: entry for name, entry in manifest.files.items() if name.startswith(f"{TRAINING}/")}
    if not files:
        return None
    verify_files(folder, files)
    paths = listed_tensors(folder, f"{TRAINING}/{STATE}", manifest)
    read_headers(paths)
    require_listed(folder, f"{TRAINING}/{STATE}.json", manifest)
    values = read_json(kept := folder / TRAINING / f"{STATE}.json")
    if not isinstance(values, dict):
        raise FledgeError(
            f"{kept} is a {type(values).__name__}, not a table of counters: it is not as fledge wrote it. Go back to "
            "an earlier checkpoint."
        )
    return TrainingState(read_tensors(paths), values)


def listed_tensors(folder: Path, name: str, manifest: Manifest) -> list[Path]:
    """The files of some tensors; nothing is opened that the manifest does not list."""
    if (folder / f"{name}.safetensors.index.json").exists():
        require_listed(folder, f"{name}.safetensors.index.json", manifest)
    paths = tensor_files((folder / name).parent, Path(name).name)
    for path in paths:
        require_listed(folder, path.relative_to(folder).as_posix(), manifest)
    return paths


def require_listed(folder: Path, name: str, manifest: Manifest) -> None:
    if name not in manifest.files:
        raise FledgeError(f"{folder / name} is not in the bundle's manifest. Do not trust it.")
