"""What training writes and where: records and checkpoints in a run's folder, or in a branch there that may overtake it.

Only the main process writes; all take part, so that all know the same place.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.bundle.card import TUNED
from fledge.runs import branches
from fledge.runs.checkpoints import checkpoint_name, checkpoint_steps, clear_remains, prune, require_room
from fledge.runs.layout import BRANCH
from fledge.runs.origin import read_origin
from fledge.training.records import Records
from fledge.training.saver import Home, Saver

if TYPE_CHECKING:
    from fledge.training.session import Setup
    from fledge.training.stepper import Stepper
    from fledge.training.view import View


class Output:
    """The place of a training, prepared by the main process before the others look."""

    def __init__(self, setup: Setup, stepper: Stepper, view: View, steps: int, columns: tuple[str, ...]) -> None:
        """`columns` are those of the metrics that this run has besides the usual ones."""
        self.config, self.folder, self.view = setup.config, setup.folder, view
        self.stepper, self.ranks, self.progress = stepper, stepper.ranks, stepper.progress
        resume, step = setup.resume, self.progress.step
        self.origin = None if resume is None else (step, resume.path)
        "The step and the checkpoint that training went on from."
        self.saved_step = -1 if resume is None else step
        self.place = self._open()
        if self.ranks.main:
            require_room(self.place, self.config.training, steps - step, stepper.checkpoint_bytes())
        self.records = Records(self.config, self.folder, self.place, step, columns) if self.ranks.main else None
        self.home = Home(self.folder)
        background = stepper.device.type == "cuda" and not stepper.sharded
        self.saver = Saver(self.config, setup.tokenizer, self.home, stepper.device, background)

    def _open(self) -> Path:
        branched = False
        if self.ranks.main:
            origin = None if self.origin is None else self.origin[1].absolute()
            settings = self.config.model_dump(mode="json")
            place = branches.open_place(self.folder.absolute(), origin, self.progress.step, settings)
            clear_remains(place)
            branched = place == (self.folder / BRANCH).absolute()
        return self.folder / BRANCH if self.ranks.total(float(branched))[0] else self.folder

    @property
    def checkpoint(self) -> Path:
        """Where that of this step lies, or would lie."""
        return self.place / "checkpoints" / checkpoint_name(self.progress.step)

    @property
    def last_checkpoint(self) -> Path:
        """That of this step; where none was taken, the one that training went on from: a new branch has none yet."""
        mine, origin = self.checkpoint, self.origin
        return origin[1] if origin and origin[0] == self.progress.step and not mine.is_dir() else mine

    def save(self, metrics: dict[str, float | None], seconds: float) -> None:
        """Write a checkpoint of this step, or begin to; `metrics` are what is known of its model."""
        tensors = self.stepper.state()
        with self.stepper.handed_over():
            model = self.stepper.whole_model()
            if self.records is not None:
                self.records.metrics.sync()
                values = {**self.progress.values(), "seconds": seconds}
                # One file of weights per process, so that none has to be read whole to be spread again.
                size = max(1, math.ceil(4 * self.stepper.parameters / self.ranks.world))
                options: dict[str, Any] = {"shard_bytes": size} if self.stepper.sharded else {}
                self.saver.save(self.checkpoint, model, tensors, values, metrics=self._summary(metrics), **options)
                if not self.saver.background:
                    self._take_over()
            self._agree()
        self.saved_step = self.progress.step

    def update(self, metrics: dict[str, float | None]) -> None:
        """Add to this step's checkpoint what was measured after it was saved."""
        if self.ranks.main:
            self.saver.record(self.checkpoint, self._summary(metrics))

    def finish_saving(self) -> None:
        """Wait for a checkpoint that a thread of the main process is writing; then all know where the run's are."""
        if self.saver.wait():
            self._take_over()
        self._agree()

    def settle(self) -> None:
        """Take over where a kill came between a branch's checkpoint and that."""
        self.finish_saving()
        if self.ranks.main and self.place != self.folder:
            self._take_over()
        self._agree()

    def require_home(self) -> None:
        """Stop where the folder was moved or deleted: nothing is made at its old place. All processes hear of it."""
        if self.ranks.total(float(self.ranks.main and self.home.gone))[0]:
            raise self.home.error()

    def draw(self) -> None:
        """The curves so far, unless the folder is gone."""
        if self.records is not None and not self.home.gone:
            self.records.draw()

    def _take_over(self) -> None:
        """After a checkpoint is whole: a branch may take over, and older ones may go."""
        assert self.records is not None
        newest = max(checkpoint_steps(self.place), default=0)
        if self.place != self.folder and branches.overtaken(self.folder, newest):
            branches.take_over(self.folder)
            self.place = self.folder
            self.records.move(self.place, self.progress.step)
            self.view.note("The new branch has overtaken the old one and takes its place.")
        prune(self.place, self.config.training)

    def _agree(self) -> None:
        """The main process alone lets a branch take over: the others wait for it, and follow."""
        if not self.ranks.total(float(self.ranks.main and self.place != self.folder))[0]:
            self.place = self.folder

    def _summary(self, metrics: dict[str, float | None]) -> dict[str, Any]:
        origin = read_origin(self.folder)
        begun = {} if origin is None else {TUNED: origin.name or origin.path}
        values = {"step": self.progress.step, "tokens": self.progress.tokens, **metrics, **begun}
        return {name: value for name, value in values.items() if value is not None}

    def close(self) -> None:
        self.saver.wait()
        if self.records is not None:
            self.records.close()
