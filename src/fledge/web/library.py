"""What the page may show: the runs, bundles and tokenizers below the folders given when the server started.

A request names a thing by the name found here, never by a path: what was not found can't be reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from fledge.errors import FledgeError, nearest
from fledge.experiments.plan import DATA, PLAN
from fledge.files import PARTIAL, did_you_mean
from fledge.runs.checkpoints import best_of
from fledge.runs.layout import CHECKPOINTS, CONFIG, METRICS, TOKENS
from fledge.tokenizer import load_tokenizer

DEPTH = 6
FOLDERS = 20_000
FRESH_SECONDS = 1.0
ARCHIVES = (".zip", ".tar.zst")


class NotFound(FledgeError):
    """A name that is not, or no longer, below the given folders."""


@dataclass
class Catalogue:
    """What one look found, by name. `skipped` says in a sentence why a folder could not be looked into, and `clash`
    whether two runs, bundles or experiments have one name."""

    runs: dict[str, Path] = field(default_factory=dict)
    experiments: dict[str, Path] = field(default_factory=dict)
    bundles: dict[str, Path] = field(default_factory=dict)
    tokenizers: dict[str, Path] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    clash: bool = False

    def add(self, group: dict[str, Path], name: str, path: Path) -> None:
        """Enter a path; where the name is taken, as `name (2)`."""
        number, free = 1, name
        while free in group:
            number += 1
            free = f"{name} ({number})"
            self.clash = self.clash or group is not self.tokenizers
        group[free] = path

    def best(self) -> dict[str, Path]:
        """The best checkpoint of each run that has one of its own; a run inside another is not the other's."""
        kept: dict[Path, list[Path]] = {}
        for path in self.bundles.values():
            if path.parent.name == CHECKPOINTS:
                kept.setdefault(path.parent.parent, []).append(path)
        found = {name: best_of(sorted(kept[run])) for name, run in self.runs.items() if run in kept}
        return {name: path for name, path in found.items() if path is not None}


class Library:
    """The given folders and files. Looking is cheap and bounded, and repeated at most once a second."""

    def __init__(self, sources: Sequence[Path | str], waiting: bool = False) -> None:
        """With `waiting`, a folder may appear later: what is then in it is shown."""
        self.sources = [Path(source) for source in sources]
        for source in self.sources:
            if not waiting and not source.exists():
                raise FledgeError(
                    f"There is no {source} to serve.{did_you_mean(source)} Train something first (fledge demo), or "
                    "name a folder of runs, a bundle or a tokenizer file."
                )
            if source.is_file() and not source.name.lower().endswith(ARCHIVES):
                try:
                    load_tokenizer(source)
                except FledgeError as error:
                    raise FledgeError(f"{source} is no bundle, and no tokenizer that can be read: {error}") from None
        self._lock = Lock()
        self._looked = float("-inf")
        self._catalogue = Catalogue()

    def catalogue(self) -> Catalogue:
        """Everything there is now."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH_SECONDS:
                self._catalogue = self._look(False)
                if self._catalogue.clash:
                    self._catalogue = self._look(True)
                self._looked = time.monotonic()
            return self._catalogue

    def home(self) -> Path:
        """The folder that the page writes to: the first served one that may hold several runs."""
        for source in self.sources:
            signs = _names(source) if source.is_dir() else {"nothing"} if source.exists() else set()
            if not (source.is_file() or signs & {"bundle.json", "tokenizer.json", PLAN} or _is_run(signs)):
                return source
        raise FledgeError(
            "No folder of runs is served, so a new run has no place. Start the page with a folder of runs: "
            "fledge serve runs"
        )

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self._find("run", self.catalogue().runs, name)

    def experiment(self, name: str) -> Path:
        """The folder of a sweep, an ablation or a comparison."""
        return self._find("experiment", self.catalogue().experiments, name)

    def bundle(self, name: str) -> Path:
        """The folder of a bundle; a run's own name stands for its best checkpoint."""
        catalogue = self.catalogue()
        return self._find("bundle", {**catalogue.best(), **catalogue.bundles}, name)

    def tokenizer(self, name: str) -> Path:
        """The file or folder of a tokenizer; every bundle holds one."""
        catalogue = self.catalogue()
        return self._find("tokenizer", {**catalogue.tokenizers, **catalogue.bundles}, name)

    def tokens(self, bundle: Path) -> Path | None:
        """The store of the run that a checkpoint belongs to, where it lies below a served folder as a whole."""
        folder = bundle.parent.parent / TOKENS
        if bundle.parent.name != CHECKPOINTS or not readable_file(folder.parent, f"{TOKENS}/store.json"):
            return None
        real = folder.resolve()
        if not any(real.is_relative_to(source.resolve()) for source in self.sources):
            return None
        parts = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        return None if any(_leads_out(part, real) for part in parts) else folder

    def _find(self, kind: str, known: dict[str, Path], name: str) -> Path:
        if name not in known:
            hint = nearest(name, known) if known else f"There is no {kind} below the served folders yet."
            raise NotFound(f"There is no {kind} called {name!r}. {hint}")
        return known[name]

    def _look(self, by_source: bool) -> Catalogue:
        """`by_source` puts each source's own name before what lies in it, where two sources hold equal names."""
        catalogue = Catalogue()
        for source in self.sources:
            # The resolved name, since `fledge serve .` should not call everything "."
            name = source.resolve().name
            if not source.exists():
                continue
            if source.is_file():
                group = catalogue.bundles if name.lower().endswith(ARCHIVES) else catalogue.tokenizers
                catalogue.add(group, name, source)
                continue
            budget = [FOLDERS]
            signs = _names(source)
            itself = signs & {"bundle.json", "tokenizer.json", PLAN} or _is_run(signs)
            prefix = name if itself or by_source else ""
            _walk(source, source.resolve(), prefix, catalogue, DEPTH, budget)
        for group in (catalogue.runs, catalogue.experiments, catalogue.bundles, catalogue.tokenizers):
            ordered = dict(sorted(group.items()))
            group.clear()
            group.update(ordered)
        return catalogue


def readable_file(folder: Path, name: str) -> Path | None:
    """`folder/name` where it is a file that really lies in the folder: a link that leads elsewhere is not followed."""
    path = folder / name
    try:
        inside = path.is_file() and path.resolve().is_relative_to(folder.resolve())
    except OSError:
        return None
    return path if inside else None


def _walk(folder: Path, root: Path, name: str, catalogue: Catalogue, depth: int, budget: list[int]) -> None:
    budget[0] -= 1
    if budget[0] < 0 or depth < 0:
        bound = f"{DEPTH} folders deep" if depth < 0 else f"{FOLDERS:,} folders"
        catalogue.skipped.setdefault(root.name, f"what lies beyond {bound}; serve the folder that holds it")
        return
    try:
        if not folder.resolve().is_relative_to(root):
            catalogue.skipped[name] = "a link that leads outside the served folders"
            return
        names = _names(folder)
        whole = not names & {"bundle.json", "tokenizer.json"} or not _leads_out(folder, root)
        if not whole:
            catalogue.skipped[name] = "a file in it is a link that leads outside the served folders"
        if "bundle.json" in names and whole:
            catalogue.add(catalogue.bundles, name, folder)
        if "store.json" in names:
            return
        if PLAN in names and readable_file(folder, PLAN):
            catalogue.add(catalogue.experiments, name, folder)
        if _is_run(names) and not _is_shared(folder, names):
            catalogue.add(catalogue.runs, name, folder)
        elif "bundle.json" in names:
            return
        elif "tokenizer.json" in names and whole:
            catalogue.add(catalogue.tokenizers, name, folder)
        for child in _folders(folder):
            _walk(child, root, f"{name}/{child.name}" if name else child.name, catalogue, depth - 1, budget)
    except OSError as error:
        catalogue.skipped[name] = f"can't be read ({error.strerror or error})"


def _leads_out(folder: Path, root: Path) -> bool:
    """Whether a file of the folder is a link to somewhere that is not served."""
    with os.scandir(folder) as entries:
        links = [Path(entry.path) for entry in entries if entry.is_symlink() and not entry.is_dir()]
    return any(not link.resolve().is_relative_to(root) for link in links)


def _is_run(names: set[str]) -> bool:
    """A run that has begun to train, or one that prepares: then only its settings are there, and no model's files."""
    if METRICS in names or CHECKPOINTS in names:
        return True
    foreign = "tokenizer.json" in names or any(name.endswith(".safetensors") for name in names)
    return CONFIG in names and not foreign


def _is_shared(folder: Path, names: set[str]) -> bool:
    """What the trials of an experiment share: a tokenizer and tokens, and no run of its own."""
    return folder.parent.name == DATA and not names & {METRICS, CHECKPOINTS}


def _names(folder: Path) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except NotADirectoryError:
        return set()


def _folders(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        found = [entry.name for entry in entries if entry.is_dir()]
    for name in sorted(found):
        if not name.startswith(".") and not name.endswith(PARTIAL):
            yield folder / name
