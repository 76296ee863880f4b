"""How a model learned, on the page of its run: the curves, and which step is handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fledge.plot import curves
from fledge.reports.page import Page
from fledge.runs.checkpoints import find_bundle, step_of
from fledge.runs.layout import METRICS

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.training import TrainingResult


def add_learning_curves(
    page: Page, run: Run, baselines: dict[str, float], model: tuple[TrainingResult, float] | None = None
) -> None:
    """The losses by tokens, and where the `model` lies that came of the training, with its loss."""
    from fledge.runs.metrics import learning_curves, read_metrics

    page.heading("How it learned")
    rows = read_metrics(run.folder / METRICS)
    lines, times = learning_curves(rows, "tokens")
    point, caption = None, "Loss against tokens seen, and above them the time."
    if baselines:
        caption += " The dashed lines are the n-gram baselines."
    if model is not None:
        result, loss = model
        step = step_of(result.best) or result.step
        at = next((float(row["tokens"]) for row in rows if row["step"] == str(step)), float(result.tokens))
        point = (f"the model: {loss:.3f}", at, loss)
        caption += (
            " The dot is the model of this report. It is measured with more context and more text than the curve, so "
            "it may lie beside it."
        )
    page.figure(curves(lines, "tokens", "nats per token", levels=baselines, times=times, point=point), caption)
    if "training" in lines and "validation" in lines and lines["validation"][1][-1] < lines["training"][1][-1]:
        page.paragraph(why_below(run))


def why_below(run: Run) -> str:
    """Why the validation loss may lie below the training loss, with what of it holds for this run."""
    reasons = ["the training loss is a mean over the steps before its point, when the model knew less"]
    if run.config.model.dropout:
        reasons.insert(0, "dropout hides parts of the model while it trains, and never while it is evaluated")
    if run.config.training.average:
        reasons.insert(0, "the evaluated weights are a moving average, which is often better than those in training")
    return f"The validation loss lies below the training loss. That is no mistake: {'; '.join(reasons)}."


def add_course(page: Page, run: Run, result: TrainingResult) -> None:
    """Which step is handed over, whether the run overfitted, and what to change."""
    from fledge.runs.metrics import course, evaluations

    found = course(evaluations(run.folder))
    if found is None:
        return
    here = step_of(result.best) or result.step
    best = step_of(find_bundle(run.folder)) or here
    handed = f"The model handed over is that of step {best:,} of {result.steps:,}."
    if here != best:
        handed += f" This page is about that of step {here:,}, which was asked for."
    if found.risen:
        verdict = (
            f"The run overfitted: the validation loss was lowest at step {found.best_step:,} ({found.best:.3f}) and "
            f"had risen to {found.last:.3f} by step {found.last_step:,}. More text helps most. Otherwise raise "
            "optimizer.weight_decay or model.dropout, or train a smaller model or for fewer steps."
        )
    elif not found.since:
        verdict = (
            f"The run did not overfit: the validation loss was lowest at its last evaluation, at step "
            f"{found.last_step:,}. More steps may lower it further."
        )
    else:
        verdict = (
            f"The run did not overfit notably: the validation loss was lowest at step {found.best_step:,} "
            f"({found.best:.3f}) and ended at {found.last:.3f}. More steps alone will not lower it much: try more text "
            "or a larger model."
        )
    page.paragraph(f"{verdict} {handed}")
