"""`Run`: the handle that ties the parts together, in Python as on the command line. It holds no logic of its own.

What lies in a run's folder is in `fledge/runs/layout.py`.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import RunConfig, load_recipe, override_config, parse
from fledge.errors import FledgeError, command, note
from fledge.files import did_you_mean, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from fledge.accounting import Account
    from fledge.bundle import Bundle
    from fledge.corpus import Corpus
    from fledge.evaluation import Evaluation
    from fledge.evaluation.look import ReadText
    from fledge.generation.results import Generations
    from fledge.model import Model
    from fledge.notebook import Html
    from fledge.runs.checkpoints import At
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import TokenStore, Windows
    from fledge.training import TrainingResult
    from fledge.training.overfit import Overfit

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
        self._resume: Bundle | None = None  # the checkpoint that `train` continues from
        self._trained_on: torch.device | None = None
        self._at: At = None

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
        from fledge.runs.folder import kept_settings

        config = parse(RunConfig, kept_settings(kept), where=str(kept))
        return cls(config, folder, overrides=overrides, quiet=quiet)

    @classmethod
    def resume(cls, folder: Path | str, at: At = None, overrides: Iterable[str] = (), *, quiet: bool = False) -> Run:
        """The run in `folder`, which `train` continues from its last checkpoint, or from the one that `at` names.

        Changed settings are kept when training begins.
        """
        from fledge.runs.branches import load_checkpoint, settings_file
        from fledge.training.continuity import complete, resumed

        run = cls.open(folder, overrides, settings=settings_file(Path(folder), at), quiet=quiet)
        run._resume = run.bundle = load_checkpoint(folder, at)  # its tokenizer decides what tokens fit
        resumed(run.config, run.bundle, overrides, at)
        run._tell(complete(run.config, run.bundle, run.folder))
        return run

    @classmethod
    def fine_tune(
        cls,
        source: Path | str,
        recipe: str | Path | None = None,
        folder: Path | str | None = None,
        *,
        at: At = None,
        overrides: Sequence[str] = (),
        quiet: bool = False,
    ) -> Run:
        """A new run from the weights of a bundle or a run, with its model and tokenizer and a recipe's other settings.

        Without a recipe, it is `finetune` on the text of that run.
        """
        from fledge.runs.folder import named_by
        from fledge.training.continuity import fine_tuned

        config, bundle = fine_tuned(Path(source), recipe, at, overrides, quiet)
        place = Path(folder) if folder is not None else Path("runs") / f"{config.name}-from-{Path(source).name}"
        if place.absolute() in (bundle.path.absolute(), *bundle.path.absolute().parents):
            raise FledgeError(
                f"--from starts a new run, and {place} holds the bundle it starts from: choose another --out."
            )
        return cls(config, place, overrides=[*overrides, *named_by(place, overrides)], bundle=bundle, quiet=quiet)

    def begun(self) -> Bundle | None:
        """The last checkpoint, where this run was begun before; `train` then continues from it.

        A run with other settings in the folder is refused.
        """
        from fledge.runs.branches import load_checkpoint
        from fledge.runs.checkpoints import checkpoints, step_of
        from fledge.training.continuity import complete

        if not checkpoints(self.folder):
            return None
        self.claim()
        self._resume = self.bundle = load_checkpoint(self.folder)
        where = f"resuming from step {step_of(self.bundle.path) or 0} of {self.config.steps}."
        same = f"{self.folder} was started before with the same settings: {where}"
        self._tell(complete(self.config, self.bundle, self.folder) or same)
        return self.bundle

    def _tell(self, sentence: str) -> None:
        if sentence and not self.quiet and is_main():
            note(sentence)

    def _pin(self) -> None:
        """Name the commit in every address of a hub: the one that the run in the folder has, or that of today."""
        from fledge.runs.folder import pinned

        self.config = pinned(self.config, self.folder)

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
        from fledge.runs.folder import is_bundle, kept_tokens, store_of
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
            if (kept := kept_tokens(self.folder, self.config)) is None:
                raise
            kept.require(self.tokenizer)
            note(f"{error} Using its tokens in {self.folder / 'tokens'}.")
            return kept
        self.claim()
        try:
            return store_on_the_fly(corpus, self.tokenizer, self.folder / "tokens", progress=not self.quiet)
        except OtherText:
            raise FledgeError(
                f"{self.folder} was started with another text or tokenizer. Leave the settings of corpus and "
                "tokenizer as they were, or start a new run in another folder."
            ) from None

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
        from fledge.runs import find_bundle
        from fledge.training.device import reseed

        if self._trained_on is not None:
            return load_bundle(find_bundle(self.folder, self._at), self._trained_on).model
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
        from fledge.runs.checkpoints import checkpoints
        from fledge.tokens.writer import sole_writer
        from fledge.training import Setup, join_ranks, train
        from fledge.training.pairs import require_pairs, start_from_pairs

        began = time.monotonic()
        resume, self._resume = resume or self._resume, None
        if resume is not None and resume is not self.bundle:
            self.bundle = resume
            for name in ("tokenizer", "tokens"):  # what was looked at before is not the checkpoint's
                self.__dict__.pop(name, None)
        elif resume is None and checkpoints(self.folder):
            raise FledgeError(
                f"{self.folder} already holds a run with checkpoints. Resume it "
                f"({command('train', '--resume', self.folder)}), or choose another folder with --out."
            )
        if resume is not None:
            self.__dict__.pop("model", None)
        self._trained_on = None
        from_pairs = self.config.training.start == "pairs" and self.bundle is None
        with join_ranks(self.config.training.device) as ranks:
            self.quiet = self.quiet or not ranks.main
            with ranks.main_first():
                if from_pairs:
                    require_pairs(self.config, self.tokenizer.vocab_size)
                tokens = self.tokens
            self.claim()
            validation = tokens.split("validation")
            with sole_writer(self.folder) if ranks.main else nullcontext():
                windows = self.windows("train"), self.windows("validation") if len(validation.tokens) else None
                model = self.model
                if from_pairs:
                    start_from_pairs(model, tokens.split("train").verify().tokens, self.config)
                try:
                    setup = Setup(
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
                        on_start=self._keep_settings if resume is not None else None,
                        on_evaluation=on_evaluation,
                        leave=leave,
                    )
                    result = train(setup)
                finally:
                    model.eval()
            if ranks.world == 1:  # elsewhere each process holds a part of the model
                self.use_best(next(model.parameters()).device)
        return result

    def _keep_settings(self, place: Path) -> None:
        """Those of a branch lie in it: the main line keeps its own until the branch takes over."""
        from fledge.runs.branches import SETTINGS

        name = CONFIG if place == self.folder else SETTINGS
        write_json(place / name, self.config.model_dump(mode="json"))

    def use_best(self, device: torch.device, at: At = None) -> None:
        """Let `model` be that of the run's best checkpoint, or of the one that `at` names, read onto the device when it
        is next asked for."""
        self._trained_on, self._at = device, at
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

    def generate(self, prompts: Sequence[str | bytes] | None = None, **sampling: Any) -> Generations:
        """Texts that go on from the prompts; keywords change the run's sampling settings."""
        from fledge.config import SamplingConfig
        from fledge.generation import generate
        from fledge.generation.results import Generations

        settings = parse(SamplingConfig, {**self.config.sampling.model_dump(), **sampling})
        prompts = [settings.prompt] if prompts is None else prompts
        return Generations(generate(self.model, self.tokenizer, prompts, settings), self.tokenizer)

    def account(self, **options: Any) -> Account:
        """What the model costs: parameters, FLOPs, memory, time; `options` are those of `accounting.account_run`.

        >>> account = Run("tinystories").account(device="h200")
        >>> f"{account.parameters.total:,}", account.fits
        ('22,696,448', True)
        """
        from fledge.accounting import account_run

        if self.bundle is None:
            size = self.config.tokenizer.vocabulary_size or self.tokenizer.vocab_size
            return account_run(self.config, size, **options)
        facts = self.bundle.manifest.model
        return account_run(self.config, facts.vocabulary_size, facts.context_length, **options)

    def overfit_one_batch(self, tell: Callable[[str], object] = print) -> Overfit:
        """Whether a model of these settings can learn the first batch by heart; nothing of it is kept."""
        from fledge.training.overfit import overfit_one_batch

        return overfit_one_batch(self.config, self.tokenizer.vocab_size, self.windows("train"), tell)

    def inside(self, text: str, *, paragraphs: bool = False) -> ReadText:
        """What happens in the model as it reads a text; in a notebook, the last line of a cell shows it.

        With `paragraphs`, each paragraph is a document of its own, which sees no other.
        """
        from fledge.evaluation.look import look

        return look(self.model, self.tokenizer, text, paragraphs)

    def attention(self, text: str, layer: int | None = None, head: int = 1, token: int | None = None) -> Html:
        """Where the model looks as it reads a text, for a notebook: all heads, and one of them enlarged.

        Layers, heads and tokens count from 1; the last layer and the last token, unless given.
        """
        return self.inside(text).attention(layer, head, token)

    def save(self, folder: Path | str) -> Path:
        """The model as it is now, as a bundle of its own."""
        from fledge.bundle import save_bundle
        from fledge.bundle.card import IMPORTED

        # How an imported model was trained is not in its settings, and the copy says so too.
        known = self.bundle.metrics if self.bundle is not None and self.config == self.bundle.config else {}
        metrics = {IMPORTED: known[IMPORTED]} if IMPORTED in known else None
        return save_bundle(folder, self.config, self.tokenizer, self.model, metrics=metrics)

    def claim(self) -> None:
        """Make the folder this run's: new, or begun before with the same settings; anything else is refused."""
        from fledge.model.registry import find_architecture
        from fledge.runs.folder import claim

        self._pin()
        find_architecture(self.config.model.architecture)  # a mistyped one is refused before there is a folder
        claim(self.folder, self.config, self.bundle)


def is_main() -> bool:
    """Whether this process is the only one, or the first that torchrun started: the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def load(path: Path | str, device: str = "cpu", *, at: At = None) -> Run:
    """The model at `path` (a bundle, a run, or a packed bundle) with its tokenizer and settings, ready to use.

    A run's model is its checkpoint with the lowest validation loss; `at` names another: "last", or a step. A model on
    Hugging Face's hub is named `hf://owner/name`, with `@REVISION` for a branch, a tag or a commit of it.
    """
    from fledge.bundle import load_bundle
    from fledge.bundle.hub import place_of
    from fledge.runs import find_bundle
    from fledge.runs.folder import of_run, require_checkpoint

    path = place_of(path)
    require_checkpoint(path)
    bundle = load_bundle(find_bundle(path, at), device=device)
    return Run(of_run(bundle.config, path), path, bundle=bundle)
