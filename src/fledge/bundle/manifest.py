"""`bundle.json`: what a bundle is, and the size and SHA-256 of every file in it. Read with distrust.

Nothing below is opened, let alone allocated, before its name, size and checksum have been held against the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fledge import devices
from fledge.bundle.migrations import VERSION, migrate
from fledge.errors import FledgeError
from fledge.files import did_you_mean, json_bytes, read_json, readable_bytes, sha256
from fledge.tokenizer.disk import CONFIGURATION, VOCABULARY

MANIFEST = "bundle.json"
MODEL, TRAINING, STATE = "model", "training", "state"  # the beginnings of its files' names
LARGEST_MANIFEST = 16_000_000
MOST_FILES = 5000  # of a bundle: shards of weights and of a training state are a few hundred at most
READABLE_BY = "0.1.0"  # the first release that reads VERSION

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Entry(BaseModel):
    """One file of the bundle."""

    model_config = ConfigDict(frozen=True, strict=True)
    size: Annotated[int, Field(ge=0, lt=1 << 63)]
    sha256: Digest


class ModelFacts(BaseModel):
    """The two facts a model is built from besides its configuration, and what came of them."""

    model_config = ConfigDict(frozen=True, strict=True, protected_namespaces=())
    vocabulary_size: Annotated[int, Field(ge=1, le=1 << 31)]
    context_length: Annotated[int, Field(ge=1, le=1 << 31)]
    parameters: Annotated[int, Field(ge=0, lt=1 << 63)]
    dtype: str


class TokenizerFacts(BaseModel):
    """Enough of the tokenizer to notice when another one lies in its place."""

    model_config = ConfigDict(frozen=True, strict=True)
    kind: str
    vocabulary_size: Annotated[int, Field(ge=1)]
    fingerprint: str


class Manifest(BaseModel):
    """The content of `bundle.json`, format version 1. Names it does not know are left alone."""

    model_config = ConfigDict(frozen=True, strict=True, protected_namespaces=(), ser_json_inf_nan="constants")
    format: Literal["fledge-bundle"] = "fledge-bundle"
    version: int = VERSION
    readable_by: str = READABLE_BY
    created: str
    software: dict[str, str]
    machine: dict[str, str | int]
    config: dict[str, Any]
    model: ModelFacts
    tokenizer: TokenizerFacts
    metrics: dict[str, Any]
    files: dict[str, Entry]

    @property
    def weights(self) -> dict[str, str]:
        """The SHA-256 of every file of weights: the same for equal models in equally many files."""
        return {name: entry.sha256 for name, entry in self.files.items() if name.startswith(MODEL)}


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest with a checksum over itself, so that a changed setting is noticed like a changed weight."""
    values = manifest.model_dump(mode="json")
    return json_bytes({**values, "checksum": checksum(values)})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle folder, brought up to the present version; all that does not fit is refused."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FledgeError(f"{folder} is not a bundle: there is no {MANIFEST} in it. {what_to_try(folder)}")
    if path.stat().st_size > LARGEST_MANIFEST:
        size = readable_bytes(path.stat().st_size)
        raise FledgeError(f"{path} is {size} long, more than any bundle's manifest. Do not trust it.")
    values = read_json(path)
    if not isinstance(values, dict) or values.get("format") != "fledge-bundle":
        raise FledgeError(f"{path} is not a fledge bundle's manifest. Copy the bundle again, or give another.")
    if isinstance(listed := values.get("files"), dict) and len(listed) > MOST_FILES:
        raise FledgeError(f"{path} lists {len(listed):,} files; no bundle has that many. Do not trust it.")
    values = migrate(values, str(path), sealed=checksum(without_checksum(values)) == values.get("checksum"))
    try:
        manifest = Manifest.model_validate(without_checksum(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FledgeError(
            f"{path} is not a usable manifest: {where}: {first['msg']}. Copy the bundle again, or give another."
        ) from None
    for name in manifest.files:
        check_name(name, path)
    for name in (VOCABULARY, CONFIGURATION):
        if name not in manifest.files:
            raise FledgeError(f"{path} does not list {name}, which every bundle has. Do not trust it.")
    return manifest


def without_checksum(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "checksum"}


def checksum(values: dict[str, Any]) -> str:
    """SHA-256 of the values in one canonical spelling, whatever the spacing and order in the file."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_name(name: str, where: Path) -> None:
    """A name in a manifest is a plain relative path below the bundle, on every operating system."""
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and name == "/".join(parts) and not any(c in name for c in '\\:*?"<>|')
    inside = plain and parts and ".." not in parts and not name.startswith("/") and name != MANIFEST
    if not inside or len(name.encode()) > 200 or any(part.startswith("~") for part in parts):
        raise FledgeError(
            f"{where} names a file {name!r}, which is not a plain name below the bundle. Do not trust it."
        )


def verify_files(folder: Path, files: dict[str, Entry], contents: bool = True) -> None:
    """Every file is there, is no link out of the folder, has its size and, with `contents`, its checksum."""
    root = folder.resolve()
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise FledgeError(
                f"{path} is missing: the bundle was not copied completely. Copy it again, or go back to an earlier one."
            )
        if root not in path.resolve().parents:
            raise FledgeError(f"{path} is a link that leaves the bundle. Do not trust it.")
        if path.stat().st_size != entry.size:
            raise FledgeError(
                f"{path} has {path.stat().st_size:,} bytes where the bundle says {entry.size:,}: "
                "the file was cut or changed after it was written. Copy the bundle again, or go back to an earlier one."
            )
    if not contents:
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        digests = dict(zip(files, pool.map(lambda name: sha256(folder / name), files), strict=True))
    for name, entry in files.items():
        if digests[name] != entry.sha256:
            raise FledgeError(
                f"{folder / name} does not match its checksum: the file was cut or changed after it was written. "
                "Copy the bundle again, or go back to an earlier one."
            )


def describe_file(path: Path) -> Entry:
    return Entry(size=path.stat().st_size, sha256=sha256(path))


def software() -> dict[str, str]:
    """The versions that wrote the bundle."""
    import numpy
    import torch

    from fledge import __version__

    return {
        "fledge": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, str | int]:
    """What bits depend on besides the versions: threads, instruction set, device."""
    import torch

    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "device": devices.title(place) if devices.is_gpu(place := devices.fastest()) else "cpu",
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def what_to_try(folder: Path) -> str:
    if not folder.exists():
        return f"There is nothing at that path.{did_you_mean(folder)}"
    kept, values = folder / "config.json", None
    if kept.is_file() and kept.stat().st_size <= LARGEST_MANIFEST:
        with suppress(FledgeError, OSError):  # what can't be read says nothing of the folder
            values = read_json(kept)
    if isinstance(values, dict) and "model_type" in values:
        return "It looks like a Hugging Face folder: fledge bundle import turns it into a bundle."
    if isinstance(values, dict) and {"corpus", "training"} <= values.keys():
        return "It is a run that has no checkpoint yet: wait for its first one."
    return "Give the folder of a bundle, of a checkpoint or of a run, or a packed .zip or .tar.zst."
