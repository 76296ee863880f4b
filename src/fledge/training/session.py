"""The parts of a run while it trains, and what the loop does with them: step, watch, log, save, evaluate, sample."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable, Generator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.accounting import Account
from fledge.bundle import TrainingState, save_bundle
from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.files import atomic_write
from fledge.model.recurrent import Recurrent
from fledge.tokens import Batch, Loader
from fledge.training import timeline
from fledge.training.carry import Carry
from fledge.training.device import (
    choose_precision,
    largest_micro_batch,
    peak,
    prepare,
    reseed,
    used_memory,
)
from fledge.training.metrics import Metrics
from fledge.training.objective import Objective
from fledge.training.optimizers import build_optimizer, clip_scale, gradient_norm
from fledge.training.progress import Outcome, Progress, Trouble, judge
from fledge.training.ranks import Ranks
from fledge.training.sharding import gather, scatter, shard
from fledge.training.skipping import Skipping
from fledge.training.view import View

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer
    from fledge.tokens import Windows
    from fledge.training.loop import TrainingResult

PLOT_EVERY = 60.0  # seconds between refreshes of loss.svg; drawing takes about half a second
RAISE_SCALE_AFTER = 2000  # fp16 steps without overflow before the loss scale doubles


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
        prepare(self.device, self.precision, settings.threads)
        self.progress = Progress()
        if resume is not None:
            check_same_model(config, resume)
            assert resume.training is not None
            self.progress = Progress.restore(resume.training.values)
        self.steps = self._total_steps()
        low, high = ranks.share(settings.batch_size)
        if low == high:
            raise FledgeError(
                f"training.batch_size = {settings.batch_size} gives {ranks.world} processes less than one window each."
            )
        self.place = self._open(resume)
        self.model = model.to(self.device)
        self.model.recompute = settings.recompute
        objective = Objective(
            self.model, self.precision, self.device, settings.label_smoothing, settings.z_loss
        )
        self.sharded = ranks.world > 1 and settings.parallel == "fsdp"
        self._parameters = self.model.parameters_count()
        self._shards: Any = shard(objective, self.model, ranks) if self.sharded else None
        self.optimizer = build_optimizer(self.model, config.optimizer, flat=not self.sharded)
        recurrent = isinstance(self.model, Recurrent)
        lanes = recurrent and config.tokens.policy == "lanes"
        self.carry = Carry(self.model, high - low, ranks) if lanes else None
        if resume is not None and resume.training is not None:
            self._take_up(resume.training)
        by_itself = settings.compile == "auto" and self.device.type == "cuda" and not recurrent
        compiled = settings.compile == "on" or by_itself
        # Evaluation is rare: it takes the plain objective, and nothing is compiled a second time for it.
        self.plain_objective = objective
        self.objective: Any = torch.compile(objective, dynamic=False) if compiled else objective
        if not self.progress.micro_batch or settings.micro_batch is not None:
            self.progress.micro_batch = largest_micro_batch(
                config, self.model.vocabulary_size, high - low, self.device, self.precision.name
            )
        self.progress.micro_batch = min(self.progress.micro_batch, high - low)
        account = Account(config.model, self.model.vocabulary_size, config.tokens.context_length)
        self.peak = peak(self.device, self.precision)
        self.flops_per_token = account.flops_per_token if self.peak is not None else None
        self.view = View(config.name, self.steps, shown=ranks.main and not quiet)
        self.metrics = Metrics(self.place / timeline.METRICS, self.progress.step) if ranks.main else None
        self.samples = (
            timeline.Samples(self.place / timeline.SAMPLES, self.progress.step) if ranks.main else None
        )
        self._pending: list[tuple[int, int, int, Tensor, Tensor]] = []
        self._saved = self.progress.step if resume is not None else -1
        self._drawn = time.monotonic()
        self._last: dict[str, float | None] = {}
        self._started = time.monotonic()
        self._begun_at = self.progress.step
        self._clock: tuple[float, int] | None = None  # when the first step ended, and the tokens seen by then
        self._logged: tuple[float, int] = (time.monotonic(), self.progress.tokens)
        self._describe()

    def _take_up(self, training: TrainingState) -> None:
        """The tensors of a checkpoint besides the weights."""
        self.optimizer.load_state(training.tensors, self.progress.step)
        if self.carry is not None and not self.carry.load(training.tensors):
            warnings.warn("The lanes are not those of the checkpoint: the carried state begins anew.")

    def batches(self, windows: Skipping) -> Generator[tuple[int, Batch], None, None]:
        """This process's share of each batch from the next sample on, made ahead of time by a thread."""
        ranks, size = self.ranks, self.config.training.batch_size
        pin = self.device.type == "cuda"
        source: Any = windows
        yield from Loader(source, size, self.progress.samples, rank=ranks.rank, ranks=ranks.world, pin=pin)

    # -- the step -------------------------------------------------------------------------------------------------

    def accumulate(self, batch: Batch, count: float) -> Tensor:
        """Gradients of the batch's mean loss, micro-batch by micro-batch; when memory runs out, with smaller ones."""
        while True:
            try:
                return self._accumulate(batch, count)
            except RuntimeError as error:
                if not out_of_memory(error) or self.sharded:
                    raise
                if self.progress.micro_batch == 1:
                    raise FledgeError(
                        "Not even one window fits the memory. Set training.recompute=true, a shorter "
                        "tokens.context_length or a smaller model."
                    ) from None
            self.progress.micro_batch = -(-self.progress.micro_batch // 2)
            self.optimizer.zero()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.view.note(
                f"Out of memory: going on with a micro-batch of {self.progress.micro_batch}, same mathematics."
            )

    def _accumulate(self, batch: Batch, count: float) -> Tensor:
        # A process averages its share into the whole: the loss is the sum over all unmasked targets by their number.
        scale = self.progress.loss_scale if self.precision.name == "fp16" else 1.0
        factor = (self.ranks.world if self.sharded else 1) * scale / max(count, 1)
        total = torch.zeros((), device=self.device)
        states: list[Any] = []
        parts = cut(batch.to(self.device), self.progress.micro_batch)
        for number, part in enumerate(parts):
            if self.sharded:
                self._shards.set_requires_gradient_sync(number == len(parts) - 1)
            reseed(self.config.training.seed, "dropout", self.progress.step, number, self.ranks.rank)
            size = self.progress.micro_batch
            state = self.carry.part(number * size, size) if self.carry is not None else None
            loss, state = self.objective(part.inputs_BT, part.targets_BT, self.model.plan(part), state)
            (loss * factor).backward()
            total += loss.detach()
            states.append(state)
        if self.carry is not None:
            self.carry.keep(states)
        return total / max(count, 1)

    def update(self, loss: Tensor, samples: tuple[int, int]) -> None:
        """Reduce, clip and apply the gradients; count the step, which saw the samples of this range."""
        gradients = self.optimizer.layout.gradients()
        if self.ranks.world > 1 and not self.sharded:
            self.ranks.reduce(gradients)
        norm = gradient_norm(gradients)
        if self.sharded:
            squared = norm.square()
            self.ranks.reduce([squared])
            norm = squared.sqrt()
        if self.precision.name == "fp16":
            norm = norm / self.progress.loss_scale
        if self.precision.name != "fp16" or self._scale_fits(norm):
            self.optimizer.step(self._gradient_scale(norm))
        self.optimizer.zero()
        progress = self.progress
        progress.step += 1
        progress.samples += self.config.training.batch_size
        progress.tokens += self.config.training.batch_size * self.config.tokens.context_length
        self._pending.append((progress.step, *samples, loss, norm))
        if self._clock is None:
            self._synchronize()
            self._clock = (time.monotonic(), progress.tokens)
            self._logged = self._clock

    def _gradient_scale(self, norm: Tensor) -> Tensor | None:
        scale = clip_scale(norm, self.config.optimizer.clip_norm)
        if self.precision.name == "fp16":
            unscale = 1 / self.progress.loss_scale
            return torch.full_like(norm, unscale) if scale is None else scale * unscale
        if scale is not None and self.device.type == "cpu" and float(scale) == 1.0:
            return None  # nothing to clip: no pass over the gradients
        return scale

    def _scale_fits(self, norm: Tensor) -> bool:
        """fp16: an overflow halves the loss scale and leaves the step out; a long calm doubles it."""
        progress = self.progress
        if bool(torch.isfinite(norm)):
            progress.scaled_steps += 1
            if progress.scaled_steps >= RAISE_SCALE_AFTER:
                progress.loss_scale, progress.scaled_steps = progress.loss_scale * 2, 0
            return True
        progress.loss_scale, progress.scaled_steps = progress.loss_scale / 2, 0
        norm.zero_()  # the watch must not take a scale that was tried too high for a divergence
        if progress.loss_scale < 1:
            norm.fill_(math.inf)
        return False

    # -- the watch ------------------------------------------------------------------------------------------------

    def watch(self) -> Trouble | None:
        """Judge the losses since the last look: every step on a CPU; on a GPU, which must not wait, when one is due."""
        settings = self.config.training
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
            if trouble := judge(
                Outcome(step, first, after, loss, norm), self.progress, self.config.training.spike
            ):
                return trouble
            self._last.update(loss=loss, norm=norm)
        return None

    def go_back(self, trouble: Trouble, give_up: bool) -> None:
        """After a divergence: stop with a sentence, or return to the last checkpoint and leave the batch out."""
        last = max(timeline.checkpoint_steps(self.place), default=None)
        advice = (
            "Try a smaller optimizer.learning_rate, a longer schedule.warmup_steps or optimizer.clip_norm=1."
        )
        if self.config.training.on_divergence == "stop" or give_up or last is None:
            saved = f" The checkpoint of step {last} is good." if last is not None else ""
            again = " It kept happening after going back." if give_up else ""
            raise FledgeError(f"At step {trouble.step} {trouble.what}.{again} {advice}{saved}")
        bundle = timeline.load_checkpoint(self.place, last)
        assert bundle.training is not None
        skipped = [*self.progress.skipped, (trouble.first, trouble.after)]
        restored = Progress.restore(bundle.training.values)
        for name, value in restored.values().items():
            setattr(self.progress, name, value)
        self.progress.skipped = skipped
        if self.sharded:
            scatter(self.model, bundle.model)
        else:
            self.model.load_state_dict(bundle.model.state_dict())
        self._take_up(bundle.training)
        if self.metrics is not None:
            self.metrics.back_to(self.progress.step)
            self.samples = timeline.Samples(self.place / timeline.SAMPLES, self.progress.step)
        self.view.note(
            f"At step {trouble.step} {trouble.what}: back to step {self.progress.step}, "
            f"without the samples {trouble.first} to {trouble.after - 1}."
        )

    # -- what is due now and then ---------------------------------------------------------------------------------

    def due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def log(self) -> None:
        """A row of metrics: the mean loss since the last one."""
        now, tokens = time.monotonic(), self.progress.tokens
        elapsed = max(now - self._logged[0], 1e-9)
        speed = (tokens - self._logged[1]) / elapsed or None
        self._logged = (now, tokens)
        progress = self.progress
        values: dict[str, Any] = {
            "step": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "loss": progress.interval_loss / max(1, progress.interval_steps),
            "learning_rate": self.config.optimizer.learning_rate * self.optimizer.factor,
            "gradient_norm": self._last.get("norm"),
            "tokens_per_second": speed,
            "mfu": speed * self.flops_per_token / self.peak
            if speed and self.peak and self.flops_per_token
            else None,
            "memory": used_memory(self.device),
            "seconds": self.seconds(),
        }
        self._last["mean"] = values["loss"]
        progress.interval_loss, progress.interval_steps = 0.0, 0
        if self.metrics is not None:
            self.metrics.add(**values)
            self.view.row(values, self._left())
        gc.collect(0)

    def save(self) -> float:
        """A whole checkpoint, unless this step has one. Returns the seconds it took."""
        if self._saved == self.progress.step:
            return 0.0
        if trouble := self._judge():
            raise FledgeError(f"At step {trouble.step} {trouble.what}: this step is not saved.")
        start = time.monotonic()
        tensors = {name: tensor for name, tensor in self.optimizer.named_state() if self.ranks.main}
        if self.carry is not None:
            tensors.update(self.carry.tensors())
        model = gather(self.model, self.ranks) if self.sharded else self.model
        if self.ranks.main:
            assert self.metrics is not None
            assert model is not None
            self.metrics.sync()
            path = self.place / "checkpoints" / f"step-{self.progress.step:08}"
            values = {**self.progress.values(), "seconds": self.seconds()}
            try:
                save_bundle(
                    path,
                    self.config,
                    self.tokenizer,
                    model,
                    training=TrainingState(tensors, values),
                    metrics=self._summary(),
                    replace=True,
                    **({"shard_bytes": self._shard_bytes()} if self.sharded else {}),
                )
            except OSError as error:
                last = max(timeline.checkpoint_steps(self.place), default=None)
                kept = (
                    f"The checkpoint of step {last} is whole"
                    if last is not None
                    else "There is no checkpoint yet"
                )
                raise FledgeError(
                    f"Step {self.progress.step} could not be saved ({error.strerror or error}). {kept}; "
                    f"free some space, then: fledge train --resume {self.folder}"
                ) from error
            if self.place != self.folder and timeline.overtaken(self.folder, self.progress.step):
                self._take_over()
            timeline.prune(self.place, self.config.training, self.metrics.evaluations())
        self.ranks.wait()
        self._saved = self.progress.step
        return time.monotonic() - start

    def _shard_bytes(self) -> int:
        """One file of weights per process, so that none has to be read whole to be spread again."""
        return max(1, -(-4 * self._parameters // self.ranks.world))

    def _take_over(self) -> None:
        assert self.metrics is not None
        self.metrics.close()
        timeline.take_over(self.folder)
        self.place = self.folder
        self.metrics = Metrics(self.place / timeline.METRICS, self.progress.step)
        self.samples = timeline.Samples(self.place / timeline.SAMPLES, self.progress.step)
        self.view.note("The new branch has overtaken the old one and takes its place.")

    @torch.no_grad()
    def evaluate(self) -> None:
        """The loss on the first windows of the validation split: the same ones each time, spread over the processes."""
        if self.validation is None or self._evaluated():
            return
        count = min(self.config.training.evaluate_windows, len(self.validation))
        low, high = self.ranks.share(count)
        size = self.progress.micro_batch
        rounds = -(-max(1, -(-count // self.ranks.world)) // size)
        total, targets = torch.zeros((), device=self.device, dtype=torch.float32), 0
        self.plain_objective.eval()
        for number in range(rounds):
            samples = range(min(low + number * size, high), min(low + (number + 1) * size, high))
            part = filled(self.validation, samples, size).to(self.device)
            targets += int((part.targets_BT != -100).sum())
            loss, _ = self.plain_objective(part.inputs_BT, part.targets_BT, self.model.plan(part))
            total += loss
        self.plain_objective.train()
        loss_sum, target_count = self.ranks.total(float(total), targets)
        loss = loss_sum / max(target_count, 1)
        bits = None if self.bytes_per_token is None else loss / math.log(2) / self.bytes_per_token
        values: dict[str, Any] = {
            "step": self.progress.step,
            "samples": self.progress.samples,
            "tokens": self.progress.tokens,
            "validation_loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": bits,
            "seconds": self.seconds(),
        }
        self._last.update(validation_loss=loss, bits_per_byte=bits)
        if self.metrics is not None:
            self.metrics.add(**values)
            self.view.row(values, self._left())
            if time.monotonic() - self._drawn > PLOT_EVERY:
                self.draw()

    def sample(self) -> None:
        """What the model writes now, into samples.txt; the main process alone, with a generator of its own."""
        if self.samples is None or self.sharded or self.progress.step in self.samples.steps:
            return
        from fledge.generation import generate

        self.model.eval()
        sampling = self.config.sampling
        texts = [
            found.prompt + found.text
            for found in generate(self.model, self.tokenizer, [sampling.prompt], sampling)
        ]
        self.model.train()
        self.samples.add(self.progress.step, texts)
        self.view.note(f"step {self.progress.step} wrote: {texts[0].strip()[:300]}")

    def draw(self) -> None:
        """The loss curves so far, as loss.svg."""
        from fledge.plot import curves

        assert self.metrics is not None
        lines = {}
        for name, column in (("training", "loss"), ("validation", "validation_loss")):
            points = [(int(row["step"]), float(row[column])) for row in self.metrics.rows if row[column]]
            if points:
                lines[name] = ([step for step, _ in points], [value for _, value in points])
        if lines:
            with atomic_write(self.place / "loss.svg") as file:
                file.write(curves(lines, "step", "loss (nats per token)").encode())
        self._drawn = time.monotonic()

    # -- beginning and end ----------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """What was due at the step that training goes on from, where a kill came between saving and doing it."""
        settings = self.config.training
        self.plain_objective.train()
        if self.progress.step == 0:
            if settings.on_divergence == "skip":
                self.save()  # somewhere to go back to
            return
        if self.due(settings.evaluate_every):
            self.evaluate()
        if self.due(settings.sample_every):
            self.sample()

    def result(self, stopped: str | None) -> TrainingResult:
        from fledge.training.loop import TrainingResult

        progress = self.progress
        elapsed = max(time.monotonic() - self._clock[0], 1e-9) if self._clock else 0.0
        speed = (progress.tokens - self._clock[1]) / elapsed if self._clock and elapsed else 0.0
        if self.metrics is not None:
            self.draw()
        checkpoint = self.place / "checkpoints" / f"step-{progress.step:08}"
        if stopped:
            self.view.note(
                f"Stopped by {stopped} after step {progress.step}; everything is saved. "
                f"Go on with: fledge train --resume {self.folder}"
            )
        return TrainingResult(
            folder=self.folder,
            checkpoint=checkpoint,
            metrics=self.place / timeline.METRICS,
            step=progress.step,
            steps=self.steps,
            tokens=progress.tokens,
            loss=self._last.get("mean", self._last.get("loss")),
            validation_loss=self._last.get("validation_loss"),
            bits_per_byte=self._last.get("bits_per_byte"),
            tokens_per_second=speed,
            seconds=self.seconds(),
            stopped=stopped,
        )

    def close(self) -> None:
        self.view.close()
        if self.metrics is not None:
            self.metrics.close()

    def seconds(self) -> float:
        """Time spent on this run, earlier sessions included."""
        return self.progress.seconds + time.monotonic() - self._started

    @property
    def step_seconds(self) -> float:
        """What a step takes, everything around it included; 0 before the first."""
        if self._clock is None or self.progress.step <= self._begun_at + 1:
            return 0.0
        return (time.monotonic() - self._clock[0]) / (self.progress.step - self._begun_at - 1)

    def _left(self) -> float | None:
        return (self.steps - self.progress.step) * self.step_seconds or None

    def _evaluated(self) -> bool:
        done = self.metrics is not None and self.progress.step in self.metrics.evaluations()
        return self.ranks.total(float(done))[0] > 0

    def _summary(self) -> dict[str, Any]:
        known = {name: self._last.get(name) for name in ("loss", "validation_loss", "bits_per_byte")}
        values = {"step": self.progress.step, "tokens": self.progress.tokens, **known}
        return {name: value for name, value in values.items() if value is not None}

    def _total_steps(self) -> int:
        """The last step. Where the length is given in tokens, a changed batch size keeps the tokens, not the steps."""
        settings, progress = self.config.training, self.progress
        if settings.tokens is not None and progress.step:
            left = settings.tokens - progress.tokens
            steps = progress.step + max(0, left) // (settings.batch_size * self.config.tokens.context_length)
        else:
            steps = self.config.steps
        if steps < progress.step or (settings.tokens is not None and settings.tokens < progress.tokens):
            raise FledgeError(
                f"The run has done {progress.step} steps already, and {self.config.steps} are asked for. "
                f"Set training.steps to more, or go back with --at."
            )
        return steps

    def _open(self, resume: Bundle | None) -> Path:
        """Where to write. The main process prepares it before the others look."""
        origin = None if resume is None else resume.path.absolute()
        place = self.folder
        if self.ranks.main:
            place = timeline.open_place(self.folder.absolute(), origin)
            timeline.sweep(place)
        self.ranks.wait()
        return self.folder / timeline.BRANCH if place.name == timeline.BRANCH else self.folder

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _describe(self) -> None:
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        threads = f" ({torch.get_num_threads()} threads)" if self.device.type == "cpu" else ""
        processes = f"{self.ranks.world} processes, " if self.ranks.world > 1 else ""
        self.view.note(
            f"Training {self._parameters:,} parameters on {processes}{device}{threads} in "
            f"{self.precision.name} ({self.precision.reason}); {self.config.training.batch_size} windows a step, "
            f"{self.progress.micro_batch} at once; steps {self.progress.step} to {self.steps}."
        )


def cut(batch: Batch, size: int) -> list[Batch]:
    """The batch in micro-batches of at most `size` rows."""
    parts = [() if part is None else torch.split(part, size) for part in batch]
    return [Batch(*rows) for rows in zip_longest(*parts)]


def filled(windows: Windows, samples: range, size: int) -> Batch:
    """Some windows, filled up to `size` rows with rows that do not count: one shape for all, nothing recompiles."""
    batch = windows.batch(samples if len(samples) else range(1))
    missing = size - batch.inputs_BT.shape[0]
    batch = each(batch, lambda part: torch.cat([part, part[-1:].expand(missing, -1)]) if missing else part)
    batch.targets_BT[len(samples) :] = -100
    return batch


def each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor of it changed."""
    inputs, targets, positions, documents = batch
    return Batch(
        change(inputs),
        change(targets),
        None if positions is None else change(positions),
        None if documents is None else change(documents),
    )


def check_same_model(config: RunConfig, resume: Bundle) -> None:
    """A run goes on with the model it began with; what differs is named."""
    differing = []
    for group in ("model", "tokens"):
        old, new = getattr(resume.config, group).model_dump(), getattr(config, group).model_dump()
        fixed = old.keys() if group == "model" else ("context_length",)
        differing += [
            f"{group}.{name} is {old[name]} there and {new[name]} now"
            for name in fixed
            if old[name] != new[name]
        ]
    if differing:
        raise FledgeError(
            f"{resume.path} was trained with another model: {'; '.join(differing)}. "
            "Leave these settings as they were, or start a new run."
        )


def out_of_memory(error: RuntimeError) -> bool:
    """The GPU's allocator, or the CPU's, which has no exception of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
