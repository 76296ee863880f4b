"""Writing checkpoints: at once, or by a thread from a copy while the GPU trains on."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fledge.bundle import TrainingState, save_bundle
from fledge.bundle.save import record_metrics
from fledge.config import RunConfig
from fledge.errors import FledgeError, command
from fledge.files import finished_name
from fledge.runs.checkpoints import checkpoint_steps, step_of
from fledge.runs.layout import CONFIG, METRICS

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.tokenizer import Tokenizer


def copied(tensors: Mapping[str, Tensor], place: torch.device) -> dict[str, Tensor]:
    """Copies that training does not change, on the GPU or in main memory."""
    return {name: tensor.detach().to(place, copy=True) for name, tensor in tensors.items()}


class Snapshot:
    """A model's weights as they are now, with what a bundle asks of a model."""

    def __init__(self, model: Model, place: torch.device) -> None:
        self.weights = copied(model.state_dict(), place)
        self.vocabulary_size, self.context_length = model.vocabulary_size, model.context_length
        self._parameters = model.parameters_count()

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights

    def parameters_count(self) -> int:
        return self._parameters


class Home:
    """A run's folder, which a person may move or delete while training goes on. It is known by a file that lies in it
    from the first step to the last: its settings, or its metrics where a program of one's own trains without them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sign = next((name for name in (CONFIG, METRICS) if (folder / name).is_file()), None)

    @property
    def gone(self) -> bool:
        """Whether the file is certainly not there; a disk that does not answer says nothing."""
        try:
            if self._sign is not None:
                os.stat(self.folder / self._sign)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def error(self) -> FledgeError:
        return FledgeError(
            f"{self.folder} is not this run's folder any more: its {self._sign or CONFIG} is gone. It was "
            "moved or deleted during training, so nothing more is written there. Resume from the last "
            "checkpoint where the folder is now (fledge train --resume FOLDER), or start the run again."
        )


class Saver:
    """One checkpoint at a time. What goes wrong in the thread is raised by the next `wait`, in the loop."""

    def __init__(
        self, config: RunConfig, tokenizer: Tokenizer, home: Home, device: torch.device, background: bool
    ) -> None:
        self.config, self.tokenizer, self.home, self.background = config, tokenizer, home, background
        self._device = device
        self.seconds = 0.0
        "What writing took last time."
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fledge-saver")
        self._writing: Future[None] | None = None

    def save(self, path: Path, model: Any, tensors: dict[str, Tensor], values: dict[str, Any], **options: Any) -> None:
        """Write a checkpoint, or begin to; `options` are those of `save_bundle`."""
        self.wait()
        if not self.background:
            self._write(path, model, TrainingState(tensors, values), options)
            return
        # Copies on the GPU take no time, and the thread fetches them on a stream of its own while training goes on.
        place = self._device if self._room(tensors) else torch.device("cpu")
        training = TrainingState(copied(tensors, place), values)
        snapshot = Snapshot(model, place)
        ready = torch.cuda.Event() if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if ready is not None:
            ready.record()
        self._writing = self._pool.submit(self._write_beside, ready, path, snapshot, training, options)

    def record(self, path: Path, metrics: Mapping[str, Any]) -> None:
        """Add what an evaluation found to the checkpoint that was saved before it, when that is whole."""
        written = self._writing
        if written is None:
            if path.is_dir():  # not where a rollback begins: that checkpoint is another branch's
                record_metrics(path, metrics)
            return

        def after() -> None:
            written.result()
            record_metrics(path, metrics)

        self._writing = self._pool.submit(after)

    def _room(self, tensors: dict[str, Tensor]) -> bool:
        """Whether the GPU holds a second copy of the weights and the state without strain."""
        if self._device.type != "cuda":
            return False
        needed = 2 * sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return 2 * needed < torch.cuda.mem_get_info(self._device)[0]

    def _write_beside(self, ready: Any, path: Path, model: Any, training: TrainingState, options: Any) -> None:
        if ready is None:
            self._write(path, model, training, options)
            return
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().wait_event(ready)
            self._write(path, model, training, options)

    def check(self) -> None:
        """Raise what went wrong in the thread as soon as it has, without waiting for it."""
        if self._writing is not None and self._writing.done() and self._writing.exception() is not None:
            self.wait()

    def wait(self) -> bool:
        """Finish the checkpoint under way; whether there was one."""
        writing, self._writing = self._writing, None
        if writing is None:
            return False
        writing.result()
        return True

    def _write(self, path: Path, model: Any, training: TrainingState, options: dict[str, Any]) -> None:
        start = time.monotonic()
        try:
            save_bundle(path, self.config, self.tokenizer, model, training=training, replace=True, **options)
        except OSError as error:
            if self.home.gone:
                raise self.home.error() from error
            last = max(checkpoint_steps(path.parent.parent), default=None)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "Free some space" if full else "Check the disk, or use another"
            where = f" at {finished_name(str(error.filename))}" if error.filename else f" at {path}"
            raise FledgeError(
                f"Step {step_of(path)} could not be saved ({error.strerror or error}{where}). "
                + (
                    f"The checkpoint of step {last} is whole. {remedy}, then: "
                    f"{command('train', '--resume', self.home.folder)}"
                    if last is not None
                    else f"There is no checkpoint yet. {remedy}, then run the same command again."
                )
            ) from error
        self.seconds = time.monotonic() - start
