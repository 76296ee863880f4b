"""What the parts of training take: steps, and what is done between them; how fast it goes, and how long it has been."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fledge.config import TrainingConfig
from fledge.devices import synchronize
from fledge.training.progress import Progress
from fledge.training.view import clock_time


class Clock:
    """Times one session of a run; `progress` says where that is."""

    def __init__(self, progress: Progress, device: torch.device) -> None:
        self._progress, self._device = progress, device
        self._started = self._ended = self._since = time.monotonic()
        self._doing = "step"
        self._took: dict[str, float] = {}  # seconds of the last checkpoint, evaluation and sample
        self.begun_at = progress.step
        self._first_seconds = 0.0
        self._settled: tuple[float, int] | None = None  # when the first step ended, and the tokens seen by then
        self._logged = (self._started, progress.tokens)

    # -- what is told to it ---------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self._since = time.monotonic()

    def end_step(self) -> None:
        """The first step compiles: speed is reckoned from its end."""
        if self._settled is None:
            synchronize(self._device)
            self._settled = self._logged = (time.monotonic(), self._progress.tokens)
            self._first_seconds = self._settled[0] - self._since

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Something else than a step, which whoever asks to stop has to wait for."""
        self._doing, self._since = doing, time.monotonic()
        try:
            yield
        finally:
            self._took[doing] = time.monotonic() - self._since
            self._doing, self._since = "step", time.monotonic()

    def go_back(self) -> None:
        """Progress has returned to an earlier step."""
        self._settled = self._logged = (time.monotonic(), self._progress.tokens)
        self.begun_at = self._progress.step - 1

    def end(self) -> None:
        """The last step is done."""
        synchronize(self._device)
        self._ended = time.monotonic()

    # -- what it tells --------------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Time spent on this run, earlier sessions included."""
        return self._progress.seconds + time.monotonic() - self._started

    def recent_speed(self) -> float | None:
        """Tokens a second since this was last asked."""
        now, tokens = time.monotonic(), self._progress.tokens
        elapsed = max(now - self._logged[0], 1e-9)
        speed = (tokens - self._logged[1]) / elapsed or None
        self._logged = (now, tokens)
        return speed

    def speed(self) -> float:
        """Tokens a second from the end of the first step to that of the last."""
        if self._settled is None:
            return 0.0
        return (self._progress.tokens - self._settled[1]) / max(self._ended - self._settled[0], 1e-9)

    @property
    def step_seconds(self) -> float:
        """What a step takes, everything around it included; 0 before the first, and after it where it compiled."""
        if self._settled is None or self._progress.step <= self.begun_at + 1:
            return self._first_seconds if self._device.type == "cpu" else 0.0
        return (time.monotonic() - self._settled[0]) / (self._progress.step - self.begun_at - 1)

    def due_seconds(self, settings: TrainingConfig) -> float:
        """What is due after the next step takes, the checkpoint aside."""
        step = self._progress.step + 1
        chores = (("evaluation", settings.evaluate_every), ("sample", settings.sample_every))
        return sum(self._took.get(name, 0.0) for name, every in chores if every and step % every == 0)

    def answer_stop(self) -> str:
        """What a person hears who asks to stop."""
        left = self.step_seconds - (time.monotonic() - self._since) if self._doing == "step" else 0.0
        about = f" (about {clock_time(max(1.0, left))})" if self._doing == "step" and self.step_seconds else ""
        return f"Finishing the {self._doing}{about}, then saving; Ctrl-C again to stop at once."
