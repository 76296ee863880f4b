"""What is matched agrees within one per cent over all arms, what was set stays set, and what changes is said."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fledge.accounting import Account
from fledge.config import ModelConfig, RunConfig, load_recipe, override_config, recipe_names
from fledge.errors import FledgeError
from fledge.experiments.compare import ARCHITECTURES, ArmCosts, arm_config, compare, moved
from fledge.experiments.match import TOLERANCE, relative_spread, same_parameters, same_work
from fledge.experiments.plan import Arm, ExperimentPlan, Pace, make_plan, warm_up
from fledge.experiments.ranking import how_matched
from fledge.experiments.setup import without_budget
from fledge.experiments.timing import Cost, CostClock
from fledge.experiments.trials import Outcome

TEXT = Path(__file__).parents[2] / "CONTRIBUTING.md"
SMALL = [
    "tokenizer.vocabulary_size=300",
    "tokens.context_length=16",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "training.batch_size=4",
    "training.evaluate_windows=4",
    "training.threads=1",
]


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    return load_recipe("akjv-demo", [*SMALL, "training.steps=4", f"corpus.source={tmp_path / 'text.txt'}"])


def sizes(configs: list[RunConfig], vocabulary_size: int) -> list[int]:
    """Of models whose settings are allowed, counted anew."""
    models = [ModelConfig.model_validate(config.model.model_dump()) for config in configs]
    return [
        Account(model, vocabulary_size, config.tokens.context_length).parameters.total
        for model, config in zip(models, configs, strict=True)
    ]


@pytest.mark.parametrize("vocabulary_size", [512, 1000, 4096, 10_000])
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("width", [32, 48, 64, 128, 256])
def test_arms_have_the_same_parameters_whichever_comes_first(width: int, layers: int, vocabulary_size: int) -> None:
    base = load_recipe("akjv-demo", [f"model.width={width}", f"model.layers={layers}"])
    arms = {name: arm_config(name, base) for name in ARCHITECTURES}
    orders = [(first, *(name for name in ARCHITECTURES if name != first)) for first in ARCHITECTURES]
    pairs = itertools.permutations(ARCHITECTURES, 2) if vocabulary_size == 512 else []
    for names in [*orders, *pairs]:
        asked = [arms[name] for name in names]
        found = sizes(same_parameters(names, asked, vocabulary_size), vocabulary_size)
        assert relative_spread(found) <= TOLERANCE, (names, found)
        assert abs(found[0] / sizes(asked[:1], vocabulary_size)[0] - 1) < 0.04, f"{names[0]} moved too far"


def test_a_first_arm_that_all_can_meet_is_left_alone() -> None:
    base = load_recipe("tinystories")
    asked = [arm_config(name, base) for name in ("transformer", "gpt2", "bdh", "lstm")]
    found = same_parameters(["transformer", "gpt2", "bdh", "lstm"], asked, 10_000)
    assert found[0] == asked[0]
    assert moved("transformer", asked[0], found[0], 10_000) == []


def test_a_first_arm_that_moves_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    base = load_recipe("akjv-demo", ["model.layers=2", "model.width=64"])
    names = ["gpt2", "bdh", "lstm"]
    asked = [arm_config(name, base) for name in names]
    found = same_parameters(names, asked, 512)
    (line,) = moved("gpt2", asked[0], found[0], 512)
    before, after = sizes(asked, 512)[0], sizes(found, 512)[0]
    assert line.startswith(f"The settings give gpt2 {before:,} parameters, and ")
    assert f": it has {after:,} here (model." in line
    assert capsys.readouterr().out == f"{line}\n"


def test_a_match_that_no_size_satisfies_names_the_arm_the_nearest_and_what_would_do() -> None:
    base = load_recipe("akjv-demo", ["model.layers=1", "model.width=8", "model.hidden=1"])
    names = ["transformer", "lstm"]
    asked = [arm_config(name, base) for name in names]
    asked[0] = override_config(asked[0], ["model.heads=1", "model.width=2", "model.norm=none"])
    with pytest.raises(FledgeError) as caught:
        same_parameters(names, asked, 30)
    sentence = str(caught.value)
    assert sentence.startswith("lstm has no size of")
    assert "its nearest is width 1 with" in sentence
    width = int(sentence.partition("transformer with width ")[2].split()[0])
    asked[0] = override_config(asked[0], [f"model.width={width}"])
    assert relative_spread(sizes(same_parameters(names, asked, 30), 30)) <= TOLERANCE


@pytest.mark.parametrize("steps", [60, 100, 137, 1000])
@pytest.mark.parametrize("longer", [True, False])
def test_whole_steps_give_the_same_work(steps: int, longer: bool) -> None:
    costs = [1.0, 2.13, 0.61]
    found = same_work(["a", "b", "c"], costs, steps, "flops", longer)
    assert relative_spread(cost * count for cost, count in zip(costs, found.values(), strict=True)) <= TOLERANCE
    assert 0.8 * steps <= found["a"] <= (1.25 * steps if longer else steps)


def test_too_few_steps_are_refused_with_how_many_would_do() -> None:
    with pytest.raises(FledgeError, match=r"10 steps of a are too few to match flops: in whole steps") as caught:
        same_work(["a", "b"], [1.0, 20.7], 10, "flops", longer=True)
    enough = int(str(caught.value).partition("training.steps=")[2].partition(":")[0])
    assert relative_spread([enough, 20.7 * same_work(["a", "b"], [1.0, 20.7], enough, "flops", True)["b"]]) <= TOLERANCE
    with pytest.raises(FledgeError, match="times the time"):
        same_work(["a", "b"], [1.0, 20.7], 10, "time", longer=False)


def test_steps_of_matched_flops_are_kept_with_the_plan_and_nothing_is_left_where_they_are_too_few(
    config: RunConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "few"
    with pytest.raises(FledgeError, match="too few to match flops"):
        compare(["transformer", "gru"], override_config(config, ["training.steps=2"]), folder, "flops", seeds=1)
    assert not (folder / "plan.json").exists(), "a longer run may use the same folder"
    config = override_config(config, ["training.steps=30"])
    plan, outcomes, report = compare(["transformer", "gru"], config, folder, "flops", seeds=1)
    assert relative_spread(outcome.flops for outcome in outcomes) <= TOLERANCE
    steps = {outcome.arm.partition(" ")[0]: outcome.step for outcome in outcomes}
    assert plan.facts["arm_steps"] == steps
    assert "Matched: flops, " in report.read_text()
    again, _, _ = compare(["transformer", "gru"], config, folder, "flops", seeds=1)
    assert again == plan


def test_matched_time_is_by_measured_steps_and_says_their_ratio(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(CostClock, "cost", lambda self, config: Cost(0.01 * config.model.width, 0.001))
    arms = [Arm("a"), Arm("b", ("model.width=40",))]
    facts = ArmCosts(["a", "b"], [config, config], arms, "time", 300, tmp_path).facts(config, 200, longer=True)
    assert relative_spread(facts["step_costs"][name] * facts["arm_steps"][name] for name in "ab") <= TOLERANCE
    plan = ExperimentPlan("compare", "?", {}, tuple(arms), (0,), facts)
    assert "2.5 times that for b" in how_matched(plan, [], "time")
    outcomes = [Outcome(name, 0, "complete", 1, 1, size, 1.0) for name, size in (("a", 1000), ("b", 1008))]
    assert how_matched(plan, outcomes, "parameters") == "Matched: parameters, which differ by 0.80% at most."
    assert how_matched(plan, outcomes, "tokens") == "Matched: tokens, the same for all."


def test_a_warm_up_that_was_set_stays_and_one_that_is_cut_is_said(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = override_config(config, ["schedule.warmup_steps=2", "training.steps=10"])
    plan = make_plan("ablate", "?", chosen, [Arm("a")], 1, tmp_path / "set")
    assert plan.config["schedule"]["warmup_steps"] == 2
    assert capsys.readouterr().out == ""
    plan = make_plan("ablate", "?", config, [Arm("a")], 1, tmp_path / "recipe")
    assert plan.config["schedule"]["warmup_steps"] == 0
    assert plan.facts["notes"] == warm_up(config, 4)[1]
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\n[schedule]\nwarmup_steps = 3\n')
    mine = override_config(load_recipe(own), ["training.steps=20"])
    assert warm_up(mine, 20) == (3, []), "set in a recipe of one's own"
    assert warm_up(mine, 3)[1] == [
        "The warm-up of 3 steps that was set is not over within the 3 steps: the learning rate never reaches its peak."
    ]
    own.write_text('name = "own"\n')
    assert warm_up(load_recipe(own), 20)[0] == 2, "a default is cut"
    assert "warm-up of 100 steps that the recipe has was cut to 0" in capsys.readouterr().out


def test_a_budget_says_that_it_decides_the_length(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = override_config(config, ["schedule.warmup_steps=0", "training.steps=7"])
    make_plan("ablate", "?", chosen, [Arm("a")], 1, tmp_path / "plan", lambda config: Pace(12, 4), "1m")
    assert capsys.readouterr().out == "--budget 1m decides: 12 steps, not the 7 of training.steps.\n"


def test_the_command_for_as_many_steps_has_no_budget_and_no_other_length() -> None:
    same = "--set training.steps=60 --set training.tokens=none --set training.evaluate_windows=32"
    for budget in ("--budget 15m", "--budget=15m"):
        said = without_budget(f"fledge ablate akjv {budget} --set=training.steps=9 --set model.layers=2", 60, 32)
        assert said == f"fledge ablate akjv {same} --set model.layers=2"
    assert without_budget("don't split this", 60, 32) == "don't split this"


def test_another_experiment_is_told_apart_in_a_few_words(config: RunConfig, tmp_path: Path) -> None:
    arms = [Arm(f"an arm with a long name, number {number}", ("model.width=32",) * 9) for number in range(20)]
    make_plan("compare", "Which is best?", config, arms, 3, tmp_path / "plan")
    other = override_config(config, ["model.layers=2", "optimizer.learning_rate=1e-2", "training.batch_size=2"])
    with pytest.raises(FledgeError, match="holds another experiment") as caught:
        make_plan("compare", "Which is best?", other, arms[:3], 2, tmp_path / "plan")
    sentence = str(caught.value)
    assert "seeds: 3 there, 2 here" in sentence
    assert "{" not in sentence
    assert len(sentence) < 450 + len(str(tmp_path))
    with pytest.raises(FledgeError, match=r"model.layers = 1 there, 2 here; optimizer.learning_rate"):
        make_plan("compare", "Which is best?", other, arms, 3, tmp_path / "plan")


def test_an_unknown_arm_is_answered_with_each_known_one_once() -> None:
    with pytest.raises(FledgeError, match="neither a recipe nor an architecture") as caught:
        arm_config("zzz", load_recipe("akjv-demo"))
    known = str(caught.value).partition("Known: ")[2].rstrip(".").split(", ")
    assert sorted(known) == sorted({*recipe_names(), *ARCHITECTURES})
