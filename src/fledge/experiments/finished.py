"""What came of a run that is over, as its folder tells: for reports that are written by another process, or later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.errors import FledgeError

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.training import TrainingResult


def result_of(run: Run) -> TrainingResult:
    """The result of the run's training so far, from its metrics and its last checkpoint."""
    from fledge.bundle.load import checkpoints
    from fledge.training import TrainingResult, read_metrics

    kept = checkpoints(run.folder)
    if not kept:
        raise FledgeError(f"{run.folder} holds no checkpoint: nothing has been trained there yet.")
    rows = read_metrics(run.folder / "metrics.csv")

    def column(name: str) -> list[float]:
        return [float(row[name]) for row in rows if row[name]]

    speeds, step = column("tokens_per_second"), int(kept[-1].name.rpartition("-")[2])
    return TrainingResult(
        folder=run.folder,
        checkpoint=kept[-1],
        metrics=run.folder / "metrics.csv",
        step=step,
        steps=run.config.steps,
        tokens=step * run.config.training.batch_size * run.config.tokens.context_length,
        loss=next(reversed(column("loss")), None),
        validation_loss=next(reversed(column("validation_loss")), None),
        bits_per_byte=next(reversed(column("bits_per_byte")), None),
        tokens_per_second=sum(speeds) / len(speeds) if speeds else 0.0,
        seconds=max(column("seconds"), default=0.0),
        stopped="the time limit" if step < run.config.steps else None,
    )
