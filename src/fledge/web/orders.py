"""What a person may ask of a training: the commands behind it, checked before a process is begun."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fledge.config import load_recipe, recipe_names
from fledge.errors import FledgeError, nearest
from fledge.files import PARTIAL, read_json
from fledge.runs.layout import CHECKPOINTS, CONFIG, METRICS, START, TOKENIZER
from fledge.start.look import name_of
from fledge.start.plan import given
from fledge.start.start import RECIPE
from fledge.start.work import TEACHERS
from fledge.training.stops import parse_duration
from fledge.web.jobs import Jobs, TrainingJob
from fledge.web.library import Library, NotFound
from fledge.web.schemas import NUMBER, Name, Request
from fledge.web.uploads import FOLDER as TEXTS
from fledge.web.uploads import Texts

# They name files, or run code: the page sets them itself, or not at all.
OURS = ("name", "imports", "corpus.source", "corpus.validation_source", "tokenizer.path", "tokens.store")
OUTSIDE = ("training.trackers",)  # sends what is measured elsewhere
Seconds = Annotated[float, Field(ge=30, le=30 * 86_400, allow_inf_nan=False), NUMBER]
Changes = Annotated[dict[str, Annotated[str, Field(max_length=2000)]], Field(max_length=100)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$")]


class PlanRequest(Request):
    texts: Annotated[list[Name], Field(min_length=1, max_length=50)]
    seconds: Seconds
    set: Changes = Field({}, max_length=100)
    "Settings by hand, such as `model.layers`; the rest follows."
    run: Name | None = None
    "A run that is planned and not trained, whose plan this one replaces."


class TrainRequest(Request):
    recipe: Annotated[str, Field(max_length=100)] | None = None
    bundle: Name | None = None
    "Begin with this model's weights."
    texts: list[Name] = Field([], max_length=50)
    "Instead of the recipe's own, or the bundle's."
    set: Changes = Field({}, max_length=100)
    name: RunName | None = None


class RunRequest(Request):
    run: Name


class GoOnRequest(Request):
    run: Name
    seconds: Seconds | None = None
    "For longer than it was planned for: a run that began with a plan."
    twice: bool = False
    "For twice as many steps as it was set to: a run of a recipe."


class StopRequest(Request):
    job: Annotated[str, Field(max_length=60)]


class Trainings:
    """What the requests do, below the first served folder."""

    def __init__(self, library: Library, texts: Texts) -> None:
        self.library, self.texts = library, texts
        self._jobs: Jobs | None = None

    @property
    def jobs(self) -> Jobs:
        home = self.library.home()
        if self._jobs is None or self._jobs.home != home:
            self._jobs = Jobs(home)
        return self._jobs

    def plan(self, request: PlanRequest) -> TrainingJob:
        places, changes = self.texts.find(request.texts), words_of(request.set)
        given(changes[1::2])  # an unknown setting is refused now
        if request.run is not None:
            self.discard(self.planned(request.run))
        folder = self.free(name_of(places[0]))
        words = ["start", *places, "--time", duration(request.seconds), "--out", path_shown(folder), "--plan", *changes]
        return self.jobs.begin("plan", folder.name, device_of(request.set), [words])

    def start(self, run: str) -> TrainingJob:
        folder = self.planned(run)
        return self.jobs.begin("start", folder.name, device_of(read_json(folder / START)["set"]), [again(folder)])

    def train(self, request: TrainRequest) -> TrainingJob:
        if (request.recipe is None) == (request.bundle is None):
            raise FledgeError("Name either a recipe or a bundle to start from.")
        changes = words_of(request.set)
        if request.texts:
            places = self.texts.find(request.texts)
            changes = ["--set", f"corpus.source=[{', '.join(map(quoted, places))}]", *changes]
        if request.bundle is not None:
            path = self.library.bundle(request.bundle)
            words, name = ["train", "--from", str(path.absolute())], f"{safe(request.bundle)}-tuned"
        else:
            if request.recipe not in recipe_names():
                raise NotFound(
                    f"There is no recipe called {request.recipe!r}. {nearest(str(request.recipe), recipe_names())}"
                )
            load_recipe(request.recipe, changes[1::2])  # an impossible setting is refused now
            words, name = ["train", request.recipe], request.recipe
        folder = self.free(request.name or name)
        out = path_shown(folder)
        commands = [[*words, "--out", out, *changes], ["report", out]]
        asked = request.model_dump(exclude={"name"})
        return self.jobs.begin("train", folder.name, device_of(request.set), commands, asked)

    def go_on(self, request: GoOnRequest) -> TrainingJob:
        folder = self.library.run(request.run)
        if folder.parent != self.library.home():
            raise FledgeError(f"{request.run} is not in the first served folder. Resume it in a terminal.")
        former, out = self.jobs.of_run(folder.name), path_shown(folder)
        device = former.device if former is not None else device_of({})
        if is_planned(folder):
            return self.jobs.begin("start", folder.name, device, [again(folder, request.seconds)])
        if request.seconds is not None:
            raise FledgeError(f"{request.run} was not planned for a time. Train it for more steps instead.")
        asked = self.jobs.asked(former.id) if former is not None else None
        if has_checkpoint(folder):
            more = self.twice(folder) if request.twice else []
            commands = [["train", "--resume", out, *more], ["report", out]]
            return self.jobs.begin("train", folder.name, device, commands, asked)
        if former is None or former.kind != "train":
            raise FledgeError(
                f"{request.run} has no checkpoint yet and was not started from this page. Start it again."
            )
        return self.jobs.begin("train", folder.name, device, self.jobs.commands(former.id), asked)

    def twice(self, folder: Path) -> list[str]:
        training = read_json(folder / CONFIG)["training"]
        name = "tokens" if training.get("tokens") is not None else "steps"
        return ["--set", f"training.{name}={2 * int(training.get(name) or 1000)}"]

    def planned(self, run: str) -> Path:
        """The folder of a run that has a plan, and nothing that was learned."""
        folder = self.library.run(run)
        if folder.parent != self.library.home() or not is_planned(folder) or not is_untrained(folder):
            raise FledgeError(f"{run} is not a plan that can be trained. Plan again, or resume the run.")
        return folder

    def discard(self, folder: Path) -> None:
        """Remove a plan that was not trained."""
        if (job := self.jobs.of_run(folder.name)) is not None and job.state in ("waiting", "running"):
            raise FledgeError(f"{folder.name} is being planned or trained. Wait for it, or stop it first.")
        shutil.rmtree(folder)

    def free(self, name: str) -> Path:
        """A folder for a new run, which does not exist."""
        home, number, free = self.library.home(), 1, name
        taken = {job.run for job in self.jobs.all() if job.state in ("waiting", "running")}
        while free in (*taken, TEXTS) or os.path.lexists(home / free):
            number += 1
            free = f"{name}-{number}"
        return home / free

    def run_folder(self, run: str) -> Path:
        """Of a run as the library has it, or as its job names it before there is anything of it."""
        found = self.library.catalogue().runs.get(run)
        if found is None and any(job.run == run for job in self.jobs.all()):
            found = self.library.home() / run
        return found if found is not None else self.library.run(run)

    def name(self, job: TrainingJob) -> str:
        """What its run is called in the library, once it is there."""
        path = self.library.home() / job.run
        known = (name for name, folder in self.library.catalogue().runs.items() if folder == path)
        return next(known, job.run)


def words_of(changes: dict[str, str]) -> list[str]:
    """As options of the command line."""
    for name in changes:
        if name in OURS or name in OUTSIDE:
            raise FledgeError(f"{name} can't be set from this page. Use the command line.")
    return [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]


def again(folder: Path, seconds: float | None = None) -> list[str]:
    """The command that goes on with a run that began with a plan."""
    kept = read_json(folder / START)
    if seconds is not None and seconds <= parse_duration(kept["time"]):
        raise FledgeError(f"It was planned for {kept['time']} already. Give it more time than that.")
    length = kept["time"] if seconds is None else duration(seconds)
    return ["start", *kept["texts"], "--time", length, "--out", path_shown(folder)]


def is_planned(folder: Path) -> bool:
    if not (folder / START).is_file():
        return False
    kept = read_json(folder / START)
    return isinstance(kept, dict) and {"choices", "texts", "time", "set"} <= kept.keys()


def is_untrained(folder: Path) -> bool:
    """Whether no more lies in a run's folder than a plan."""
    try:
        names = {name for name in os.listdir(folder) if not name.endswith(PARTIAL)}
    except FileNotFoundError:
        return True
    return names <= {CONFIG, START, RECIPE, TOKENIZER}


def has_checkpoint(folder: Path) -> bool:
    return any(folder.glob(f"{CHECKPOINTS}/step-*/bundle.json"))


def teacher_of(folder: Path, run: str) -> str | None:
    """The newest teacher of a run that has not begun itself, by its name in the library."""
    begun = [] if (folder / METRICS).is_file() else sorted(folder.glob(f"{TEACHERS}/[1-9]/{METRICS}"))
    return f"{run}/{TEACHERS}/{begun[-1].parent.name}" if begun else None


def device_of(changes: dict[str, Any]) -> str:
    """Where it will run: trainings of one device wait for each other."""
    from fledge.training.device import choose_device

    return str(choose_device(str(changes.get("training.device", "auto")))).replace(":", "-")


def path_shown(folder: Path) -> str:
    """A path as a person would write it where the server was started."""
    path, here = folder.absolute(), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def duration(seconds: float) -> str:
    """
    >>> duration(600), duration(7200), duration(90)
    ('10m', '2h', '90s')
    """
    whole = round(seconds)
    for size, unit in ((3600, "h"), (60, "m")):
        if whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name.split("/checkpoints/")[0]).strip("-_")[:60] or "model"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
