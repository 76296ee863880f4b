"""What came of a run that is over, as its folder tells: for reports that are written by another process, or later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.errors import FledgeError
from fledge.files import read_json
from fledge.runs.layout import METRICS

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.training import TrainingResult

UNKNOWN = "a cause that the run's folder does not record"


def result_of(run: Run) -> TrainingResult:
    """The result of the run's training so far, from its metrics and its last checkpoint.

    Tokens and steps are the checkpoint's own: the batch size may have changed when the run was resumed.
    """
    from fledge.bundle.manifest import STATE, TRAINING
    from fledge.runs.checkpoints import best_of, checkpoints
    from fledge.runs.metrics import column, course, evaluations, read_metrics
    from fledge.training import TrainingResult
    from fledge.training.progress import Progress, total_steps

    kept = checkpoints(run.folder)
    if not kept:
        raise FledgeError(f"{run.folder} holds no checkpoint: nothing has been trained there yet.")
    rows = read_metrics(run.folder / METRICS)
    speeds, state = column(rows, "tokens_per_second"), kept[-1] / TRAINING / f"{STATE}.json"
    progress = Progress.restore(read_json(state), str(state))
    steps = total_steps(run.config, progress)
    found = course(evaluations(run.folder))
    complete = progress.step >= steps or (found is not None and found.exhausted(run.config.training.patience))
    return TrainingResult(
        folder=run.folder,
        checkpoint=kept[-1],
        best=best_of(kept) or kept[-1],
        metrics=run.folder / METRICS,
        step=progress.step,
        steps=steps,
        tokens=progress.tokens,
        loss=next(reversed(column(rows, "loss")), None),
        validation_loss=next(reversed(column(rows, "validation_loss")), None),
        bits_per_byte=next(reversed(column(rows, "bits_per_byte")), None),
        tokens_per_second=sum(speeds) / len(speeds) if speeds else 0.0,
        seconds=max(column(rows, "seconds"), default=0.0),
        stopped=None if complete else UNKNOWN,
    )
