"""What a run writes down of itself: metrics.csv, samples.txt, loss.svg, and the trackers that were asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fledge.config import RunConfig
from fledge.files import atomic_write
from fledge.runs.layout import CURVES, METRICS, SAMPLES
from fledge.runs.metrics import Metrics, learning_curves
from fledge.runs.samples import Samples
from fledge.training.trackers import open_trackers

PLOT_EVERY = 60.0  # seconds between refreshes of loss.svg; drawing takes about half a second


class Records:
    """The records of a run at `place`, its folder or a branch in it, up to a step. Only the main process keeps them."""

    def __init__(
        self, config: RunConfig, folder: Path, place: Path, step: int, more_columns: tuple[str, ...] = ()
    ) -> None:
        self.more_columns = more_columns
        self._open(place, step)
        self.trackers = open_trackers(config, folder, place, step)
        self._drawn = time.monotonic()

    def _open(self, place: Path, step: int) -> None:
        self.place = place
        self.metrics = Metrics(place / METRICS, step, self.more_columns)
        self.samples = Samples(place / SAMPLES, step)

    def add(self, values: dict[str, Any]) -> None:
        """A row for the file and the trackers."""
        self.metrics.add(**values)
        numbers = {name: float(value) for name, value in values.items() if value is not None and name != "step"}
        for tracker in self.trackers:
            tracker.log(values["step"], numbers)

    def go_back(self, step: int) -> None:
        """Forget what came after a step that training went back to."""
        self.move(self.place, step)
        for tracker in self.trackers:
            tracker.go_back(step)

    def move(self, place: Path, step: int) -> None:
        """Go on at another place, where the files of this one now are."""
        self.metrics.close()
        self._open(place, step)

    @property
    def curves_due(self) -> bool:
        return time.monotonic() - self._drawn > PLOT_EVERY

    def draw(self) -> None:
        """The loss curves so far, as loss.svg."""
        from fledge.plot import curves

        lines, times = learning_curves(self.metrics.rows)
        if lines:
            with atomic_write(self.place / CURVES) as file:
                file.write(curves(lines, "step", "loss (nats per token)", times=times).encode())
        self._drawn = time.monotonic()

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
        self.metrics.close()
