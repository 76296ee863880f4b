"""What a plan says: the choices with their reasons, and the forecast; and the settings that a person may change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fledge.config import RunConfig, documentation, load_recipe, parse, setting_fields
from fledge.errors import FledgeError
from fledge.files import read_json
from fledge.runs.layout import CONFIG, START, TOKENIZER
from fledge.runs.metrics import evaluations
from fledge.start.work import cost
from fledge.web.schemas import Answer


class PlannedChoice(Answer):
    values: dict[str, Any]
    why: str


class Expected(Answer):
    """Bits per byte that the model is expected to reach, and the interval that holds them nine times in ten."""

    bits_per_byte: float
    low: float
    high: float


class StartPlan(Answer):
    """What `fledge start` chose for a run, and what it will take. The choices stand; the rest follows from them."""

    texts: list[str]
    "By their names on the page; one that is not served any more is left out."
    time: str
    set: dict[str, Any]
    choices: list[PlannedChoice]
    parameters: int | None
    vocabulary_size: int | None
    memory: float | None
    "Bytes that training will take."
    steps: int | None
    tokens: int | None
    "That it will see."
    teachers: int
    "Models of the same size that are trained first, to teach this one."
    seconds: float | None
    "Of all their steps, at the speed that was measured."
    speed: float
    counts: dict[str, float]
    "Bits per byte that counting tokens reaches: what the model should beat."
    expected: Expected | None
    "None of a plan that an older version made, and where too little text is held out."


class Setting(Answer):
    name: str
    value: Any
    default: Any
    help: str
    choices: list[str]
    kind: Literal["number", "text", "flag", "choice"]


def plan_of(folder: Path, name_of: Callable[[str], str | None]) -> StartPlan | None:
    """The plan of a run; None of one that had none, or is being planned."""
    path = folder / START
    if not path.is_file():
        return None
    kept = read_json(path)
    if not isinstance(kept, dict) or not {"choices", "texts", "time", "speed", "set"} <= kept.keys():
        return None
    config = parse(RunConfig, read_json(folder / CONFIG), where=f"{folder.name}/{CONFIG}")
    try:
        return _plan(kept, config, _account(folder, config), name_of)
    except (KeyError, TypeError, ValueError):
        raise FledgeError(f"{folder.name}/{START} is damaged. Plan again, in another folder.") from None


def _plan(
    kept: dict[str, Any], config: RunConfig, account: dict[str, Any], name_of: Callable[[str], str | None]
) -> StartPlan:
    speed, teachers = float(kept["speed"]), len(config.training.teachers)
    tokens = config.steps * config.training.batch_size * config.tokens.context_length
    return StartPlan(
        texts=[name for place in kept["texts"] if (name := name_of(place)) is not None],
        time=kept["time"],
        set=kept["set"],
        choices=[PlannedChoice(values=values, why=why) for values, why in kept["choices"]],
        steps=config.steps,
        tokens=tokens,
        teachers=teachers,
        seconds=cost(tokens, teachers) / speed if speed else None,
        speed=speed,
        counts=kept.get("counts", {}),
        expected=kept.get("forecast"),
        **account,
    )


def _account(folder: Path, config: RunConfig) -> dict[str, Any]:
    from fledge.accounting import account_run

    try:
        size = _vocabulary_size(folder / TOKENIZER, (folder / TOKENIZER / "tokenizer.json").stat().st_mtime_ns)
    except (FledgeError, OSError):
        return {"parameters": None, "vocabulary_size": None, "memory": None}
    found = account_run(config, size, None, batch=config.training.batch_size)
    return {"parameters": found.parameters.total, "vocabulary_size": size, "memory": found.memory.total}


@lru_cache(maxsize=64)
def _vocabulary_size(folder: Path, _changed: int) -> int:
    from fledge.tokenizer import load_tokenizer

    return int(load_tokenizer(folder).vocab_size)


def verdict_of(folder: Path) -> str | None:
    """Whether a run overfits, by its evaluations so far."""
    from fledge.runs.metrics import course

    found = course(evaluations(folder))
    if found is None:
        return None
    if found.risen:
        return (
            f"It overfits: the validation loss was lowest at step {found.best_step:,} ({found.best:.3f}) and has risen "
            f"to {found.last:.3f}. The model of step {found.best_step:,} is kept. More text helps most."
        )
    if not found.since:
        return (
            f"It does not overfit: the validation loss is at its lowest, {found.best:.3f} at step {found.best_step:,}."
        )
    return (
        f"It does not overfit notably: the validation loss was lowest at step {found.best_step:,} ({found.best:.3f}) "
        f"and is {found.last:.3f} now."
    )


def settings_list(recipe: str | None, left_out: tuple[str, ...]) -> list[Setting]:
    """Every setting but some, with its value in a recipe, or its default."""
    config = load_recipe(recipe) if recipe is not None else RunConfig()
    defaults, values = RunConfig().model_dump(mode="json"), config.model_dump(mode="json")
    found = []
    for name, field in setting_fields(RunConfig).items():
        if name in left_out:
            continue
        group, _, leaf = name.partition(".")
        kinds = [field.annotation, *get_args(field.annotation)]
        choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        kind: Any = (
            "choice" if choices else "flag" if bool in kinds else "number" if int in kinds or float in kinds else "text"
        )
        found.append(
            Setting(
                name=name,
                value=values[group][leaf],
                default=defaults[group][leaf],
                help=documentation(field),
                choices=choices,
                kind=kind,
            )
        )
    return found
