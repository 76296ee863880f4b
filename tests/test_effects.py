"""What the settings say of each other is what happens: one that is said to have no effect has none, and every other has
one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow
import pyarrow.parquet
import pytest
import torch

from fledge.config import RunConfig, load_recipe, override_config, recipe_names, setting_fields, unmet
from fledge.config.settings import needs_of, types_of
from fledge.corpus import Corpus
from fledge.errors import FledgeError, notes_kept
from fledge.generation.sampling import choose
from fledge.model import build_model
from fledge.model.registry import find_architecture
from fledge.tokenizer import train_tokenizer
from fledge.tokens import make_windows
from fledge.training.optimizers import build_optimizer
from fledge.training.schedules import decay_share, schedule
from tests.tokens.helpers import SEPARATED, make_split

VERSES = [f"In the beginning {n} was the word of {n**3}, and the {chr(1040 + n)} was good." for n in range(60)]
OTHER: dict[str, Any] = {
    "corpus.separator": "9",
    "corpus.field": "other",
    "corpus.validation_fraction": 0.4,
    "corpus.test_fraction": 0.4,
    "corpus.split_seed": 7,
    "corpus.max_document_bytes": 10,
    "tokenizer.vocabulary_size": 275,
    "tokenizer.special_tokens": ("was",),
    "tokenizer.pattern": ".",
    "tokenizer.min_frequency": 70,
    "tokens.context_length": 9,
    "tokens.position_offset": 5,
    "model.layers": 3,
    "model.width": 24,
    "model.heads": 4,
    "model.kv_heads": 1,
    "model.head_size": 6,
    "model.hidden": 20,
    "model.norm_epsilon": 0.3,
    "model.rope_theta": 10.0,
    "model.rope_scaling": (8.0, 1.0, 4.0, 4.0),
    "model.dropout": 0.4,
    "model.attention_dropout": 0.4,
    "model.layer_dropout": 0.6,
    "model.token_dropout": 0.6,
    "model.embedding_deviation": 0.5,
    "model.multiplier": 64,
    "optimizer.learning_rate": 0.3,
    "optimizer.weight_decay": 0.3,
    "optimizer.head_decay": 0.4,
    "optimizer.embedding_decay": 0.4,
    "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.5,
    "optimizer.epsilon": 0.1,
    "optimizer.momentum": 0.5,
    "optimizer.matrix_learning_rate": 0.3,
    "schedule.warmup_steps": 3,
    "schedule.final_fraction": 0.5,
    "schedule.decay_fraction": 0.5,
    "schedule.final_weight_decay_factor": 0.5,
    "sampling.temperature": 0.3,
    "sampling.top_k": 2,
    "sampling.top_p": 0.3,
    "sampling.min_p": 0.4,
    "sampling.repetition_penalty": 3.0,
    "sampling.seed": 5,
}
"Of each setting that has no choices, a value that is not its default."
ELSEWHERE = {
    *("corpus.source", "corpus.validation_source", "tokenizer.path", "tokens.store"),  # which text or folder it is
    "corpus.split",  # of near-copies alone
    "tokens.lanes",  # always the batch size
    "model.architecture",  # every class names the settings that it uses
    "optimizer.clip_norm",  # the loop clips
    *(f"sampling.{name}" for name in ("max_tokens", "stop", "stop_at_end", "samples", "prompt")),  # around the draw
}
"What one part alone does not show."
OF_TWO = {"corpus.split_seed", "model.norm_epsilon", "tokenizer.vocabulary_size"}
"What has no effect if two settings agree: held-out sources and no test part; no norms at all. Accounts count the last."


def read_text(config: RunConfig, folder: Path) -> object:
    format, found = config.corpus.format, []
    names = {"akjv": ["akjv"], "files": [str(folder / "files")]}
    for name in names.get(format, [str(folder / f"whole.{format}"), str(folder / f"broken.{format}")]):
        try:
            corpus = Corpus.from_config(config.corpus.model_copy(update={"source": (name,), "split": "document"}))
            batch = next(corpus.batches())
            found.append((batch.documents[:60], batch.parts.tolist()[:60]))
        except FledgeError as error:
            found.append(str(error))
    return found


def fit_tokenizer(config: RunConfig, folder: Path) -> object:
    return train_tokenizer(config.tokenizer, Corpus.from_documents(VERSES, 0.5)).fingerprint


def cut_windows(config: RunConfig, folder: Path) -> object:
    documents = [verse.encode()[: 5 + 3 * number] for number, verse in enumerate(VERSES[:9])]
    windows = make_windows(make_split(folder, documents), config.tokens, SEPARATED, 0, lanes=1)
    return [None if one is None else one.tolist() for one in windows.batch(range(len(windows)))]


def run_model(config: RunConfig, folder: Path) -> object:
    torch.manual_seed(0)
    model = build_model(config.model, 12, 8).train()
    hidden = model(torch.arange(32).reshape(4, 8) % 12)
    return model.state_dict().keys(), hidden.tolist()


def update_weights(config: RunConfig, folder: Path) -> object:
    torch.manual_seed(0)
    model = build_model(config.model, 12, 8)
    optimizer = build_optimizer(model, config.optimizer)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad.copy_(torch.randn_like(parameter))
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def walk_schedule(config: RunConfig, folder: Path) -> object:
    return [(schedule(config.schedule, step, 200), decay_share(config.schedule, step, 200)) for step in range(200)]


def draw_tokens(config: RunConfig, folder: Path) -> object:
    torch.manual_seed(config.sampling.seed)
    scores, seen = torch.linspace(0, 1.5, 9).sin().repeat(200, 1), torch.arange(9).repeat(200, 1) > 5
    return choose(scores, config.sampling, torch.rand(200), seen).tolist()


PROBES: dict[str, Callable[[RunConfig, Path], object]] = {
    "corpus": read_text,
    "tokenizer": fit_tokenizer,
    "tokens": cut_windows,
    "model": run_model,
    "optimizer": update_weights,
    "schedule": walk_schedule,
    "sampling": draw_tokens,
}
BASE = {
    "corpus": {"format": "lines"},
    "model": {"layers": 2, "width": 16, "heads": 2},
    "tokens": {"context_length": 8},
}


def choices(name: str) -> list[Any]:
    """The values of a setting that has a few."""
    kinds = types_of(setting_fields(RunConfig)[name].annotation)
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return literals or ([False, True] if bool in kinds else [])


def with_value(config: RunConfig, name: str, value: Any) -> RunConfig:
    group, _, leaf = name.partition(".")
    values = config.model_dump(exclude_unset=True)
    return RunConfig.model_validate({**values, group: {**values.get(group, {}), leaf: value}})


def cases(group: str, folder: Path) -> Iterator[RunConfig]:
    """A configuration for each choice in a group, and for each value elsewhere that a setting of it needs."""
    base = RunConfig.model_validate(BASE)
    names = [name for name in setting_fields(RunConfig) if name.startswith(f"{group}.")]
    more = {"tokenizer.path": [str(folder / "tokenizer")], "corpus.validation_source": [(str(folder / "whole.text"),)]}
    more |= {"sampling.temperature": [0.0]} | ({"model.architecture": ["bdh", "lstm"]} if group == "model" else {})
    switches = {*names, *(need.setting for name in names for need in needs_of(setting_fields(RunConfig)[name]))}
    yield base
    for name in sorted(switches):
        for value in [*choices(name), *more.get(name, [])]:
            if value not in ("auto", attrgetter(name)(base)):
                yield with_value(base, name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text in every format, and once more with what is no JSON; and a tokenizer."""
    folder = tmp_path_factory.mktemp("effects")
    train_tokenizer(RunConfig().tokenizer, Corpus.from_documents(VERSES, 0)).save(folder / "tokenizer")
    (folder / "files").mkdir()
    for number, verse in enumerate(VERSES):
        (folder / "files" / f"{number}.txt").write_text(verse)
    for name, end in (("whole", ""), ("broken", "\n{")):
        (folder / f"{name}.text").write_text("<|endoftext|>".join(VERSES) + end)
        (folder / f"{name}.lines").write_text("\n".join(VERSES) + end)
        rows = [{"text": verse, "other": verse[::-1]} for verse in VERSES]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("group", PROBES)
def test_a_setting_has_an_effect_unless_it_is_said_to_have_none(group: str, folder: Path) -> None:
    """With every choice of every other setting of its group, a value of it changes what comes out, or is said not to.

    A new setting has to be tried here, too.
    """
    names = [name for name in setting_fields(RunConfig) if name.startswith(f"{group}.") and name not in ELSEWHERE]
    wrong = []

    def outcome(config: RunConfig) -> object:
        try:
            return PROBES[group](config, folder)
        except FledgeError as error:
            return str(error)

    for config in cases(group, folder):
        changed = config.model_dump(exclude_unset=True)
        usual, used = outcome(config), find_architecture(config.model.architecture).settings | {"architecture"}
        for name in names:
            leaf = name.rpartition(".")[2]
            told = bool(unmet(name, config)) or (group == "model" and leaf not in used)
            values = [value for value in choices(name) or [OTHER[name]] if value != "auto"]
            effect = False
            for value in values:
                try:
                    effect = effect or outcome(with_value(config, name, value)) != usual
                except FledgeError:
                    effect = effect or not told  # the two do not go together
            if effect is told and not (name in OF_TWO and not effect):
                wrong.append(f"{name}: {'has' if effect else 'has no'} effect with {changed}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("recipe", recipe_names())
def test_no_packaged_recipe_sets_what_has_no_effect(recipe: str) -> None:
    config = load_recipe(recipe)
    values = config.model_dump(exclude_unset=True)
    used = find_architecture(config.model.architecture).settings | {"architecture"}
    assert [
        name
        for name in setting_fields(RunConfig)
        if name.partition(".")[2] in values.get(name.partition(".")[0], ()) and unmet(name, config)
    ] == []
    assert values.get("model", {}).keys() <= used


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        (["tokens.best_fit=true"], ["tokens.best_fit has no effect with tokens.policy = stream."]),
        (["tokens.best_fit=true", "tokens.policy=packed"], []),
        (
            ["optimizer.name=adamw", "optimizer.momentum=0.9"],
            ["optimizer.momentum has no effect with optimizer.name = adamw."],
        ),
        (["training.teachers_share=0.3"], ["training.teachers_share has no effect without training.teachers."]),
        (
            ["sampling.temperature=0", "sampling.top_k=5"],
            ["sampling.top_k has no effect with sampling.temperature = 0.0."],
        ),
        (
            ["tokenizer.path=gpt2", "tokenizer.fit_on=all"],
            ["tokenizer.fit_on has no effect with tokenizer.path = gpt2."],
        ),
        (
            ["model.architecture=gru", "training.recompute=true"],
            ["training.recompute has no effect with model.architecture = gru."],
        ),
        (
            ["training.evaluate_every=0", "training.patience=3"],
            ["training.patience has no effect with training.evaluate_every = 0."],
        ),
        (["schedule.name=cosine"], []),  # what the recipe sets for its own schedule is not the person's
    ],
)
def test_what_a_person_sets_in_vain_is_said(changes: list[str], sentences: list[str], tmp_path: Path) -> None:
    """On the command line and in a recipe of their own; not what a packaged recipe or a run has set."""
    with notes_kept() as said:
        config = load_recipe("tinystories-muon", changes)
        assert said == sentences
        said.clear()
        assert override_config(load_recipe("tinystories-muon"), changes) == config
        assert said == sentences
        said.clear()
        (tmp_path / "config.json").write_text(config.model_dump_json())
        load_recipe(tmp_path / "config.json")
        assert said == []
        (tmp_path / "own.toml").write_text("name = 'own'\n[tokens]\nremainder = 'cut'\n")
        load_recipe(tmp_path / "own.toml", ["tokens.policy=lanes"])
        assert said == ["tokens.remainder has no effect with tokens.policy = lanes."]


def test_a_corpus_says_what_the_format_that_is_found_does_not_use(folder: Path) -> None:
    lines, rows = str(folder / "whole.lines"), str(folder / "whole.jsonl")
    with notes_kept() as said:
        Corpus.open(rows, separator="x", field="other", split="document")
        Corpus.open(rows, lines, separator="x", field="other", split="document")  # the second is a text
        Corpus.open(lines, format="lines", book_titles=True)
    assert said == [
        "corpus.separator has no effect with corpus.format = jsonl.",
        "corpus.book_titles has no effect with corpus.format = lines.",
    ]
