"""What a bundle is, how it was trained and what it costs, as plain rows; and what differs between two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fledge.accounting import account
from fledge.bundle.archive import is_archive, packed_manifest, packed_sizes
from fledge.bundle.card import (
    IMPORTED,
    imported_from,
    is_plain,
    model_rows,
    plain_metrics,
    readable_metric,
    training_rows,
)
from fledge.bundle.hub import place_of
from fledge.bundle.manifest import MODEL, TRAINING, Manifest, read_manifest, verify_files
from fledge.config import RunConfig, parse, setting_changes
from fledge.errors import FledgeError
from fledge.files import readable_bytes

Rows = list[tuple[str, str]]
ABSENT = "–"
LEARNING = ("corpus", "tokenizer", "optimizer", "schedule", "training")  # settings that say how a model was trained


class Difference(NamedTuple):
    """One name with its two values; what one side lacks is a dash."""

    name: str
    first: str
    second: str


def describe(path: Path | str) -> dict[str, Rows]:
    """The sections of `fledge bundle show`, from the manifest and the files' sizes: no weight is read."""
    folder, manifest = open_manifest(path)
    config = parse(RunConfig, manifest.config, where=str(folder))
    wrong = wrong_files(folder, manifest)
    return {
        "what it is": _identity(folder, manifest, config),
        "how it was trained": _training(manifest, config),
        "what it costs": _costs(manifest, config),
        "files": [(name, wrong.get(name) or readable_bytes(entry.size)) for name, entry in manifest.files.items()],
    }


def wrong_files(place: Path, manifest: Manifest) -> dict[str, str]:
    """The files that are missing or have another size than the manifest says, and how; none of them is read."""
    found = packed_sizes(place) if is_archive(place) else _sizes(place, manifest)
    if found is None:
        return {}
    return {
        name: "missing" if name not in found else f"{found[name]:,} bytes instead of {entry.size:,}"
        for name, entry in manifest.files.items()
        if found.get(name) != entry.size
    }


def _sizes(folder: Path, manifest: Manifest) -> dict[str, int]:
    paths = {name: folder / name for name in manifest.files}
    return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}


def require_sizes(place: Path, manifest: Manifest) -> None:
    """Refuse a bundle whose manifest speaks of files that are not there as it says."""
    if not is_archive(place):
        verify_files(place, manifest.files, contents=False)
        return
    for name, what in wrong_files(place, manifest).items():
        state = "is missing" if what == "missing" else f"has {what}"
        raise FledgeError(
            f"{place}: {name} {state}: the packed bundle was changed after it was written. Copy it again, or pack the "
            "bundle anew with fledge bundle pack."
        )


def open_manifest(path: Path | str) -> tuple[Path, Manifest]:
    """The manifest of a bundle, packed or not, and where it lies."""
    folder = place_of(path)
    return folder, packed_manifest(folder) if is_archive(folder) else read_manifest(folder)


def _identity(folder: Path, manifest: Manifest, config: RunConfig) -> Rows:
    return [
        ("bundle", str(folder)),
        ("name", config.name),
        *model_rows(config, manifest).items(),
        ("format version", str(manifest.version)),
    ]


def _training(manifest: Manifest, config: RunConfig) -> Rows:
    rows = [*training_rows(config, manifest).items(), *plain_metrics(manifest).items()]
    if imported_from(manifest) is not None:
        return rows
    machine = ", ".join(f"{name} {value}" for name, value in manifest.machine.items())
    resumable = any(name.startswith(f"{TRAINING}/") for name in manifest.files)
    kept = "kept; bundle check says whether training can go on" if resumable else "not kept"
    return [*rows, ("machine", machine), ("training state", kept)]


def _costs(manifest: Manifest, config: RunConfig) -> Rows:
    weights = sum(e.size for name, e in manifest.files.items() if name.startswith(MODEL))
    rows = [
        ("weights", readable_bytes(weights)),
        ("on disk", readable_bytes(sum(e.size for e in manifest.files.values()))),
    ]
    facts = manifest.model
    try:
        cost = account(config.model, facts.vocabulary_size, facts.context_length)
        per_token = cost.forward_flops / facts.context_length
        rows.append(("forward", f"{per_token / 1e6:,.1f} MFLOPs a token at the full context"))
        rows.append(("training", f"{cost.flops_per_token / 1e6:,.1f} MFLOPs a token"))
    except FledgeError as error:  # such as an architecture of someone's own, which is not registered here
        rows.append(("forward", f"not known. {error}"))
    except OverflowError:
        rows.append(("forward", "beyond reckoning: no such model was ever built"))
    return rows


def describe_differences(first: Path | str, second: Path | str) -> list[Difference]:
    """Every setting, fact and metric in which two bundles differ, weights by the checksums in their manifests."""
    opened = [open_manifest(path) for path in (first, second)]
    for place, manifest in opened:
        require_sizes(place, manifest)
    imported = any(imported_from(manifest) is not None for _, manifest in opened)
    one, two = (_groups(place, manifest, imported) for place, manifest in opened)
    pairs = (
        Difference(prefix + name, *_told_apart(*values))
        for prefix in one
        for name, values in setting_changes(one[prefix], two[prefix], absent=ABSENT).items()
    )
    return [pair for pair in pairs if pair.first != pair.second]  # a metric that is NaN twice is none


def _told_apart(first: Any, second: Any) -> tuple[str, str]:
    """Two values as people read them; in full, where they differ and rounding would hide it."""
    shown = _shown(first), _shown(second)
    return (repr(first), repr(second)) if shown[0] == shown[1] and first != second else shown


def _shown(value: Any) -> str:
    return readable_metric(value) if is_plain(value) else str(value)


def _groups(place: Path, manifest: Manifest, imported: bool) -> dict[str, dict[str, Any]]:
    """What is compared, by what stands before its names.

    Where one of two bundles is `imported`, how they were trained is a single value.
    """
    values = manifest.model_dump(mode="json")
    values["config"] = _with_effect(parse(RunConfig, manifest.config, where=str(place)))
    if imported:
        source = imported_from(manifest)
        known = {name: group for name, group in values["config"].items() if name not in LEARNING}
        known["how it was trained"] = (
            "by fledge: see bundle show" if source is None else f"not known: imported from {source}"
        )
        values["config"], values["metrics"] = known, {k: v for k, v in values["metrics"].items() if k != IMPORTED}
    facts = {f"{name}: ": values[name] for name in ("model", "tokenizer", "metrics", "software", "machine")}
    weights = " ".join(digest[:12] for digest in manifest.weights.values())
    return {"": values["config"], **facts, "weights": {"": weights}}


def _with_effect(config: RunConfig) -> dict[str, Any]:
    """The settings, derived sizes spelled out, without those that say how to make what was not made: a tokenizer or
    tokens that were given."""
    values = config.model_dump(mode="json")
    if config.model.architecture == "transformer":
        model = config.model
        sizes = {"hidden": model.inner_size, "kv_heads": model.kv_heads or model.heads, "head_size": model.head_width}
        values["model"] |= sizes
    if config.tokens.store is not None:
        del values["corpus"]
    if config.tokens.store is not None or config.tokenizer.path is not None:
        values["tokenizer"] = {"path": config.tokenizer.path}
    return values
