"""Sweeps, ablations and comparisons as they lie on disk, read while they run: trials, the best so far, the report.

Whether one runs is told by the lock on its folder, which goes with its process: a killed one is stopped at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from fledge.errors import FledgeError
from fledge.experiments.plan import PLAN, ExperimentPlan, key_of
from fledge.experiments.statistics import estimate
from fledge.experiments.trials import Measure, trial_folder
from fledge.runs.layout import REPORT
from fledge.runs.metrics import finite
from fledge.system import is_locked
from fledge.web.library import Catalogue, Library, readable_file
from fledge.web.runs import LARGEST_JSON, LIVE_SECONDS, TRIALS, read_object, report_page
from fledge.web.schemas import Answer
from fledge.web.trials import ENDED, TrialEntry, trial_of

REPORT_TEXT = "report.md"
KINDS = ("sweep", "ablate", "compare")
LONGEST_ANSWER = 2000
State = Literal["running", "done", "stopped", "broken"]


class ExperimentSummary(Answer):
    """A sweep, an ablation or a comparison. One that was killed or stopped goes on with the command that began it."""

    name: str
    kind: Literal["sweep", "ablate", "compare"] | None = None
    state: State
    problem: str | None = None
    question: str = ""
    trials: int | None = None
    "As planned; of points that are drawn at most so many."
    ended: int = 0
    "Trials with an outcome: complete, diverged or pruned."
    metric: Literal["validation_loss", "bits_per_byte"] = "validation_loss"
    best: str | None = None
    "The arm with the lowest mean so far."
    best_loss: float | None = None
    answer: str | None = None
    "What the report says first."
    has_report: bool = False
    updated: float | None = None
    "Seconds since 1970 of the last sign of life."


class ExperimentsAnswer(Answer):
    experiments: list[ExperimentSummary]
    "Those that run first, then the newest."
    now: float


class ArmEntry(Answer):
    name: str
    changes: list[str]
    "How it differs from the recipe."
    mean: float | None
    half_width: float | None
    "Of the 95 % interval, from two seeds on."
    trials: list[TrialEntry]


class ExperimentAnswer(Answer):
    summary: ExperimentSummary
    recipe: str
    steps: int | None
    seeds: list[int]
    budget: str
    arms: list[ArmEntry]
    "In the order of the plan; points that are drawn, in the order in which they began."


class Found(NamedTuple):
    """What one look at an experiment's folder found."""

    plan: ExperimentPlan
    measure: Measure
    trials: list[TrialEntry]
    updated: float


def routes(library: Library) -> APIRouter:
    router = APIRouter(prefix="/api/experiments", tags=["experiments"])

    @router.get("")
    def experiments() -> ExperimentsAnswer:
        """Every experiment below the served folders, and how it stands."""
        catalogue = library.catalogue()
        found = []
        for name, folder in catalogue.experiments.items():
            try:
                if not is_workbook(folder):
                    found.append(describe_experiment(name, folder, catalogue).summary)
            except (FledgeError, OSError) as error:
                found.append(ExperimentSummary(name=name, state="broken", problem=str(error)[:500]))
        found.sort(key=lambda summary: (summary.state != "running", summary.state == "broken", -(summary.updated or 0)))
        return ExperimentsAnswer(experiments=found, now=time.time())

    @router.get("/one")
    def experiment(experiment: str = Query(max_length=500)) -> ExperimentAnswer:
        """An experiment with its arms and their trials, the curves of those under way among them."""
        return describe_experiment(experiment, library.experiment(experiment), library.catalogue())

    @router.get(
        "/report",
        response_class=Response,  # a problem is JSON, as elsewhere
        responses={200: {"content": {"text/html": {}}, "description": "The report, with all that it shows in it."}},
    )
    def report(experiment: str = Query(max_length=500)) -> HTMLResponse:
        """An experiment's report as a page of its own, once it is done."""
        return report_page(library.experiment(experiment), experiment)

    return router


def is_workbook(folder: Path) -> bool:
    """Whether the plan is that of a workbook, which holds experiments and is none."""
    return "corpora" in read_object(folder / PLAN)


def describe_experiment(name: str, folder: Path, catalogue: Catalogue) -> ExperimentAnswer:
    """An experiment as it stands now. Whatever is wrong with its files becomes a sentence."""
    try:
        found = look_at_folder(folder, catalogue)
        steps = found.plan.facts.get("steps")
        return ExperimentAnswer(
            summary=summary_of(name, folder, found),
            recipe=str(found.plan.config.get("name", "")),
            steps=steps if isinstance(steps, int) else None,
            seeds=list(found.plan.seeds),
            budget=str(found.plan.facts.get("budget") or ""),
            arms=arms_of(found),
        )
    except (FledgeError, OSError):
        raise
    except Exception as error:
        raise FledgeError(f"The files of {name} are damaged: {type(error).__name__}, {str(error)[:200]}.") from None


def look_at_folder(folder: Path, catalogue: Catalogue) -> Found:
    """The plan, and every trial as it stands now."""
    read_object(folder / PLAN)  # refuses one that is too large
    plan = ExperimentPlan.read(folder)
    if plan.kind not in KINDS:
        raise FledgeError(f"{folder / 'plan.json'} is the plan of no sweep, ablation or comparison.")
    axes = [str(text).partition("=")[0] for text in plan.facts.get("over", ())]
    measure = Measure.of(axes or (key_of(change) for arm in plan.arms for change in arm.changes))
    places = {path.name: (name, path) for name, path in catalogue.runs.items() if path.parent == folder / TRIALS}
    drawn = plan.kind == "sweep" and not any(arm.changes for arm in plan.arms)
    arms = [] if drawn else plan.arms
    planned = {trial_folder(arm.name, seed): (arm.name, seed) for seed in plan.seeds for arm in arms}
    taken = is_locked(folder)
    found, signs = [], [(folder / PLAN).stat().st_mtime]
    began = {key: place[1].stat().st_ctime for key, place in places.items()} if drawn else {}
    for key in [*planned, *sorted(places.keys() - planned.keys(), key=lambda key: began.get(key, 0))]:
        if key not in places:
            arm, seed = planned[key]
            if plan.kind != "compare" or seed == plan.seeds[0]:  # which rate the other seeds take is not known yet
                found.append(TrialEntry(arm=arm, seed=seed, state="waiting", curve=[]))
            continue
        entry, sign = trial_of(*places[key], planned.get(key), axes, measure, taken)
        found.append(entry)
        signs.append(sign)
    if report := readable_file(folder, REPORT):
        signs.append(report.stat().st_mtime)
    return Found(plan, measure, found, max(signs))


def arms_of(found: Found) -> list[ArmEntry]:
    changes = {arm.name: list(arm.changes) for arm in found.plan.arms}
    groups: dict[str, list[TrialEntry]] = {}
    for trial in found.trials:
        groups.setdefault(trial.arm, []).append(trial)
    entries = []
    for name, trials in groups.items():
        value = estimate(values) if (values := ended_losses(trials)) else None
        entries.append(
            ArmEntry(
                name=name,
                changes=changes.get(name, []),
                mean=value.mean if value else None,
                half_width=finite(value.half_width) if value else None,
                trials=trials,
            )
        )
    return entries


def ended_losses(trials: Iterable[TrialEntry]) -> list[float]:
    """The losses of trials that ran to their end; none where one of them diverged or was given up."""
    ended = [trial for trial in trials if trial.state in ENDED]
    losses = [trial.loss for trial in ended if trial.state == "complete" and trial.loss is not None]
    return losses if len(losses) == len(ended) else []


def summary_of(name: str, folder: Path, found: Found) -> ExperimentSummary:
    plan, measure = found.plan, found.measure
    has_report = readable_file(folder, REPORT) is not None
    taken = is_locked(folder)
    if taken is None:
        taken = not has_report and time.time() - found.updated < LIVE_SECONDS
    means = {arm.name: arm.mean for arm in arms_of(found) if arm.mean is not None}
    best = min(means, key=lambda arm: means[arm]) if means else None
    return ExperimentSummary(
        name=name,
        kind=plan.kind,  # type: ignore[arg-type]
        state="running" if taken else "done" if has_report else "stopped",
        question=str(plan.question),
        trials=plan.trials,
        ended=sum(trial.ended is not None for trial in found.trials),
        metric=measure.metric,
        best=best,
        best_loss=means[best] if best is not None else None,
        answer=answer_of(folder) if has_report else None,
        has_report=has_report,
        updated=found.updated,
    )


def answer_of(folder: Path) -> str | None:
    """The first paragraph of the report, which is the finding."""
    path = readable_file(folder, REPORT_TEXT)
    if path is None or path.stat().st_size > LARGEST_JSON:
        return None
    parts: list[Any] = path.read_text(encoding="utf-8", errors="replace").split("\n\n", 2)
    return str(parts[1])[:LONGEST_ANSWER] if len(parts) > 1 else None
