"""The same numbers however trials are run; what is pruned and what diverged follows from the trials alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fledge.config import load_recipe, override_config
from fledge.errors import FledgeError
from fledge.experiments import timing
from fledge.experiments.ablate import ablate
from fledge.experiments.engines import ONE_BY_ONE, Engine
from fledge.experiments.largest import Largest, largest_batch
from fledge.experiments.plan import Arm, Pace, check_corpus
from fledge.experiments.space import parse_axis
from fledge.experiments.sweep import sweep
from fledge.experiments.timing import Cost, steps_that_fit
from fledge.experiments.trials import Outcome, by_arm
from fledge.experiments.watch import GivenUp, Watch, level
from fledge.files import write_json
from fledge.run import Run
from fledge.training import read_metrics
from tests.experiments.test_trials import SMALL, TEXT

HEADER = "step,samples,tokens,loss,validation_loss"


@pytest.fixture
def config(tmp_path: Path):
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(lines * 4))
    return load_recipe("akjv-demo", [*SMALL, f"corpus.source={tmp_path / 'text.txt'}"])


def numbers(outcomes: list[Outcome]) -> list[tuple[object, ...]]:
    """All but what a clock or the machine's memory says."""
    return [(o.arm, o.seed, o.status, o.step, o.validation_loss, o.reached, o.why) for o in outcomes]


def rival(folder: Path, name: str, losses: list[float], steps: int = 10, status: str | None = "complete") -> Path:
    """The folder of a trial that has these losses after each of its steps."""
    place = folder / name
    write_json(place / "config.json", {"training": {"steps": steps}})
    rows = [f"{n},0,0,,{loss}" for n, loss in enumerate(losses, 1)]
    (place / "metrics.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    if status is not None:
        write_json(place / "outcome.json", {"status": status})
    return place


def watch(place: Path, rivals: list[Path]) -> Watch:
    return Watch(place, 10, 2, unigram=5.0, rivals=tuple(rivals))


def test_a_trial_behind_half_of_its_rivals_is_pruned_and_the_best_never_is(tmp_path: Path) -> None:
    rivals = [rival(tmp_path, str(n), [4.0 + n / 10] * 10) for n in range(4)]
    mine = rival(tmp_path, "mine", [6.0, 4.5], status=None)
    watch(mine, rivals)(2, 4.9)  # too early to tell
    watch(mine, rivals)(5, 4.1)  # better than half
    watch(mine, rivals[:3])(5, 4.9)  # too few to tell
    watch(mine, rivals)(10, 4.6)  # at its end there is nothing left to save
    with pytest.raises(
        GivenUp, match=r"a loss of 4\.400, above 4\.150, the median of the 4 trials run before it"
    ) as up:
        watch(mine, rivals)(5, 4.4)
    assert up.value.status == "pruned"


def test_a_rival_counts_where_it_was_at_the_same_share_of_its_steps(tmp_path: Path) -> None:
    whole = rival(tmp_path, "whole", [9, 8, 7, 6, 5])
    longer = rival(tmp_path, "longer", [9.0, 8.5, 8, 7.5, 7, 6.5], steps=20)
    pruned = rival(tmp_path, "pruned", [9, 8.8], status="pruned")
    diverged = rival(tmp_path, "diverged", [9, 8.8], status="diverged")
    assert level(whole, 0.3) == 7
    assert level(longer, 0.3) == 6.5
    assert level(pruned, 0.3) == 8.8
    assert level(diverged, 0.3) == float("inf")
    assert level(diverged, 0.2) == 8.8


def test_a_trial_waits_for_a_rival_that_is_under_way(tmp_path: Path) -> None:
    slow = rival(tmp_path, "slow", [9, 8], status=None)
    import threading

    def go_on() -> None:
        time.sleep(0.3)
        with open(slow / "metrics.csv", "a") as file:
            file.write("3,0,0,,7\n")

    threading.Thread(target=go_on).start()
    assert level(slow, 0.3) == 7
    (tmp_path / "stopping").touch()
    with pytest.raises(KeyboardInterrupt):
        level(slow, 0.9)


@pytest.mark.parametrize(
    ("step", "loss", "words"),
    [
        (1, float("nan"), "became nan"),
        (3, 7.3, "above the 6.000 that training began with"),
        (3, 5.2, "rose from 4.500 to 5.200, above the 5.000 of counting"),
    ],
)
def test_divergence_is_not_a_number_or_a_loss_that_rose(tmp_path: Path, step: int, loss: float, words: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "metrics.csv").write_text(f"{HEADER}\n1,0,0,6.0,\n1,0,0,,4.5\n")
    with pytest.raises(GivenUp, match=words) as up:
        watch(mine, [])(step, loss)
    assert up.value.status == "diverged"
    watch(mine, [])(2, 7.0)  # still warming up
    watch(mine, [])(3, 4.9)  # worse than before, but not worse than counting


def test_training_tells_of_each_evaluation_and_what_it_raises_ends_the_run(config, tmp_path: Path) -> None:
    config = override_config(config, ["training.steps=6", "training.evaluate_every=2"])
    told: list[tuple[int, float]] = []

    def on_evaluation(step: int, loss: float) -> None:
        told.append((step, loss))
        if step == 4:
            raise GivenUp("pruned", step, loss, "enough")

    with pytest.raises(GivenUp, match="enough"):
        Run(config, tmp_path / "run", quiet=True).train(on_evaluation=on_evaluation)
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert told == [(int(row["step"]), float(row["validation_loss"])) for row in rows if row["validation_loss"]]
    assert [step for step, _ in told] == [2, 4]


@pytest.mark.slow
def test_two_at_once_give_the_numbers_of_one_after_the_other(config, tmp_path: Path) -> None:
    """Outcomes, what is pruned and the report are the same; only clocks differ."""
    pytest.importorskip("optuna")
    config = override_config(config, ["training.steps=20", "training.batch_size=8"])
    axis = parse_axis("optimizer.learning_rate=3e-2,1e-2,3e-3,1e-3,1e-6,1e-5")
    _, alone, _ = sweep(config, tmp_path / "alone", [axis])
    _, both, report = sweep(config, tmp_path / "both", [axis], engine=Engine("local", 2))
    assert numbers(alone) == numbers(both)
    assert "pruned" in {outcome.status for outcome in both}
    assert "Not run to the end" in report.read_text()
    _, again, _ = sweep(config, tmp_path / "both", [axis])  # read, not run, whatever the engine
    assert again == both


@pytest.mark.slow
def test_random_and_tpe_choose_the_same_points_however_many_run_at_once(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    axis = parse_axis("optimizer.learning_rate=1e-4..1e-1:log")
    _, alone, _ = sweep(config, tmp_path / "alone", [axis], method="tpe", trials=6)
    _, both, _ = sweep(config, tmp_path / "both", [axis], method="tpe", trials=6, engine=Engine("local", 2))
    assert numbers(alone) == numbers(both)
    assert len(by_arm(alone)) == 6
    for path in sorted((tmp_path / "both" / "trials").glob("*/outcome.json"))[:2]:
        path.unlink()
    _, again, _ = sweep(config, tmp_path / "both", [axis], method="tpe", trials=6)
    assert numbers(again) == numbers(alone)


@pytest.mark.slow
def test_ray_gives_the_same_numbers(config, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'fledge-lm[ray]'")
    arms = [Arm("hot", ("optimizer.learning_rate=2e-3",)), Arm("deep", ("model.layers=2",))]
    _, alone, _ = ablate(config, tmp_path / "alone", [], arms)
    try:
        _, spread, _ = ablate(config, tmp_path / "ray", [], arms, engine=Engine("ray", 2))
    finally:
        ray.shutdown()
    assert numbers(alone) == numbers(spread)


def test_a_mistake_in_one_process_ends_all_with_its_sentence(config, tmp_path: Path) -> None:
    arms = [Arm("long", ("training.steps=100000",)), Arm("wrong", ("training.device=cuda:7",))]
    with pytest.raises(FledgeError, match="training.device"):
        ablate(config, tmp_path / "experiment", [], arms, engine=Engine("local", 2))


@pytest.mark.slow
def test_a_killed_sweep_runs_no_finished_trial_again(config, tmp_path: Path) -> None:
    """Killed with -9 while two trials run, the workers go too; the same command runs only what was not done."""
    pytest.importorskip("optuna")
    recipe = tmp_path / "recipe.json"
    write_json(recipe, override_config(config, ["training.steps=400"]).model_dump(mode="json"))
    command = [sys.executable, "-m", "fledge", "sweep", str(recipe), "--out", str(tmp_path / "killed")]
    command += ["--over", "optimizer.learning_rate=1e-4..1e-1:log:4", "--parallel", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(1200):
        done = list((tmp_path / "killed" / "trials").glob("*/outcome.json"))
        if done or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = list((tmp_path / "killed" / "trials").glob("*/outcome.json"))
    stamps = {path: path.stat().st_mtime_ns for path in done}
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert len(list((tmp_path / "killed" / "trials").glob("*/outcome.json"))) == 4
    plan = json.loads((tmp_path / "killed" / "plan.json").read_text())
    assert plan["config"]["training"]["threads"] == 1


def test_the_largest_batch_is_found_by_taking_steps(config, tmp_path: Path) -> None:
    config = override_config(config, ["training.steps=40"])  # 160 windows: a batch of 16 leaves ten steps
    found = largest_batch(config, tmp_path / "experiment")
    assert found[:2] == (16, "windows")
    assert largest_batch(config, tmp_path / "experiment") == found
    assert "fewer than 10 steps" in found.sentence()
    assert "do not fit the memory" in Largest(64, "memory", 10**9).sentence()


def test_rates_and_batches_up_to_the_largest_see_the_same_windows(config, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    config = override_config(config, ["training.steps=40"])
    axes = [parse_axis("optimizer.learning_rate=1e-3,1e-2"), parse_axis("training.batch_size=4,max")]
    _, outcomes, report = sweep(config, tmp_path / "batches", axes, equal_samples=True, prune=False)
    assert {outcome.tokens for outcome in outcomes} == {160 * 16}
    text = report.read_text()
    assert "Best rate by batch size" in text
    assert "The batch size max is 16" in text
    with pytest.raises(FledgeError, match="64 is more than max"):
        sweep(config, tmp_path / "batches", [parse_axis("training.batch_size=64,max")])
    with pytest.raises(FledgeError, match=r"only training\.batch_size has a largest"):
        parse_axis("model.layers=2,max")


def test_a_budget_is_shared_by_what_the_trials_cost() -> None:
    steps, windows = steps_that_fit([Cost(0.1, 0.001), Cost(0.3, 0.003)], 400, "400s", 512)
    assert steps * 0.4 + 10 * windows * 0.004 <= 0.7 * 400
    with pytest.raises(FledgeError, match="--budget 1s is too short for 2 trials"):
        steps_that_fit([Cost(0.1, 0.001)] * 2, 1, "1s", 512)


def test_a_budget_that_cannot_be_met_is_refused_in_its_first_tenth_with_one_that_can(config, monkeypatch) -> None:
    """Forty kinds of steps that take ten seconds each to time: after the first, the others are reckoned."""
    now, looks, slow = [0.0], [], 4.0

    def step_seconds(settings, folder, least, most) -> float:
        looks.append(settings.model.layers)
        now[0] += max(least, 2 * slow * settings.model.layers)
        return slow * settings.model.layers

    monkeypatch.setattr(timing, "step_seconds", step_seconds)
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def costs(settings, clock) -> list[Cost]:
        return [clock.cost(override_config(settings, [f"model.layers={n}", "model.width=512"])) for n in range(1, 41)]

    def planned(seconds: float) -> Pace:
        now[0], looks[:] = 0.0, []
        pace = timing.pacer(seconds, f"{seconds:g}s", 0.0, ONE_BY_ONE, Path(), costs)
        assert pace is not None
        return pace(config)

    with pytest.raises(
        FledgeError, match="--budget 100s is too short for 40 trials: each would have 0 steps"
    ) as caught:
        planned(100.0)
    assert now[0] <= 24, "a tenth, and the step in hand"
    assert looks == [1, 2]
    enough = str(caught.value).partition("Give about ")[2].partition(",")[0]
    assert planned(60.0 * int(enough.removesuffix("m"))).steps >= 10
    assert looks == list(range(1, 41)), "what was reckoned is measured where there is time"
    reckoned = 10 * sum(slow * n for n in range(1, 41)) / 0.65 / 60
    assert reckoned < int(enough.removesuffix("m")) < 6 * reckoned


def test_a_budget_becomes_steps_once(config, tmp_path: Path) -> None:
    arms = [Arm("hot", ("optimizer.learning_rate=2e-3",))]
    plan, outcomes, _ = ablate(config, tmp_path / "e", [], arms, budget=8.0, budget_text="8s")
    again, same, report = ablate(config, tmp_path / "e", [], arms, budget=8.0, budget_text="8s")
    assert (plan, outcomes) == (again, same)
    assert "time budget of 8s" in report.read_text()
    with pytest.raises(FledgeError, match="another experiment"):
        ablate(config, tmp_path / "e", [], arms, budget=9.0, budget_text="9s")


def test_a_text_too_small_for_the_time_is_refused(config, tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match="too small for this length of training"):
        check_corpus(config, 10**6, tmp_path / "e")
