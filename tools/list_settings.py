"""Every setting with its default, its choices and its explanation, as `fledge.config` has them: docs/settings.md.

After a setting was changed, in the root of the repository: .venv/bin/python -m tools.list_settings > docs/settings.md
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from fledge.config import ModelConfig, RunConfig, documentation, recipe_names
from fledge.model.families import GGUF, HUB, SIZES, TRAINING, Family
from fledge.model.transformer import Transformer

HEAD = """\
# Settings

Every setting has one name, one default and one explanation. The name is the same in a recipe (TOML), on the command
line (`--set model.layers=6` or `--model.layers 6`) and in Python (`fledge.Run("akjv-demo",
overrides=["model.layers=6"])`). A recipe lists the settings that differ from these defaults
([an example](training.md#a-recipe-of-your-own)). The packaged recipes are {recipes}.
A run keeps all of its settings in `config.json`. If one that you set has no effect, fledge says so.

Write a value on the command line as in TOML: `--set 'corpus.source=["a.txt", "b.txt"]'`. A text needs no quotes, even
if it looks like a number. `none` unsets a value; in a file, leave the setting out instead.
"""
ENVIRONMENT = """
## Environment variables and exit codes

| variable | what it does |
|---|---|
| `FLEDGE_CACHE` | folder for downloads and compiled code; default: `fledge` in the user's cache folder |
| `FLEDGE_CORPORA` | folder for fetched corpora; default: `corpora` in the cache |
| `FLEDGE_IMPORT` | Python files with your own architectures, like `--import` |
| `FLEDGE_INPUT`, `FLEDGE_WORKING` | in a notebook of `fledge kaggle`: its input and output folders |
| `FLEDGE_TIME`, `FLEDGE_NETWORK` | in the same notebook: the time limit; 1 allows the network |
| `NO_COLOR` | no colours, if set to any value |

| exit code | when |
|---|---|
| 0 | success |
| 1 | a check found a problem, which is printed |
| 2 | the command was refused: standard error says why, and what to do |
| 130 | stopped by Ctrl-C |
| 141 | the program that reads the output ended first |
"""
BAR = r"\|"  # inside a table
TABLE = "\n| setting | default | choices | |\n|---|---|---|---|\n"


def settings_page() -> str:
    """The whole page. A test holds the one that is kept to it."""
    page, groups = HEAD.format(recipes=", ".join(f"`{name}`" for name in recipe_names())) + TABLE, ""
    for name, field in RunConfig.model_fields.items():
        inner: Any = field.annotation
        if not hasattr(inner, "model_fields"):
            page += row(name, field)
            continue
        groups += f"\n## {name}\n\n{inner.__doc__}\n{TABLE}"
        groups += "".join(row(f"{name}.{leaf}", part) for leaf, part in inner.model_fields.items())
    return page + groups + ENVIRONMENT


def row(path: str, field: Any) -> str:
    kinds = [field.annotation, *get_args(field.annotation)]
    choices = [f"`{choice}`" for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    default = field.get_default(call_default_factory=True)
    shown = "none" if default is None else f"`{json.dumps(default)}`"
    cells = [f"`{path}`", shown, ", ".join(choices), documentation(field)]
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |\n"


def homes_table() -> str:
    """Where each setting of a Transformer can go, for docs/bundle.md. A test holds the page to it."""
    rows = []
    set_ = {
        "kv_heads": "fewer than `heads`",
        "head_size": "other than `width` / `heads`",
        "rope_theta": "any",
        "rope_scaling": "Llama 3's",
    }
    for name in sorted(Transformer.settings - SIZES - TRAINING):
        field = ModelConfig.model_fields[name]
        choices = [value for kind in (field.annotation, *get_args(field.annotation)) for value in get_args(kind)]
        values: list[Any] = [value for value in choices if isinstance(value, str)]
        if not values:
            values = [set_[name]] if name in set_ else [False, True]
        for value in values:
            shown = value if name in set_ else f"`{str(value).lower()}`"
            places = [
                ", ".join(f"`{family.name}`" for family in families if _holds(family, name, value, field.default))
                for families in (HUB, GGUF)
            ]
            rows.append(f"| `{name}` | {shown} | {places[0] or 'code of its own'} | {places[1] or '–'} |\n")
    return "| setting | value | Hugging Face | GGUF |\n|---|---|---|---|\n" + "".join(rows)


def _holds(family: Family, name: str, value: Any, default: Any) -> bool:
    allowed = family.holds.get(name, (default,))
    return allowed is None or value in allowed


if __name__ == "__main__":
    print(settings_page(), end="")
