"""Choices for a text and a time: what follows from what, and that the recipe is one that training takes."""

from __future__ import annotations

import gzip
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fledge.accounting import Account
from fledge.config import ModelConfig, RunConfig, load_recipe, parse, parse_value
from fledge.config.writing import Choice, config_of, recipe_text
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.evaluation import baselines
from fledge.files import read_json, write_json
from fledge.reports.run import openings, report_folder
from fledge.run import Run
from fledge.runs.checkpoints import checkpoints
from fledge.start import choose, law, look, plan, speed, start
from fledge.start.choose import LADDER, choose_size, model_of
from fledge.start.look import Look
from fledge.training.pairs import require_pairs
from tests.small import SMALL

PEAK = 1e11


def at(peak: float, vocabulary: int, context: int = 64):
    """A machine that reaches `peak` FLOP/s whatever the model."""

    def measure(model: ModelConfig) -> float:
        return peak / Account(model, vocabulary, context).flops_per_token

    return measure


def chosen(seconds: float, unique: int = 1_300_000, peak: float = PEAK):
    return choose_size(seconds, law.Text(unique), 1024, 64, at(peak, 1024), LADDER.index((4, 128)), 5)[0]


def test_more_time_never_means_a_smaller_model() -> None:
    sizes = [chosen(seconds).parameters for seconds in (10, 60, 300, 1800, 7200)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_the_packaged_recipe_is_about_what_five_minutes_choose() -> None:
    assert (chosen(240).layers, chosen(240).width) in (LADDER[1], LADDER[2], LADDER[3])


@given(st.floats(5, 1e5), st.integers(10_000, 10**9), st.floats(1e10, 1e15))
def test_a_text_is_never_learned_by_heart(seconds: float, unique: int, peak: float) -> None:
    size = chosen(seconds, unique, peak)
    assert size.use.tokens <= choose.MOST_PASSES * unique
    assert size.parameters <= 2 * size.use.tokens or (size.layers, size.width) == LADDER[0]


def test_speeds_that_matter_are_measured() -> None:
    """A machine that is worse at wide models than their FLOPs say gets a narrower one."""
    asked: list[int] = []

    def measure(model: ModelConfig) -> float:
        asked.append(model.width)
        slower = 20 if model.width > 128 else 1
        return PEAK / slower / Account(model, 1024, 64).flops_per_token

    size, _ = choose_size(3600, law.Text(10**8), 1024, 64, measure, LADDER.index((4, 128)), 5)
    assert size.width in asked
    assert len(asked) == len(set(asked)) <= 5


@pytest.mark.parametrize(
    ("size", "kind", "vocabulary"),
    [(50_000, "character", None), (100_000, "bpe", 512), (1_000_000, "bpe", 2048), (400_000_000, "bpe", 16_384)],
)
def test_the_vocabulary_grows_with_the_text(size: int, kind: str, vocabulary: int | None) -> None:
    assert choose.choose_vocabulary(Look(100, size, 80), fast=True)[:2] == (kind, vocabulary)
    on_a_cpu = choose.choose_vocabulary(Look(100, size, 80), fast=False)[1]
    assert on_a_cpu == (None if vocabulary is None else min(vocabulary, 4096))


def test_what_works_against_overfitting_grows_with_the_passes() -> None:
    passes = (0.5, 2, 3, 6, 12, 20)
    decays = [choose.choose_decay(count)[0] for count in passes]
    assert decays == sorted(decays)
    assert (decays[0], decays[-1]) == (0.1, 1.0)
    assert [choose.choose_dropout(count)[0] for count in passes] == [0, 0, 0, 0.1, 0.1, 0.1]


def test_a_small_model_of_a_longer_text_is_not_held_back() -> None:
    """On a CPU both would cost more than they save: measured, in docs/results/little-text.md."""
    small, large = (choose.crowding(law.Text(120_000), size, fast=False) for size in (200_000, 2_000_000))
    assert [choose.choose_dropout(passes, small)[0] for passes in (4, 7, 16)] == [0, 0, 0.1]
    assert [choose.choose_dropout(passes, large)[0] for passes in (4, 7, 16)] == [0, 0, 0.2]
    assert choose.choose_decay(20, small)[0] == 0.1
    assert choose.choose_decay(20, large)[0] == choose.choose_decay(20)[0] == 1
    assert choose.crowding(law.Text(120_000), 200_000, fast=True) > large


def test_windows_grow_with_the_work_there_is_time_for() -> None:
    lengths = [choose.choose_context(flops, 10_000)[0] for flops in (2e13, 2e14, 1e16, 2e17)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 64
    length, why = choose.choose_context(1e18, 40)
    assert length == 64
    assert "about 40 tokens" in why


def test_compressed_text_is_looked_at_as_what_it_holds(tmp_path, monkeypatch):
    text = "<|endoftext|>".join(f"document {number} of a text that compresses well" for number in range(200_000))
    (tmp_path / "plain.txt").write_text(text)
    with gzip.open(tmp_path / "packed.txt.gz", "wt") as file:
        file.write(text)
    monkeypatch.setattr(look, "LOOKED_AT", 2 << 20)
    plain, packed = (look.look_at(Corpus.open(str(tmp_path / name))) for name in ("plain.txt", "packed.txt.gz"))
    assert packed.bytes == pytest.approx(plain.bytes, rel=0.2)
    assert packed.documents == pytest.approx(200_000, rel=0.2)


@pytest.mark.parametrize(
    ("speeds", "batch"),
    [
        ({32: 100.0, 64: 118.0}, 32),  # a little faster is not worth half the steps, nor is a busy moment
        ({32: 100.0, 64: 190.0, 128: 350.0}, 128),
        ({32: 100.0, 64: 190.0, 128: 200.0}, 64),
    ],
)
def test_a_batch_grows_only_where_the_machine_was_idle(speeds, batch):
    assert choose.choose_fast_batch(32, speeds.__getitem__) == (batch, speeds[batch])


def test_every_step_of_the_ladder_is_a_model() -> None:
    for fast in (False, True):
        sizes = [Account(model_of(*shape, fast), 1024, 64).flops_per_token for shape in LADDER]
        assert sizes == sorted(sizes)


def test_on_a_cpu_the_head_can_be_fitted_to_counts() -> None:
    for shape in LADDER:
        require_pairs(parse(RunConfig, {"model": model_of(*shape).model_dump()}), 4096)


def test_a_recipe_reads_back_as_it_was_meant(tmp_path) -> None:
    choices = [
        Choice({"corpus.source": ['a "quoted" name.txt', "ünï.txt"]}, "the text"),
        Choice({"model.layers": 3, "model.dropout": 0.1, "optimizer.learning_rate": 3e-05}, "said once a group"),
        Choice({"tokenizer.kind": "character"}, "few"),
    ]
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_text("mine", "For a test.", choices))
    assert load_recipe(str(path)) == config_of("mine", choices)
    assert path.read_text().count("# Said once a group.") == 2


def test_standard_input_is_refused_and_a_cut_start_begins_again(tmp_path):
    with pytest.raises(FledgeError, match="standard input only once"):
        start.Start(["-"], 60.0, "1m", tmp_path / "a", print)
    folder = tmp_path / "b"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert not start.begun(folder, [])  # as fledge train leaves it when killed: a person's own run
    (folder / "start.json").write_text('{"texts": [], "time": "1m"}')
    assert start.begun(folder, [])
    (folder / "mine.txt").write_text("a person's own")
    assert not start.begun(folder, [])
    (folder / "mine.txt").unlink()
    (folder / "start.json").write_text('{"texts": [], "time": "1m", "speed": 1.0, "choices": []}')
    assert not start.begun(folder, [])
    alone = tmp_path / "c"
    alone.mkdir()
    for content, ours in (
        ('{"mine": 1}', False),  # another program's
        ('{"corpus": {"source": ["b.txt"]}, "training": {}}', False),
        ('{"corpus": {"source": ["a.txt"]}, "training": {}}', True),
    ):
        (alone / "config.json").write_text(content)
        assert start.begun(alone, ["a.txt"]) == ours
    for content in ("[]", '{"scripts": {}}', '{"texts": ["b.txt"]}'):  # a person's own, or of other texts
        (alone / "start.json").write_text(content)
        assert not start.begun(alone, ["a.txt"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fraction", [0.0, 0.1])
def test_a_report_gives_its_final_figure_on_the_test_part_where_there_is_one(tmp_path, fraction):
    """The model, the counts and the compressors are all measured there, and the page says so."""
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>".join(f"verse {i} of book {i * i}" for i in range(400)))
    settings = [*SMALL, f"corpus.source={text}", f"corpus.test_fraction={fraction}"]
    run = Run("akjv-demo", tmp_path / "run", overrides=settings, quiet=True)
    run.train()
    found = report_folder(run.folder)
    split = "test" if fraction else "validation"
    assert found.evaluation.loss == run.evaluate(split=split).loss
    train, held_out = (run.tokens.split(name).tokens for name in ("train", split))
    assert found.baselines["bigram"] == baselines(train, held_out, run.tokenizer.vocab_size).bigram
    said = "the test part, which no checkpoint or setting was chosen by"
    assert (said in found.path.read_text()) == bool(fraction)
    for learned in (
        "in stretches of 20 or more",
        "which people wrote",
        "after training passages",
        "held-out documents of",
    ):
        assert learned in found.path.read_text()


def test_another_time_goes_on_with_what_there_is(tmp_path, monkeypatch):
    """Called again with more time: the same tokenizer, model and checkpoint, trained for more steps."""
    text, folder, said = tmp_path / "diary.txt", tmp_path / "run", []
    text.write_text("Today was a day like every other day, and I wrote a line about it.\n" * 600)
    values = {key: parse_value(value, key) for key, _, value in (line.partition("=") for line in SMALL)}
    opening = openings(Corpus.open(str(text)).documents("validation"), 1)[0]
    prompt = Choice({"sampling.prompt": opening}, "of the text")
    rhythm = Choice({**plan.watching(6), "training.patience": 2}, "often enough")
    choices = [Choice({"corpus.source": [str(text)]}, "the text"), Choice(values, "small"), rhythm, prompt]
    (tmp_path / "recipe.toml").write_text(recipe_text("diary", "For a test.", choices))
    Run(str(tmp_path / "recipe.toml"), folder).train(quiet=True)
    write_json(folder / "start.json", {"texts": [str(text)], "time": "1m", "speed": 10.0, "choices": choices})
    (folder / "recipe.toml").write_text((tmp_path / "recipe.toml").read_text())
    tokenizer = (folder / "tokenizer" / "tokenizer.json").read_bytes()

    def begin(seconds: float, time: str) -> Run:
        begun = start.Start([str(text)], seconds, time, folder, lambda word, fact: said.append(fact))
        run = begun.run()
        begun.train(run)
        return run

    suggested = re.search("--prompt '(.+)'", (checkpoints(folder)[-1] / "README.md").read_text())
    assert suggested
    assert suggested[1] in text.read_text()
    assert begin(60.0, "1m").config.steps == 6
    assert begin(30.0, "30s").config.steps == 6
    more = int(plan.TRAINED * 60 * 10.0 / 64)
    run = begin(120.0, "2m")
    assert run.config.steps == 6 + more
    assert f"to {6 + more} steps instead of 6" in said[-1]
    assert [path.name for path in checkpoints(folder)][-1] == f"step-{6 + more:08d}"
    assert (folder / "tokenizer" / "tokenizer.json").read_bytes() == tokenizer
    assert read_json(folder / "config.json")["training"]["steps"] == 6 + more
    assert "lengthened for 2m" in (folder / "recipe.toml").read_text()
    assert run.config.training.sample_every == (6 + more) // 4, (
        "as many samples and evaluations as a new run of that length"
    )
    assert run.config.training.patience is None, "the rate rises again, and with it the loss: no sign of overfitting"
    again = load_recipe(str(folder / "recipe.toml")).training
    assert (again.sample_every, again.patience) == (run.config.training.sample_every, None)
    monkeypatch.setattr(start.choose, "MOST_PASSES", 0)
    assert begin(6000.0, "100m").config.steps == 6 + more
    assert "more passes over the text would overfit" in said[-1]
    with pytest.raises(FledgeError, match="was started with other texts"):
        start.Start([str(tmp_path)], 60.0, "1m", folder, print).run()


@pytest.mark.parametrize(
    ("speeds", "left", "given", "way"),
    [
        ({"bf16": 120.0, "on": 200.0}, 280.0, [], {"training.precision": "bf16", "training.compile": "on"}),
        ({"bf16": 90.0, "on": 200.0}, 280.0, [], {"training.compile": "on"}),
        ({"bf16": 120.0, "on": 121.0}, 280.0, [], {"training.precision": "bf16"}),  # not worth compiling twice
        ({"bf16": 120.0, "on": 200.0}, 100.0, [], {"training.precision": "bf16"}),  # nor is there time for it
        ({"bf16": 120.0, "on": None}, 280.0, [], {"training.precision": "bf16"}),  # no compiler
        ({"bf16": 120.0, "on": 200.0}, 280.0, ["training.precision=fp32", "training.compile=off"], {}),
    ],
)
def test_the_quickest_way_to_take_a_step_is_measured(monkeypatch, speeds, left, given, way):
    clock = [0.0]

    def measured(model, vocabulary, context, batch, seconds, settings=None):
        if not settings:
            return 100.0
        compiled = settings.get("training.compile") == "on"
        clock[0] += 20.0 if compiled else 1.0
        if (found := speeds["on" if compiled else "bf16"]) is None:
            raise RuntimeError("No working C++ compiler found")
        return found

    monkeypatch.setattr(speed, "measured_speed", measured)
    monkeypatch.setattr("fledge.training.rules.quick_type", lambda device: torch.bfloat16)
    monkeypatch.setattr(speed.time, "monotonic", lambda: clock[0])
    sizes = (model_of(2, 64), 512, 64, 32, 1.0)
    found = speed.quick_precision(*sizes, plan.given(given))
    if "training.compile" not in plan.given(given):
        found = speed.compiled_way(found, *sizes, left)
    assert found.settings == way
    chosen = "on" if "training.compile" in way else "bf16"
    assert found.speed == (speeds[chosen] if way else 100.0)
