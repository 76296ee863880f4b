"""`Run`: the handle that ties the parts together, in Python as on the command line. It holds no logic of its own.

A run's folder: `config.json`, `origin.json` where it began with a bundle's weights, `tokenizer/`, `tokens/`,
`metrics.csv`, `samples.txt`, `loss.svg`, `report.html`, and `checkpoints/step-XXXXXXXX/`, each of them a whole bundle.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import RunConfig, changed, load_recipe, override_config, parse
from fledge.errors import FledgeError, command, note
from fledge.files import did_you_mean, finished_name, read_json, require_utf8, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from fledge.bundle import Bundle
    from fledge.bundle.checkpoints import At
    from fledge.corpus import Corpus
    from fledge.evaluation import Evaluation
    from fledge.generation import Generation
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import TokenSplit, TokenStore, Windows
    from fledge.training import TrainingResult

CONFIG = "config.json"
BEGIN = " Begin one with fledge train RECIPE."


class Run:
    """One configuration and everything built from it, each part made when it is first asked for.

    >>> import tempfile
    >>> small = ["training.steps=2", "training.batch_size=2", "model.width=32", "tokens.context_length=16"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run("akjv-demo", folder + "/run", overrides=small)
    ...     result = run.train(quiet=True)
    ...     text = load(folder + "/run").generate(["In the beginning"])[0].text
    >>> result.step
    2
    """

    def __init__(
        self,
        config: RunConfig | str | Path,
        folder: Path | str | None = None,
        *,
        overrides: Iterable[str] = (),
        bundle: Bundle | None = None,
        quiet: bool = False,
    ) -> None:
        """`config` is a configuration, or a recipe's name or file; `bundle` gives first weights and a tokenizer, and
        the settings of both have to be the bundle's."""
        if isinstance(config, RunConfig):
            self.config = override_config(config, overrides)
        else:
            self.config = load_recipe(config, overrides)
        self.folder = Path(folder) if folder is not None else Path("runs") / self.config.name
        if bundle is not None:
            from fledge.bundle.fit import require_same_model

            require_same_model(self.config, bundle)
        self.bundle = bundle
        self.quiet = quiet
        self._trained_on: torch.device | None = None

    def __repr__(self) -> str:
        """What it is and where it lies; nothing is built or read for it."""
        model, facts = self.config.model, []
        if self.bundle is not None:
            manifest = self.bundle.manifest
            facts += [f"{manifest.model.parameters:,} parameters", f"{manifest.tokenizer.vocabulary_size:,} ids"]
        facts.append(f"context {self.config.tokens.context_length:,}")
        if self.bundle is not None and "step" in self.bundle.metrics:
            facts.append(f"step {self.bundle.metrics['step']:,}")
        what = f"{model.architecture}, {model.layers} layers × {model.width}, {', '.join(facts)}"
        return f"<fledge.Run {self.config.name!r}: {what}; {self.folder}>"

    @classmethod
    def open(
        cls, folder: Path | str, overrides: Iterable[str] = (), *, settings: Path | None = None, quiet: bool = False
    ) -> Run:
        """A run that was begun in `folder`, with the settings it was begun with, or those of the file `settings`,
        changed where asked."""
        kept = Path(folder) / CONFIG if settings is None else settings
        if not Path(folder).exists():
            hint = did_you_mean(Path(folder)) or BEGIN
            raise FledgeError(f"{folder} is not a run: there is nothing at that path.{hint}")
        if not kept.is_file():
            raise FledgeError(f"{folder} is not a run: there is no {CONFIG} in it.{BEGIN}")
        config = parse(RunConfig, kept_settings(kept), where=str(kept))
        return cls(config, folder, overrides=overrides, quiet=quiet)

    def _pin(self) -> None:
        """Name the commit in every address of a hub: the one that the run in the folder has, or that of today."""
        from fledge.corpus.hub import COMMIT, is_hub, parse, pinned

        kept: dict[str, str] = {}
        if (self.folder / CONFIG).is_file():
            settings = read_json(self.folder / CONFIG)
            corpus, tokenizer = (settings.get(group) or {} for group in ("corpus", "tokenizer"))
            for name in (*corpus.get("source", ()), *corpus.get("validation_source", ()), tokenizer.get("path")):
                if is_hub(name):
                    kept[str(parse(name)._replace(revision=None))] = name

        def pin(name: str) -> str:
            if not is_hub(name) or COMMIT.fullmatch((address := parse(name)).revision or ""):
                return name
            return kept.get(str(address)) or str(pinned(address))

        corpus, tokenizer = self.config.corpus, self.config.tokenizer
        sources, held_out = (tuple(map(pin, names)) for names in (corpus.source, corpus.validation_source))
        path = tokenizer.path and pin(tokenizer.path)
        if (sources, held_out, path) != (corpus.source, corpus.validation_source, tokenizer.path):
            text = corpus.model_copy(update={"source": sources, "validation_source": held_out})
            self.config = self.config.model_copy(
                update={"corpus": text, "tokenizer": tokenizer.model_copy(update={"path": path})}
            )

    @cached_property
    def corpus(self) -> Corpus:
        from fledge.corpus import Corpus

        self._pin()
        return Corpus.from_config(self.config.corpus)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The bundle's; else the one that the settings name; else the folder's; else trained, and kept there."""
        from fledge.tokenizer import load_tokenizer, open_tokenizer, train_tokenizer
        from fledge.tokens import TokenStore

        self._pin()
        kept = self.folder / "tokenizer"
        if self.bundle is not None:
            return self.bundle.tokenizer
        if self.config.tokenizer.path is not None:
            return open_tokenizer(self.config.tokenizer.path, "tokenizer.path =")
        if self.config.tokens.store is not None:
            return TokenStore.open(self.config.tokens.store).tokenizer
        if kept.is_dir():
            return load_tokenizer(kept)
        corpus = self.corpus  # a mistyped source is refused before there is a folder
        self.claim()
        tokenizer = train_tokenizer(self.config.tokenizer, corpus, progress=not self.quiet)
        tokenizer.save(kept)
        return tokenizer

    @cached_property
    def tokens(self) -> TokenStore:
        """The store that the settings name, or the one in the folder, written now if it is not whole."""
        from fledge.tokens import TokenStore, store_on_the_fly
        from fledge.tokens.writer import OtherText

        if self.config.tokens.store is not None:
            store = TokenStore.open(self.config.tokens.store)
            store.require(self.tokenizer)
            return store
        if self.bundle is not None and is_bundle(self.folder):
            if (around := store_of(self.folder)) is not None:  # a checkpoint in its run
                store = TokenStore.open(around)
                store.require(self.tokenizer)
                return store
            raise FledgeError(
                f"{self.folder} is a bundle and has no tokens of its own. Give texts to evaluate it on, or train from "
                f"it in a folder of its own: {command('train', 'RECIPE', '--from', self.folder)}"
            )
        try:
            corpus = self.corpus
        except FledgeError as error:
            if (kept := self._kept_tokens()) is None:
                raise
            note(f"{error} Going on with the tokens of it in {self.folder / 'tokens'}.")
            return kept
        self.claim()
        try:
            return store_on_the_fly(corpus, self.tokenizer, self.folder / "tokens", progress=not self.quiet)
        except OtherText:
            raise FledgeError(
                f"{self.folder} was begun with other text or another tokenizer. Leave the settings of corpus and "
                "tokenizer as they were, or begin a new run in another folder."
            ) from None

    def _kept_tokens(self) -> TokenStore | None:
        """The whole store in the folder, where the settings of the text are those that it was written with."""
        from fledge.tokens import TokenStore

        kept, path = self.folder / CONFIG, self.folder / "tokens"
        if not (path / "store.json").is_file() or not kept.is_file():
            return None
        if with_new_settings(kept_settings(kept)).get("corpus") != self.config.corpus.model_dump(mode="json"):
            return None
        store = TokenStore.open(path)
        store.require(self.tokenizer)
        return store

    def windows(self, split: str) -> Windows:
        """The windows of `train`, `validation` or `test`, in the order that the seed gives them."""
        from fledge.tokens import make_windows

        store, training = self.tokens, self.config.training
        lanes = training.batch_size if split == "train" else 1
        return make_windows(store.split(split), self.config.tokens, store.roles, training.seed, lanes=lanes)

    @cached_property
    def model(self) -> Model:
        """The bundle's, or a new one whose weights follow from the seed; after training, the best checkpoint's."""
        from fledge.bundle import load_bundle
        from fledge.model import build_model
        from fledge.training.device import reseed

        if self._trained_on is not None:
            return load_bundle(self.folder, self._trained_on).model
        if self.bundle is not None:
            return self.bundle.model
        reseed(self.config.training.seed, "weights")
        return build_model(self.config.model, self.tokenizer.vocab_size, self.config.tokens.context_length)

    def train(
        self,
        *,
        resume: Bundle | None = None,
        time_limit: float | None = None,
        profile: bool = False,
        quiet: bool | None = None,
        on_evaluation: Callable[[int, float], None] | None = None,
        leave: bool = False,
    ) -> TrainingResult:
        """Train into the folder; with `resume`, a checkpoint of this run, go on from there.

        With `leave`, a second Ctrl-C ends the process at once; else it raises KeyboardInterrupt after the operation.
        """
        from fledge.bundle.checkpoints import checkpoints
        from fledge.tokens.writer import alone
        from fledge.training import train
        from fledge.training.pairs import require_pairs, start_from_pairs
        from fledge.training.timeline import SETTINGS

        began = time.monotonic()
        if resume is not None and resume is not self.bundle:
            self.bundle = resume
            for name in ("tokenizer", "tokens"):  # what was looked at before is not the checkpoint's
                self.__dict__.pop(name, None)
        elif resume is None and checkpoints(self.folder):
            raise FledgeError(
                f"{self.folder} holds a run with checkpoints already. Go on with it "
                f"({command('train', '--resume', self.folder)}), or choose another folder with --out."
            )
        if resume is not None:
            self.__dict__.pop("model", None)
        self._trained_on = None
        if self.config.training.start == "pairs" and self.bundle is None:
            require_pairs(self.config, self.tokenizer.vocab_size)
        tokens = self.tokens
        self.claim()
        validation = tokens.split("validation")

        def keep_settings(place: Path) -> None:
            """Those of a branch lie in it: the main line keeps its own until the branch takes over."""
            name = CONFIG if place == self.folder else SETTINGS
            write_json(place / name, self.config.model_dump(mode="json"))

        with alone(self.folder) if os.environ.get("RANK", "0") == "0" else nullcontext():
            windows = self.windows("train"), self.windows("validation") if len(validation.tokens) else None
            model = self.model
            if self.config.training.start == "pairs" and self.bundle is None:
                start_from_pairs(model, tokens.split("train").verify().tokens, self.config)
            try:
                result = train(
                    self.config,
                    model,
                    self.tokenizer,
                    *windows,
                    self.folder,
                    resume=resume,
                    bytes_per_token=validation.source_bytes / max(1, len(validation.tokens)),
                    time_limit=None if time_limit is None else time_limit - (time.monotonic() - began),
                    profile=profile,
                    quiet=self.quiet if quiet is None else quiet,
                    on_start=keep_settings if resume is not None else None,
                    on_evaluation=on_evaluation,
                    leave=leave,
                )
            finally:
                model.eval()
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # elsewhere each process holds a part of the model
            self.use_best(next(model.parameters()).device)
        return result

    def use_best(self, device: torch.device) -> None:
        """Let `model` be that of the run's best checkpoint, read onto the device when it is next asked for."""
        self._trained_on = device
        self.__dict__.pop("model", None)

    def evaluate(
        self, texts: Sequence[str | bytes] | None = None, *, split: str | None = None, **options: Any
    ) -> Evaluation:
        """Loss, perplexity and bits per byte on texts, or on a part of the run's own: validation, unless given."""
        from fledge.evaluation import evaluate, evaluate_texts

        if texts is not None:
            if split is not None:
                raise FledgeError(
                    f"split = {split!r} is a part of the run's own text. Give texts or a split, not both."
                )
            return evaluate_texts(self.model, self.tokenizer, texts, **options)
        return evaluate(self.model, self.tokens.split(split or "validation"), tokenizer=self.tokenizer, **options)

    def generate(self, prompts: Sequence[str | bytes] | None = None, **sampling: Any) -> list[Generation]:
        """Texts that go on from the prompts; keywords change the run's sampling settings."""
        from fledge.config import SamplingConfig
        from fledge.generation import generate, prepare

        settings = parse(SamplingConfig, {**self.config.sampling.model_dump(), **sampling})
        if not self.model.training:
            prepare(self.model)
        return generate(self.model, self.tokenizer, [settings.prompt] if prompts is None else prompts, settings)

    def save(self, folder: Path | str) -> Path:
        """The model as it is now, as a bundle of its own."""
        from fledge.bundle import save_bundle
        from fledge.bundle.card import IMPORTED

        # How an imported model was trained is not in its settings, and the copy says so too.
        known = self.bundle.metrics if self.bundle is not None and self.config == self.bundle.config else {}
        metrics = {IMPORTED: known[IMPORTED]} if IMPORTED in known else None
        return save_bundle(folder, self.config, self.tokenizer, self.model, metrics=metrics)

    def claim(self) -> None:
        """Make the folder this run's: new, or begun before with the same settings; anything else is refused.

        One that goes on from a checkpoint of its own may have changed settings, kept when its training begins.
        """
        from fledge.bundle.checkpoints import checkpoints
        from fledge.bundle.origin import begin_again, keep_origin, other_origin
        from fledge.model.registry import find_architecture
        from fledge.training.timeline import settings_file

        if self.bundle is not None and self.folder.absolute() in self.bundle.path.absolute().parents:
            return
        self._pin()
        find_architecture(self.config.model.architecture)  # a mistyped one is refused before there is a folder
        require_utf8(self.folder, "a bundle")
        kept, values = self.folder / CONFIG, self.config.model_dump(mode="json")
        if kept.is_file():
            origin = other_origin(self.folder, self.bundle)
            kept_values = with_new_settings(kept_settings(settings_file(self.folder)))
            differing = [*origin, *differences(kept_values, values)]
            if not differing:
                return
            if self._spoils(differing):
                again = command("train", "--resume", self.folder)
                go_on = f"Go on with it ({again}), c" if checkpoints(self.folder) else "C"
                raise FledgeError(
                    f"{self.folder} holds a run with other settings ({'; '.join(differing[:4])}). {go_on}hoose another "
                    "folder with --out, or remove that one."
                )
            if origin and self.bundle is None:
                raise FledgeError(
                    f"{self.folder} was begun from a bundle's weights. Begin it again from them "
                    f"({begin_again(self.folder, kept)}), or choose another folder with --out."
                )
            if not (self.folder / "tokens" / "store.json").exists():
                shutil.rmtree(self.folder / "tokens", ignore_errors=True)  # of a source that was then corrected
        elif self.folder.exists() and (not self.folder.is_dir() or any(map(_is_foreign, os.listdir(self.folder)))):
            raise FledgeError(f"{self.folder} exists already and is not a run. Choose another folder with --out.")
        keep_origin(self.folder, self.bundle)
        write_json(kept, values)

    def _spoils(self, differing: list[str]) -> bool:
        """Whether the folder holds work that does not fit the changed settings: tokens depend on text and tokenizer
        alone, checkpoints on everything."""
        if (self.folder / "checkpoints").exists():
            return True
        made = any((self.folder / name).exists() for name in ("tokenizer", "tokens/store.json"))
        return made and any(line.startswith(("corpus.", "tokenizer.")) for line in differing)


def load(path: Path | str, device: str = "cpu", *, at: At = None) -> Run:
    """The model at `path` (a bundle, a run, or a packed bundle) with its tokenizer and settings, ready to use.

    A run's model is its checkpoint with the lowest validation loss; `at` names another: "last", or a step. A model on
    Hugging Face's hub is named `hf://owner/name`, with `@REVISION` for a branch, a tag or a commit of it.
    """
    from fledge.bundle import load_bundle
    from fledge.bundle.checkpoints import place_of

    path = place_of(path)
    require_checkpoint(path)
    bundle = load_bundle(path, device=device, at=at)
    return Run(of_run(bundle.config, path), path, bundle=bundle)


def of_run(config: RunConfig, folder: Path) -> RunConfig:
    """A checkpoint's settings with the places that its run keeps; the bundle itself names none."""
    if not folder.is_dir() or not is_run(folder):
        return config
    kept = parse(RunConfig, with_new_settings(read_json(folder / CONFIG)), where=str(folder / CONFIG))
    return config.model_copy(
        update={
            "corpus": kept.corpus,
            "tokenizer": config.tokenizer.model_copy(update={"path": kept.tokenizer.path}),
            "tokens": config.tokens.model_copy(update={"store": kept.tokens.store}),
            "imports": kept.imports,
        }
    )


def require_checkpoint(path: Path | str) -> None:
    """Refuse a run that has no model to use yet, and say how it gets one. What is not a run is not looked at."""
    from fledge.bundle.checkpoints import checkpoints, place_of
    from fledge.bundle.origin import begin_again

    folder = place_of(path)
    if is_run(folder) and not checkpoints(folder) and not (folder / "bundle.json").is_file():
        raise FledgeError(
            f"{folder} is a run that has no checkpoint yet. Wait for its first one, or go on with the command that "
            f"began it: {begin_again(folder, folder / CONFIG)}"
        )


def held_out(path: Path) -> TokenSplit | None:
    """The held-out part of the text that the run at `path`, or around it, was trained on; None where there is none."""
    from fledge.tokens import TokenStore

    store = store_of(path)
    split = None if store is None else TokenStore.open(store).split("validation")
    return split if split is not None and len(split.tokens) else None


def store_of(path: Path) -> Path | None:
    """The token store of the run at `path`, or around a checkpoint there; None where there is none."""
    if (path / "tokens" / "store.json").is_file():
        return path / "tokens"
    for folder in (path, *path.absolute().parents[:3]):  # a branch's checkpoints lie one folder deeper
        if is_run(folder):
            config = parse(RunConfig, with_new_settings(read_json(folder / CONFIG)), where=str(folder / CONFIG))
            for store in (config.tokens.store, folder / "tokens"):
                if store is not None and (Path(store) / "store.json").is_file():
                    return Path(store)
            return None
    return None


def _is_foreign(name: str) -> bool:
    """Whether a file is none of those that a run begins with, half written ones included."""
    from fledge.bundle.origin import ORIGIN

    return finished_name(name) not in (CONFIG, ORIGIN)


def is_bundle(path: Path) -> bool:
    """Whether a bundle itself lies there, a folder or packed, and not a run that has some."""
    from fledge.bundle.manifest import MANIFEST

    return path.is_file() or (path / MANIFEST).is_file()


def is_run(folder: Path) -> bool:
    """Whether a run was begun there; another program's config.json has other keys."""
    kept = folder / CONFIG
    values = read_json(kept) if kept.is_file() else None
    return isinstance(values, dict) and {"corpus", "training"} <= values.keys()


def kept_settings(path: Path) -> dict[str, Any]:
    """The settings that a run keeps; where they were written before near-copies were kept together, they say so."""
    values: dict[str, Any] = read_json(path)
    if isinstance(values, dict) and isinstance(values.get("corpus"), dict):
        values["corpus"].setdefault("split", "document")
    return values


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
    return [f"{name} = {first!r} there, {second!r} here" for name, (first, second) in changed(old, new).items()]
