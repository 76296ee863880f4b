"""Writing a bundle: a folder that holds all that is needed to use a model, and with `training` to go on training it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from fledge.bundle.card import CARD, model_card
from fledge.bundle.manifest import (
    MANIFEST,
    MODEL,
    STATE,
    TRAINING,
    Entry,
    Manifest,
    ModelFacts,
    TokenizerFacts,
    describe_file,
    machine,
    manifest_bytes,
    now,
    read_manifest,
    software,
)
from fledge.bundle.weights import SHARD_BYTES, write_sharded
from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.files import PARTIAL, atomic_folder, atomic_write, exchange, require_space, require_utf8, write_json
from fledge.system import sync_folder

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer


class TrainingState(NamedTuple):
    """What training needs besides the weights: tensors (moments, carried states) and plain values (steps, samples)."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


class WeightsToCome(NamedTuple):
    """A model's weights that are made one by one while they are written: what they will be, and they in this order."""

    forms: Mapping[str, Tensor]
    values: Iterable[Tensor]


def save_bundle(
    folder: Path | str,
    config: RunConfig,
    tokenizer: Tokenizer,
    model: Model,
    *,
    training: TrainingState | None = None,
    metrics: Mapping[str, Any] | None = None,
    replace: bool = False,
    shard_bytes: int = SHARD_BYTES,
    weights: WeightsToCome | None = None,
) -> Path:
    """Write a bundle into `folder`, whole or not at all; with `replace`, in the place of an older one.

    The model's weights are written, or `weights`; then the model may be one that is laid out without memory."""
    folder = Path(folder)
    if folder.exists() and not replace:
        raise FledgeError(f"{folder} exists already. Choose another name, or remove it first.")
    require_utf8(folder, "a bundle")
    config = without_places(config)
    forms, values = (model.state_dict(), None) if weights is None else weights
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in forms.values()})
    if len(kinds) != 1:
        raise FledgeError(
            f"The model's weights have the types {', '.join(kinds)}, and a bundle needs a single type. "
            "Convert them first, such as with model.float()."
        )
    tensors = [*forms.values(), *(training.tensors.values() if training else ())]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    require_space(folder.parent, needed + 1_000_000, f"The bundle {folder.name}")
    with put_in_place(folder, replace) as work:
        tokenizer.save(work)
        files = {path.name: describe_file(path) for path in sorted(work.iterdir())}
        files.update(write_sharded(work, MODEL, forms, shard_bytes, values))
        if training is not None:
            files.update(_write_training(work, training, shard_bytes))
        manifest = Manifest(
            created=now(),
            software=software(),
            machine=machine(),
            config=config.model_dump(mode="json"),
            model=ModelFacts(
                vocabulary_size=model.vocabulary_size,
                context_length=model.context_length,
                parameters=model.parameters_count(),
                dtype=kinds[0],
            ),
            tokenizer=TokenizerFacts(
                kind=tokenizer.kind, vocabulary_size=tokenizer.vocab_size, fingerprint=tokenizer.fingerprint
            ),
            metrics=dict(metrics or {}),
            files=files,
        )
        (work / CARD).write_bytes(model_card(config, manifest))
        (work / MANIFEST).write_bytes(manifest_bytes(manifest))
    return folder


def without_places(config: RunConfig) -> RunConfig:
    """The settings as a bundle keeps them: where text, tokens, tokenizer, teachers and code lay when it was trained
    is nobody else's."""

    def name(place: str) -> str:
        return Path(place).name or place if os.path.isabs(place) else place

    def names(places: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(name, places))

    corpus, path, store = config.corpus, config.tokenizer.path, config.tokens.store
    sources = {"source": names(corpus.source), "validation_source": names(corpus.validation_source)}
    return config.model_copy(
        update={
            "corpus": corpus.model_copy(update=sources),
            "tokenizer": config.tokenizer.model_copy(update={"path": path and name(path)}),
            "tokens": config.tokens.model_copy(update={"store": store and name(store)}),
            "training": config.training.model_copy(update={"teachers": names(config.training.teachers)}),
            "imports": names(config.imports),
        }
    )


def record_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Add what was measured of a bundle after it was written; a kill leaves the old manifest or the new one."""
    manifest = read_manifest(folder)
    manifest = manifest.model_copy(update={"metrics": {**manifest.metrics, **metrics}})
    with atomic_write(folder / CARD) as file:
        file.write(model_card(parse(RunConfig, manifest.config), manifest))
    with atomic_write(folder / MANIFEST) as file:
        file.write(manifest_bytes(manifest))


def _write_training(work: Path, training: TrainingState, shard_bytes: int) -> dict[str, Entry]:
    place = work / TRAINING
    place.mkdir()
    files = write_sharded(place, STATE, training.tensors, shard_bytes)
    write_json(place / f"{STATE}.json", dict(training.values))
    files[f"{STATE}.json"] = describe_file(place / f"{STATE}.json")
    return {f"{TRAINING}/{name}": entry for name, entry in files.items()}


@contextmanager
def put_in_place(folder: Path, replace: bool) -> Iterator[Path]:
    """A folder to fill, which then takes its name; the one that had it changes places with it, and is removed last."""
    if not (replace and folder.exists()):
        with atomic_folder(folder) as work:
            yield work
        return
    fresh = folder.with_name(f"{folder.name}{PARTIAL}")
    shutil.rmtree(fresh, ignore_errors=True)
    with atomic_folder(fresh) as work:
        yield work
    exchange(fresh, folder)
    sync_folder(folder.parent)
    shutil.rmtree(fresh)
