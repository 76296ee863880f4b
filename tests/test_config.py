"""Settings: recipes load, overrides reach their leaf, and every mistake is a sentence that says what is allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from fledge.config import (
    ELSEWHERE,
    ModelConfig,
    RunConfig,
    load_recipe,
    override_config,
    parse,
    parse_value,
    recipe_names,
    setting_changes,
    setting_paths,
)
from fledge.errors import FledgeError


def numbers() -> list[str]:
    """Every setting that is a number, or a number or none."""
    groups = {
        name: field.annotation for name, field in RunConfig.model_fields.items() if name not in ("name", "imports")
    }
    return [
        f"{group}.{name}"
        for group, kind in groups.items()
        for name, schema in kind.model_json_schema()["properties"].items()
        if {"integer", "number"} & {one.get("type") for one in schema.get("anyOf", [schema])}
    ]


@pytest.mark.parametrize("name", recipe_names())
def test_every_packaged_recipe_is_valid(name: str) -> None:
    config = load_recipe(name)
    assert config.name == name
    assert config.steps >= 1


def test_the_tinystories_recipe_is_the_course_experiment() -> None:
    config = load_recipe("tinystories")
    assert (config.model.layers, config.model.width, config.model.heads, config.model.hidden) == (
        4,
        512,
        16,
        1344,
    )
    assert (config.tokens.context_length, config.tokenizer.vocabulary_size) == (256, 10_000)
    assert config.steps * config.training.batch_size * config.tokens.context_length == 327_680_000


def test_overrides_reach_their_leaf_whatever_their_type() -> None:
    changes = [
        "model.layers=7",
        "optimizer.learning_rate=2e-3",
        "model.tied=true",
        "corpus.source=['a', 'b']",
    ]
    config = load_recipe("akjv-demo", [*changes, "tokenizer.path=none", "sampling.prompt=In the = beginning"])
    assert config.model.layers == 7
    assert config.optimizer.learning_rate == 2e-3
    assert config.model.tied is True
    assert config.corpus.source == ("a", "b")
    assert config.tokenizer.path is None
    assert config.sampling.prompt == "In the = beginning"
    assert load_recipe("akjv-demo", ["model.norm=none", "model.position=none"]).model.norm == "none"
    assert override_config(config, ["model.layers=8"]).model == config.model.model_copy(update={"layers": 8})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ModelConfig().layers = 3  # type: ignore[misc]


def test_a_configuration_survives_json() -> None:
    config = load_recipe("tinystories")
    assert parse(RunConfig, config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.laers=3", ["no setting model.laers", "Did you mean model.layers?"]),
        ("modl.layers=3", ["no setting modl.layers", "Did you mean model.layers?"]),
        ("model.context=64", ["no setting model.context", "Did you mean tokens.context_length?"]),
        ("training.learning_rate=1", ["Did you mean optimizer.learning_rate?"]),
        ("training.checkpoint_every=1", ["Did you mean training.save_every?"]),
        ("learning_rate=1", ["no setting learning_rate", "Did you mean optimizer.learning_rate?"]),
        ("layers=1", ["no setting layers", "Did you mean model.layers?"]),
        ("seed=1", ["training.seed or sampling.seed?"]),
        ("training.lr=1", ["optimizer.learning_rate?"]),
        ("model.colour=red", ["no setting model.colour", "Known: ", "model.layers"]),
        ("colour=red", ["no setting colour", "Known: corpus, imports, model, "]),
        ("training=3", ["training is a group of settings", "such as training.steps"]),
        ("model..layers=3", ["--set 'model..layers=3'", "group.name=value"]),
        ("model.layers=0", ["model.layers = 0", "greater than or equal to 1"]),
        ("model.norm=batch", ["model.norm = 'batch'", "'rms', 'layer' or 'none'"]),
        ("optimizer.learning_rate=nan", ["optimizer.learning_rate", "finite"]),
        ("training.steps=many", ["training.steps = 'many'", "integer"]),
        ("training.tokens=5", ["training.steps", "training.tokens", "Set one of them"]),
        (
            "model.heads=7",
            ["model.heads = 7 does not divide model.width = 128", "Try 4 or 8", "model.width=126"],
        ),
        ("model.width=1000000000000000006", ["does not divide model.width = 1000000000000000006", "Try 1 or "]),
        ("corpus.validation_fraction=0.9", ["corpus.validation_fraction = 0.9", "at least 0 and at most 0.5"]),
        ("sampling.top_p=1.5", ["sampling.top_p = 1.5", "it must be above 0 and at most 1."]),
        ("sampling.top_p=0", ["sampling.top_p = 0", "it must be above 0 and at most 1."]),
        ("sampling.top_p=most", ["sampling.top_p = 'most'", "valid number"]),
        ("model", ["--set 'model'", "group.name=value"]),
        ("name.first=x", ["name is a value"]),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(override: str, words: list[str]) -> None:
    with pytest.raises(FledgeError) as caught:
        load_recipe("akjv-demo", ["training.steps=5", override])
    for word in words:
        assert word in str(caught.value)


def test_unknown_recipes_are_answered_with_the_nearest(tmp_path) -> None:
    with pytest.raises(FledgeError, match="Did you mean tinystories"):
        load_recipe("tinystory")
    with pytest.raises(FledgeError, match="no recipe file"):
        load_recipe(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text("[model\n")
    with pytest.raises(FledgeError, match="not valid TOML"):
        load_recipe(str(tmp_path / "mine.toml"))
    (tmp_path / "my.txt").write_text("In the beginning")
    with pytest.raises(FledgeError, match=r"not a recipe.*with --set corpus\.source=.*my\.txt"):
        load_recipe(str(tmp_path / "my.txt"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FledgeError, match="is a run and not a recipe.*--resume"):
        load_recipe(str(tmp_path))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(FledgeError, match=r"list\.json holds a list and not a table of settings"):
        load_recipe(str(tmp_path / "list.json"))


def test_a_name_from_another_program_leads_to_a_setting_there_is() -> None:
    assert set(ELSEWHERE.values()) <= setting_paths().keys()


def test_every_setting_is_documented() -> None:
    undocumented = [path for path, text in setting_paths().items() if not text]
    assert undocumented == []


def test_the_handbooks_list_of_settings_is_the_one_there_is() -> None:
    from tools.list_settings import settings_page

    kept = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert kept == settings_page(), "write it again: .venv/bin/python -m tools.list_settings > docs/settings.md"


def test_every_environment_variable_is_documented() -> None:
    root = Path(__file__).parents[1]
    kept = (root / "docs" / "settings.md").read_text(encoding="utf-8")
    read = {name for path in (root / "src").rglob("*.py") for name in re.findall(r"FLEDGE_[A-Z_]+", path.read_text())}
    assert read
    assert [name for name in sorted(read) if f"`{name}`" not in kept] == []


def test_the_handbooks_table_of_where_settings_can_go_is_the_one_there_is() -> None:
    from tools.list_settings import homes_table

    kept = (Path(__file__).parents[1] / "docs" / "bundle.md").read_text(encoding="utf-8")
    assert homes_table() in kept, "put the output of tools.list_settings.homes_table into docs/bundle.md"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *((f"{name}=true", f"{name} = true is not allowed: give a number.") for name in numbers()),
        ("training.steps=false", "training.steps = false is not allowed: give a number."),
        ("model.norm=true", "model.norm = true is not allowed"),
        ("corpus.source=", "corpus.source: an empty text is not allowed"),
        ('corpus.source="a\\u0000b"', "contains a NUL character"),
        ('name="a\\u0000b"', "contains a NUL character"),
        ("training.steps=" + "9" * 5000, "training.steps = "),
    ],
)
def test_values_that_only_look_right_are_refused(change: str, sentence: str) -> None:
    with pytest.raises(FledgeError, match=re.escape(sentence)):
        load_recipe("akjv-demo", [change])


def test_a_switch_may_be_on_where_none_is_allowed_too() -> None:
    assert load_recipe("akjv-demo", ["model.residual_scaling=true", "model.tied=true"]).model.residual_scaling is True


def test_what_changed_is_named_down_to_the_leaf() -> None:
    """Also in a group that one side lacks, and whether a side is settings or the values that a file holds."""
    first, second = RunConfig(), load_recipe("akjv-demo", ["name=run"])
    found = setting_changes(first, second)
    assert found["model.width"] == (first.model.width, second.model.width)
    assert "name" not in found
    assert setting_changes(first.model_dump(mode="json"), second) == found
    assert setting_changes(first, first.model_dump(mode="json")) == {}
    assert setting_changes({"corpus": {"field": "text"}}, {}, absent="–") == {"corpus.field": ("text", "–")}
    assert setting_changes({"a": None}, {}, absent="–") == {"a": (None, "–")}


def test_a_value_is_read_as_the_type_of_its_setting_is() -> None:
    """A number where a text is asked for is that text, whatever group it is in."""
    changes = ["corpus.source=2024", "sampling.prompt=1984", "name=7", "tokens.store=1e3", "corpus.separator=none"]
    config = load_recipe("akjv-demo", [*changes, "sampling.stop=true", "model.hidden=none", "corpus.field='3'"])
    assert (config.corpus.source, config.sampling.prompt, config.name) == (("2024",), "1984", "7")
    assert (config.tokens.store, config.corpus.separator, config.corpus.field) == ("1e3", "none", "3")
    assert (config.sampling.stop, config.model.hidden) == (("true",), None)
    assert (parse_value("none", "model.norm"), parse_value("none", "model.kv_heads")) == ("none", None)


def test_a_name_that_is_a_day_is_a_name(tmp_path: Path) -> None:
    assert load_recipe("akjv-demo", ["corpus.source=2024-01-01"]).corpus.source == ("2024-01-01",)
    recipe = tmp_path / "marked.toml"
    recipe.write_text("\ufeffname = 'mine'\n", encoding="utf-8")
    assert load_recipe(recipe).name == "mine"
    recipe.write_text("training.steps = " + "9" * 5000)
    with pytest.raises(FledgeError, match="not valid TOML"):
        load_recipe(recipe)


@pytest.mark.parametrize(
    ("width", "heads", "kv_heads"),
    [(256, 5, None), (64, 7, None), (96, 33, None), (63, 4, None), (1, 3, None), (96, 10, 2), (192, 9, 3), (64, 9, 3)],
)
def test_heads_that_are_suggested_are_allowed(width: int, heads: int, kv_heads: int | None) -> None:
    with pytest.raises(FledgeError, match="model.heads = .* does not divide model.width") as refused:
        ModelConfig(width=width, heads=heads, kv_heads=kv_heads)
    counts, widths = re.search(r"(?:Try (\d+ or \d+|\d+), or s|S)et model.width=(\d+)", str(refused.value)).groups()
    for count in (counts or "").split(" or "):
        if count:
            ModelConfig(width=width, heads=int(count), kv_heads=kv_heads)
    ModelConfig(width=int(widths), heads=heads, kv_heads=kv_heads)


def test_settings_made_in_python_are_refused_in_the_same_words() -> None:
    with pytest.raises(FledgeError, match="^layers = 0 is not allowed"):
        ModelConfig(layers=0)
    with pytest.raises(FledgeError, match="There is no setting layer. Did you mean layers"):
        ModelConfig(layer=3)
    with pytest.raises(FledgeError, match=r"^model\.layers = 0 is not allowed"):
        RunConfig(model={"layers": 0})
