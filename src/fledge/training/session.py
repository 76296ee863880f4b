"""The parts of a run while it trains, and what the loop does with them: step, watch, log, save, evaluate, sample."""

from __future__ import annotations

import gc
import math
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge import memory
from fledge.accounting import usual_speed
from fledge.bundle.card import TUNED
from fledge.config import RunConfig
from fledge.errors import FledgeError, command
from fledge.runs import branches, pruning
from fledge.runs.checkpoints import checkpoint_name, checkpoint_steps, find_bundle
from fledge.runs.home import Home
from fledge.runs.layout import BRANCH, METRICS
from fledge.runs.metrics import RISING, Course, course
from fledge.runs.origin import read_origin
from fledge.tokens import Batch, Loader
from fledge.training.announce import expect, flops_per_token, grown_memory, opening
from fledge.training.clock import Clock
from fledge.training.continuity import check_same_model
from fledge.training.device import choose_precision, peak_of, set_up_device, used_memory
from fledge.training.norms import Norms
from fledge.training.profiling import StepProfile
from fledge.training.progress import Diverged, Progress, StepOutcome, Trouble, judge, total_steps
from fledge.training.ranks import Ranks
from fledge.training.records import Records
from fledge.training.saver import Saver
from fledge.training.skipping import Skipping
from fledge.training.stepper import Stepper
from fledge.training.teachers import open_teachers
from fledge.training.trackers import check_trackers
from fledge.training.validation import validation_loss
from fledge.training.view import View

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import Windows
    from fledge.training.loop import TrainingResult

SETBACKS = 10  # times that training goes back to one checkpoint after a divergence before it gives up
SLOW_DISK = 200e6  # bytes a second that any disk takes: what the first checkpoint is reckoned with


class Session:
    """Everything a step needs, assembled once. Only the main process writes; all take part in every step."""

    def __init__(
        self,
        config: RunConfig,
        model: Model,
        tokenizer: Tokenizer,
        windows: Windows,
        validation: Windows | None,
        folder: Path,
        ranks: Ranks,
        resume: Bundle | None = None,
        bytes_per_token: float | None = None,
        profile: bool = False,
        quiet: bool = False,
    ) -> None:
        settings = config.training
        self.config, self.tokenizer, self.ranks, self.folder = config, tokenizer, ranks, folder
        self.validation, self.bytes_per_token = validation, bytes_per_token
        self.device = ranks.device
        self.precision = choose_precision(settings.precision, self.device)
        set_up_device(self.device, self.precision, settings.threads)
        self.progress = Progress()
        if resume is not None:
            check_same_model(config, resume)
            self.progress = Progress.of(resume)
        self.steps = total_steps(config, self.progress)
        check_trackers(config)
        self._memory_before = (memory.resident() - 4 * model.parameters_count(), used_memory(self.device))
        self.stepper = Stepper(config, model, ranks, self.precision, self.progress)
        self.stepper.plain.teachers = open_teachers(config, tokenizer, self.precision, self.device)
        self.optimizer, self.model, self.sharded = self.stepper.optimizer, self.stepper.model, self.stepper.sharded
        if resume is not None and resume.training is not None:
            self.stepper.take_up(resume.training)
        self.place = self._open(resume)  # what can be refused without touching the folder has been
        if ranks.main:
            left = self.steps - self.progress.step
            pruning.require_room(self.place, settings, left, self.stepper.checkpoint_bytes())
        self.peak = peak_of(self.device, self.precision)
        self.flops_per_token = flops_per_token(config, self.model.vocabulary_size)
        self.view = View(config.name, self.steps, quiet, ranks.main)
        self.stepper.note = self.view.warn
        self.norms = Norms(self.stepper, windows) if settings.norms else None
        columns = self.norms.columns if self.norms is not None else ()
        self.records = Records(config, folder, self.place, self.progress.step, columns) if ranks.main else None
        background = self.device.type == "cuda" and not self.sharded
        self.home = Home(folder)
        self.saver = Saver(config, tokenizer, self.home, self.device, background)
        self.profile = StepProfile(self.device) if profile and ranks.main else None
        self._pending: list[tuple[int, int, int, Tensor, Tensor]] = []
        self._saved = self.progress.step if resume is not None else -1
        self._evaluated_at = -1
        self._origin = None if resume is None else (self.progress.step, resume.path)
        self._setbacks = 0
        self._last: dict[str, float | None] = {}
        self._rose_from = -1
        self.clock = Clock(self.progress, self.device)
        heard = ranks.total(float(not quiet))[0]  # all processes take part in the forecast, or none
        left = self.progress.step < self.steps  # a finished run is only evaluated, and nothing is said of its steps
        self.forecast = expect(self.stepper) if heard and left else None
        if left:
            self.view.note(opening(self.stepper, self.steps, self.peak, self.forecast))
        self.view.start(self.records)  # last: what fails before it leaves the terminal as it was

    def batches(self, windows: Skipping) -> Generator[tuple[int, Batch], None, None]:
        """This process's share of each batch from the next sample on, made ahead of time by a thread."""
        ranks, size = self.ranks, self.config.training.batch_size
        pin = self.device.type == "cuda"
        source: Any = windows
        yield from Loader(source, size, self.progress.samples, rank=ranks.rank, ranks=ranks.world, pin=pin)

    # -- the step -------------------------------------------------------------------------------------------------

    def step(self, batch: Batch, count: float, samples: tuple[int, int]) -> None:
        """Take a step on a batch with `count` targets over all processes, which are the samples of this range."""
        self.clock.begin_step()
        loss = self.stepper.accumulate(batch, count)
        norm = self.stepper.update()
        progress = self.progress
        progress.step += 1
        progress.samples += self.config.training.batch_size
        progress.tokens += self.config.training.batch_size * self.config.tokens.context_length
        self._pending.append((progress.step, *samples, loss, norm))
        if self.profile is not None and (table := self.profile.step(self.folder)):
            self.view.note(table)
        self.clock.end_step()

    # -- the watch ------------------------------------------------------------------------------------------------

    def watch(self) -> Trouble | None:
        """Judge the losses since the last look: every step on a CPU; on a GPU, which must not wait, when one is due."""
        settings = self.config.training
        self.saver.check()
        waits = self.device.type != "cpu" and not any(
            self.due(every) for every in (settings.log_every, settings.save_every, settings.evaluate_every)
        )
        if waits and self.progress.step < self.steps:
            return None
        return self._judge()

    def _judge(self) -> Trouble | None:
        if not self._pending:
            return None
        losses = self.ranks.total(*torch.stack([entry[3] for entry in self._pending]).tolist())
        norms = torch.stack([entry[4] for entry in self._pending]).tolist()
        pending, self._pending = self._pending, []
        for (step, first, after, _, _), loss, norm in zip(pending, losses, norms, strict=True):
            if trouble := judge(StepOutcome(step, first, after, loss, norm), self.progress, self.config.training.spike):
                return trouble
            self._last.update(loss=loss, norm=norm)
        return None

    def go_back(self, trouble: Trouble) -> None:
        """After a divergence: stop with a sentence, or return to the last checkpoint and leave the batch out."""
        self.finish_saving()
        saved = checkpoint_steps(self.place)
        last = max(saved.items(), default=self._origin)  # a branch without one goes back to where it began
        self._setbacks += 1
        give_up = self._setbacks > SETBACKS
        advice = "Try a smaller optimizer.learning_rate, a longer schedule.warmup_steps or optimizer.clip_norm=1."
        if self.config.training.on_divergence == "stop" or give_up or last is None:
            good = "" if last is None else f" The checkpoint of step {last[0]} is good."
            again = " It kept happening after going back." if give_up else ""
            raise Diverged(f"At step {trouble.step} {trouble.what}.{again} {advice}{good}", trouble.step)
        self._require_home()
        bundle = branches.load_checkpoint(last[1])
        kept = {
            "skipped": [*self.progress.skipped, (trouble.first, trouble.after)],
            "seconds": self.progress.seconds,  # those of this session are counted from its own start
        }
        for name, value in {**Progress.of(bundle).values(), **kept}.items():
            setattr(self.progress, name, value)
        self.stepper.go_back(bundle)
        self.clock.go_back()
        if self.records is not None:
            self.records.go_back(self.progress.step)
        self.view.warn(
            f"At step {trouble.step} {trouble.what}. Training goes back to step {self.progress.step} and "
            f"skips the samples {trouble.first} to {trouble.after - 1}."
        )

    # -- what is due now and then ---------------------------------------------------------------------------------

    def due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def log(self) -> None:
        """A row of metrics: the mean loss since the last one."""
        progress, speed = self.progress, self.clock.recent_speed()
        values: dict[str, Any] = {
            "step": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "loss": progress.interval_loss / max(1, progress.interval_steps),
            "learning_rate": self.config.optimizer.learning_rate * self.optimizer.factor,
            "gradient_norm": self._last.get("norm"),
            "tokens_per_second": speed,
            "mfu": speed * self.flops_per_token / self.peak if speed and self.peak and self.flops_per_token else None,
            "memory": used_memory(self.device),
            "seconds": self.clock.seconds(),
        }
        if self.norms is not None:
            values |= self.norms.measure()
        self._last["mean"] = values["loss"]
        progress.interval_loss, progress.interval_steps = 0.0, 0
        self._record(values)
        gc.collect(0)

    def save(self) -> None:
        """A whole checkpoint, unless this step has one."""
        self._require_home()
        if self._saved == self.progress.step:
            self.finish_saving()
            if self.ranks.main and self.place != self.folder:  # a kill may have come before the takeover
                self._settle()
            self._agree()
            return
        if trouble := self._judge():
            raise FledgeError(f"At step {trouble.step} {trouble.what}: this step is not saved.")
        self.finish_saving()
        tensors = self.stepper.state()
        with self.clock.busy("checkpoint"), self.stepper.handed_over():
            model = self.stepper.whole_model()
            if self.records is not None:
                self.records.metrics.sync()
                values = {**self.progress.values(), "seconds": self.clock.seconds()}
                options = {"shard_bytes": self._shard_bytes()} if self.sharded else {}
                self.saver.save(self._checkpoint(), model, tensors, values, metrics=self._summary(), **options)
                if not self.saver.background:
                    self._settle()
            self._agree()
        self._saved, self._setbacks = self.progress.step, 0

    def finish_saving(self) -> None:
        """Wait for a checkpoint that a thread of the main process is writing; then all know where the run's are."""
        if self.saver.wait():
            self._settle()
        self._agree()

    def _require_home(self) -> None:
        """Stop where the folder was moved or deleted: nothing is made at its old place. All processes hear of it."""
        if self.ranks.total(float(self.ranks.main and self.home.gone))[0]:
            raise self.home.error()

    def _agree(self) -> None:
        """The main process alone lets a branch take over: the others wait for it, and follow."""
        branched = self.ranks.main and self.place != self.folder
        if not self.ranks.total(float(branched))[0]:
            self.place = self.folder

    def _settle(self) -> None:
        """After a checkpoint is whole: a branch may take over, and older ones may go."""
        assert self.records is not None
        newest = max(checkpoint_steps(self.place), default=0)
        if self.place != self.folder and branches.overtaken(self.folder, newest):
            branches.take_over(self.folder)
            self.place = self.folder
            self.records.move(self.place, self.progress.step)
            self.view.note("The new branch has overtaken the old one and takes its place.")
        pruning.prune(self.place, self.config.training)

    def _shard_bytes(self) -> int:
        """One file of weights per process, so that none has to be read whole to be spread again."""
        return max(1, -(-4 * self.stepper.parameters // self.ranks.world))

    def evaluate(self) -> float | None:
        """The loss on the first windows of the validation split: the same ones each time, spread over the processes.

        None where there is no such split, or where this step has its row already.
        """
        if self.validation is None or self._evaluated():
            return None
        count = min(self.config.training.evaluate_windows, len(self.validation))
        averaged, both = self.progress.averaged, {}
        with self.clock.busy("evaluation"):
            loss = self._validation_loss(count)
            if self.stepper.average is not None:
                with self.stepper.averaged():
                    average = self._validation_loss(count)
                both = {"plain_loss": loss, "average_loss": average}
                self.progress.averaged = average < loss
                loss = min(loss, average)
        bits = None if self.bytes_per_token is None else loss / math.log(2) / self.bytes_per_token
        values: dict[str, Any] = {
            "step": self.progress.step,
            "samples": self.progress.samples,
            "tokens": self.progress.tokens,
            "validation_loss": loss,
            **both,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": bits,
            "seconds": self.clock.seconds(),
        }
        self._last.update(validation_loss=loss, bits_per_byte=bits)
        self._evaluated_at = self.progress.step
        if self._saved == self.progress.step and averaged != self.progress.averaged:
            self._saved = -1  # the checkpoint was saved with the other weights as its model
            self.save()
        elif self.ranks.main and self._saved == self.progress.step:
            self.saver.record(self._checkpoint(), self._summary())  # before the row, which says that it was done
        self._record(values)
        self._keep_best()
        if self.records is not None and self.records.curves_due and not self.home.gone:
            self.records.draw()
        return loss

    def _keep_best(self) -> None:
        """Save a step with the lowest loss so far, and say once when it has been rising for some evaluations."""
        found = self._course()
        lowest = found is not None and not found.since and self.config.training.keep_best
        if self.ranks.total(float(lowest))[0] and self._saved != self.progress.step:
            self.save()
        if found is not None and found.since >= RISING and found.risen and found.best_step != self._rose_from:
            self._rose_from = found.best_step
            self.view.note(
                f"The validation loss has been rising since step {found.best_step}: it was {found.best:.4f} "
                f"there and is {found.last:.4f} now. The model is overfitting. The run's model is the "
                f"checkpoint of step {found.best_step}."
            )

    def _course(self) -> Course | None:
        """Of the held-out loss so far, as the main process knows it."""
        return None if self.records is None else course(self.records.metrics.evaluations())

    def out_of_patience(self) -> bool:
        """Whether training ends here because the held-out loss has not fallen for long. All processes hear of it."""
        found, patience = self._course(), self.config.training.patience
        over = found is not None and found.exhausted(patience)
        if found is not None and over:
            self.view.note(
                f"Training ends at step {self.progress.step} of {self.steps}: the {found.since} evaluations since step "
                f"{found.best_step} found no lower validation loss (training.patience = {patience}). To train on: "
                + command("train", "--resume", self.folder, "--set", "training.patience=none")
            )
        return self.ranks.total(float(over))[0] > 0

    def _validation_loss(self, count: int) -> float:
        assert self.validation is not None
        return validation_loss(self.stepper.plain, self.validation, count, self.progress.micro_batch, self.ranks)

    def _record(self, values: dict[str, Any]) -> None:
        """A row for the files and for the person."""
        if self.records is not None:
            self.records.add(values)
            self.view.row(values, self._left())

    def sample(self) -> None:
        """What the model writes now, into samples.txt; the main process alone, with a generator of its own."""
        self._require_home()
        with self.stepper.handed_over():
            self._sample(self.stepper.whole_model())

    def _sample(self, model: Model | None) -> None:
        if self.records is None or model is None or self.progress.step in self.records.samples.steps:
            return
        from fledge.generation import generate

        model.eval()
        sampling = self.config.sampling
        try:
            with self.clock.busy("sample"):
                found = generate(model, self.tokenizer, [sampling.prompt], sampling)
        except FledgeError as error:  # a model that cannot write can be trained all the same
            self.records.samples.steps.add(self.progress.step)
            self.view.warn(f"No sample at step {self.progress.step}. {error}")
            return
        finally:
            model.train()
        texts = [each.prompt + each.text for each in found]
        self.records.samples.add(self.progress.step, texts)
        self.view.sample(self.progress.step, texts[0].strip()[:300])

    # -- beginning and end ----------------------------------------------------------------------------------------

    def catch_up(self) -> float | None:
        """What was due at the step that training goes on from, where a kill came between saving and doing it.

        Returns the validation loss, where that was due.
        """
        settings = self.config.training
        if self.device.type == "cuda" and self.validation is not None:
            self._validation_loss(1)  # kernels are built now, not in the middle of the run
        self.stepper.plain.train()
        if self.progress.step == 0:
            if settings.on_divergence == "skip":
                self.save()  # somewhere to go back to
            return None
        found = self.evaluate() if self.due(settings.evaluate_every) else None
        if self.due(settings.sample_every):
            self.sample()
        return found

    def finish(self, complete: bool) -> None:
        """What comes after the last step: a checkpoint, and where the run is complete, a last look at it."""
        self.clock.end()
        self.save()
        if complete:
            self.evaluate()
            self.sample()
        self.finish_saving()
        self._require_home()

    def result(self, stopped: str | None) -> TrainingResult:
        from fledge.training.loop import TrainingResult

        progress, speed = self.progress, self.clock.speed()
        if self.records is not None and not self.home.gone:
            self.records.draw()
        if self.forecast and speed:
            rows = [] if self.records is None else self.records.metrics.rows
            usual = usual_speed(row for row in rows if int(row["step"]) > self.clock.begun_at)
            grown = grown_memory(self.device, *self._memory_before)
            self.view.note(self.forecast.held_against(grown, usual or speed, self.clock.seconds()))
        if stopped:
            self.view.note(
                f"Stopped by {stopped} after step {progress.step}; everything is saved. Resume with: "
                f"{command('train', '--resume', self.folder)}"
            )
        return TrainingResult(
            folder=self.folder,
            checkpoint=self._last_checkpoint(),
            best=find_bundle(self.folder),
            metrics=self.place / METRICS,
            step=progress.step,
            steps=self.steps,
            tokens=progress.tokens,
            loss=self._last.get("mean", self._last.get("loss")),
            validation_loss=self._last.get("validation_loss"),
            bits_per_byte=self._last.get("bits_per_byte"),
            tokens_per_second=speed,
            seconds=self.clock.seconds(),
            stopped=stopped,
        )

    def answer_stop(self) -> None:
        """Called by another thread, in the middle of a step."""
        self.view.note(self.clock.answer_stop())

    def part(self) -> str:
        """What is left for a person who stops at once."""
        self.view.close()
        last = max(checkpoint_steps(self.place).items(), default=None)
        if last is None:
            return "stopped at once, before the first checkpoint; the same command begins again."
        again = command("train", "--resume", self.folder)
        return f"stopped at once. The last checkpoint is {last[1]}: go on with {again}"

    def close(self) -> None:
        if self.profile is not None and (missed := self.profile.close()):
            self.view.warn(missed)
        self.view.close()
        self.saver.wait()
        if self.records is not None:
            self.records.close()

    @property
    def ending_seconds(self) -> float:
        """What comes after the next step before training can end: what is due then, and the last checkpoint."""
        saving = self.saver.seconds or self.stepper.checkpoint_bytes() / SLOW_DISK
        return self.clock.due_seconds(self.config.training) + 1.5 * saving

    def _left(self) -> float | None:
        return (self.steps - self.progress.step) * self.clock.step_seconds or None

    def _evaluated(self) -> bool:
        done = self.records is not None and self.progress.step in self.records.metrics.evaluations()
        return self.ranks.total(float(done))[0] > 0

    def _checkpoint(self) -> Path:
        return self.place / "checkpoints" / checkpoint_name(self.progress.step)

    def _last_checkpoint(self) -> Path:
        """That of this step; where none was taken, the one that training went on from: a new branch has none yet."""
        mine, origin = self._checkpoint(), self._origin
        return origin[1] if origin and origin[0] == self.progress.step and not mine.is_dir() else mine

    def _summary(self) -> dict[str, Any]:
        """What is known of this step; an evaluation of an earlier one says nothing of it."""
        origin = read_origin(self.folder)
        begun = {} if origin is None else {TUNED: origin.name or origin.path}
        names = ["loss", *(("validation_loss", "bits_per_byte") if self._evaluated_at == self.progress.step else ())]
        known = {name: self._last.get(name) for name in names}
        values = {"step": self.progress.step, "tokens": self.progress.tokens, **known, **begun}
        return {name: value for name, value in values.items() if value is not None}

    def _open(self, resume: Bundle | None) -> Path:
        """Where to write. The main process prepares it before the others look."""
        origin = None if resume is None else resume.path.absolute()
        branch, branched = self.folder / BRANCH, False
        if self.ranks.main:
            settings = self.config.model_dump(mode="json")
            place = branches.open_place(self.folder.absolute(), origin, self.progress.step, settings)
            pruning.sweep(place)
            branched = place == branch.absolute()
        return branch if self.ranks.total(float(branched))[0] else self.folder
