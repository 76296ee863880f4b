"""The work of a start: first the teachers, where the plan has some, then the model that is handed over.

Each is a run in a folder of its own, and goes on after a kill like any other: what is finished is not begun again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fledge.run import Run
    from fledge.training import TrainingResult

TEACHERS = "teachers"
"The folder, in that of the start, with a run for each."
TEACHING = 0.4
"What a teacher adds to a token of its student, in tokens of plain training."


def teacher_folders(folder: Path, count: int) -> list[str]:
    return [str(folder.absolute() / TEACHERS / str(number)) for number in range(1, count + 1)]


def cost(tokens: float, teachers: int) -> float:
    """What a student of some teachers costs, and they themselves, in tokens of plain training of one model.

    >>> cost(1000, 0), round(cost(1000, 3))
    (1000, 5200)
    """
    return tokens * (1 + teachers * (1 + TEACHING)) if teachers else tokens


def own_teachers(run: Run) -> list[Run]:
    """The runs that the plan has before this one: the same recipe with other seeds. Teachers named by hand are not."""
    from fledge.run import Run

    config, place = run.config, run.folder.absolute() / TEACHERS
    found = []
    for number, name in enumerate(config.training.teachers, start=1):
        if Path(name).parent != place:
            continue
        training = config.training.model_copy(
            update={"teachers": (), "seed": config.training.seed + number, "keep_every": 0, "sample_every": 0}
        )
        tokens = config.tokens.model_copy(update={"store": str(run.folder.absolute() / "tokens")})
        name_of_it = f"{config.name}-teacher-{number}"
        taught = config.model_copy(update={"name": name_of_it, "training": training, "tokens": tokens})
        found.append(Run(taught, name, quiet=run.quiet))
    return found


def train(run: Run, left: Callable[[], float], say: Callable[[str, str], None]) -> TrainingResult:
    """To the planned end. Work that is begun now shares the seconds that are `left`; what was begun before goes on, and
    takes what its steps take."""
    from fledge.runs.checkpoints import checkpoints

    teachers = own_teachers(run)
    begun = [one for one in (*teachers, run) if checkpoints(one.folder)]
    if run not in begun:
        for place, teacher in enumerate(teachers):
            say("teacher", f"{place + 1} of {len(teachers)}, in {teacher.folder}")
            later = cost(1, len(teachers)) - place
            result = to_its_end(teacher, None if begun else left() / later)
            if result.stopped and result.stopped != "the time limit":
                return result
        if teachers:
            say("student", "learns what the teachers say beside the text")
    return to_its_end(run, None if begun else left())


def to_its_end(run: Run, limit: float | None) -> TrainingResult:
    """Train a run, or go on with it; one that is finished is left as it is."""
    from fledge.bundle import load_bundle
    from fledge.reports.finished import result_of
    from fledge.runs import find_bundle
    from fledge.runs.checkpoints import checkpoints
    from fledge.training import load_checkpoint

    if not checkpoints(run.folder):
        return run.train(time_limit=None if limit is None else max(1.0, limit), leave=True)
    checkpoint = load_checkpoint(run.folder)
    values = checkpoint.training.values if checkpoint.training is not None else {}
    if values.get("step") == run.config.steps:
        run.bundle = load_bundle(find_bundle(run.folder))
        return result_of(run)
    return run.train(resume=checkpoint, leave=True)
