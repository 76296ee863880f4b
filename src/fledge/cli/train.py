"""`fledge train`: a recipe into a run; a run further on; a bundle's weights into a new run."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fledge.cli.places import At, recipes, trained
from fledge.cli.root import Quiet
from fledge.cli.settings import Set
from fledge.errors import FledgeError, command, note
from fledge.files import read_json

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.run import Run
    from fledge.training import TrainingResult


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A packaged recipe's name, or a TOML file. Not needed with --resume.", autocompletion=recipes
        ),
    ] = None,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; default: runs/NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume.")] = None,
    at: At = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="A bundle whose weights and tokenizer the new run starts from.", callback=trained),
    ] = None,
    time_limit: Annotated[str | None, typer.Option(help="Save and stop within this time, such as 8h50m.")] = None,
    overfit_one_batch: Annotated[
        bool,
        typer.Option("--overfit-one-batch", help="Only check that the model can overfit one batch."),
    ] = False,
    profile: Annotated[
        bool, typer.Option(help="Profile a few steps: print where the time goes and write a trace.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model. Ctrl-C finishes the step and saves; a second Ctrl-C stops at once.

    After Ctrl-C or a crash, the same command resumes.
    """
    from fledge.training import join_ranks, parse_duration

    started = time.monotonic()
    limit = parse_duration(time_limit) if time_limit is not None else None
    if resume is not None and (recipe or from_ or out):
        raise FledgeError("--resume continues a run unchanged. Leave out the recipe, --from and --out.")
    if overfit_one_batch and (resume or from_ or time_limit or profile):
        raise FledgeError(
            "--overfit-one-batch is a check of a recipe: leave out --resume, --from, --time-limit and --profile."
        )
    if at is not None and resume is None and from_ is None:
        raise FledgeError("--at names a step of the run given with --resume or --from, its best or its last.")
    checkpoint: Bundle | None = None
    if resume is not None:
        run, checkpoint = resumed(resume, at, set_ or [], quiet)
    elif overfit_one_batch and recipe is not None:
        return overfit_check(recipe, out, set_ or [], quiet)
    elif from_ is not None:
        run = fine_tuned(recipe, from_, at, set_ or [], out, quiet)
        checkpoint = begun(run)
    elif recipe is not None:
        from fledge.run import Run

        run = Run(recipe, out, overrides=[*(set_ or []), *named_by(out, set_ or [])], quiet=quiet)
        checkpoint = begun(run)
    else:
        raise FledgeError(
            "Name a recipe, such as: fledge train akjv-demo. Or resume a run: fledge train --resume runs/NAME"
        )
    with join_ranks(run.config.training.device) as ranks:
        run.quiet = run.quiet or not ranks.main
        with ranks.main_first():
            _ = run.tokens
        left = None if limit is None else limit - (time.monotonic() - started)
        result = run.train(resume=checkpoint, time_limit=left, profile=profile, leave=True)
        if ranks.main:
            summarise(result)


def overfit_check(recipe: str, out: Path | None, overrides: list[str], quiet: bool) -> None:
    """Say whether a model of the recipe learns its first batch by heart; one that does not ends with exit code 1."""
    from fledge.run import Run
    from fledge.training.overfit import overfit_one_batch

    run = Run(recipe, out, overrides=overrides, quiet=quiet)
    windows = run.windows("train")
    found = overfit_one_batch(run.config, run.tokenizer.vocab_size, windows, (lambda text: None) if quiet else print)
    print(found.sentence())
    if not found.learned:
        raise typer.Exit(1)


def named_by(out: Path | None, overrides: list[str]) -> list[str]:
    """The change that names a run by its folder, or by what it is called there already."""
    if out is None or any(change.partition("=")[0].strip() == "name" for change in overrides):
        return []
    kept = out / "config.json"
    values = read_json(kept) if kept.is_file() else {}
    name = values.get("name", out.absolute().name) if isinstance(values, dict) else out.absolute().name
    return [f"name={json.dumps(name)}"] if name else []


TUNING = "finetune"
"The recipe of --from where none is named."


def resumed(folder: Path, at: str | None, overrides: list[str], quiet: bool) -> tuple[Run, Bundle]:
    """The run in a folder, with the checkpoint to go on from. Changed settings are kept when training begins."""
    from fledge.run import Run
    from fledge.runs.branches import settings_file
    from fledge.runs.checkpoints import LAST
    from fledge.training import load_checkpoint
    from fledge.training.continuity import check_same_model, notable_changes

    run = Run.open(folder, overrides, settings=settings_file(folder, at), quiet=quiet)
    checkpoint = load_checkpoint(folder, at)
    check_same_model(run.config, checkpoint)
    asked = [text.partition("=")[0].strip() for text in overrides]
    for sentence in notable_changes(run.config, checkpoint, asked, back=at not in (None, LAST)):
        note(sentence)
    run.bundle = checkpoint  # its tokenizer decides what tokens fit
    if not quiet and os.environ.get("RANK", "0") == "0" and (over := complete(run, checkpoint)):
        note(over)
    return run, checkpoint


def complete(run: Run, checkpoint: Bundle) -> str:
    """The sentence that a run has no step left, and how it gets more; empty where it has some."""
    from fledge.training.progress import Progress, total_steps

    progress = Progress.of(checkpoint)
    if progress.step < total_steps(run.config, progress):
        return ""
    tokens = run.config.training.tokens
    longer = f"training.steps={2 * progress.step}" if tokens is None else f"training.tokens={2 * tokens}"
    again = command("train", "--resume", run.folder, "--set", longer)
    return f"{run.folder} is complete already. To train it further: {again}"


def begun(run: Run) -> Bundle | None:
    """The checkpoint to go on from, where the same command was stopped before; other settings are refused."""
    from fledge.runs.checkpoints import checkpoints, step_of
    from fledge.training import load_checkpoint

    if not checkpoints(run.folder):
        return None
    run.claim()
    checkpoint = run.bundle = load_checkpoint(run.folder)
    if not run.quiet and os.environ.get("RANK", "0") == "0":
        step, steps = step_of(checkpoint.path) or 0, run.config.steps
        print(
            complete(run, checkpoint)
            or f"{run.folder} was started before with the same settings: resuming from step {step} of {steps}.",
            file=sys.stderr,
        )
    return checkpoint


def fine_tuned(
    recipe: str | None, source: Path, at: str | None, overrides: list[str], out: Path | None, quiet: bool
) -> Run:
    """A new run that starts from a bundle's weights: its model and tokenizer, and the recipe's everything else."""
    from fledge.bundle import load_bundle
    from fledge.config import load_recipe
    from fledge.run import Run
    from fledge.runs import find_bundle
    from fledge.runs.folder import of_run

    bundle = load_bundle(find_bundle(source, at))
    if recipe is not None:
        config = load_recipe(recipe)
    else:
        own = of_run(bundle.config, source)
        same = {"corpus": own.corpus, "tokens": own.tokens, "sampling": own.sampling}
        config = load_recipe(TUNING).model_copy(update=same)
    set_here = {change.partition("=")[0].strip() for change in overrides}
    if config.name != TUNING and not set_here & {"optimizer.learning_rate", "optimizer.name"}:
        note(
            f"The learning rate of {config.name} is meant for a new model, and may undo what this one has learned. "
            f"{command('train', TUNING, '--from', source)} begins at one for fine-tuning."
        )
    length = min(config.tokens.context_length, bundle.model.context_length)
    config = config.model_copy(
        update={
            "model": bundle.config.model,
            "tokenizer": bundle.config.tokenizer,
            "tokens": config.tokens.model_copy(update={"context_length": length}),
        }
    )
    folder = out if out is not None else Path("runs") / f"{config.name}-from-{source.name}"
    if folder.absolute() in (bundle.path.absolute(), *bundle.path.absolute().parents):
        raise FledgeError(
            f"--from starts a new run, and {folder} holds the bundle it starts from: choose another --out."
        )
    if not quiet:
        model = bundle.config.model
        instead = f" instead of {config.name}'s" if recipe is not None and config.name != TUNING else ""
        print(
            f"From {source}: the weights, the model ({model.architecture}, {model.layers} layers × {model.width}), the "
            f"tokenizer ({bundle.tokenizer.vocab_size:,} ids) and its context of {length} tokens{instead}. Text, "
            f"learning rate and length are those of {config.name}.",
            file=sys.stderr,
        )
    return Run(config, folder, overrides=[*overrides, *named_by(folder, overrides)], bundle=bundle, quiet=quiet)


def summarise(result: TrainingResult) -> None:
    """The end of a run in a few lines, with what to do next."""
    from fledge.runs.checkpoints import held_out_losses

    parts = [f"step {result.step} of {result.steps}", f"{result.tokens:,} tokens"]
    if result.loss is not None:
        parts.append(f"loss {result.loss:.4f}")
    if result.validation_loss is not None:
        parts.append(f"validation loss {result.validation_loss:.4f}")
    if result.bits_per_byte is not None:
        parts.append(f"{result.bits_per_byte:.4f} bits per byte")
    if result.tokens_per_second:
        parts.append(f"{result.tokens_per_second:,.0f} tokens/s")
    print(", ".join(parts))
    print(f"bundle: {result.checkpoint}")
    if result.best != result.checkpoint:
        lowest = held_out_losses([result.best]).get(result.best, math.nan)
        print(f"best:   {result.best}, with the lowest validation loss, {lowest:.4f}. It is the run's model.")
    if result.stopped is not None:
        print(f"go on:  {command('train', '--resume', result.folder)}")
    else:
        # A branch that ends below the main line's last step has not taken its place.
        mine = result.checkpoint.parents[1] == result.folder
        print(f"try it: {command('generate', result.folder if mine else result.checkpoint)}")
        if held_out_losses([result.best]):
            print(f"report: {command('report', result.folder)}")
