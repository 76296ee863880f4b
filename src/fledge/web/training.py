"""Training from the page: plan, start, stop, go on. What runs is the ordinary `fledge start` and `fledge train`."""

from __future__ import annotations

import time

from fastapi import APIRouter, Query

from fledge.config import recipe_names
from fledge.errors import FledgeError, nearest
from fledge.files import read_json
from fledge.runs.layout import CONFIG
from fledge.web.jobs import TrainingJob
from fledge.web.library import Library, NotFound
from fledge.web.orders import (
    OURS,
    OUTSIDE,
    GoOnRequest,
    PlanRequest,
    RunRequest,
    StopRequest,
    Trainings,
    TrainRequest,
    has_checkpoint,
    teacher_of,
)
from fledge.web.planned import Setting, StartPlan, plan_of, settings_list, verdict_of
from fledge.web.schemas import Answer
from fledge.web.uploads import Texts


class JobsAnswer(Answer):
    jobs: list[TrainingJob]
    "The newest first."
    now: float


class LogAnswer(Answer):
    job: TrainingJob
    text: str


class Asked(Answer):
    """What a training from a recipe or a bundle was asked for with: it can be asked for again, with a change."""

    recipe: str | None
    bundle: str | None
    texts: list[str]
    set: dict[str, str]


class Standing(Answer):
    """A run as the page may go on with it."""

    run: str
    job: TrainingJob | None
    plan: StartPlan | None
    "Of a run that began with one."
    asked: Asked | None
    "Of one that the page began without a plan."
    trained: bool
    "Whether it has a checkpoint."
    verdict: str | None
    "Whether it overfits, once it was evaluated."
    steps: int | None
    teacher: str | None
    "The run that is trained now, where others teach this one and it has not begun itself."


class SettingsList(Answer):
    settings: list[Setting]


class Discarded(Answer):
    run: str


def routes(library: Library, texts: Texts) -> APIRouter:
    trainings = Trainings(library, texts)
    router = APIRouter(prefix="/api/training", tags=["training"])

    def facts(job: TrainingJob) -> TrainingJob:
        return job.model_copy(update={"run": trainings.name(job)})

    @router.get("")
    def jobs() -> JobsAnswer:
        """The trainings that the page began, running, waiting and ended: of this server, and of others before it."""
        try:
            found = trainings.jobs.all()
        except FledgeError:  # no folder to train into
            found = []
        return JobsAnswer(jobs=[facts(job) for job in found], now=time.time())

    @router.post("/plan")
    def plan(request: PlanRequest) -> TrainingJob:
        """Choose a recipe for texts and a time, as `fledge start --plan`: nothing is trained."""
        return facts(trainings.plan(request))

    @router.post("/discard")
    def discard(request: RunRequest) -> Discarded:
        """Remove a plan that was not trained."""
        trainings.discard(trainings.planned(request.run))
        return Discarded(run=request.run)

    @router.post("/start")
    def start(request: RunRequest) -> TrainingJob:
        """Train what was planned, as `fledge start`, with a report at the end."""
        return facts(trainings.start(request.run))

    @router.post("/train")
    def train(request: TrainRequest) -> TrainingJob:
        """Train a recipe, or a bundle's weights further, as `fledge train`, with a report at the end."""
        return facts(trainings.train(request))

    @router.post("/go-on")
    def go_on(request: GoOnRequest) -> TrainingJob:
        """Go on with a run that was stopped or killed; or train one that is complete for longer."""
        return facts(trainings.go_on(request))

    @router.post("/stop")
    def stop(request: StopRequest) -> TrainingJob:
        """Stop, as Ctrl-C in a terminal: the step is finished and saved. A second time, it stops at once."""
        return facts(trainings.jobs.stop(request.job))

    @router.get("/log")
    def log(job: str = Query(max_length=60)) -> LogAnswer:
        """The end of what a training said."""
        found = trainings.jobs.one(job)
        return LogAnswer(job=facts(found), text=trainings.jobs.log(job))

    @router.get("/run")
    def standing(run: str = Query(max_length=500)) -> Standing:
        """How a run stands: its plan with the reasons and the forecast, its training, whether it overfits."""
        folder = trainings.run_folder(run)
        job = trainings.jobs.of_run(folder.name) if folder.parent == library.home() else None
        plan = plan_of(folder, trainings.texts.name_of)
        kept = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
        return Standing(
            run=run,
            job=facts(job) if job else None,
            plan=plan,
            asked=trainings.jobs.asked(job.id) if job else None,
            trained=has_checkpoint(folder),
            verdict=verdict_of(folder),
            steps=kept.get("training", {}).get("steps"),
            teacher=teacher_of(folder, run),
        )

    @router.get("/settings")
    def settings(recipe: str | None = Query(None, max_length=100)) -> SettingsList:
        """Every setting that can be changed here, with its explanation, and its value in a recipe."""
        if recipe is not None and recipe not in recipe_names():
            raise NotFound(f"There is no recipe called {recipe!r}. {nearest(recipe, recipe_names())}")
        return SettingsList(settings=settings_list(recipe, (*OURS, *OUTSIDE)))

    return router
