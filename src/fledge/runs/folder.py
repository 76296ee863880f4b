"""A run's folder as a whole: whether it is one, the settings it keeps, and who may write into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.bundle.hub import place_of
from fledge.bundle.manifest import MANIFEST
from fledge.config import RunConfig, parse, setting_changes
from fledge.corpus import hub
from fledge.errors import FledgeError, command
from fledge.files import finished_name, read_json, require_utf8, write_json
from fledge.runs.branches import settings_file
from fledge.runs.checkpoints import checkpoints
from fledge.runs.layout import CHECKPOINTS, CONFIG, ORIGIN, TOKENIZER, TOKENS
from fledge.runs.origin import begin_again, keep_origin, other_origin

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.tokens import TokenSplit, TokenStore


def is_run(folder: Path) -> bool:
    """Whether a run was begun there; another program's config.json has other keys."""
    kept = folder / CONFIG
    values = read_json(kept) if kept.is_file() else None
    return isinstance(values, dict) and {"corpus", "training"} <= values.keys()


def is_bundle(path: Path) -> bool:
    """Whether a bundle itself lies there, a folder or packed, and not a run that has some."""
    return path.is_file() or (path / MANIFEST).is_file()


def require_checkpoint(path: Path | str) -> None:
    """Refuse a run that has no model to use yet, and say how it gets one. What is not a run is not looked at."""
    folder = place_of(path)
    if is_run(folder) and not checkpoints(folder) and not is_bundle(folder):
        raise FledgeError(
            f"{folder} is a run that has no checkpoint yet. Wait for its first one, or go on with the command that "
            f"began it: {begin_again(folder, folder / CONFIG)}"
        )


# -- settings ---------------------------------------------------------------------------------------------------------


def kept_settings(path: Path) -> dict[str, Any]:
    """The settings that a run keeps; where they were written before near-copies were kept together, they say so."""
    values: dict[str, Any] = read_json(path)
    if isinstance(values, dict) and isinstance(values.get("corpus"), dict):
        values["corpus"].setdefault("split", "document")
    return values


def named_by(folder: Path | None, overrides: Iterable[str]) -> list[str]:
    """The override that names a run by its folder, or by what it is called there already; nothing where one does."""
    if folder is None or any(change.partition("=")[0].strip() == "name" for change in overrides):
        return []
    values = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    name = values.get("name", folder.absolute().name) if isinstance(values, dict) else folder.absolute().name
    return [f"name={json.dumps(name)}"] if name else []


def with_new_settings(kept: Any) -> Any:
    """The settings that a run has kept, with the defaults of those that were added to fledge since."""
    try:
        return RunConfig.model_validate(kept).model_dump(mode="json")
    except ValueError:  # they are shown as they are
        return kept


def differences(old: Any, new: Any) -> list[str]:
    """The settings in which two configurations differ, as `model.layers = 4 there, 6 here`.

    >>> differences({"model": {"layers": 4, "width": 8}}, {"model": {"layers": 6, "width": 8}})
    ['model.layers = 4 there, 6 here']
    """
    return [f"{name} = {first!r} there, {second!r} here" for name, (first, second) in setting_changes(old, new).items()]


def of_run(config: RunConfig, folder: Path) -> RunConfig:
    """A checkpoint's settings with the places that its run keeps; the bundle itself names none."""
    if not folder.is_dir() or not is_run(folder):
        return config
    kept = _settings(folder)
    return config.model_copy(
        update={
            "corpus": kept.corpus,
            "tokenizer": config.tokenizer.model_copy(update={"path": kept.tokenizer.path}),
            "tokens": config.tokens.model_copy(update={"store": kept.tokens.store}),
            "imports": kept.imports,
        }
    )


def _settings(folder: Path) -> RunConfig:
    return parse(RunConfig, with_new_settings(read_json(folder / CONFIG)), where=str(folder / CONFIG))


def pinned(config: RunConfig, folder: Path) -> RunConfig:
    """Settings with a commit in every address of a hub: the one that the run in the folder has, or that of today."""
    kept: dict[str, str] = {}
    if (folder / CONFIG).is_file():
        settings = read_json(folder / CONFIG)
        text, ids = (settings.get(group) or {} for group in ("corpus", "tokenizer"))
        for name in (*text.get("source", ()), *text.get("validation_source", ()), ids.get("path")):
            if hub.is_hub(name):
                kept[str(hub.parse_address(name)._replace(revision=None))] = name

    def pin(name: str) -> str:
        if not hub.is_hub(name) or hub.COMMIT.fullmatch((address := hub.parse_address(name)).revision or ""):
            return name
        return kept.get(str(address)) or str(hub.pin_address(address))

    corpus, tokenizer = config.corpus, config.tokenizer
    sources, held_out = (tuple(map(pin, names)) for names in (corpus.source, corpus.validation_source))
    path = tokenizer.path and pin(tokenizer.path)
    if (sources, held_out, path) == (corpus.source, corpus.validation_source, tokenizer.path):
        return config
    corpus = corpus.model_copy(update={"source": sources, "validation_source": held_out})
    return config.model_copy(update={"corpus": corpus, "tokenizer": tokenizer.model_copy(update={"path": path})})


# -- tokens -----------------------------------------------------------------------------------------------------------


def store_of(path: Path) -> Path | None:
    """The token store of the run at `path`, or around a checkpoint there; None where there is none."""
    if _holds_store(path / TOKENS):
        return path / TOKENS
    for folder in (path, *path.absolute().parents[:3]):  # a branch's checkpoints lie one folder deeper
        if is_run(folder):
            stores = (_settings(folder).tokens.store, folder / TOKENS)
            return next((Path(store) for store in stores if store is not None and _holds_store(Path(store))), None)
    return None


def _holds_store(place: Path) -> bool:
    return (place / "store.json").is_file()


def kept_tokens(folder: Path, config: RunConfig) -> TokenStore | None:
    """The whole store in a run's folder, where the settings of the text are those that it was written with."""
    from fledge.tokens import TokenStore

    kept = folder / CONFIG
    if not _holds_store(folder / TOKENS) or not kept.is_file():
        return None
    if with_new_settings(kept_settings(kept)).get("corpus") != config.corpus.model_dump(mode="json"):
        return None
    return TokenStore.open(folder / TOKENS)


def held_out_split(path: Path) -> TokenSplit | None:
    """The held-out part of the text that the run at `path`, or around it, was trained on; None where there is none."""
    from fledge.tokens import TokenStore

    store = store_of(path)
    split = None if store is None else TokenStore.open(store).split("validation")
    return split if split is not None and len(split.tokens) else None


# -- claiming ---------------------------------------------------------------------------------------------------------


def claim(folder: Path, config: RunConfig, bundle: Bundle | None) -> None:
    """Make a folder that of a run with these settings: new, or begun before with the same; anything else is refused.

    `bundle` gives the first weights. Where it is a checkpoint of this run, settings may have changed: they are kept
    when training begins.
    """
    if bundle is not None and folder.absolute() in bundle.path.absolute().parents:
        return
    require_utf8(folder, "a bundle")
    kept, values = folder / CONFIG, config.model_dump(mode="json")
    if kept.is_file():
        origin = other_origin(folder, bundle)
        differing = [*origin, *differences(with_new_settings(kept_settings(settings_file(folder))), values)]
        if not differing:
            return
        if _spoils(folder, differing):
            again = command("train", "--resume", folder)
            go_on = f"Go on with it ({again}), c" if checkpoints(folder) else "C"
            raise FledgeError(
                f"{folder} holds a run with other settings ({'; '.join(differing[:4])}). {go_on}hoose another "
                "folder with --out, or remove that one."
            )
        if origin and bundle is None:
            raise FledgeError(
                f"{folder} was begun from a bundle's weights. Begin it again from them "
                f"({begin_again(folder, kept)}), or choose another folder with --out."
            )
        if not _holds_store(folder / TOKENS):
            shutil.rmtree(folder / TOKENS, ignore_errors=True)  # of a source that was then corrected
    elif folder.exists() and (not folder.is_dir() or any(map(_is_foreign, os.listdir(folder)))):
        raise FledgeError(f"{folder} exists already and is not a run. Choose another folder with --out.")
    keep_origin(folder, bundle)
    write_json(kept, values)


def _spoils(folder: Path, differing: list[str]) -> bool:
    """Whether the folder holds work that does not fit the changed settings: tokens depend on text and tokenizer alone,
    checkpoints on everything."""
    if (folder / CHECKPOINTS).exists():
        return True
    made = (folder / TOKENIZER).exists() or _holds_store(folder / TOKENS)
    return made and any(line.startswith(("corpus.", "tokenizer.")) for line in differing)


def _is_foreign(name: str) -> bool:
    """Whether a file is none of those that a run begins with, half written ones included."""
    return finished_name(name) not in (CONFIG, ORIGIN)
