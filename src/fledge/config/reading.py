"""Settings from plain values: a recipe, a run's config.json, `a.b=c` on a command line; and how two of them differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fledge.config.refusals import refusal, setting_fields
from fledge.config.settings import RunConfig, Settings, needs_of, types_of
from fledge.errors import FledgeError, command, nearest, note, short
from fledge.files import did_you_mean, read_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

S = TypeVar("S", bound=Settings)
CODE = "FLEDGE_IMPORT"
"The environment variable with the Python files that may be run, as PATH is written."


def parse(kind: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """`values` as settings of a kind; every mistake is a sentence that names the key, the value and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        prefix = f"{where}: " if where else ""
        raise FledgeError(prefix + " ".join(refusal(kind, e) for e in error.errors())) from None


def load_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """A packaged recipe by name, or a TOML file (or a run's config.json) by path, with `a.b=c` overrides applied.

    >>> load_recipe("akjv-demo", ["model.layers=2"]).model.layers
    2
    """
    values = recipe_values(str(recipe))
    own = str(recipe) not in recipe_names() and not str(recipe).endswith(".json")  # which a run wrote, whole
    written = [*setting_changes({}, values)] if own else []
    overrides = list(overrides)
    for override in overrides:
        _apply(values, override)
    config = parse(RunConfig, values, where=str(recipe))
    say_useless([*written, *names_of(overrides)], config)
    require_code(config.imports, recipe)
    return config


def allow_code(file: str) -> None:
    """Let a Python file be run when an architecture is looked for that is not known yet, here and in every process that
    this one starts."""
    if not os.path.isfile(file):
        raise FledgeError(f"--import {file}: there is no such file.{did_you_mean(Path(file))}")
    path = os.path.abspath(file)
    if path not in (known := allowed_code()):
        os.environ[CODE] = os.pathsep.join((*known, path))


def allowed_code() -> list[str]:
    """The files that the person named with --import, or in the environment."""
    return [path for path in os.environ.get(CODE, "").split(os.pathsep) if path]


def require_code(files: Iterable[str], recipe: str | Path) -> None:
    """Refuse a recipe that names code which the person has not agreed to: it came with the recipe, and could do
    anything. On a terminal they are asked."""
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for file in files:
        path = os.path.abspath(file)
        if path in loaded or path in allowed_code():
            continue
        if not os.path.isfile(path):
            raise FledgeError(f"{recipe} imports {file}, and there is no such file here.")
        if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
            print(
                f"{recipe} wants to run the Python file {file}, which can do anything that you can. Run it? [y/N] ",
                end="",
                flush=True,
                file=sys.stderr,
            )
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                allow_code(file)
                continue
        raise FledgeError(
            f"{recipe} wants to run the Python file {file}, which can do anything that you can. Read it, and "
            f"if you trust it, add: --import {file}"
        )


def recipe_names() -> list[str]:
    """The packaged recipes."""
    folder = resources.files("fledge") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def nearest_recipe(name: str, names: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the closest of `names`, a file that may be meant, or all names."""
    known = nearest(name.lower(), names)
    if not known.startswith("Known"):
        return known
    file = f"{name}.toml"
    return f"Did you mean {file}?" if Path(file).is_file() else did_you_mean(Path(name)).strip() or known


def recipe_values(recipe: str) -> dict[str, Any]:
    """The plain values of a packaged recipe or of a TOML file, not yet checked."""
    if recipe in recipe_names():
        text = (resources.files("fledge") / "recipes" / f"{recipe}.toml").read_bytes()
    elif (Path(recipe) / "config.json").is_file():
        raise FledgeError(
            f"{recipe} is a run and not a recipe. Resume it: {command('train', '--resume', recipe)}, or use "
            f"its settings as a recipe: {Path(recipe) / 'config.json'}"
        )
    elif recipe.endswith((".toml", ".json")) or "/" in recipe or Path(recipe).is_file():
        if not Path(recipe).is_file():
            meant = did_you_mean(Path(recipe)) or f" Packaged recipes: {', '.join(recipe_names())}."
            raise FledgeError(f"There is no recipe file {short(recipe)}.{meant}")
        if recipe.endswith(".json"):  # the config.json that a run keeps is a recipe too
            values = read_json(recipe)
            if not isinstance(values, dict):
                raise FledgeError(
                    f"{recipe} holds a {type(values).__name__} and not a table of settings, such as "
                    '{"model": {"layers": 6}}.'
                )
            return values
        text = Path(recipe).read_bytes()
    else:
        raise FledgeError(f"There is no recipe called {short(repr(recipe))}. {nearest_recipe(recipe, recipe_names())}")
    try:
        return tomllib.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        hint = "" if recipe.endswith(".toml") else f" A text is trained on with --set corpus.source={recipe}"
        raise FledgeError(f"{recipe} is not a recipe, because it is not valid TOML: {error}.{hint}") from None


def override_config(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """The same settings with `a.b=c` overrides applied and everything checked again.

    A default stays a default: `model_fields_set` names what somebody set.
    """
    values = config.model_dump(mode="json", exclude_unset=True)
    overrides = list(overrides)
    for override in overrides:
        _apply(values, override)
    config = parse(RunConfig, values)
    say_useless(names_of(overrides), config)
    return config


def names_of(overrides: Iterable[str]) -> list[str]:
    """The settings that `a.b=c` overrides change."""
    return [override.partition("=")[0].strip() for override in overrides]


def unmet(name: str, config: RunConfig, varied: Sequence[str] = ()) -> str:
    """The sentence that a setting has no effect beside the others, but for those that vary; empty where it has one.

    >>> unmet("tokens.best_fit", RunConfig())
    'tokens.best_fit has no effect with tokens.policy = stream.'
    """
    needs = (need for need in needs_of(setting_fields(RunConfig).get(name)) if need.setting not in varied)
    return next(filter(None, (need.sentence(name, attrgetter(need.setting)(config)) for need in needs)), "")


def say_useless(names: Iterable[str], *configs: RunConfig) -> None:
    """Say which of the settings that a person named have no effect in any of these configurations."""
    for name in names:
        sentences = [unmet(name, config) for config in configs]
        if all(sentences):
            note(sentences[0])


def _apply(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    *groups, leaf = path.strip().split(".")
    if not equals or not leaf or not all(groups):
        raise FledgeError(f"--set {short(repr(override))} is not of the form group.name=value, such as model.layers=6.")
    for group in groups:
        values = values.setdefault(group, {})
        if not isinstance(values, dict):
            raise FledgeError(f"--set {short(repr(override))}: {short(group)} is a value, not a group of settings.")
    values[leaf] = parse_value(text.strip(), path.strip())


def parse_value(text: str, name: str, kind: type[Settings] = RunConfig) -> Any:
    """A value as it is written for the setting `name`: TOML, `none` for nothing, or a text without quotes.

    >>> parse_value("6", "model.layers"), parse_value("2024", "corpus.source"), parse_value("none", "model.hidden")
    (6, '2024', None)
    """
    field = setting_fields(kind).get(name)
    annotation = field and field.annotation
    kinds = types_of(annotation)
    if text.lower() in ("none", "null") and annotation is not str:
        return "none" if "none" in kinds else None  # a name to choose, as in model.norm
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
        return text
    if isinstance(value, str | list):
        return value
    return text if str in kinds or isinstance(value, date | time) else value


def setting_changes(old: Any, new: Any, absent: Any = None, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The values in which two configurations differ, by their dotted names: before and after.

    Either is a group of settings, or the plain values of one; what it lacks is `absent`.

    >>> setting_changes({"name": "a", "model": {"layers": 4, "bias": True}}, {"name": "a", "model": {"layers": 6}})
    {'model.layers': (4, 6), 'model.bias': (True, None)}
    """
    old, new = (side.model_dump(mode="json") if isinstance(side, Settings) else side for side in (old, new))
    before, after = ({} if side is absent else side for side in (old, new))
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {} if old == new else {name: (old, new)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in {**before, **after}:
        path = f"{name}.{key}" if name else key
        found |= setting_changes(before.get(key, absent), after.get(key, absent), absent, path)
    return found
