"""One training session: what it is given, the parts it is assembled from, and the watch over its steps."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fledge import memory
from fledge.config import RunConfig
from fledge.errors import command
from fledge.runs import branches
from fledge.runs.checkpoints import checkpoint_steps
from fledge.tokens import Batch, Loader
from fledge.training.announce import expect, opening
from fledge.training.clock import Clock
from fledge.training.continuity import check_same_model
from fledge.training.device import peak_of, used_memory
from fledge.training.norms import Norms
from fledge.training.objective import open_teachers
from fledge.training.output import Output
from fledge.training.profiling import StepProfile
from fledge.training.progress import Diverged, LossWatch, Progress, Trouble, total_steps
from fledge.training.ranks import Ranks
from fledge.training.records import check_trackers
from fledge.training.skipping import Skipping
from fledge.training.stepper import Stepper
from fledge.training.view import View

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import Windows

SETBACKS = 10  # times that training goes back to one checkpoint after a divergence before it gives up
SLOW_DISK = 200e6  # bytes a second that any disk takes: what the first checkpoint is reckoned with


@dataclass(frozen=True)
class Setup:
    """What is trained, on what, into which folder, and how; the fields with defaults are the options."""

    config: RunConfig
    model: Model
    tokenizer: Tokenizer
    windows: Windows
    validation: Windows | None
    folder: Path
    resume: Bundle | None = None
    "The checkpoint to go on from, whose model `model` is."
    bytes_per_token: float | None = None
    "Of the validation split: turns its loss into bits per byte."
    time_limit: float | None = None
    "Seconds after which training saves and stops."
    profile: bool = False
    quiet: bool = False
    on_start: Callable[[Path], None] | None = None
    """Called by the main process when nothing can be refused any more, before the first step, and told where training
    writes: `folder`, or a branch in it."""
    on_evaluation: Callable[[int, float], None] | None = None
    "Told the step and the validation loss of evaluations on the way; what it raises ends training."
    leave: bool = False
    "Whether a second Ctrl-C ends the process, even in the middle of a long step; else it raises KeyboardInterrupt."


class Session:
    """Everything that training needs, assembled once. Only the main process writes; all take part in every step."""

    def __init__(self, setup: Setup, ranks: Ranks) -> None:
        config, resume = setup.config, setup.resume
        self.setup, self.ranks = setup, ranks
        self.progress = Progress()
        if resume is not None:
            check_same_model(config, resume)
            self.progress = Progress.of(resume)
        self.steps = total_steps(config, self.progress)
        check_trackers(config)
        self.memory_before = (memory.resident() - 4 * setup.model.parameters_count(), used_memory(ranks.device))
        self.stepper = Stepper(config, setup.model, ranks, self.progress)
        self.stepper.plain.teachers = open_teachers(config, setup.tokenizer, self.stepper.precision, ranks.device)
        if resume is not None and resume.training is not None:
            self.stepper.take_up(resume.training)
        self.norms = Norms(self.stepper, setup.windows) if config.training.norms else None
        self.view = View(config.name, self.steps, setup.quiet, ranks.main)
        self.stepper.note = self.view.warn
        # What can be refused without touching the folder has been.
        columns = self.norms.columns if self.norms is not None else ()
        self.output = Output(setup, self.stepper, self.view, self.steps, columns)
        self.watch = LossWatch(self.progress, config.training.spike, ranks)
        self.profile = StepProfile(ranks.device) if setup.profile and ranks.main else None
        self.clock = Clock(self.progress, ranks.device)
        self.peak = peak_of(ranks.device, self.stepper.precision)
        heard = ranks.total(float(not setup.quiet))[0]  # all processes take part in the forecast, or none
        left = self.progress.step < self.steps  # a finished run is only evaluated, and nothing is said of its steps
        self.forecast = expect(self.stepper) if heard and left else None
        if left:
            self.view.note(opening(self.stepper, self.steps, self.peak, self.forecast))
        self.view.start(self.output.records)  # last: what fails before it leaves the terminal as it was

    def batches(self, windows: Skipping) -> Generator[tuple[int, Batch], None, None]:
        """This process's share of each batch from the next sample on, made ahead of time by a thread."""
        ranks, size = self.ranks, self.setup.config.training.batch_size
        pin = ranks.device.type == "cuda"
        source: Any = windows
        yield from Loader(source, size, self.progress.samples, rank=ranks.rank, ranks=ranks.world, pin=pin)

    def check(self, samples: tuple[int, int], loss: Tensor, norm: Tensor) -> Trouble | None:
        """Judge the step that was just taken on this range of samples, and those before that were not judged yet.

        On a CPU that is each step; a GPU, which must not wait, is asked when something is due.
        """
        settings = self.setup.config.training
        self.watch.add(samples, loss, norm)
        if self.profile is not None and (table := self.profile.step(self.setup.folder)):
            self.view.note(table)
        self.clock.end_step()
        self.output.saver.check()
        chores = (settings.log_every, settings.save_every, settings.evaluate_every)
        waits = self.ranks.device.type != "cpu" and not any(
            every and self.progress.step % every == 0 for every in chores
        )
        return None if waits and self.progress.step < self.steps else self.watch.judge()

    def go_back(self, trouble: Trouble) -> None:
        """After a divergence: stop with a sentence, or return to the last checkpoint and leave the batch out."""
        output, progress = self.output, self.progress
        output.finish_saving()
        # A branch without a checkpoint goes back to where it began.
        last = max(checkpoint_steps(output.place).items(), default=output.origin)
        self.watch.setbacks += 1
        give_up = self.watch.setbacks > SETBACKS
        if self.setup.config.training.on_divergence == "stop" or give_up or last is None:
            advice = "Try a smaller optimizer.learning_rate, a longer schedule.warmup_steps or optimizer.clip_norm=1."
            good = "" if last is None else f" The checkpoint of step {last[0]} is good."
            again = " It kept happening after going back." if give_up else ""
            raise Diverged(f"At step {trouble.step} {trouble.what}.{again} {advice}{good}", trouble.step)
        output.require_home()
        bundle = branches.load_checkpoint(last[1])
        kept = {
            "skipped": [*progress.skipped, (trouble.first, trouble.after)],
            "seconds": progress.seconds,  # those of this session are counted from its own start
        }
        for name, value in {**Progress.of(bundle).values(), **kept}.items():
            setattr(progress, name, value)
        self.stepper.go_back(bundle)
        self.clock.go_back()
        if output.records is not None:
            output.records.go_back(progress.step)
        self.view.warn(
            f"At step {trouble.step} {trouble.what}. Training goes back to step {progress.step} and "
            f"skips the samples {trouble.first} to {trouble.after - 1}."
        )

    @property
    def ending_seconds(self) -> float:
        """What comes after the next step before training can end: what is due then, and the last checkpoint."""
        saving = self.output.saver.seconds or self.stepper.checkpoint_bytes() / SLOW_DISK
        return self.clock.due_seconds(self.setup.config.training) + 1.5 * saving

    def answer_stop(self) -> None:
        """Called by another thread, in the middle of a step."""
        self.view.note(self.clock.answer_stop())

    def part(self) -> str:
        """What is left for a person who stops at once."""
        self.view.close()
        last = max(checkpoint_steps(self.output.place).items(), default=None)
        if last is None:
            return "stopped at once, before the first checkpoint; the same command begins again."
        again = command("train", "--resume", self.setup.folder)
        return f"stopped at once. The last checkpoint is {last[1]}: go on with {again}"

    def close(self) -> None:
        if self.profile is not None and (missed := self.profile.close()):
            self.view.warn(missed)
        self.view.close()
        self.output.close()
