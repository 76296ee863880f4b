"""The training loop, top to bottom: build the parts, take steps, save before anything that can fail, look, go on."""

from __future__ import annotations

import gc
import html
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fledge.config import RunConfig
from fledge.notebook import table
from fledge.progress import readable_time
from fledge.tokens.batch import MASKED
from fledge.training.ranks import join_ranks
from fledge.training.schedules import decay_share, schedule
from fledge.training.session import Session
from fledge.training.skipping import Skipping
from fledge.training.stops import Stops

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import Windows


@dataclass(frozen=True)
class TrainingResult:
    """What came of a run, or of the part of it that was done."""

    folder: Path
    checkpoint: Path
    "The last checkpoint: a whole bundle."
    best: Path
    "The run's model: the checkpoint with the lowest validation loss."
    metrics: Path
    step: int
    steps: int
    tokens: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    tokens_per_second: float
    "From the end of the first step, which compiles, to that of the last; saving and evaluation between included."
    seconds: float
    stopped: str | None
    """Why it was stopped before its end: a signal's name or the time limit; None when it came to its last step, or when
    `training.patience` ended it."""

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        numbers = {
            "step": f"{self.step:,} of {self.steps:,}" + (f", stopped by {self.stopped}" if self.stopped else ""),
            "tokens": f"{self.tokens:,}",
            "loss": "" if self.loss is None else f"{self.loss:.4f}",
            "validation loss": "" if self.validation_loss is None else f"{self.validation_loss:.4f}",
            "bits per byte": "" if self.bits_per_byte is None else f"{self.bits_per_byte:.4f}",
            "tokens/s": f"{self.tokens_per_second:,.0f}",
            "time": readable_time(self.seconds),
            "model": str(self.best),
        }
        return table(list(numbers), [[html.escape(text) for text in numbers.values()]])


def train(
    config: RunConfig,
    model: Model,
    tokenizer: Tokenizer,
    windows: Windows,
    validation: Windows | None,
    folder: Path | str,
    *,
    resume: Bundle | None = None,
    bytes_per_token: float | None = None,
    time_limit: float | None = None,
    profile: bool = False,
    quiet: bool = False,
    on_start: Callable[[Path], None] | None = None,
    on_evaluation: Callable[[int, float], None] | None = None,
    leave: bool = False,
) -> TrainingResult:
    """Train `model` on `windows` into `folder`; with `resume`, go on from that checkpoint, whose model `model` is.

    `bytes_per_token` of the validation split turns its loss into bits per byte; `time_limit` is in seconds.
    `on_start` is called by the main process when nothing can be refused any more, before the first step, and told
    where training writes: `folder`, or a branch in it.
    `on_evaluation` is told the step and the validation loss of evaluations on the way; what it raises ends training.
    A second Ctrl-C raises KeyboardInterrupt; with `leave` it ends the process, even in the middle of a long step.
    """
    settings = config.training
    with join_ranks(settings.device) as ranks, Stops(time_limit, leave) as stops:
        session = Session(
            config,
            model,
            tokenizer,
            windows,
            validation,
            Path(folder),
            ranks,
            resume,
            bytes_per_token,
            profile,
            quiet,
        )
        stops.answer, stops.parting = session.answer_stop, session.part
        stopped = None
        try:
            if on_start is not None and ranks.main:
                on_start(session.place)
            made_up = session.catch_up()
            if on_evaluation is not None and made_up is not None:
                on_evaluation(session.progress.step, made_up)
            gc.collect()
            gc.disable()  # a collection in the middle of a step would stall the device; the loop collects between them
            progress = session.progress
            over = progress.step < session.steps and session.out_of_patience()
            while progress.step < session.steps and not stopped and not over:
                trouble = None
                kept = Skipping(windows, progress.skipped)
                with closing(session.batches(kept)) as batches:
                    for first, batch in batches:
                        wish = stops.wanted(session.clock.step_seconds, session.ending_seconds)
                        count, wishes = ranks.total(int((batch.targets_BT != MASKED).sum()), wish is not None)
                        if wishes:
                            stopped = wish or "another process"
                            break
                        session.optimizer.factor = schedule(config.schedule, progress.step, session.steps)
                        session.optimizer.decay_factor = decay_share(config.schedule, progress.step, session.steps)
                        session.step(batch, count, kept.range(first, settings.batch_size))
                        if trouble := session.watch():
                            break
                        if session.due(settings.log_every):
                            session.log()
                        if session.due(settings.save_every):
                            session.save()  # before evaluation: a crash there must not cost the step
                        if session.due(settings.evaluate_every):
                            found = session.evaluate()
                            if on_evaluation is not None and found is not None:
                                on_evaluation(progress.step, found)
                            over = progress.step < session.steps and session.out_of_patience()
                        if session.due(settings.sample_every):
                            session.sample()
                        if progress.step >= session.steps or over:
                            break
                if trouble:
                    session.go_back(trouble)
            session.finish(complete=not stopped)
            return session.result(stopped)
        finally:
            gc.enable()
            session.close()
