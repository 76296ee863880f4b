"""Experiments: what is varied, what is matched, what is concluded; a killed experiment runs nothing twice."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.accounting import Account
from fledge.config import load_recipe, override_config
from fledge.errors import FledgeError
from fledge.experiments.ablate import ablate, parse_arm
from fledge.experiments.compare import arm_config, compare
from fledge.experiments.match import relative_spread, same_parameters
from fledge.experiments.plan import Arm
from fledge.experiments.ranking import lost_sentences, verdict
from fledge.experiments.space import grid, parse_axis
from fledge.experiments.statistics import apart, estimate, paired_difference, seeds_needed, t95
from fledge.experiments.sweep import sweep
from fledge.experiments.trials import Outcome
from fledge.reports.finished import result_of
from fledge.run import Run, load
from fledge.training import load_checkpoint

TEXT = Path(__file__).parents[2] / "CONTRIBUTING.md"
SMALL = [
    "tokenizer.vocabulary_size=300",
    "tokens.context_length=16",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "training.steps=4",
    "training.batch_size=4",
    "training.evaluate_windows=4",
    "training.threads=1",
]


@pytest.fixture
def config(tmp_path: Path):
    """A recipe small enough to run in a moment, on a text of a hundred documents."""
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    return load_recipe("akjv-demo", [*SMALL, f"corpus.source={tmp_path / 'text.txt'}"])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer.learning_rate=1e-4..1e-1:log:4", (1e-4, 1e-3, 1e-2, 1e-1)),
        ("training.batch_size=1,8,64", (1, 8, 64)),
        ("model.layers=2..6:3", (2, 4, 6)),
        ("model.norm=rms,none", ("rms", "none")),
        ("model.tied=true,false", (True, False)),
    ],
)
def test_an_axis_has_the_values_it_names(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optimizer.learnin_rate=1,2", "Did you mean optimizer.learning_rate"),
        ("model.layers", "not of the form"),
        ("model.layers=5..2", "must rise"),
        ("optimizer.learning_rate=0..1:log:4", "above 0"),
        ("model.layers=a..b", "not a number"),
        ("model.layers=1..3:many", "number of steps"),
    ],
)
def test_a_wrong_axis_is_answered_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(FledgeError, match=words):
        parse_axis(text)


def test_a_grid_of_a_million_points_is_refused_with_its_size() -> None:
    axes = [parse_axis("optimizer.learning_rate=1e-4..1e-1:log:1000"), parse_axis("training.batch_size=1..1000:1000")]
    with pytest.raises(FledgeError, match=r"1000 × 1000 = 1,000,000"):
        grid(axes)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_the_interval_holds_the_mean_and_shrinks_for_equal_values(values: list[float]) -> None:
    found = estimate(values)
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert estimate([1.0] * 3).half_width == 0
    assert math.isinf(estimate([1.0]).half_width)


def test_what_seeds_share_cancels_in_a_paired_difference() -> None:
    first, second = [1.0, 5.0, 9.0], [1.1, 5.11, 9.09]
    assert apart(paired_difference(first, second))
    assert not apart(paired_difference([1.0, 2.0, 3.0], [3.0, 2.0, 1.5]))


@pytest.mark.parametrize("name", ["gpt2", "lstm", "gru", "rnn", "bdh"])
def test_matched_parameters_agree_within_one_per_cent(name: str) -> None:
    base = load_recipe("akjv-demo")
    found = same_parameters(["mine", name], [base, arm_config(name, base)], 1024)
    assert relative_spread(Account(config.model, 1024, 64).parameters.total for config in found) <= 0.01


@pytest.mark.parametrize("recipe", ["bdh", "lstm"])
def test_architectures_are_what_their_names_say_on_any_recipe(recipe: str) -> None:
    base = load_recipe(recipe)
    for name in ("transformer", "gpt2"):
        assert arm_config(name, base).model.architecture == "transformer"
    assert arm_config(recipe, base) == base


def test_an_ablation_runs_every_arm_once_and_says_what_changed(config, tmp_path, capsys) -> None:
    folder, config = tmp_path / "experiment", override_config(config, ["corpus.test_fraction=0.1"])
    arms = [parse_arm("no position: model.position=none"), parse_arm("hot: optimizer.learning_rate=2e-3")]
    _, outcomes, report = ablate(config, folder, [], arms, seeds=2, command="fledge ablate …")
    assert [(o.arm, o.seed, o.status) for o in outcomes] == [
        (arm, seed, "complete") for seed in (0, 1) for arm in ("as it is", "no position", "hot")
    ]
    text = report.read_text()
    for word in ("no position", "less that of", "fledge ablate", "Seeds: 0, 1", "95 % interval", "<svg"):
        assert word in text
    hot = [o.test_loss for o in outcomes if o.arm == "hot"]
    told = text.partition("On the test part, which no checkpoint or setting was chosen by")[2]
    assert f"hot {estimate(hot)}" in told.partition("</p>")[0]
    model = load(folder / outcomes[2].folder)
    assert hot[0] == model.evaluate(split="test", max_tokens=4 * 16).loss != outcomes[2].validation_loss
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("outcome.json")}
    (folder / "trials" / "hot-seed1" / "outcome.json").unlink()  # as if it had been killed before the end
    _, again, _ = ablate(config, folder, [], arms, seeds=2, command="fledge ablate …")
    assert [o.validation_loss for o in again] == [o.validation_loss for o in outcomes]
    kept = {path: path.stat().st_mtime_ns for path in stamps}
    assert sum(kept[path] != stamps[path] for path in stamps) == 1
    with pytest.raises(FledgeError, match="holds another experiment"):
        ablate(config, folder, [], [Arm("other", ("model.layers=2",))], seeds=2)


def test_a_mistake_in_the_last_arm_is_found_before_the_first_is_run(config, tmp_path) -> None:
    with pytest.raises(FledgeError, match="Did you mean model.layers"):
        ablate(config, tmp_path / "experiment", ["tied"], [Arm("wrong", ("model.laers=2",))])
    assert not (tmp_path / "experiment").exists()


def test_a_sweep_finds_the_edge_of_divergence_and_resumes(config, tmp_path) -> None:
    pytest.importorskip("optuna")
    config = override_config(
        config,
        [
            *("optimizer.name=sgd", "optimizer.clip_norm=none", "schedule.warmup_steps=0", "training.steps=12"),
            "corpus.test_fraction=0.1",
        ],
    )
    folder, axis = tmp_path / "sweep", parse_axis("optimizer.learning_rate=1e-2,1e8")
    _, outcomes, report = sweep(config, folder, [axis])
    assert [outcome.status for outcome in outcomes] == ["complete", "diverged"]
    assert "diverged at learning_rate=1e+08" in report.read_text()
    figure = f"in nats per token: learning_rate=0.01 {outcomes[0].test_loss:.4f}."
    assert figure in report.read_text(), "the best point's own, on the part that it was not chosen by"
    _, again, _ = sweep(config, folder, [axis])
    assert again == outcomes
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'study.db'}")
    assert len(study.trials) == 2


def test_random_points_lie_in_the_range(config, tmp_path) -> None:
    pytest.importorskip("optuna")
    axis = parse_axis("optimizer.learning_rate=1e-4..1e-2:log")
    _, outcomes, _ = sweep(config, tmp_path / "random", [axis], method="random", trials=2)
    rates = [float(outcome.arm.partition("=")[2]) for outcome in outcomes]
    assert len(set(rates)) == 2
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)


def test_a_comparison_tunes_every_arm_alike(config, tmp_path) -> None:
    folder, config = tmp_path / "comparison", override_config(config, ["corpus.test_fraction=0.1"])
    _, outcomes, report = compare(["transformer", "gru"], config, folder, match="tokens", seeds=2, prompt="make")
    assert len(outcomes) == 2 * 3 + 2
    assert {outcome.tokens for outcome in outcomes} == {4 * 4 * 16}
    text = report.read_text()
    for word in ("equal tokens", "Learning rates tried", "unigram", "make▸", "memory", "CPU with"):
        assert word in text
    assert re.search(r"\d [MG]B", text)  # of a worker that has run many tests, gigabytes
    assert ("gru less transformer" in text) != ("transformer less gru" in text)
    setup = text.partition("<h2>Set-up</h2>")[2]
    assert "windows of 16 tokens" in setup
    assert "and for every arm" in setup
    assert "model.context_length" not in setup
    assert "tokens.context_length = 16" in setup
    assert "transformer, 1 layer" not in setup, "what one arm has is not told as if all had it"
    lead = text.partition('class="lead"')[2].partition("</p>")[0]
    assert "On the test part, which no checkpoint or setting was chosen by, in nats per token: " in lead
    arms = text.partition("<h2>Arms</h2>")[2].partition("<h2>Set-up</h2>")[0]
    assert "model.architecture=gru" in arms


def test_a_run_that_went_on_with_another_batch_size_is_reported_with_what_it_saw(config, tmp_path) -> None:
    config = override_config(config, ["training.steps=none", "training.tokens=512", "training.save_every=2"])
    half = Run(override_config(config, ["training.tokens=256"]), tmp_path / "run", quiet=True).train()
    larger = Run(override_config(config, ["training.batch_size=8"]), tmp_path / "run", quiet=True)
    done = larger.train(resume=load_checkpoint(tmp_path / "run"))
    found = result_of(Run.open(tmp_path / "run"))
    assert (half.step, half.tokens, done.step, done.tokens) == (4, 256, 6, 512)
    assert (found.step, found.steps, found.tokens, found.stopped) == (6, 6, 512, None)
    longer = Run.open(tmp_path / "run")
    longer.config = override_config(longer.config, ["training.tokens=1024"])
    assert result_of(longer).steps == 10
    assert "does not record" in (result_of(longer).stopped or ""), "nobody knows why it ended"


def outcome(arm: str, seed: int, loss: float) -> Outcome:
    return Outcome(arm, seed, "complete", 1, 1, 1, 1.0, validation_loss=loss)


def test_the_validity_gate_refuses_what_the_numbers_do_not_show() -> None:
    clear = [outcome("a ×1", s, 2.0 + s / 1000) for s in range(3)] + [
        outcome("b ×1", s, 2.5 + s / 1000) for s in range(3)
    ]
    chosen = {"a": "a ×1", "b": "b ×1"}
    assert verdict(clear, chosen, unigram=5.0).startswith("a predicts best")
    assert verdict(clear, chosen, unigram=2.2).startswith("No conclusion: b did not get below")
    noisy = [outcome("a ×1", s, 2.0 + (s % 2)) for s in range(3)] + [outcome("b ×1", s, 2.5 - s / 2) for s in range(3)]
    assert "No conclusion between" in verdict(noisy, chosen, unigram=9.0)
    alike = [outcome("a ×1", s, 2.0 + s / 20) for s in range(3)] + [outcome("b ×1", s, 2.03 + s / 19) for s in range(3)]
    found = verdict([*alike, *(outcome("c ×1", s, 3 + s / 20) for s in range(3))], chosen | {"c": "c ×1"}, unigram=9.0)
    assert found.startswith("No conclusion between a and b: the intervals of a and b overlap"), (
        "the same difference at every seed"
    )
    assert "c is worse than a and b." in found
    wide = [outcome("c ×1", s, 2.5 + s / 4) for s in range(3)]
    found = verdict(
        [*alike[:3], *wide, *(outcome("b ×1", s, 2.4 + s / 4) for s in range(3))], chosen | {"c": "c ×1"}, 9.0
    )
    assert found.startswith("No conclusion between a, b and c: the intervals of a and b overlap"), "the pair is named"
    means = {"a": 2.0, "b": 2.15, "c": 2.3}
    chain = [outcome(f"{name} ×1", s, mean + (s - 1) * 0.04) for name, mean in means.items() for s in range(3)]
    found = verdict(chain, chosen | {"c": "c ×1"}, 9.0)
    assert "c is worse than a, but not told apart from b." in found
    alone = [outcome("a ×1", 0, 2.0), outcome("b ×1", 0, 2.5)]
    assert "--seeds 3" in verdict(alone, chosen, unigram=9.0)
    lost = Outcome("b ×1", 1, "diverged", 1, 1, 1, 1.0)
    told = lost_sentences([*clear, lost], ["a", "b", "c"], chosen)
    assert told == [
        "c diverged at every rate tried, and is left out.",
        f"b diverged with 1 of {1 + sum(each.arm == 'b ×1' for each in clear)} seeds: its figures are of the others.",
    ]
    pair = [outcome("a ×1", 0, 2.0), outcome("a ×1", 1, 2.1), outcome("b ×1", 0, 2.2), lost]
    assert "too few seeds ran to their end" in verdict(pair, chosen, unigram=9.0)


def test_the_seeds_that_would_settle_it_are_the_fewest_whose_intervals_are_apart() -> None:
    first, second = estimate([2.0, 2.1]), estimate([2.4, 2.5])
    count = seeds_needed(first, second)
    assert count == 3, "of two seeds Student's t is 12.7, of three 4.3"

    def apart(seeds: int) -> bool:
        widths = [t95(seeds - 1) * each.deviation / seeds**0.5 for each in (first, second)]
        return sum(widths) < second.mean - first.mean

    assert apart(count)
    assert not apart(count - 1)
    assert first.deviation == pytest.approx(statistics.stdev([2.0, 2.1]))
    assert seeds_needed(estimate([2.0, 3.0]), estimate([2.001, 3.001])) is None


@pytest.mark.parametrize("degrees", [1, 2, 5, 10, 11, 20, 100, 999])
def test_95_of_100_lie_within_students_t(degrees: int) -> None:
    """The density, integrated by hand, holds 95 % between minus and plus the value."""
    norm = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    xs = np.linspace(0, t95(degrees), 20_001)
    density = norm * (1 + xs**2 / degrees) ** (-(degrees + 1) / 2)
    assert 2 * float(((density[1:] + density[:-1]) / 2).sum() * xs[1]) == pytest.approx(0.95, abs=5e-5)
