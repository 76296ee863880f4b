"""The training loop, top to bottom: build the parts, take steps, save before anything that can fail, look, go on."""

from __future__ import annotations

import gc
import html
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fledge.accounting import usual_speed
from fledge.errors import command
from fledge.notebook import table
from fledge.progress import readable_time
from fledge.runs.checkpoints import find_bundle
from fledge.runs.layout import METRICS
from fledge.training.announce import grown_memory
from fledge.training.chores import Chores
from fledge.training.ranks import join_ranks
from fledge.training.schedules import decay_share, schedule
from fledge.training.session import Session, Setup
from fledge.training.skipping import Skipping
from fledge.training.stops import Stops


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


def train(setup: Setup) -> TrainingResult:
    """Train a model into a folder, or further from a checkpoint."""
    config, settings = setup.config, setup.config.training
    with join_ranks(settings.device) as ranks, Stops(setup.time_limit, setup.leave) as stops:
        session = Session(setup, ranks)
        stepper, progress = session.stepper, session.progress
        stops.answer, stops.parting = session.answer_stop, session.part
        tell = setup.on_evaluation or (lambda step, loss: None)
        stopped = None
        try:
            chores = Chores(session)
            if setup.on_start is not None and ranks.main:
                setup.on_start(session.output.place)
            if (found := chores.catch_up()) is not None:
                tell(progress.step, found)
            gc.collect()
            gc.disable()  # a collection in the middle of a step would stall the device; the loop collects between them
            over = chores.out_of_patience()
            while progress.step < session.steps and not stopped and not over:
                trouble = None
                kept = Skipping(setup.windows, progress.skipped)
                with closing(session.batches(kept)) as batches:
                    for first, batch in batches:
                        wish = stops.wanted(session.clock.step_seconds, session.ending_seconds)
                        count, wishes = ranks.total(batch.targets_count, wish is not None)
                        if wishes:
                            stopped = wish or "another process"
                            break
                        stepper.optimizer.factor = schedule(config.schedule, progress.step, session.steps)
                        stepper.optimizer.decay_factor = decay_share(config.schedule, progress.step, session.steps)
                        session.clock.begin_step()
                        loss, norm = stepper.step(batch, count)
                        if trouble := session.check(kept.range(first, settings.batch_size), loss, norm):
                            break
                        if progress.due(settings.log_every):
                            chores.log()
                        if progress.due(settings.save_every):
                            chores.save()  # before evaluation: a crash there must not cost the step
                        if progress.due(settings.evaluate_every):
                            if (found := chores.evaluate()) is not None:
                                tell(progress.step, found)
                            over = chores.out_of_patience()
                        if progress.due(settings.sample_every):
                            chores.sample()
                        if progress.step >= session.steps or over:
                            break
                if trouble:
                    session.go_back(trouble)
            chores.finish(complete=not stopped)
            return _result(session, chores.known, stopped)
        finally:
            gc.enable()
            session.close()


def _result(session: Session, known: dict[str, float | None], stopped: str | None) -> TrainingResult:
    """What came of a session, said against what was expected of it."""
    progress, output, speed = session.progress, session.output, session.clock.speed()
    if session.forecast and speed:
        rows = [] if output.records is None else output.records.metrics.rows
        usual = usual_speed(row for row in rows if int(row["step"]) > session.clock.begun_at)
        grown = grown_memory(session.ranks.device, *session.memory_before)
        session.view.note(session.forecast.held_against(grown, usual or speed, session.clock.seconds()))
    if stopped:
        session.view.note(
            f"Stopped by {stopped} after step {progress.step}; everything is saved. Resume with: "
            f"{command('train', '--resume', output.folder)}"
        )
    return TrainingResult(
        folder=output.folder,
        checkpoint=output.last_checkpoint,
        best=find_bundle(output.folder),
        metrics=output.place / METRICS,
        step=progress.step,
        steps=session.steps,
        tokens=progress.tokens,
        loss=known.get("mean", session.watch.loss),
        validation_loss=known.get("validation_loss"),
        bits_per_byte=known.get("bits_per_byte"),
        tokens_per_second=speed,
        seconds=session.clock.seconds(),
        stopped=stopped,
    )
