"""One optimizer step: gradients of the whole batch, micro-batch by micro-batch; then reduced, clipped and applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fledge import devices
from fledge.bundle import TrainingState
from fledge.config import RunConfig
from fledge.errors import FledgeError, note, out_of_memory
from fledge.model.recurrent import Recurrent
from fledge.model.state import State
from fledge.tokens import Batch
from fledge.training.averaging import AVERAGE, PLAIN, Average
from fledge.training.device import choose_precision, largest_micro_batch, reseed, set_up_device
from fledge.training.objective import Objective
from fledge.training.optimizers import build_optimizer, clip_scale, gradient_norm
from fledge.training.progress import Progress
from fledge.training.ranks import Ranks, gather_model, scatter, shard
from fledge.training.replay import Replay

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.model import Model

T = TypeVar("T")
CARRIED, LENGTHS = "carried/", "lengths"  # what the names of saved states begin with, and that of their lengths
RAISE_SCALE_AFTER = 2000  # fp16 steps without overflow before the loss scale doubles


class Stepper:
    """The model, what is minimised and the optimizer, on this process's device."""

    def __init__(
        self, config: RunConfig, model: Model, ranks: Ranks, progress: Progress | None = None, whole: bool = False
    ) -> None:
        """Set up the device and put the parts on it. With `whole`, a step that does not fit the memory at once is not
        taken in parts."""
        settings, progress = config.training, progress or Progress()
        self.precision = precision = choose_precision(settings.precision, ranks.device)
        set_up_device(ranks.device, precision, settings.threads)
        self.config, self.ranks, self.progress, self.whole = config, ranks, progress, whole
        self.device = ranks.device
        self.note: Callable[[str], None] = note
        if rest := settings.batch_size % ranks.world:
            below = settings.batch_size - rest
            near = f"{below} or {below + ranks.world}" if below else f"{ranks.world}"
            raise FledgeError(
                f"training.batch_size = {settings.batch_size} can't be shared evenly by {ranks.world} processes. "
                f"Try {near}."
            )
        share = settings.batch_size // ranks.world
        self.model = model.to(self.device, torch.float32)  # an imported model may be bf16, in which small steps vanish
        self.model.recompute = settings.recompute
        self.parameters = model.parameters_count()
        # Evaluation is rare: it takes the plain objective, and nothing is compiled a second time for it.
        self.plain = Objective(self.model, precision, self.device, settings.label_smoothing, settings.z_loss)
        self.sharded = ranks.world > 1 and settings.parallel == "fsdp"
        self.shards = ranks.world if self.sharded else 1
        self._fully_sharded: Any = shard(self.plain, self.model, ranks) if self.sharded else None
        self.optimizer = build_optimizer(self.model, config.optimizer, flat=not self.sharded)
        self.fresh = self.device.type == "cuda" and not self.sharded  # each step makes its gradients anew
        self.average = Average(self.optimizer.layout, settings.average) if settings.average else None
        recurrent = isinstance(self.model, Recurrent)
        lanes = recurrent and config.tokens.policy == "lanes"
        self.carry = Carry(self.model, share, ranks) if lanes else None
        by_itself = settings.compile == "auto" and self.device.type == "cuda" and not recurrent
        compiled = settings.compile == "on" or by_itself
        self.objective: Any = torch.compile(self.plain, dynamic=False) if compiled else self.plain
        if whole:
            progress.micro_batch = share
        elif not progress.micro_batch or settings.micro_batch is not None:
            progress.micro_batch = largest_micro_batch(
                config, self.model.vocabulary_size, share, self.device, precision.name, self.shards
            )
        # Sharded, every forward pass takes all processes: they do as many, in training as in evaluation.
        progress.micro_batch = ranks.least(min(progress.micro_batch, share))
        self.plain.train()
        self.replay = Replay(self.device, settings.compile != "off")
        if ranks.world > 1:
            self.replay.give_up("several processes add up their gradients in the middle of a step.")
        elif not vars(type(model)).get("recorded"):
            self.replay.give_up(f"model.architecture = {config.model.architecture} does not say that they can be.")

    def step(self, batch: Batch, count: float | None = None) -> tuple[Tensor, Tensor]:
        """Take a step on this process's share of a batch; `count` is the number of targets that count in all shares.

        Returns the share's part of the mean loss, and the gradient's norm; the device is not waited for. When memory
        runs out, the gradients are computed once more with smaller micro-batches.
        """
        count = batch.targets_count if count is None else count
        self.replay.begin_step()
        while True:
            try:
                loss = self._accumulate(batch, count)
                break
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error) or self.sharded:
                    raise
                recorded = self.replay.forget()
                if not recorded and self.whole:
                    raise
                if not recorded and self.progress.micro_batch == 1:
                    raise FledgeError(
                        "Even one window does not fit in memory. Set training.recompute=true, a shorter "
                        "tokens.context_length or a smaller model."
                    ) from None
            self.optimizer.zero_grad()
            if recorded:
                self.replay.give_up("there is no room for them.")
                devices.give_back(self.device)
                continue
            self.progress.micro_batch = -(-self.progress.micro_batch // 2)
            devices.give_back(self.device)
            self.note(
                f"Out of memory: training continues with a micro-batch of {self.progress.micro_batch}, which "
                "gives the same results."
            )
        norm = self._update()
        if self.replay.complaint and self.ranks.main:
            self.note(self.replay.complaint)
        self.replay.complaint = ""
        size = self.config.training.batch_size
        self.progress.step += 1
        self.progress.samples += size
        self.progress.tokens += size * self.config.tokens.context_length
        return loss, norm

    def with_room(self, function: Callable[[], T]) -> T:
        """What the function gives; where memory runs out, once more without that of the recordings."""
        try:
            return function()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or not self.replay.forget():
                raise
        devices.give_back(self.device)
        return function()

    def _accumulate(self, batch: Batch, count: float) -> Tensor:
        # The loss is the sum over all unmasked targets by their number, over micro-batches and processes; FSDP takes
        # the mean over the processes, which is undone here.
        factor = self.shards * self._loss_scale() / max(count, 1)
        total = torch.zeros((), device=self.device)
        size, states = self.progress.micro_batch, []
        parts = cut(batch, size)
        if batch.documents_BT is not None and isinstance(self.model, Recurrent):
            self.replay.give_up("documents in one window are rows of their own to a recurrent model, as many as come.")
        for number, part in enumerate(parts):
            if self.sharded:
                self._fully_sharded.set_requires_gradient_sync(number == len(parts) - 1)
            reseed(self.config.training.seed, "dropout", self.progress.step, number, self.ranks.rank)
            state = self.carry.part(number * size, size) if self.carry is not None else None
            backward = self._make_gradients if self.fresh and not number else self._add_gradients
            loss, state = self.replay(backward, part, factor, state)
            total += loss
            if state is not None:
                states.append(state.clone())  # the next replay writes over it
        if self.carry is not None:
            self.carry.keep(states)
        return total / max(count, 1)

    def _make_gradients(self, part: Batch, factor: float | Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """The gradients of the first micro-batch, in place of those of the last step."""
        self.optimizer.layout.release()
        found = self._add_gradients(part, factor, state)
        self.optimizer.layout.gather()
        return found

    def _add_gradients(self, part: Batch, factor: float | Tensor, state: State | None) -> tuple[Tensor, State | None]:
        """Add the gradients of a micro-batch, times the factor. Returns its loss and the state it ends with."""
        loss, state = self.objective(part.inputs_BT, part.targets_BT, self.model.plan(part), state)
        (loss * factor).backward()
        return loss.detach(), None if state is None else state.detach()

    def _update(self) -> Tensor:
        """Reduce, clip and apply the gradients, and clear them. Returns their norm."""
        if not self.sharded:
            self.ranks.reduce(self.optimizer.layout.gradients())
        if self.precision.name == "fp16":
            found, scale = self.replay(self._norm, self._loss_scale())
            norm: Tensor = found.clone()
            if self._scale_fits(norm):
                self.replay(self._move, scale, self._begin())
            elif not self.fresh:
                self.optimizer.zero_grad()
        else:
            norm = self.replay(self._clip_and_move, self._begin()).clone()
        self.progress.updates = self.optimizer.steps
        return norm

    def _begin(self) -> float:
        """Count an update; how much the weights after it count in their average."""
        self.optimizer.begin()
        return 1.0 if self.average is None else self.average.share(self.optimizer.steps)

    def _norm(self, loss_scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor | None]:
        """The norm of the gradients, and what they are multiplied by: they are that of the loss times `loss_scale`."""
        norm = gradient_norm(self.optimizer.layout.gradients())
        if self.sharded:
            squared = norm.square()
            self.ranks.reduce([squared])
            norm = squared.sqrt()
        if self.precision.name != "fp16":
            return norm, clip_scale(norm, self.config.optimizer.clip_norm)
        norm = norm / loss_scale
        scale = clip_scale(norm, self.config.optimizer.clip_norm)
        return norm, (torch.ones_like(norm) if scale is None else scale) / loss_scale

    def _move(self, scale: Tensor | None, share: float | Tensor) -> None:
        """Move the weights by the scaled gradients, take them into the average, and clear the gradients."""
        if scale is not None and self.device.type == "cpu" and float(scale) == 1.0:
            scale = None  # nothing to clip: no pass over the gradients
        self.optimizer.move(scale)
        if self.average is not None:
            self.average.update(share)
        if not self.fresh:
            self.optimizer.zero_grad()

    def _clip_and_move(self, share: float | Tensor) -> Tensor:
        norm, scale = self._norm()
        self._move(scale, share)
        return norm

    def _loss_scale(self) -> float:
        return self.progress.loss_scale if self.precision.name == "fp16" else 1.0

    def _scale_fits(self, norm: Tensor) -> bool:
        """fp16: an overflow halves the loss scale and leaves the step out; a long calm doubles it."""
        progress = self.progress
        if bool(torch.isfinite(norm)):
            progress.scaled_steps += 1
            if progress.scaled_steps >= RAISE_SCALE_AFTER:
                progress.loss_scale, progress.scaled_steps = progress.loss_scale * 2, 0
            return True
        progress.loss_scale, progress.scaled_steps = progress.loss_scale / 2, 0
        # The watch must not take a scale that was tried too high for a divergence; one below 1 is one.
        norm.fill_(0.0 if progress.loss_scale >= 1 else math.inf)
        return False

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint keeps besides the weights; every process takes part, the main one has all."""
        # What is gathered from shards leaves the GPU as it comes: there is no room on one for the whole state.
        gathered = chain(self.optimizer.named_state(), self._other_weights())
        tensors = {name: each.cpu() if self.sharded else each for name, each in gathered if self.ranks.main}
        return {**tensors, **self.carry.tensors()} if self.carry is not None else tensors

    def _other_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Of the plain and the averaged weights, those that are not the checkpoint's model."""
        if self.average is not None:
            averaged = self.progress.averaged
            kind, named = (PLAIN, self.average.named_plain()) if averaged else (AVERAGE, self.average.named())
            yield from ((f"{kind}/{name}", tensor) for name, tensor in named)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model holds the averaged weights within this context."""
        assert self.average is not None
        self._reshard()
        with self.average.in_place():
            yield
            self._reshard()

    def _reshard(self) -> None:
        """Sharded: let go of what a forward pass without a backward one left whole, which is about to change."""
        if self.sharded:
            self._fully_sharded.reshard()

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """What lies beside the layers is whole within this context, for a forward pass that is not the objective's."""
        if self.sharded:
            self._fully_sharded.unshard()
        yield
        self._reshard()

    def handed_over(self) -> AbstractContextManager[None]:
        """A context in which the model holds the weights that a checkpoint hands over: the better ones of the last
        evaluation."""
        return self.averaged() if self.progress.averaged and self.average is not None else nullcontext()

    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on the disk, but for some small files."""
        sets = 1 if self.average is None else 2
        weights = 4 * self.parameters * sets  # not asked of the model: sharded, that would take all processes
        state = sum(part.numel() * part.element_size() for parts in self.optimizer.state.values() for part in parts)
        return int(weights + state * self.shards)

    def take_up(self, training: TrainingState) -> None:
        """Go on from a checkpoint's tensors; `progress` is already the checkpoint's."""
        self.replay.forget()  # the average's tensors are new ones
        self.optimizer.load_state(training.tensors, self.progress.updates)
        # Without an average, too: the model of the checkpoint may be one, and training goes on with the plain weights.
        (self.average or Average(self.optimizer.layout, 1.0)).load(training.tensors)
        self.progress.averaged = self.progress.averaged and self.average is not None
        if self.carry is not None and not self.carry.load(training.tensors):
            note("The lanes are not those of the checkpoint, so the carried state starts from zero.")

    def go_back(self, bundle: Bundle) -> None:
        """Take the weights of a checkpoint, too."""
        if self.sharded:
            scatter(self.model, bundle.model)
        else:
            self.model.load_state_dict(bundle.model.state_dict())
        assert bundle.training is not None
        self.take_up(bundle.training)

    def whole_model(self) -> Model | None:
        """The model as one process holds it; sharded, a copy on the main process and None on the others."""
        return gather_model(self.model, self.ranks) if self.sharded else self.model


class Carry:
    """The hidden state that contiguous lanes of text hand on from batch to batch: a row per lane of this process."""

    def __init__(self, model: Model, rows: int, ranks: Ranks) -> None:
        self.model, self.rows, self.ranks = model, rows, ranks
        self.state: State = model.init_state(rows, ranks.device)

    def part(self, start: int, size: int) -> State:
        """A copy of the state of some rows, for one micro-batch."""
        return self.state.each(lambda tensor: tensor[start : start + size].clone())

    def keep(self, parts: list[State]) -> None:
        """Go on from the states that the micro-batches ended with, in the types of the first one."""
        first, old = parts[0], self.state
        tensors = {
            name: torch.cat([part.tensors[name] for part in parts]).to(old.tensors[name]) for name in first.tensors
        }
        self.state = State(tensors, torch.cat([part.lengths for part in parts]), None, kind=old.kind)

    def tensors(self) -> dict[str, Tensor]:
        """The state of all lanes, for a checkpoint; every process takes part."""
        named = {**self.state.tensors, LENGTHS: self.state.lengths}
        return {CARRIED + name: self._whole(tensor) for name, tensor in named.items()}

    def _whole(self, tensor: Tensor) -> Tensor:
        if self.ranks.world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.ranks.world)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def load(self, tensors: Mapping[str, Tensor]) -> bool:
        """Take up a saved state, if it is one of as many lanes; otherwise the lanes begin anew."""
        low, high = self.ranks.rank * self.rows, (self.ranks.rank + 1) * self.rows
        saved = {name.removeprefix(CARRIED): tensor for name, tensor in tensors.items() if name.startswith(CARRIED)}
        if LENGTHS not in saved or len(saved[LENGTHS]) != self.rows * self.ranks.world:
            return False
        lengths = saved.pop(LENGTHS)
        self.state = self.state.load({name: tensor[low:high] for name, tensor in saved.items()}, lengths[low:high])
        return True


def cut(batch: Batch, size: int) -> list[Batch]:
    """The batch in micro-batches of at most `size` rows."""
    parts = [() if part is None else torch.split(part, size) for part in batch]
    return [Batch(*rows) for rows in zip_longest(*parts)]
