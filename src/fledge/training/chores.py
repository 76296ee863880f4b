"""What is done between steps: log, save, evaluate on held-out windows, sample. All processes take part."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.errors import FledgeError, command
from fledge.runs.metrics import RISING, Course, course
from fledge.tokens import Batch
from fledge.tokens.batch import MASKED
from fledge.training.announce import flops_per_token
from fledge.training.device import used_memory

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokens import Windows
    from fledge.training.objective import Objective
    from fledge.training.ranks import Ranks
    from fledge.training.session import Session


class Chores:
    """The chores of a session, and in `known` what they found last."""

    def __init__(self, session: Session) -> None:
        self.session, self.config, self.stepper = session, session.setup.config, session.stepper
        self.progress, self.output, self.clock = session.progress, session.output, session.clock
        self.ranks, self.view = session.ranks, session.view
        self.known: dict[str, float | None] = {}
        self.flops_per_token = flops_per_token(self.config, self.stepper.model.vocabulary_size)
        self._evaluated_at = -1
        self._rose_from = -1

    # -- log --------------------------------------------------------------------------------------------------------

    def log(self) -> None:
        """A row of metrics: the mean loss since the last one."""
        progress, speed, peak = self.progress, self.clock.recent_speed(), self.session.peak
        values: dict[str, Any] = {
            "step": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "loss": progress.interval_loss / max(1, progress.interval_steps),
            "learning_rate": self.config.optimizer.learning_rate * self.stepper.optimizer.factor,
            "gradient_norm": self.session.watch.norm,
            "tokens_per_second": speed,
            "mfu": speed * self.flops_per_token / peak if speed and peak and self.flops_per_token else None,
            "memory": used_memory(self.stepper.device),
            "seconds": self.clock.seconds(),
        }
        if self.session.norms is not None:
            values |= self.stepper.with_room(self.session.norms.measure)
        self.known["mean"] = values["loss"]
        progress.interval_loss, progress.interval_steps = 0.0, 0
        self._record(values)
        gc.collect(0)

    def _record(self, values: dict[str, Any]) -> None:
        """A row for the files and for the person."""
        if self.output.records is not None:
            self.output.records.add(values)
            left = (self.session.steps - self.progress.step) * self.clock.step_seconds
            self.view.row(values, left or None)

    # -- save -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """A whole checkpoint, unless this step has one."""
        self.output.require_home()
        if self.output.saved_step == self.progress.step:
            self.output.settle()
            return
        if trouble := self.session.watch.judge():
            raise FledgeError(f"At step {trouble.step} {trouble.what}: this step is not saved.")
        self.output.finish_saving()
        with self.clock.busy("checkpoint"):
            self.output.save(self._metrics(), self.clock.seconds())
        self.session.watch.setbacks = 0

    def _metrics(self) -> dict[str, float | None]:
        """What is known of this step; an evaluation of an earlier one says nothing of it."""
        names = ("validation_loss", "bits_per_byte") if self._evaluated_at == self.progress.step else ()
        return {"loss": self.session.watch.loss, **{name: self.known.get(name) for name in names}}

    # -- evaluate ---------------------------------------------------------------------------------------------------

    def evaluate(self) -> float | None:
        """The loss on the first windows of the validation split: the same ones each time, spread over the processes.

        None where there is no such split, or where this step has its row already.
        """
        validation, bytes_per_token = self.session.setup.validation, self.session.setup.bytes_per_token
        if validation is None or self._evaluated():
            return None
        averaged, both = self.progress.averaged, {}
        with self.clock.busy("evaluation"):
            loss = self._validation_loss(validation)
            if self.stepper.average is not None:
                with self.stepper.averaged():
                    average = self._validation_loss(validation)
                both = {"plain_loss": loss, "average_loss": average}
                self.progress.averaged = average < loss
                loss = min(loss, average)
        bits = None if bytes_per_token is None else loss / math.log(2) / bytes_per_token
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
        self.known.update(validation_loss=loss, bits_per_byte=bits)
        self._evaluated_at = self.progress.step
        if self.output.saved_step == self.progress.step:
            if averaged != self.progress.averaged:  # the checkpoint was saved with the other weights as its model
                self.output.saved_step = -1
                self.save()
            else:
                self.output.update(self._metrics())  # before the row, which says that it was done
        self._record(values)
        self._keep_best()
        if self.output.records is not None and self.output.records.curves_due:
            self.output.draw()
        return loss

    def _validation_loss(self, validation: Windows) -> float:
        count = min(self.config.training.evaluate_windows, len(validation))
        size = self.progress.micro_batch
        return self.stepper.with_room(lambda: validation_loss(self.stepper.plain, validation, count, size, self.ranks))

    def _evaluated(self) -> bool:
        records = self.output.records
        done = records is not None and self.progress.step in records.metrics.evaluations()
        return self.ranks.total(float(done))[0] > 0

    def _course(self) -> Course | None:
        """Of the held-out loss so far, as the main process knows it."""
        return None if self.output.records is None else course(self.output.records.metrics.evaluations())

    def _keep_best(self) -> None:
        """Save a step with the lowest loss so far, and say once when it has been rising for some evaluations."""
        found = self._course()
        lowest = found is not None and not found.since and self.config.training.keep_best
        if self.ranks.total(float(lowest))[0] and self.output.saved_step != self.progress.step:
            self.save()
        if found is not None and found.since >= RISING and found.risen and found.best_step != self._rose_from:
            self._rose_from = found.best_step
            self.view.note(
                f"The validation loss has been rising since step {found.best_step}: it was {found.best:.4f} "
                f"there and is {found.last:.4f} now. The model is overfitting. The run's model is the "
                f"checkpoint of step {found.best_step}."
            )

    def out_of_patience(self) -> bool:
        """Whether training ends here because the held-out loss has not fallen for long. All processes hear of it."""
        if self.progress.step >= self.session.steps:
            return False
        found, patience = self._course(), self.config.training.patience
        over = found is not None and found.exhausted(patience)
        if found is not None and over:
            self.view.note(
                f"Training ends at step {self.progress.step} of {self.session.steps}: the {found.since} evaluations "
                f"since step {found.best_step} found no lower validation loss (training.patience = {patience}). To "
                f"train on: {command('train', '--resume', self.output.folder, '--set', 'training.patience=none')}"
            )
        return self.ranks.total(float(over))[0] > 0

    # -- sample -----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """What the model writes now, into samples.txt; the main process alone, with a generator of its own."""
        self.output.require_home()
        with self.stepper.handed_over():
            self._sample(self.stepper.whole_model())

    def _sample(self, model: Model | None) -> None:
        records, step = self.output.records, self.progress.step
        if records is None or model is None or step in records.samples.steps:
            return
        from fledge.generation import generate

        sampling = self.config.sampling
        try:
            with self.clock.busy("sample"):
                found = self.stepper.with_room(
                    lambda: generate(model, self.session.setup.tokenizer, [sampling.prompt], sampling)
                )
        except FledgeError as error:  # a model that cannot write can be trained all the same
            records.samples.steps.add(step)
            self.view.warn(f"No sample at step {step}. {error}")
            return
        texts = [each.prompt + each.text for each in found]
        records.samples.add(step, texts)
        self.view.sample(step, texts[0].strip()[:300])

    # -- beginning and end ------------------------------------------------------------------------------------------

    def catch_up(self) -> float | None:
        """What was due at the step that training goes on from, where a kill came between saving and doing it.

        Returns the validation loss, where that was due.
        """
        settings, validation = self.config.training, self.session.setup.validation
        if self.stepper.device.type == "cuda" and validation is not None:  # kernels are built now, not later
            validation_loss(self.stepper.plain, validation, 1, self.progress.micro_batch, self.ranks)
        if self.progress.step == 0:
            if settings.on_divergence == "skip":
                self.save()  # somewhere to go back to
            return None
        found = self.evaluate() if self.progress.due(settings.evaluate_every) else None
        if self.progress.due(settings.sample_every):
            self.sample()
        return found

    def finish(self, complete: bool) -> None:
        """What comes after the last step: a checkpoint, and where the run is complete, a last look at it."""
        self.clock.end()
        self.save()
        if complete:
            self.evaluate()
            self.sample()
        self.output.finish_saving()
        self.output.require_home()
        self.output.draw()


@torch.no_grad()
def validation_loss(objective: Objective, windows: Windows, count: int, size: int, ranks: Ranks) -> float:
    """The mean loss over the first `count` windows, in eval mode, `size` at once on each process."""
    low, high = ranks.share(count)
    rounds = -(-max(1, -(-count // ranks.world)) // size)
    total, targets = torch.zeros((), device=ranks.device), 0
    objective.eval()
    for number in range(rounds):
        samples = range(min(low + number * size, high), min(low + (number + 1) * size, high))
        part = filled(windows, samples, size)
        targets += part.targets_count
        part = part.to(ranks.device)
        loss, _ = objective(part.inputs_BT, part.targets_BT, objective.model.plan(part))
        total += loss
    objective.train()
    loss_sum, all_targets = ranks.total(float(total), targets)
    return loss_sum / max(all_targets, 1)


def filled(windows: Windows, samples: range, size: int) -> Batch:
    """Some windows, filled up to `size` rows with rows that do not count: one shape for all, nothing recompiles."""
    batch = windows.batch(samples if len(samples) else range(1))
    missing = size - batch.inputs_BT.shape[0]

    def grown(part: Tensor) -> Tensor:
        return torch.cat([part, part[-1:].expand(missing, -1)]) if missing else part

    inputs, targets, positions, documents = batch
    targets = grown(targets)
    targets[len(samples) :] = MASKED
    return Batch(
        grown(inputs),
        targets,
        None if positions is None else grown(positions),
        None if documents is None else grown(documents),
    )
