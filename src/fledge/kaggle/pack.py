"""`fledge kaggle`: a folder to upload, with fledge, a recipe, its text and a notebook that trains it offline.

The dataset holds what the notebook installs and reads; the notebook takes up the run of its previous version where that
is attached, trains within the time limit and leaves bundle, metrics and report to download. Works on Colab too.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fledge.config import CorpusConfig, RunConfig
from fledge.errors import FledgeError
from fledge.extras import DISTRIBUTION
from fledge.files import atomic_write, read_json, require_space, sha256, write_json
from fledge.kaggle import distribution
from fledge.kaggle.notebook import notebook

RECIPE = "recipe.json"
FILES = "files"
MANIFEST, METADATA = "fledge-kaggle.json", "kernel-metadata.json"
EDITED = ("title", "is_private", "enable_gpu", "competition_sources", "kernel_sources")
"Of the notebook's metadata, what is a person's to change."
PLACEHOLDER = "INSERT_USERNAME_HERE"


@dataclass
class Packed:
    """What a folder holds, and what a person should know of it."""

    folder: Path
    wheel: str = ""
    "fledge's own; empty where there is none that fits its source."
    wheels: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    source: bool = False
    network: str = ""
    "Why the notebook needs a network; empty where it needs none."
    notes: list[str] = field(default_factory=list)


def slug_of(name: str) -> str:
    """A name as Kaggle's addresses have it: 6 to 50 letters, digits and hyphens.

    >>> slug_of("AKJV demo_2")
    'fledge-akjv-demo-2'
    """
    return re.sub(r"[^a-z0-9]+", "-", f"fledge-{name}".lower()).strip("-")[:45].strip("-")


def pack_for_kaggle(config: RunConfig, folder: Path, time: str = "8h50m", user: str = "") -> Packed:
    """Write the folder: `dataset/` and `notebook/`, each with its metadata for the kaggle command, and a README."""
    from fledge.bundle.save import put_in_place
    from fledge.corpus import Corpus
    from fledge.experiments.checks import check_model
    from fledge.training import parse_duration

    packed, folder = Packed(folder), Path(os.path.abspath(folder))
    if parse_duration(time) < 60:
        raise FledgeError(f"--time {time} is less than a minute, too short to set up the notebook.")
    if folder.exists() and not (folder / "dataset" / RECIPE).is_file() and any(folder.iterdir()):
        raise FledgeError(f"{folder} exists already and was not made by fledge kaggle. Choose another with -o.")
    if "-" in (*config.corpus.source, *config.corpus.validation_source):
        raise FledgeError("corpus.source = - is standard input, which a notebook does not have. Name a file.")
    if user and not re.fullmatch(r"[A-Za-z0-9_-]+", user):
        raise FledgeError(f"--user {user!r} is not a Kaggle user name, which has letters, digits and hyphens.")
    check_model(config)  # a mistake is found out here, not on Kaggle
    slug = slug_of(config.name)
    if not remote(config.corpus):
        for _ in Corpus.from_config(config.corpus).batches():
            break  # a source that is empty or not there is found out here, not on Kaggle
        else:
            raise FledgeError(f"{', '.join(config.corpus.source)} holds no text.")
    former = former_metadata(folder)
    if own := others(folder):
        raise FledgeError(f"{own[0]} would be lost, because that folder is written again. Move it elsewhere first.")
    owner = user or former.get("id", "").partition("/")[0] or PLACEHOLDER
    folder.mkdir(parents=True, exist_ok=True)
    places = folder / "dataset", folder / "notebook"  # what else lies in the folder, such as results, stays there
    try:
        with (
            put_in_place(places[0], replace=places[0].exists()) as dataset,
            put_in_place(places[1], replace=places[1].exists()) as notebooks,
        ):
            write_json(dataset / RECIPE, carried(config, dataset, packed).model_dump(mode="json"))
            extras = extras_of(config)
            add_program(dataset, packed, extras)
            asked = distribution.requirements(extras)
            wheels = [packed.wheel, *packed.wheels]
            add_metadata(dataset, notebooks, slug, owner, packed, former)
            content = notebook(config.name, slug, time, distribution.own().name, asked, MANIFEST, packed.network)
            (notebooks / f"{slug}.ipynb").write_bytes(content)
            manifest = {"name": config.name, "wheels": wheels, "source": packed.source}
            manifest |= {"files": checksums(dataset), "notebook": checksums(notebooks)}
            write_json(dataset / MANIFEST, manifest)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # where nothing came of it
        raise
    with atomic_write(folder / "README.md") as file:
        file.write(readme(slug, owner, time, packed).encode())
    return packed


def former_metadata(folder: Path) -> dict[str, Any]:
    """What the notebook's metadata were, with what a person has written into them."""
    kept = folder / "notebook" / METADATA
    found = read_json(kept) if kept.is_file() else {}
    return found if isinstance(found, dict) else {}


def checksums(folder: Path) -> dict[str, str]:
    """Of every file below."""
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*")) if not path.is_dir()}


def others(folder: Path) -> list[Path]:
    """What a person has put into the two folders that are written anew, or changed there.

    The manifest has what we wrote. The notebook's metadata are for people to edit, and what they say is kept.
    """
    kept = folder / "dataset" / MANIFEST
    manifest = read_json(kept) if kept.is_file() else {}
    found = []
    for name, written in (("dataset", "files"), ("notebook", "notebook")):
        known = manifest.get(written) if isinstance(manifest, dict) else None
        if isinstance(known, dict):
            now = checksums(folder / name) if (folder / name).is_dir() else {}
            changed = [file for file, checksum in now.items() if known.get(file) != checksum]
            found += [folder / name / file for file in changed if file not in (MANIFEST, METADATA)]
    return [*found, *(path for path in (folder / "notebook").glob("*") if path.is_dir())]


# -- what goes along ---------------------------------------------------------------------------------------------------


def remote(config: CorpusConfig) -> bool:
    """Whether some of the text has to be fetched over a network."""
    return any(_needs_fetching(name) for name in (*config.source, *config.validation_source))


def _needs_fetching(name: str) -> bool:
    from fledge.corpus.fetch import NAMED, corpora_folder

    if "://" in name:
        return True
    if name not in NAMED or os.path.exists(name):
        return False
    return not all((corpora_folder() / name / file.name).exists() for file in NAMED[name].files)


def carried(config: RunConfig, dataset: Path, packed: Packed) -> RunConfig:
    """The same run with its files copied into the dataset and named from there."""
    corpus = config.corpus
    sources: dict[bool, list[str]] = {False: [], True: []}
    for held_out, names in ((False, corpus.source), (True, corpus.validation_source)):
        for name in names:
            for path, part in _places(name, packed):
                sources[held_out or part].append(_carry(path, dataset, packed) if path is not None else name)
    changes: dict[str, object] = {
        "corpus": corpus.model_copy(update={"source": (*sources[False],), "validation_source": (*sources[True],)})
    }
    if config.tokenizer.path is not None:
        kept = _carry_tokenizer(config.tokenizer.path, dataset, packed)
        changes["tokenizer"] = config.tokenizer.model_copy(update={"path": kept})
    if config.tokens.store is not None:
        kept = _carry(Path(config.tokens.store), dataset, packed)
        changes["tokens"] = config.tokens.model_copy(update={"store": kept})
    return config.model_copy(update=changes)


def _places(name: str, packed: Packed) -> list[tuple[Path | None, bool]]:
    """The files behind a source and whether each is held out; None for a source that is not a file."""
    from fledge.corpus.akjv import NAME
    from fledge.corpus.fetch import located

    if name == NAME:
        return [(None, False)]
    if _needs_fetching(name):
        packed.network = f"the text {name} is fetched there"
        return [(None, False)]
    found: list[tuple[Path | None, bool]] = []
    for address, held_out in located(name):
        address = os.path.expanduser(address)
        paths = [address]
        if not os.path.exists(address):
            paths = sorted(path for path in glob.glob(address, recursive=True) if os.path.isfile(path))
        found += [(Path(path), held_out) for path in paths]
    return found


def _carry(path: Path, dataset: Path, packed: Packed) -> str:
    """Copy a file or a folder into the dataset; its name there, beginning with `./` so that it is no corpus's name."""
    if not path.exists():
        raise FledgeError(f"There is no file or folder {path}, which the recipe names.")
    files = [entry for entry in path.rglob("*") if entry.is_file()] if path.is_dir() else [path]
    require_space(dataset, sum(entry.stat().st_size for entry in files), f"Packing {path}")
    target = _free(dataset, Path(os.path.abspath(path)).name)  # a link's own name: its ending says what is in it
    shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)
    return _carried(target, packed)


def _carry_tokenizer(path: str, dataset: Path, packed: Packed) -> str:
    """The tokenizer in our own format, whatever files it lies in here."""
    from fledge.tokenizer import open_tokenizer

    target = _free(dataset, "tokenizer")
    open_tokenizer(path, "tokenizer.path").save(target)
    return _carried(target, packed)


def _free(dataset: Path, name: str) -> Path:
    """A place for a file of that name, or one like it where the name is taken."""
    target, number = dataset / FILES / name, 1
    while target.exists():
        number += 1
        target = dataset / FILES / f"{number}-{name}"
    target.parent.mkdir(exist_ok=True)
    return target


def _carried(target: Path, packed: Packed) -> str:
    packed.files.append(f"{FILES}/{target.name}")
    return f"./{FILES}/{target.name}"


def extras_of(config: RunConfig) -> list[str]:
    """The extras of fledge that a recipe's text needs."""
    names = [str(name) for name in (*config.corpus.source, *config.corpus.validation_source)]
    special = config.corpus.format == "parquet" or any(
        "://" in name or name.endswith((".parquet", ".zst")) for name in names
    )
    custom = config.tokenizer.pattern not in ("gpt2", "cl100k", "o200k")
    return [*(["data"] if special or custom else []), *(["demo"] if "akjv" in names else [])]


def add_program(dataset: Path, packed: Packed, extras: list[str]) -> None:
    """fledge as a wheel and, from a clone, as source; and the pure Python that it needs beside what Kaggle has."""
    wheel = distribution.own_wheel(dataset)
    source = distribution.source_archive(dataset, ".sdist")
    packed.source = source is not None
    platform = distribution.tags(distribution.own())[0]
    packed.wheel = wheel.name if wheel is not None else ""
    if source is None and (wheel is None or not platform.endswith("_x86_64") or "linux" not in platform):
        raise FledgeError(
            f"fledge was installed here as a wheel for {platform}, which Kaggle's Linux does not run, and without its "
            "source. Run the same command from a clone of fledge: pip install -e . there."
        )
    if wheel is None:
        packed.notes.append(
            "No wheel goes along, for the compiled core is older than its source: the notebook compiles it. To spare "
            "it that, pip install -e . and run this again."
        )
    if source is None:
        packed.notes.append(
            f"fledge was installed from a wheel for {platform}, and goes along as that: the notebook needs the same "
            "Python and a system no older than this one. From a clone, the source would go along too."
        )
    roots = [DISTRIBUTION, *(distribution.BUILD if packed.source else ())]
    found, left = distribution.needed(roots, extras)
    packed.wheels += [distribution.repack(one, dataset).name for one in found]
    missing = [name for name in left if name in distribution.BUILD]
    if packed.source and (wheel is None or not distribution.fits_every_python(distribution.own())):
        tools, why = distribution.fetch_tools(dataset)
        packed.wheels += [name for name in tools if name not in packed.wheels]
        if tools:
            missing = []
        else:
            packed.notes.append(
                f"The wheel is for Python {platform.split('-')[0].removeprefix('cp3').join(('3.', ''))} alone; others "
                f"compile the source, with cmake and ninja of the notebook's machine, since pip could not fetch them "
                f"({why})."
            )
    if missing:
        packed.notes.append(
            f"To compile the source without a network, {' and '.join(missing)} must go along, and they are not "
            "installed here: pip install them and run this again, unless the wheel fits."
        )
    left = [name for name in left if name not in distribution.BUILD]  # carried by now, or told as missing
    if left:
        packed.notes.append(f"Not carried, as Kaggle and Colab have them or they are compiled: {', '.join(left)}.")


def add_metadata(dataset: Path, notebooks: Path, slug: str, owner: str, packed: Packed, former: dict[str, Any]) -> None:
    """What `kaggle datasets create` and `kaggle kernels push` read; what a person has changed or attached stays."""
    attached = [name for name in former.get("dataset_sources", []) if not name.endswith(f"/{slug}-data")]
    write_json(
        dataset / "dataset-metadata.json",
        {"title": f"{slug}-data", "id": f"{owner}/{slug}-data", "licenses": [{"name": "other"}]},
    )
    write_json(
        notebooks / METADATA,
        {
            "id": f"{owner}/{slug}",
            "title": slug,
            "code_file": f"{slug}.ipynb",
            "language": "python",
            "kernel_type": "notebook",
            "is_private": True,
            "enable_gpu": True,
            "enable_internet": bool(packed.network),
            "dataset_sources": [f"{owner}/{slug}-data", *attached],
            "competition_sources": [],
            "kernel_sources": [],
            **{key: former[key] for key in EDITED if key in former},
        },
    )


def readme(slug: str, owner: str, time: str, packed: Packed) -> str:
    network = f"It needs a network, for {packed.network}." if packed.network else "It needs no network."
    notes = "".join(f"- {note}\n" for note in packed.notes)
    return f"""# {slug} on Kaggle

`dataset/` holds fledge, the recipe and its text; `notebook/` holds the notebook that trains it within {time}. {network}

1. `kaggle datasets create -p dataset --dir-mode zip`; for later versions, `kaggle datasets version` with the same
   options and `-m "again"`. Without the kaggle command: New Dataset, and upload what is in `dataset/`.
2. `kaggle kernels push -p notebook`, or upload the notebook and attach the dataset `{slug}-data`. Choose a GPU.
   In both metadata files, `{owner}` stands for your Kaggle name (`fledge kaggle … --user NAME` fills it in).
3. When the version has run, its output holds `{slug.removeprefix("fledge-")}.zip` (the model, with tokenizer and
   settings: `fledge generate` takes it as it is), `metrics.csv`, `report.html`, and the whole run below `runs/` and
   `tokens/`. Fetch it: `kaggle kernels output {owner}/{slug} -p results`.
4. To train on after the time limit, add the notebook's own output to its inputs (Add Input → Notebook output, or
   `"kernel_sources": ["{owner}/{slug}"]` in `kernel-metadata.json`) and run it again: it goes on where it stopped.
   For more steps than the recipe had, make the dataset again with `--set training.steps=…` first.

On Colab: put the content of `dataset/` into the folder `{slug}` of your Google Drive and open the notebook there.
Results are kept in the same folder, and the next session goes on from them.

The environment variables `FLEDGE_INPUT`, `FLEDGE_WORKING` and `FLEDGE_TIME` name other folders and another limit;
`FLEDGE_NETWORK=1` lets the installation use the network.
{f"{chr(10)}Worth knowing:{chr(10)}{notes}" if notes else ""}"""
