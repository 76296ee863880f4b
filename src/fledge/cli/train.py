"""`fledge train`: a recipe into a run; a run further on; a bundle's weights into a new run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fledge.cli.places import At, recipes, trained
from fledge.cli.root import Quiet
from fledge.cli.settings import Set
from fledge.errors import FledgeError, command

if TYPE_CHECKING:
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
        bool, typer.Option("--overfit-one-batch", help="Only check that the model can overfit one batch.")
    ] = False,
    profile: Annotated[
        bool, typer.Option(help="Profile a few steps: print where the time goes and write a trace.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model. Ctrl-C finishes the step and saves; a second Ctrl-C stops at once.

    After Ctrl-C or a crash, the same command resumes.
    """
    from fledge.run import Run, is_main
    from fledge.runs.folder import named_by
    from fledge.training import parse_duration

    started = time.monotonic()
    limit = parse_duration(time_limit) if time_limit is not None else None
    changes = set_ or []
    if resume is not None and (recipe or from_ or out):
        raise FledgeError("--resume continues a run unchanged. Leave out the recipe, --from and --out.")
    if overfit_one_batch and (resume or from_ or time_limit or profile):
        raise FledgeError(
            "--overfit-one-batch is a check of a recipe: leave out --resume, --from, --time-limit and --profile."
        )
    if at is not None and resume is None and from_ is None:
        raise FledgeError("--at names a step of the run given with --resume or --from, its best or its last.")
    if resume is not None:
        run = Run.resume(resume, at, changes, quiet=quiet)
    elif overfit_one_batch and recipe is not None:
        return overfit_check(recipe, out, changes, quiet)
    elif from_ is not None:
        run = Run.fine_tune(from_, recipe, out, at=at, overrides=changes, quiet=quiet)
        run.begun()
    elif recipe is not None:
        run = Run(recipe, out, overrides=[*changes, *named_by(out, changes)], quiet=quiet)
        run.begun()
    else:
        raise FledgeError(
            "Name a recipe, such as: fledge train akjv-demo. Or resume a run: fledge train --resume runs/NAME"
        )
    left = None if limit is None else limit - (time.monotonic() - started)
    result = run.train(time_limit=left, profile=profile, leave=True)
    if is_main():
        summarise(result)


def overfit_check(recipe: str, out: Path | None, overrides: list[str], quiet: bool) -> None:
    """Say whether a model of the recipe learns its first batch by heart; one that does not ends with exit code 1."""
    from fledge.run import Run

    found = Run(recipe, out, overrides=overrides, quiet=quiet).overfit_one_batch(print if not quiet else lambda _: None)
    print(found.sentence())
    if not found.learned:
        raise typer.Exit(1)


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
