"""What a run writes down of itself: metrics.csv, samples.txt, loss.svg, and the trackers that were asked for."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any, Protocol

from fledge.config import RunConfig
from fledge.errors import FledgeError
from fledge.files import atomic_write
from fledge.runs.layout import CURVES, EVENTS, METRICS, SAMPLES
from fledge.runs.metrics import Metrics, Samples, learning_curves

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


PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def go_back(self, step: int) -> None:
        """Training returned to this step after a divergence: later points will come again."""

    def close(self) -> None: ...


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_trackers(config: RunConfig) -> None:
    """A tracker that is not installed is an error, not a silence."""
    for name in config.training.trackers:
        if not is_installed(PACKAGES[name]):
            raise FledgeError(
                f"training.trackers asks for {name}, which is not installed here. "
                f"Run: pip install {PACKAGES[name]}, or leave it out: metrics.csv is always written."
            )


def open_trackers(config: RunConfig, folder: Path, place: Path, step: int) -> list[Tracker]:
    """The trackers that the settings ask for; `place` is the run's folder, or its branch."""
    found: list[Tracker] = []
    for name in config.training.trackers:
        try:
            found.append(TensorBoard(place, step) if name == "tensorboard" else Hosted(name, config, folder, place))
        except Exception as error:  # a library of others: no account, no network, a version that does not fit
            for tracker in found:
                tracker.close()
            reason = " ".join(str(error).split()) or type(error).__name__
            login = "Log in with: wandb login, or set WANDB_MODE=offline. " if name == "wandb" else ""
            raise FledgeError(
                f"{name}, which training.trackers names, did not start ({reason}). {login}Training also works "
                "without it: metrics.csv is always written."
            ) from error
    return found


class TensorBoard:
    """Event files in the run's `tensorboard/`; points after the step that training goes on from are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        self._open(step)

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder / EVENTS), purge_step=step + 1)

    def go_back(self, step: int) -> None:
        self.writer.close()
        self._open(step)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Hosted:
    """W&B, or trackio, which has the same calls and needs no account."""

    def __init__(self, package: str, config: RunConfig, folder: Path, place: Path) -> None:
        self.library: Any = importlib.import_module(package)
        options: dict[str, Any] = {"project": "fledge", "name": config.name, "config": config.model_dump(mode="json")}
        if package == "wandb":
            options.update(dir=str(folder), resume="allow", id=place.absolute().as_posix().replace("/", "-").strip("-"))
        self.library.init(**options)
        # W&B refuses a step of its own count that is not a new one; a step that is a value may come again.
        self._counts = package != "wandb"
        if not self._counts:
            self.library.define_metric("*", step_metric="step")

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._counts:
            self.library.log(values, step=step)
        else:
            self.library.log({"step": step, **values})

    def go_back(self, step: int) -> None:
        """What was logged cannot be taken back there: the points after this step stay beside the new ones."""

    def close(self) -> None:
        self.library.finish()
