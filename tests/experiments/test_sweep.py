"""Sweeps and ablations: every arm has a folder of its own, equal is equal, and answers claim what the runs show."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from fledge.config import load_recipe, override_config
from fledge.errors import FledgeError
from fledge.evaluation import KneserNey
from fledge.experiments import engines, findings, landscape, processes, trials
from fledge.experiments.ablate import BASE, ablate, ablation_answer, group_arms, parse_arm
from fledge.experiments.checks import check_arms
from fledge.experiments.compare import compare
from fledge.experiments.engines import Engine, alone_in
from fledge.experiments.plan import Arm, ExperimentPlan, with_shared_data, with_windows
from fledge.experiments.search import changes_of, equal_windows
from fledge.experiments.setup import unequal_tokens
from fledge.experiments.space import Axis, grid, parse_axis
from fledge.experiments.sweep import matrix_rates, samples_sentence, sweep
from fledge.experiments.timing import Cost, CostClock, gain, steps_that_fit
from fledge.experiments.trials import Outcome, Trial, run_trial, trial_folder
from fledge.files import write_json
from fledge.reports.page import Page
from fledge.tokens import TokenStore
from fledge.training.device import machine_threads
from tests.experiments.test_trials import SMALL, TEXT

HEADER = "step,samples,tokens,loss,validation_loss"
RATE, BATCH = "optimizer.learning_rate", "training.batch_size"


@pytest.fixture
def config(tmp_path: Path):
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    return load_recipe("akjv-demo", [*SMALL, f"corpus.source={tmp_path / 'text.txt'}"])


def outcome(arm: str, seed: int = 0, loss: float | None = 2.0, status: str = "complete", tokens: int = 64) -> Outcome:
    return Outcome(arm, seed, status, 1, tokens, 1, 1.0, validation_loss=loss)  # type: ignore[arg-type]


def plan(arms: list[str], seeds: int = 1) -> ExperimentPlan:
    return ExperimentPlan("ablate", "?", {}, tuple(Arm(name) for name in arms), tuple(range(seeds)), {})


# -- names and folders -------------------------------------------------------------------------------------------------


def test_every_name_has_a_folder_of_its_own() -> None:
    long = "x" * 150
    names = ["ä", "ö", "x/../y", "x-..-y", "a:b", "a;b", long, long + "y", "a" * 101, "as it is"]
    assert len({trial_folder(name, seed).lower() for name in names for seed in (0, 1)}) == 2 * len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._=+-]{1,120}", trial_folder(name, 0)) for name in names)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("as it is", "as-it-is-seed0"),
        ("no norm, lower rate", "no-norm-lower-rate-seed0"),
        ("gpt2 ×0.3", "gpt2-0.3-seed0"),
        ("learning_rate=0.001 batch_size=8", "learning_rate=0.001-batch_size=8-seed0"),
    ],
)
def test_folders_of_finished_experiments_are_still_found(name: str, folder: str) -> None:
    assert trial_folder(name, 0) == folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([BASE, "as it is"], "is the name of two arms"),
        ([BASE, "as-it-is"], "differ too little"),
        ([BASE, "As it is"], "differ too little"),
        ([BASE, ""], "has no name"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(config, tmp_path: Path, names: list[str], words: str) -> None:
    with pytest.raises(FledgeError, match=words):
        ablate(config, tmp_path / "e", [], [Arm(name, ("model.layers=2",)) for name in names[1:]])
    assert not (tmp_path / "e").exists()


def test_arms_named_beyond_ascii_have_results_of_their_own(config, tmp_path: Path, capsys) -> None:
    arms = [parse_arm("ä: model.layers=2"), parse_arm("ö: model.layers=3")]
    _, outcomes, report = ablate(config, tmp_path / "e", [], arms)
    assert [each.arm for each in outcomes] == [BASE, "ä", "ö"]
    assert len({each.folder for each in outcomes}) == 3
    assert len({each.parameters for each in outcomes}) == 3
    assert "already done" not in capsys.readouterr().out
    text = report.read_text()
    for words in ("Samples", "after nothing (a new document)", "▸", "vocabulary of 300", "held out", "1 layer,"):
        assert words in text
    ablate(config, tmp_path / "e", [], arms)
    assert capsys.readouterr().out.count("(already done)") == 3
    place = tmp_path / "e" / outcomes[1].folder / "outcome.json"
    other = (tmp_path / "e" / outcomes[2].folder / "outcome.json").read_bytes()
    for content, words in (
        (other, "is of 'ö' with seed 0, and not of 'ä'"),
        (b"{}", "is damaged"),
        (b"[1]", "damaged"),
    ):
        place.write_bytes(content)
        with pytest.raises(FledgeError, match=words):
            ablate(config, tmp_path / "e", [], arms)
    (tmp_path / "text.txt").write_text("another text, which is longer. " * 100)
    with pytest.raises(FledgeError, match=r"has changed since the experiment .* Name another folder with --out"):
        ablate(config, tmp_path / "e", [], arms)


def test_a_value_or_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(FledgeError, match="1 is given twice"):
        parse_axis("model.layers=1,1")
    with pytest.raises(FledgeError, match="0 is given twice"):
        parse_axis("model.dropout=0,0.0")
    with pytest.raises(FledgeError, match=r"--over model\.layers is given twice"):
        grid([parse_axis("model.layers=1,2"), parse_axis("model.layers=3")])


@pytest.mark.parametrize("over", ["{}", "{}=1,2", "model.layers={0},{0}", "model.width=1..{}", "model.width=1..2:{}"])
def test_a_long_axis_is_not_echoed_whole(over: str) -> None:
    with pytest.raises(FledgeError) as refused:
        parse_axis(over.format("x" * 5000))
    assert len(str(refused.value)) < 2000


def test_ranges_of_whole_numbers_stay_whole() -> None:
    assert parse_axis("training.batch_size=8..64:log:4").values == (8, 16, 32, 64)
    assert parse_axis("model.dropout=0..1:3").values == (0.0, 0.5, 1.0)
    with pytest.raises(FledgeError, match=r"model\.layers takes whole numbers"):
        parse_axis("model.layers=0.5..4:3")


def test_points_that_are_drawn_twice_are_run_once(config, tmp_path: Path, capsys) -> None:
    pytest.importorskip("optuna")
    axes = [parse_axis("model.layers=1,2")]
    _, outcomes, report = sweep(config, tmp_path / "e", axes, "random", trials=5, prune=False)
    assert sorted(each.arm for each in outcomes) == ["layers=1", "layers=2"]
    assert "3 of the 5 points drawn had been drawn before" in report.read_text()
    assert "±" not in report.read_text().partition("<h2>")[0], "one run shows no uncertainty"
    capsys.readouterr()
    _, again, _ = sweep(config, tmp_path / "e", axes, "random", trials=5, prune=False)
    assert again == outcomes
    for changed in ({"trials": 6}, {"trials": 5, "prune": True}):
        with pytest.raises(FledgeError, match=r"holds another experiment.*(points|prune) = "):
            sweep(config, tmp_path / "e", axes, "random", **{"prune": False, **changed})


def test_a_point_of_which_no_model_is_made_is_drawn_again(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    heads = f"model.heads={config.model.heads}"
    axes = [parse_axis(f"model.width={2 * config.model.width}..{2 * config.model.width + 4 * config.model.heads}:2")]
    _, outcomes, _ = sweep(override_config(config, [heads]), tmp_path / "e", axes, "random", trials=3, prune=False)
    assert outcomes
    assert all(each.status == "complete" for each in outcomes)


@pytest.mark.parametrize(
    ("change", "words"),
    [("training.seed=7", "give --seeds instead"), ("training.steps=9", "--budget and --equal-samples")],
)
def test_settings_that_an_experiment_sets_itself_are_refused(config, tmp_path: Path, change, words) -> None:
    with pytest.raises(FledgeError, match=words):
        ablate(config, tmp_path / "e", [], [Arm("mine", (change,))], budget=60.0, budget_text="1m")
    assert not (tmp_path / "e").exists()


def test_windows_that_a_text_has_not_are_left_out_or_refused_before_the_first_trial(config, tmp_path: Path) -> None:
    arms = [Arm("long", ("tokens.context_length=4096",))]
    with pytest.raises(FledgeError, match="The arm 'long' cannot be run"):
        ablate(config, tmp_path / "e", [], arms)
    every = [Arm(BASE), Arm("long", arms[0].changes)]
    found, said = with_windows(config, every, [], tmp_path / "f")
    assert [arm.name for arm in found] == [BASE]
    assert said[0].startswith("long is left out: The")


def test_processes_help_no_more_than_there_are_cores_and_trials(config, monkeypatch) -> None:
    cores = machine_threads()
    single = override_config(config, ["training.threads=1"])
    assert gain(Engine("local", 1), single, 9) == 1.0
    assert gain(Engine("local", 64), single, 99) <= 0.9 * cores or cores == 1
    assert gain(Engine("local", 64), single, 1) == 1.0
    pytest.importorskip("ray")
    monkeypatch.setattr(engines, "_ray_places", lambda *_: 4)
    monkeypatch.setattr(engines, "_ray", lambda: None)
    assert gain(Engine("ray", 8), single, 99) == pytest.approx(3.6)


def test_trials_are_for_methods_that_draw(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FledgeError, match="--trials is for --method random or tpe"):
        sweep(config, tmp_path / "e", [parse_axis("model.layers=1,2")], "grid", trials=4)
    assert not (tmp_path / "e").exists()


def test_what_is_no_better_than_counting_is_not_compared() -> None:
    runs = [
        outcome(arm, seed, loss + seed / 100) for arm, loss in ((BASE, 2.0), ("a", 1.5), ("b", 2.5)) for seed in (0, 1)
    ]
    said = ablation_answer(plan([BASE, "a", "b"], 2), runs, "validation_loss", {BASE: 3.0, "a": 1.2, "b": 3.0})
    assert "No better than counting tokens, so nothing was learned to compare: a." in said
    assert "Better" not in said
    assert "b +0.5" in said
    weak = ablation_answer(plan([BASE, "a", "b"], 2), runs, "validation_loss", {BASE: 1.9, "a": 1.2, "b": 3.0})
    assert weak.startswith("No conclusion: the recipe itself did not get below the 1.900 nats of counting tokens")


def test_a_base_that_diverged_in_part_is_told() -> None:
    outcomes = [outcome(BASE, 0, 2.0), outcome(BASE, 1, None, "diverged"), outcome("a", 0, 2.5), outcome("a", 1, 2.6)]
    said = ablation_answer(plan([BASE, "a"], 2), outcomes, "validation_loss")
    assert said.startswith("The recipe itself diverged with 1 of 2 seeds")


@pytest.mark.parametrize("method", ["grid", "random"])
def test_a_refused_sweep_leaves_its_folder_free(config, tmp_path: Path, method) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FledgeError, match=r"model\.architecture = 'foo'\. Known: bdh, gru, lstm"):
        sweep(config, tmp_path / "e", [parse_axis("model.architecture=foo,lstm")], method)
    with pytest.raises(FledgeError, match="heads"):
        sweep(config, tmp_path / "e", [parse_axis("model.heads=2,3")], method)
    assert not (tmp_path / "e").exists()


def test_two_processes_do_not_share_an_experiment(config, tmp_path: Path) -> None:
    with alone_in(tmp_path / "e"), pytest.raises(FledgeError, match="Another process is at work in"):
        ablate(config, tmp_path / "e", ["tied"])


# -- the study ---------------------------------------------------------------------------------------------------------


def test_a_damaged_study_is_one_sentence_and_can_be_removed(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    folder, axis = tmp_path / "e", parse_axis("model.tied=true,false")
    _, outcomes, _ = sweep(config, folder, [axis])
    (folder / "study.db").write_bytes(b"no database at all, but some text" * 100)
    with pytest.raises(FledgeError, match=r"study\.db cannot be used \(file is not a database\)\. Remove it"):
        sweep(config, folder, [axis])
    (folder / "study.db").unlink()
    assert sweep(config, folder, [axis])[1] == outcomes


def test_a_full_disk_is_one_sentence(config, tmp_path: Path, monkeypatch) -> None:
    optuna = pytest.importorskip("optuna")
    import sqlite3

    import sqlalchemy

    def full(**options: object) -> None:
        raise sqlalchemy.exc.OperationalError("CREATE", {}, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(optuna, "create_study", full)
    with pytest.raises(
        FledgeError, match=r"study\.db could not be written: database or disk is full\. Free some space"
    ):
        sweep(config, tmp_path / "e", [parse_axis("model.tied=true,false")])


# -- equal samples -----------------------------------------------------------------------------------------------------


def test_equal_samples_are_equal_for_every_batch_size(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = override_config(config, ["training.steps=11"])  # 44 windows: 36 are whole steps of 3, 4 and 12
    axes = [parse_axis("training.batch_size=3,4,12")]
    _, outcomes, report = sweep(config, tmp_path / "e", axes, equal_samples=True, prune=False, fewest_steps=3)
    assert {each.tokens for each in outcomes} == {36 * 16}
    assert "saw the same 576 tokens" in report.read_text()


def test_a_batch_with_too_few_steps_is_refused_before_anything_is_planned(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = override_config(config, ["training.steps=14", "training.batch_size=32"])
    axes = [parse_axis("training.batch_size=1,256")]
    with pytest.raises(FledgeError, match=r"448 windows, of which a batch of 256 makes 1 step, .* above 44"):
        sweep(config, tmp_path / "e", axes, equal_samples=True, fewest_steps=10)
    assert not (tmp_path / "e" / "plan.json").exists()
    with pytest.raises(FledgeError, match="1,001 as their least common multiple"):
        equal_windows(50, 16, [7, 11, 13], 10)
    assert equal_windows(14, 32, [1, 32], 10) == 448
    assert equal_windows(3, 2, [1], 10) == 6, "who asks for few steps gets them"


def test_tokens_hold_for_every_point_and_the_report_says_how_many_each_saw(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = override_config(config, ["training.steps=none", "training.tokens=768", "schedule.warmup_steps=4"])
    axes = [parse_axis("tokens.context_length=8,16"), parse_axis("training.batch_size=4,8")]
    _, outcomes, report = sweep(config, tmp_path / "e", axes, prune=False)
    assert {each.tokens for each in outcomes} == {768}
    assert sorted(each.step for each in outcomes) == [6, 12, 12, 24]
    warm = [load_recipe(p).schedule.warmup_steps for p in sorted((tmp_path / "e" / "trials").glob("*/config.json"))]
    assert sorted(warm) == [2, 4, 4, 8], "the same share of every trial"
    assert "after 768 tokens" in report.read_text()
    assert "768 tokens for each arm" in report.read_text()
    assert sweep(config, tmp_path / "e", axes, prune=False)[1] == outcomes
    _, outcomes, report = ablate(config, tmp_path / "a", [], [parse_arm("long: tokens.context_length=32")])
    assert [each.tokens for each in outcomes] == [768, 768]
    assert "768 tokens for each arm" in report.read_text()


def test_a_plan_of_fixed_steps_is_taken_up_where_tokens_are_the_same_for_all(config, tmp_path: Path) -> None:
    """Plans were once written with the steps of the recipe: what cannot differ goes on, and the rest is refused."""
    tokens = override_config(config, ["training.steps=none", "training.tokens=256"])
    arms = [parse_arm("wide: model.width=32")]
    _, outcomes, _ = ablate(config, tmp_path / "e", [], arms)
    assert ablate(tokens, tmp_path / "e", [], arms)[1] == outcomes
    arms = [parse_arm("long: tokens.context_length=32")]
    ablate(config, tmp_path / "f", [], arms)
    with pytest.raises(FledgeError, match=r"another experiment.*training\.steps = 4 there, None here"):
        ablate(tokens, tmp_path / "f", [], arms)


def test_unequal_tokens_are_said_with_what_would_make_them_equal(config, tmp_path: Path) -> None:
    runs, axes = [outcome("a", tokens=128), outcome("b", tokens=256)], [Axis("tokens.context_length", (8, 16))]
    points = {"a": {"tokens.context_length": 8}, "b": {"tokens.context_length": 16}}
    given = landscape.sweep_answer(runs, axes, points, "validation_loss", whole=True, equal_samples=True)
    assert "on 128 to 256: --equal-samples gives them equally many windows, and these differ in length" in given
    assert "with --equal-samples" not in given
    batches = unequal_tokens([outcome("a", tokens=64), outcome("b", tokens=640)], [BATCH, RATE])
    assert batches.endswith("with --equal-samples all would see as many.")
    _, _, report = ablate(config, tmp_path / "a", [], [parse_arm("long: tokens.context_length=32")])
    text = report.with_suffix(".md").read_text()
    assert "not all were trained on equally many tokens, but on 256 to 512" in text.lower()
    assert "| 512 |" in text


def test_what_is_said_of_samples_is_what_the_trials_saw() -> None:
    unequal = [outcome("a", tokens=28672), outcome("b", tokens=16384)]
    assert "between 16,384 and 28,672" in samples_sentence(unequal)
    assert "the same" not in samples_sentence(unequal)


# -- what is concluded -------------------------------------------------------------------------------------------------


def points_of(rates: list[float], batches: list[int], losses: list[float], seeds: int = 1) -> tuple[list, list, dict]:
    points = {f"{rate:g} {batch}": {RATE: rate, BATCH: batch} for rate in rates for batch in batches}
    runs = [outcome(n, seed, loss) for n, loss in zip(points, losses, strict=True) for seed in range(seeds)]
    return runs, [Axis(RATE, tuple(rates)), Axis(BATCH, tuple(batches))], points


def test_rates_at_the_end_of_the_grid_are_no_law_of_batches() -> None:
    runs, axes, points = points_of([1e-3, 1e-2], [1, 256], [5.2, 6.7, 4.9, 6.6])
    said = landscape.sweep_answer(runs, axes, points, "validation_loss", whole=True)
    assert "One seed shows no uncertainty" in said
    assert "The best learning_rate is the largest tried: a better one may lie beyond" in said
    assert "an end of the rates tried" in said
    assert "times the batch took" not in said
    runs, axes, points = points_of([1e-3, 3e-3, 1e-2, 1e-1], [1, 8], [3, 4, 2, 3, 3, 2, 4, 4], seeds=2)
    said = landscape.sweep_answer(runs, axes, points, "validation_loss", whole=True)
    assert "8 times the batch took 3.33 times the rate" in said
    assert "One seed" not in said


def test_an_ablation_claims_only_what_stands_out() -> None:
    arms = [BASE, "no norm", "wide", "hot", "odd"]
    losses = {BASE: [2.0, 2.1], "no norm": [2.5, 2.6], "wide": [1.8, 2.6], "odd": [1.9, 2.0]}
    runs = [outcome(arm, seed, loss) for arm, found in losses.items() for seed, loss in enumerate(found)]
    runs.append(outcome("hot", 0, None, "diverged"))
    said = ablation_answer(plan(arms, 2), runs, "validation_loss")
    assert re.search(r"Worse than the recipe as it is: no norm \+0\.5000 ± 0\.0\d+\.", said)
    assert re.search(r"Better: odd -0\.1000 ± 0\.0\d+\.", said)
    assert re.search(r"No difference shown: wide \+0\.1500 ± \d", said)
    assert "Training diverged: hot." in said
    alone = ablation_answer(plan(arms), [run for run in runs if run.seed == 0], "validation_loss")
    assert "One seed shows no uncertainty, so no difference is shown yet" in alone
    assert "Worse" not in alone
    assert ablation_answer(plan([BASE]), [outcome(BASE, 0, None, "diverged")], "validation_loss").startswith(
        "No conclusion"
    )


def test_the_windows_are_all_ways_that_a_transformer_can_use(config) -> None:
    arms = {arm.name: arm.changes for arm in group_arms("windows", config)}
    assert "slide-through" in arms
    assert arms["aligned, cut"] == ("tokens.policy=aligned", "tokens.remainder=cut")
    assert "stream" not in arms
    cut = override_config(config, ["tokens.policy=aligned", "tokens.remainder=cut"])
    names = [arm.name for arm in group_arms("windows", cut)]
    assert "aligned, cut" not in names
    assert {"aligned, padded", "stream"} <= set(names)
    check_arms(config, [Arm(BASE), *group_arms("windows", config)])


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_landscape_marks_points_and_where_training_diverged() -> None:
    points = {f"{rate:g}": {RATE: rate} for rate in (0.1, 1.0, 10.0)}
    runs = [outcome("0.1", 0, 4.0), outcome("1", 0, 3.0), outcome("10", 0, None, "diverged")]
    page = Page("?")
    landscape.add_landscape(page, runs, [Axis(RATE, (0.1, 1.0, 10.0))], points, "validation_loss")
    drawing = page.drawings[0]
    assert ">diverged<" in drawing
    assert "training diverged there" in page.markdown()
    assert drawing.count("<use") > 3, "every point has a mark"
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", drawing)
    assert {"0.1", "1", "10"} <= set(ticks), "a list of values over two decades has a logarithmic axis"
    assert "mathdefault" not in drawing
    page = Page("?")
    tied = [Axis("model.tied", (True, False))]
    landscape.add_landscape(page, runs[:2], tied, {"0.1": {}, "1": {}}, "validation_loss")
    assert not page.drawings


def test_curves_beyond_the_picture_are_named_and_not_in_its_legend(tmp_path: Path) -> None:
    curves = {"good": [5.0, 3.0], "slow": [6.0, 5.0], "burst": [900.0, 2000.0]}
    for name, losses in curves.items():
        rows = [f"{n},0,{n},,{loss}" for n, loss in enumerate(losses, 1)]
        write_json(tmp_path / name / "config.json", {})
        (tmp_path / name / "metrics.csv").write_text("\n".join([HEADER, *rows, ""]))
    runs = [
        Outcome(name, 0, status, 2, 2, 1, 1.0, validation_loss=loss, folder=name)  # type: ignore[arg-type]
        for name, status, loss in (("good", "complete", 3.0), ("slow", "complete", 5.0), ("burst", "diverged", None))
    ]
    page = Page("?")
    findings.add_curves(page, plan(list(curves)), runs, tmp_path)
    assert ">slow<" in page.drawings[0]
    assert ">burst<" not in page.drawings[0]
    assert "Not shown, for it lies above: burst." in page.markdown()


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_a_trial_is_told_with_what_was_said_of_it() -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    there.send((outcome("a"), ["A sentence."]))
    process = threading.Thread(target=int)
    process.start()
    with pytest.warns(UserWarning, match=r"^A sentence\.$"):
        assert processes.Job(process, here, None, shared=False).result() == outcome("a")


def test_samples_of_a_trial_that_outgrow_the_context_are_no_news(config, tmp_path: Path) -> None:
    config = override_config(config, ["sampling.max_tokens=40"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run_trial(Trial("a", config), tmp_path / "e")
    assert not any("outgrows" in str(each.message) for each in said)


@pytest.mark.slow
def test_what_a_process_warns_of_is_said_by_the_one_that_began_it(config, tmp_path: Path, capfd) -> None:
    arms = [Arm("gru", ("model.architecture=gru",)), Arm("lstm", ("model.architecture=lstm",))]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ablate(config, tmp_path / "e", [], arms, engine=Engine("local", 2))
    assert any("no effect on model.architecture = gru" in str(each.message) for each in said)
    assert "UserWarning" not in capfd.readouterr().err


def test_the_command_line_answers_a_refused_sweep_with_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    command = [sys.executable, "-m", "fledge", "sweep", "akjv-demo", "--over", "model.architecture=foo,lstm"]
    done = subprocess.run([*command, "--out", str(tmp_path / "e")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "e").exists()


# -- what is compared by ----------------------------------------------------------------------------------------------


def test_points_with_tokens_of_their_own_compare_by_bits_per_byte(config, tmp_path: Path, capsys) -> None:
    """In nats per token the smaller vocabulary always seems better: its tokens hold less."""
    pytest.importorskip("optuna")
    axes = [parse_axis("tokenizer.vocabulary_size=260,800")]
    calm = override_config(config, ["optimizer.name=adamw", f"{RATE}=1e-4", "schedule.warmup_steps=6"])
    _, outcomes, report = sweep(calm, tmp_path / "e", axes)
    best = min(outcomes, key=lambda each: each.bits_per_byte or 9.9)
    page = report.with_suffix(".md").read_text()
    assert f"{best.arm}, with a validation loss of {best.bits_per_byte:.4f} bits per byte" in page
    assert "Each arm on tokens of its own: heights are not to be held against each other" in page
    assert "No point is pruned" in capsys.readouterr().out
    study = optuna_values(tmp_path / "e")
    assert sorted(study) == pytest.approx(sorted(each.bits_per_byte for each in outcomes))


def optuna_values(folder: Path) -> list[float]:
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'study.db'}")
    return [trial.value for trial in study.trials]


def test_a_rate_of_muon_takes_that_of_the_matrices_along(config) -> None:
    muon = override_config(config, ["optimizer.name=muon", f"{RATE}=0.003", "optimizer.matrix_learning_rate=0.02"])
    assert changes_of({RATE: 0.03}, muon) == (f"{RATE}=0.03", "optimizer.matrix_learning_rate=0.2")
    assert changes_of({RATE: 0.03, "optimizer.name": "adamw"}, muon) == (f"{RATE}=0.03", "optimizer.name=adamw")
    given = {RATE: 0.03, "optimizer.matrix_learning_rate": 0.01}
    assert changes_of(given, muon) == (f"{RATE}=0.03", "optimizer.matrix_learning_rate=0.01")
    assert changes_of({BATCH: 8}, muon) == (f"{BATCH}=8",)
    assert "6.67 times optimizer.learning_rate" in matrix_rates(muon, [Axis(RATE, (1e-3, 1e-2))])
    assert matrix_rates(muon, [Axis(RATE, (1e-3, 1e-2)), Axis("optimizer.name", ("adamw", "sgd"))]) == ""
    assert matrix_rates(config, [Axis(RATE, (1e-3, 1e-2)), Axis("optimizer.name", ("adamw", "muon"))])
    assert not matrix_rates(override_config(muon, ["optimizer.name=adamw"]), [Axis(RATE, (1e-3, 1e-2))])


def test_a_setting_given_twice_is_refused_whatever_the_method(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    axes = [parse_axis("model.layers=1,2"), parse_axis("model.layers=3,4")]
    for method in ("grid", "random"):
        with pytest.raises(FledgeError, match=r"model\.layers is given twice"):
            sweep(config, tmp_path / "e", axes, method)  # type: ignore[arg-type]
    assert not (tmp_path / "e").exists()


def test_the_largest_batch_of_a_refused_sweep_is_not_taken_for_another(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    write_json(tmp_path / "e" / "data" / "largest-batch.json", {"batch_size": 12345, "limit": "time", "memory": 1})
    axes = [parse_axis(f"{BATCH}=1,max")]
    _, outcomes, _ = sweep(config, tmp_path / "e", axes, equal_samples=True)
    assert all("12345" not in each.arm for each in outcomes)


@pytest.mark.parametrize("architecture", ["lstm", "bdh"])
def test_only_parts_that_a_model_has_are_taken_away(architecture: str) -> None:
    recipe = load_recipe(architecture)
    with pytest.raises(FledgeError, match=f"architecture = {architecture}, has none of the parts"):
        group_arms("architecture", recipe)
    plain = load_recipe("akjv-demo", ["model.position=none", "model.norm_place=post"])
    assert [arm.name for arm in group_arms("architecture", plain)] == ["no norm", "no norm, lower rate", "SiLU"]
    with pytest.raises(FledgeError, match=r"model\.tied has no effect"):
        group_arms("tied", load_recipe("bdh"))


def test_a_folder_with_something_else_is_refused_before_anything_is_written(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    place = tmp_path / "mine"
    place.mkdir()
    (place / "diary.txt").touch()
    for run in (
        lambda: ablate(config, place, ["tied"]),
        lambda: sweep(config, place, [parse_axis("model.layers=1,2")]),
        lambda: compare(["transformer", "lstm"], config, place),
    ):
        with pytest.raises(FledgeError, match="is not an experiment"):
            run()
    assert [path.name for path in place.iterdir()] == ["diary.txt"]


def test_counting_tokens_is_a_unigram_model_without_its_memory(config, tmp_path: Path, monkeypatch) -> None:
    settings = with_shared_data(config, tmp_path)
    store = TokenStore.open(settings.tokens.store or "")
    train, validation = (store.split(name).tokens for name in ("train", "validation"))
    wanted = KneserNey(train, store.vocabulary_size, 1).loss(validation)
    monkeypatch.setattr(trials, "COUNTED", 100)
    trials._unigram_loss.cache_clear()
    assert trials.unigram_loss(settings) == pytest.approx(wanted, rel=1e-12)


def test_a_look_at_a_machine_is_short_when_there_are_hundreds(tmp_path: Path, monkeypatch) -> None:
    clock = CostClock(tmp_path, budget=2000.0)
    assert clock.least() == 10.0
    monkeypatch.setattr(clock, "began", clock.began - 101.0)
    assert clock.least() == 1.0


def test_several_at_once_make_a_budget_longer_and_the_advice_shorter() -> None:
    costs = [Cost(step=0.1, window=0.001)] * 2
    assert steps_that_fit(costs, 60, "1m", 32, gain=2.0).steps == pytest.approx(
        2 * steps_that_fit(costs, 60, "1m", 32).steps, rel=0.1
    )
    needs = []
    for gain_ in (1.0, 4.0):
        with pytest.raises(FledgeError, match=r"Give about (\d+)m") as error:
            steps_that_fit([Cost(step=60.0, window=0.1)] * 2, 60, "1m", 32, gain_)
        needs.append(int(re.search(r"about (\d+)m", str(error.value))[1]))  # type: ignore[index]
    assert needs[1] < needs[0] / 3


def test_each_process_has_a_gpu_of_its_own_while_there_are_some(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("fledge.devices.count", lambda kind: 3)
    assert processes.visible_gpus() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert processes.visible_gpus() == ["5", "7"]


def test_what_a_trial_elsewhere_raises_comes_back_as_words(monkeypatch, tmp_path: Path, config) -> None:
    class Odd(Exception):
        def __reduce__(self) -> str:
            raise TypeError("cannot travel")

    def broken(*_: object) -> Outcome:
        raise Odd("not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(processes, "run_trial", broken)
    found, said = processes.run_heard(Trial("a", config), tmp_path)
    with pytest.raises(RuntimeError, match="Odd: not enough memory"):
        processes.heard(found, said)


# -- what a newcomer tried --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("optimizer.learning_rate=low,high", "learning_rate"),
        ("optimizer.learning_rate=1e-3,,1e-2", "learning_rate"),
        ("name=a,b", "no result depends on it"),
        ("model.multiplier=2,4", "no effect on model.architecture = transformer"),
        ("training.device=cpu,gpu", "not a device that fledge supports"),
    ],
)
def test_values_that_no_trial_can_use_are_refused_before_the_first(config, tmp_path: Path, over, words) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FledgeError, match=words):
        sweep(config, tmp_path / "e", [parse_axis(over)])
    assert not (tmp_path / "e" / "trials").exists()


def test_a_range_of_any_size_is_refused_at_once() -> None:
    with pytest.raises(FledgeError, match=r"1,000,000,000,000,000,000 points"):
        parse_axis("optimizer.learning_rate=1e-3..1e-1:log:1000000000000000000")
    with pytest.raises(FledgeError, match="number of steps"):
        parse_axis("optimizer.learning_rate=1e-3..1e-1:log:³")
    assert parse_axis("corpus.source=../a.txt,../b.txt").values == ("../a.txt", "../b.txt")


def test_seeds_begin_with_the_one_that_is_set(config, tmp_path: Path) -> None:
    found, outcomes, _ = ablate(override_config(config, ["training.seed=7"]), tmp_path / "e", ["tied"], seeds=2)
    assert found.seeds == (7, 8)
    assert {each.seed for each in outcomes} == {7, 8}


def test_a_signal_at_the_end_of_a_trial_stops_those_that_follow(config, tmp_path: Path, monkeypatch) -> None:
    """It came after the last step was begun, so that training itself never saw it."""
    from fledge.training.stops import Stops

    def measured(place: Path) -> dict[str, object]:
        Stops.last_signal = time.monotonic()
        return real(place)

    real = trials.last_metrics
    monkeypatch.setattr(Stops, "last_signal", -1.0)
    monkeypatch.setattr(trials, "last_metrics", measured)
    with pytest.raises(KeyboardInterrupt):
        run_trial(Trial("a", override_config(config, ["schedule.warmup_steps=9"])), tmp_path)
    assert (tmp_path / "trials" / "a-seed0" / "outcome.json").is_file(), "what was done is kept"


def test_a_first_batch_of_few_tokens_makes_nothing_diverge(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    slow = override_config(config, ["optimizer.name=adamw", "training.batch_size=1", "training.steps=8"])
    _, outcomes, _ = sweep(slow, tmp_path / "e", [parse_axis(f"{RATE}=1e-7,1e-6")], seeds=3)
    assert {each.status for each in outcomes} <= {"complete", "pruned"}


def test_the_same_model_twice_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match="akjv-demo and transformer are the same model here"):
        compare(["akjv-demo", "transformer"], load_recipe("akjv-demo"), tmp_path / "e", match="tokens")
    with pytest.raises(FledgeError, match="the size can't be varied"):
        group_arms("vocabulary", load_recipe("akjv-demo", ["tokenizer.kind=character"]))


def test_the_lowest_of_several_names_those_it_is_not_told_apart_from() -> None:
    losses = {BASE: [2.5, 2.6], "packed": [2.0, 2.1], "full": [2.02, 2.06], "longest": [2.9, 3.0]}
    runs = [outcome(arm, seed, loss) for arm, found in losses.items() for seed, loss in enumerate(found)]
    arms = tuple(Arm(name, (f"tokens.policy={name}",) if name != BASE else ()) for name in losses)
    asked = ExperimentPlan("ablate", "Which way of laying windows?", {}, arms, (0, 1), {})
    said = ablation_answer(asked, runs, "validation_loss")
    assert re.match(r"Lowest: full, with 2\.0400 ± [\d.]+, not told apart from .*packed", said)
    assert "after training on 64 tokens, padding included" in said
