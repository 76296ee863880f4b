"""Models to and from Hugging Face's hub: `hf://owner/name` names a bundle, like a path, wherever one is taken.

A repository holds a bundle, or a folder that transformers reads and that is imported when it first comes. Of any
repository only texts and safetensors are fetched: no code, nothing pickled, no folders.
"""

from __future__ import annotations

import os
import re
import shutil
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.bundle.card import CARD, HubCard, model_card
from fledge.bundle.manifest import MANIFEST
from fledge.corpus.hub import (
    RepositoryFiles,
    fetch_files,
    find_repository,
    hub_api,
    hub_sentences,
    is_hub,
    parse_address,
)
from fledge.errors import FledgeError
from fledge.files import require_space, temporary_folder, write_json

if TYPE_CHECKING:
    from fledge.bundle.load import Bundle

SETTINGS = "fledge.json"
"The settings that a pushed model was trained with, beside it: a recipe for fledge train."
CURVE = "loss.svg"
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
TEXTS = (MANIFEST, "config.json", "generation_config.json", *TOKENIZER)
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def place_of(path: object) -> Path:
    """The path of a bundle or a run as it was given; what can't be one is refused with a sentence.

    One on the hub (`hf://owner/name`) is fetched, unless it was before.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise FledgeError(
            f"{path!r:.40} is not a path of a bundle. Give the path of a bundle, a run or a packed bundle, "
            "such as 'runs/akjv'."
        )
    return local_bundle(path) if is_hub(path) else Path(path)


def local_bundle(place: str | PathLike[str]) -> Path:
    """The bundle that an address of the hub names, on this machine: fetched once, and imported where it is none."""
    from fledge.bundle.exchange import import_bundle

    address = parse_address(place)
    if address.kind != "model" or address.path:
        raise FledgeError(f"{address} is no model: a model's address is hf://owner/name, with @REVISION where asked.")
    snapshot = find_repository(address)
    if not any(WEIGHTS.fullmatch(name) and name.endswith(".safetensors") for name in snapshot.files):
        raise FledgeError(f"{address} can't be used: {_what_instead(snapshot)}")
    folder = fetch_files(address, [n for n in sorted(snapshot.files) if n in TEXTS or WEIGHTS.fullmatch(n)])
    if (folder / MANIFEST).is_file():
        return folder
    imported = folder.parent.with_name(f"{snapshot.commit}-bundle") / folder.name
    if not imported.exists():
        require_space(folder, sum(size for size, _ in snapshot.files.values()), f"The bundle of {address}")
        import_bundle(folder, imported, origin=str(address._replace(revision=snapshot.commit)))
    return imported


def _what_instead(snapshot: RepositoryFiles) -> str:
    pickled = next((name for name in sorted(snapshot.files) if name.endswith(PICKLED)), None)
    if pickled is not None:
        return f"{pickled[:80]} is a pickled file, which may run code when it is read. Only safetensors are taken."
    return "there is no model.safetensors in it."


def push_bundle(
    bundle: Bundle,
    place: str,
    format: str = "huggingface",
    dtype: str | None = None,
    private: bool = False,
    curve: Path | None = None,
) -> str:
    """Put a model on the hub, with a card, the settings of its training and its curve; the address of the commit.

    `format` is `huggingface`, a folder that transformers reads, or `bundle`, which keeps all that fledge knows of it.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    from fledge.bundle.exchange import export_bundle
    from fledge.bundle.save import save_bundle, without_places

    address = parse_address(place if place.startswith("hf:") else f"hf://{place}")
    if address.kind != "model" or address.path:
        raise FledgeError(f"{place} is not a name for a model. Push to owner/name.")
    with temporary_folder("fledge-push-") as home:
        folder = Path(home) / address.repository.partition("/")[2]
        if format == "huggingface":
            export_bundle(bundle, folder, format, dtype)
        elif format == "bundle":
            save_bundle(folder, bundle.config, bundle.tokenizer, bundle.model, metrics=bundle.metrics)
        else:
            raise FledgeError(f"{format!r:.40} is not a format to push. Use huggingface or bundle.")
        settings = without_places(bundle.config)
        write_json(folder / SETTINGS, settings.model_dump(mode="json"))
        if curve is not None:
            shutil.copyfile(curve, folder / CURVE)
        code = next((path.name for path in folder.glob("modeling_*.py")), None)
        about = HubCard(address.repository, SETTINGS, CURVE if curve is not None else None, format, code)
        (folder / CARD).write_bytes(model_card(settings, bundle.manifest, about))
        with hub_sentences(address):
            api = hub_api()
            api.create_repo(address.repository, repo_type="model", private=private or None, exist_ok=True)
            new = sorted(path.name for path in folder.iterdir())
            there = api.list_repo_files(address.repository, revision=address.revision)
            old = [name for name in there if name not in new and (WEIGHTS.fullmatch(name) or name in TEXTS)]
            operations = [
                *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in new),
                *(CommitOperationDelete(path_in_repo=name) for name in old),
            ]
            message = f"{bundle.config.name}, by fledge"
            done = api.create_commit(address.repository, operations, commit_message=message, revision=address.revision)
    return str(address._replace(revision=done.oid))
