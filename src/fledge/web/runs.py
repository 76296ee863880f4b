"""Runs as they lie on disk, read while training writes them: curves, settings, samples, and their state.

A line is used only when it is whole, and a folder that can't be read is one broken entry in the list.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse

from fledge.config import RunConfig, parse
from fledge.errors import FledgeError
from fledge.experiments.plan import PLAN
from fledge.files import read_json
from fledge.runs.checkpoints import best_of
from fledge.runs.layout import CONFIG, METRICS, REPORT, SAMPLES
from fledge.web.library import Library, NotFound, readable_file
from fledge.web.metrics import last_facts, parse_rows, read_new_lines, tail
from fledge.web.schemas import ExperimentEntry, MetricsAnswer, RunsAnswer, RunSummary, SamplesAnswer, SettingsAnswer

TRIALS = "trials"
LONGEST_HEADER = 2000
SAMPLES_TAIL = 200_000
LARGEST_JSON = 4 << 20
LARGEST_REPORT = 32 << 20
# A report has its styles and drawings in itself, needs no script, and may have been written by anybody.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
LIVE_SECONDS = 120.0


def routes(library: Library) -> APIRouter:
    router = APIRouter(prefix="/api/runs", tags=["runs"])

    @router.get("")
    def runs() -> RunsAnswer:
        """Every run below the served folders, the newest first."""
        catalogue = library.catalogue()
        summaries = [summarise(name, folder) for name, folder in catalogue.runs.items()]
        summaries.sort(key=lambda summary: (summary.state == "broken", -(summary.updated or 0)))
        names = dict.fromkeys(summary.experiment for summary in summaries if summary.experiment)
        trials = {summary.experiment: catalogue.runs[summary.name] for summary in summaries}
        experiments = [
            ExperimentEntry(name=name, has_report=readable_file(trials[name].parent.parent, REPORT) is not None)
            for name in names
        ]
        return RunsAnswer(runs=summaries, experiments=experiments, now=time.time(), skipped=catalogue.skipped)

    @router.get(
        "/report",
        response_class=Response,  # a problem is JSON, as elsewhere
        responses={200: {"content": {"text/html": {}}, "description": "The report, with all that it shows in it."}},
    )
    def report(run: str = Query(max_length=500)) -> HTMLResponse:
        """A run's report as a page of its own."""
        return report_page(library.run(run), run)

    @router.get("/metrics")
    def metrics(run: str = Query(max_length=500), cursor: str = Query("", max_length=60)) -> MetricsAnswer:
        """The columns of a run's metrics, from the beginning or from where the cursor stands."""
        return metrics_since(run, library.run(run), cursor)

    @router.get("/settings")
    def settings(run: str = Query(max_length=500)) -> SettingsAnswer:
        """A run's settings, flat."""
        return SettingsAnswer(run=run, settings=flatten(read_settings(library.run(run))))

    @router.get("/samples")
    def samples(run: str = Query(max_length=500)) -> SamplesAnswer:
        """What the model wrote as it learned: the newest part of it where it is long."""
        path = readable_file(library.run(run), SAMPLES)
        data, cut = tail(path, SAMPLES_TAIL) if path else (b"", False)
        return SamplesAnswer(run=run, text=data.decode("utf-8", "replace"), cut=cut)

    return router


def report_page(folder: Path, name: str) -> HTMLResponse:
    """The report in the folder of a run or an experiment."""
    path = readable_file(folder, REPORT)
    if path is None:
        raise NotFound(f"There is no report of {name} yet: fledge report writes that of a run.")
    if path.stat().st_size > LARGEST_REPORT:
        raise FledgeError(f"{path.name} has more than {LARGEST_REPORT >> 20} MB. Open it from its folder.")
    headers = {"content-security-policy": REPORT_POLICY, "x-frame-options": "SAMEORIGIN"}  # the page shows it
    return HTMLResponse(path.read_bytes(), headers=headers)


def experiment_of(name: str, folder: Path) -> str | None:
    """The name of the experiment that a run is a trial of."""
    if folder.parent.name != TRIALS or not readable_file(folder.parent.parent, PLAN):
        return None
    return "/".join(name.split("/")[:-2]) or None


def summarise(name: str, folder: Path) -> RunSummary:
    """One line of the list. Whatever is wrong with the folder becomes a sentence in it."""
    try:
        return _summary(name, folder)
    except Exception as error:
        sentence = str(error) if isinstance(error, FledgeError) else f"{type(error).__name__}: {error}"
        return RunSummary(name=name, state="broken", problem=sentence[:500], experiment=experiment_of(name, folder))


def _summary(name: str, folder: Path) -> RunSummary:
    kept = [path.parent for path in checkpoint_manifests(folder)]
    best = best_of(kept)
    links: dict[str, Any] = {
        "checkpoints": [path.name for path in kept],
        "best": best.name if best else None,
        "experiment": experiment_of(name, folder),
        "has_report": readable_file(folder, REPORT) is not None,
    }
    path = readable_file(folder, METRICS)
    if path is None:
        updated = folder.stat().st_mtime
        return RunSummary(name=name, state="empty", updated=updated, **links)
    status = path.stat()
    facts = last_facts(str(path), status.st_mtime_ns, status.st_size)
    samples = readable_file(folder, SAMPLES)
    updated = max(status.st_mtime, samples.stat().st_mtime if samples else 0.0)  # a sample comes after its row
    config, problem = None, None
    try:
        settings = read_settings(folder)
        config = parse(RunConfig, settings) if settings else None
    except FledgeError as error:
        problem = str(error)
    if not facts and status.st_size > LONGEST_HEADER:
        problem = problem or f"{METRICS} holds no row that can be read."
    steps = config.steps if config else None
    step = int(facts["step"]) if "step" in facts else None
    if not facts:
        state = "broken" if problem else "empty"
    elif step is not None and steps is not None and step >= steps:
        state = "finished"
    else:
        patience = max(LIVE_SECONDS, 3 * facts["gap"])
        state = "training" if time.time() - updated < patience else "stopped"
    return RunSummary(
        name=name,
        state=state,  # type: ignore[arg-type]
        problem=problem,
        step=step,
        steps=steps,
        loss=facts.get("loss"),
        validation_loss=facts.get("validation_loss"),
        best_validation_loss=facts.get("best_validation_loss"),
        tokens_per_second=facts.get("tokens_per_second"),
        updated=updated,
        architecture=config.model.architecture if config else None,
        parameters=parameter_count(folder),
        **links,
    )


def metrics_since(run: str, folder: Path, cursor: str = "") -> MetricsAnswer:
    """The rows that came since `cursor`; all of them where the file was replaced, as a resumed run may do."""
    path = readable_file(folder, METRICS)
    flops = flops_of_run(folder)
    if path is None:
        return MetricsAnswer(
            run=run, columns={}, cursor="", reset=True, more=False, unreadable=0, flops_per_token=flops
        )
    lines = read_new_lines(path, cursor)
    rows, unreadable = parse_rows(lines.header, lines.lines)
    return MetricsAnswer(
        run=run,
        columns={name: [row.get(name) for row in rows] for name in lines.header},
        cursor=lines.cursor,
        reset=lines.reset,
        more=lines.more,
        unreadable=unreadable,
        flops_per_token=flops,
    )


def checkpoint_manifests(folder: Path) -> list[Path]:
    """Of the run's own checkpoints, the newest last; a link that leads out of the run is not followed."""
    found = sorted(path.relative_to(folder) for path in folder.glob("checkpoints/step-*/bundle.json"))
    return [path for name in found if (path := readable_file(folder, str(name)))]


def newest_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the run's newest checkpoint; empty where there is none."""
    found = checkpoint_manifests(folder)
    found += [path for path in [readable_file(folder, "bundle.json")] if path]
    if not found:
        return {}
    return read_object(found[-1])


def read_object(path: Path) -> dict[str, Any]:
    """What a file of settings or facts says; remembered for as long as the file is the same, since the page looks at
    every run again and again."""
    status = path.stat()
    if status.st_size > LARGEST_JSON:
        raise FledgeError(
            f"{path.name} has {status.st_size >> 20} MB, and the page reads at most {LARGEST_JSON >> 20}: no run "
            "writes as much. Look at what did."
        )
    values = _json(str(path), status.st_mtime_ns, status.st_size)
    return values if isinstance(values, dict) else {}


@lru_cache(maxsize=1024)
def _json(path: str, modified: int, size: int) -> Any:
    return read_json(path)


def read_settings(folder: Path) -> dict[str, Any]:
    """The run's configuration as it was written; empty where there is none yet."""
    if (path := readable_file(folder, CONFIG)) is not None:
        return read_object(path)
    config = newest_manifest(folder).get("config", {})
    return config if isinstance(config, dict) else {}


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """
    >>> flatten({"model": {"layers": 4}, "name": "run"})
    {'model.layers': 4, 'name': 'run'}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parameter_count(folder: Path) -> int | None:
    count = newest_manifest(folder).get("model", {}).get("parameters")
    return count if isinstance(count, int) else None


def flops_of_run(folder: Path) -> float | None:
    """Of training, by the accounting; None where the run does not yet say what its model is."""
    from fledge.accounting import account

    try:
        facts = newest_manifest(folder).get("model", {})
        config = parse(RunConfig, read_settings(folder))
        return account(config.model, int(facts["vocabulary_size"]), int(facts["context_length"])).flops_per_token
    except (FledgeError, KeyError, OverflowError, TypeError, ValueError):
        return None
