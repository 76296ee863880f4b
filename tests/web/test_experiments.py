"""Facts about experiments read while they run: their state, their trials, the best so far, and nothing outside."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.config import load_recipe
from fledge.errors import FledgeError
from fledge.experiments.compare import RATES
from fledge.experiments.engines import alone_in
from fledge.experiments.plan import Arm, ExperimentPlan
from fledge.experiments.trials import Outcome, trial_folder
from fledge.files import locked, write_json
from fledge.system import is_locked, lock
from fledge.web.app import create_app
from tests.web.world import SMALL, write_metrics

RATE = "optimizer.learning_rate"
DRAWN = {"facts": {"points": "many", "over": []}, "arms": [{"name": "a", "changes": []}]}
GRID = ("0.001", "0.01", "0.1")


def make_plan(folder: Path, kind: str = "sweep", seeds: tuple[int, ...] = (0,), **facts: Any) -> ExperimentPlan:
    """An experiment's folder with its plan: three rates; of a comparison, two networks at every rate."""
    arms = [Arm(f"learning_rate={rate}", (f"{RATE}={rate}",)) for rate in GRID]
    if kind == "compare":
        arms = [Arm(f"{name} ×{rate:g}", (f"{RATE}={rate}",)) for name in ("gru", "bdh") for rate in RATES]
    config = load_recipe("akjv-demo", SMALL).model_dump(mode="json")
    over = {"over": [f"{RATE}={','.join(GRID)}"], "points": 3} if kind == "sweep" else {}
    plan = ExperimentPlan(
        kind, f"Which {RATE} is best?", config, tuple(arms), seeds, {"steps": 200, "budget": "", **over, **facts}
    )
    write_json(folder / "plan.json", asdict(plan))
    return plan


def make_trial(
    folder: Path, arm: str, seed: int = 0, loss: float | None = None, status: str = "complete", step: int = 200
) -> Path:
    """A trial that has come to a step, with its outcome where a loss or another status than `complete` is given."""
    place = folder / "trials" / trial_folder(arm, seed)
    place.mkdir(parents=True)
    rate = arm.partition("=")[2] or "0.01"
    config = load_recipe("akjv-demo", [*SMALL, f"{RATE}={rate}", f"training.seed={seed}"])
    write_json(place / "config.json", config.model_dump(mode="json"))
    write_metrics(place, range(0, step + 1, 5), seed=1)
    if loss is not None or status != "complete":
        why = "" if status == "complete" else "the loss rose"
        end = Outcome(arm, seed, status, step, step * 2048, 9000, 1.0, validation_loss=loss, why=why)  # type: ignore[arg-type]
        write_json(place / "outcome.json", asdict(end))
    return place


def serve(*folders: Path) -> TestClient:
    return TestClient(create_app(folders), base_url="http://127.0.0.1")


def one(client: TestClient, name: str = "rates") -> Any:
    answer = client.get("/api/experiments/one", params={"experiment": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_sweep_under_way_tells_its_trials_and_the_best_so_far(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rates"
    make_plan(folder)
    make_trial(folder, "learning_rate=0.001", loss=3.5)
    going = make_trial(folder, "learning_rate=0.01", step=100)
    client = serve(tmp_path / "runs")
    with alone_in(folder), locked(going, ""):  # as the processes of the sweep and of its trial hold them
        found = one(client)
    assert (found["summary"]["state"], found["summary"]["kind"]) == ("running", "sweep")
    assert (found["summary"]["ended"], found["summary"]["trials"]) == (1, 3)
    assert (found["summary"]["best"], found["summary"]["best_loss"]) == ("learning_rate=0.001", 3.5)
    assert (found["recipe"], found["steps"], found["seeds"]) == ("akjv-demo", 200, [0])
    trials = [arm["trials"][0] for arm in found["arms"]]
    assert [trial["state"] for trial in trials] == ["complete", "running", "waiting"]
    assert (trials[1]["step"], trials[1]["steps"]) == (100, 200)
    assert [step for step, _ in trials[1]["curve"]] == [0, 25, 50, 75, 100]
    assert trials[1]["run"] == "rates/trials/learning_rate=0.01-seed0"
    assert trials[2]["run"] is None


def test_a_killed_one_is_stopped_at_once_and_runs_again_when_it_is_resumed(tmp_path: Path) -> None:
    """The lock goes with the process, whatever was written last; and asking does not take it away from anybody."""
    folder = tmp_path / "runs" / "rates"
    make_plan(folder)
    going = make_trial(folder, "learning_rate=0.001", step=50)
    client = serve(tmp_path / "runs")

    def states() -> tuple[str, str]:
        found = one(client)
        return found["summary"]["state"], found["arms"][0]["trials"][0]["state"]

    with alone_in(folder), locked(going, ""):
        assert states() == ("running", "running")
    assert states() == ("stopped", "stopped")
    with alone_in(folder):  # begun again, and not yet at its trial
        assert states() == ("running", "waiting")
        with locked(going, ""):
            assert states() == ("running", "running")
    write_json(going / "outcome.json", asdict(Outcome("learning_rate=0.001", 0, "complete", 200, 1, 1, 1.0, 3.1)))
    (folder / "report.html").write_text("<h1>Rates</h1>")
    (folder / "report.md").write_text("# Which?\n\nLowest: learning_rate=0.001.\n\n## Result\n")
    assert states() == ("done", "complete")
    assert one(client)["summary"]["answer"] == "Lowest: learning_rate=0.001."


def test_who_asks_whether_a_folder_is_taken_keeps_nobody_out(tmp_path: Path) -> None:
    """Asking holds the lock for a moment: whoever wants the folder looks again before it is refused."""
    held = lock(tmp_path)
    threading.Timer(0.03, held.close).start()
    with locked(tmp_path, "taken"):
        assert is_locked(tmp_path)
        with pytest.raises(FledgeError, match="taken"), locked(tmp_path, "taken"):
            pass
    assert not is_locked(tmp_path)


def test_arms_are_means_over_seeds_and_what_diverged_is_not_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rates"
    make_plan(folder, seeds=(0, 1))
    for seed, losses in enumerate(((3.5, 3.2, None), (3.7, 3.3, 1.0))):
        for rate, loss in zip(GRID, losses, strict=True):
            status = "complete" if loss is not None else "diverged"
            make_trial(folder, f"learning_rate={rate}", seed, loss, status, step=200 if loss else 40)
    found = one(serve(tmp_path / "runs"))
    means = {arm["name"]: arm["mean"] for arm in found["arms"]}
    assert means == {
        "learning_rate=0.001": pytest.approx(3.6),
        "learning_rate=0.01": pytest.approx(3.25),
        "learning_rate=0.1": None,  # a seed of it diverged: the other one's loss is not the arm's
    }
    assert found["summary"]["best"] == "learning_rate=0.01"
    assert found["arms"][0]["half_width"] == pytest.approx(12.706 * math.sqrt(0.02) / math.sqrt(2), rel=1e-3)
    lost = found["arms"][2]["trials"][0]
    assert (lost["state"], lost["step"], lost["why"]) == ("diverged", 40, "the loss rose")


def test_drawn_points_have_the_names_that_their_outcomes_will_have(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rates"
    plan = make_plan(folder, points=6)
    write_json(folder / "plan.json", {**asdict(plan), "arms": [{"name": "tpe", "changes": []}]})
    make_trial(folder, "learning_rate=0.01", step=60)
    found = one(serve(tmp_path / "runs"))
    assert found["summary"]["trials"] == 6
    assert [(arm["name"], arm["trials"][0]["state"]) for arm in found["arms"]] == [("learning_rate=0.01", "stopped")]


def test_a_comparison_counts_the_trials_that_it_will_have(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rates"
    plan = make_plan(folder, kind="compare", seeds=(0, 1, 2))
    assert plan.trials == 2 * 3 + 2 * 2
    found = one(serve(tmp_path / "runs"))
    assert found["summary"]["trials"] == 10
    assert sum(len(arm["trials"]) for arm in found["arms"]) == 6  # which rates the other seeds take is not known yet
    assert found["summary"]["state"] == "stopped"


def test_the_list_has_what_runs_first_and_no_workbook(tmp_path: Path) -> None:
    for name in ("old", "rates"):
        make_plan(tmp_path / "runs" / name)
    os.utime(tmp_path / "runs" / "old" / "plan.json", (1, 1))
    write_json(tmp_path / "runs" / "book" / "plan.json", {"corpora": {}, "budget": "5m"})
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "plan.json").write_text('{"kind": "sweep"')
    client = serve(tmp_path / "runs")

    def listed() -> list[tuple[str, str]]:
        return [(each["name"], each["state"]) for each in client.get("/api/experiments").json()["experiments"]]

    assert listed() == [("rates", "stopped"), ("old", "stopped"), ("torn", "broken")]
    with alone_in(tmp_path / "runs" / "old"):
        assert listed()[0] == ("old", "running")
    alone_served = serve(tmp_path / "runs" / "rates")
    assert one(alone_served)["summary"]["name"] == "rates"
    assert serve(tmp_path).get("/api/experiments").status_code == 200


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "plan.json").write_text("[]"),
        lambda folder: (folder / "plan.json").write_text('{"arms": [], "seeds": [], "kind": 3}'),
        lambda folder: write_json(folder / "plan.json", {**read(folder), "kind": "other"}),
        lambda folder: write_json(folder / "plan.json", {**read(folder), "seeds": ["x"]}),
        lambda folder: write_json(folder / "plan.json", {**read(folder), "facts": [1]}),
        lambda folder: write_json(folder / "plan.json", {**read(folder), "facts": {"over": 3}}),
        lambda folder: write_json(folder / "plan.json", {**read(folder), **DRAWN}),
        lambda folder: write_json(next(folder.glob("trials/*")) / "outcome.json", {"status": "won"}),
        lambda folder: (next(folder.glob("trials/*")) / "outcome.json").write_text("{"),
        lambda folder: (next(folder.glob("trials/*")) / "config.json").write_text('{"training": 3}'),
    ],
)  # fmt: skip
def test_no_damage_is_an_error_of_the_list(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = tmp_path / "runs" / "rates"
    make_plan(folder)
    make_trial(folder, "learning_rate=0.001", loss=3.0)
    damage(folder)
    client = serve(tmp_path / "runs")
    answer = client.get("/api/experiments").json()["experiments"][0]
    assert (answer["name"], answer["state"]) == ("rates", "broken")
    assert len(answer["problem"]) > 20
    assert client.get("/api/experiments/one", params={"experiment": "rates"}).status_code == 400


def read(folder: Path) -> Any:
    return json.loads((folder / "plan.json").read_text())


def test_numbers_that_are_none_do_not_break_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "rates"
    make_plan(folder)
    place = make_trial(folder, "learning_rate=0.001", loss=3.0)
    for loss in ("NaN", "Infinity", '"3"', "[3]"):
        text = (place / "outcome.json").read_text()
        (place / "outcome.json").write_text(json.dumps({**json.loads(text), "validation_loss": 0}).replace(
            '"validation_loss": 0', f'"validation_loss": {loss}'))  # fmt: skip
        os.utime(place / "outcome.json", ns=(1, hash(loss) % 10**15))
        assert one(serve(tmp_path / "runs"))["summary"]["ended"] == 1


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    make_plan(secret / "rates")
    make_trial(secret / "rates", "learning_rate=0.001", loss=3.0)
    (secret / "rates" / "report.html").write_text("secret")
    served = tmp_path / "runs"
    served.mkdir()
    (served / "linked").symlink_to(secret / "rates")
    (served / "torn").mkdir()
    (served / "torn" / "plan.json").symlink_to(secret / "rates" / "plan.json")
    make_plan(served / "rates")
    shutil.copytree(secret / "rates" / "trials", served / "rates" / "trials")
    trial = next((served / "rates" / "trials").iterdir())
    (trial / "outcome.json").unlink()
    (trial / "outcome.json").symlink_to(next(secret.glob("rates/trials/*")) / "outcome.json")
    (served / "rates" / "report.html").symlink_to(secret / "rates" / "report.html")
    client = serve(served)
    assert [each["name"] for each in client.get("/api/experiments").json()["experiments"]] == ["rates"]
    found = one(client)
    assert found["summary"]["ended"] == 0
    assert not found["summary"]["has_report"]
    for name in ("rates", "linked", "torn", "../secret/rates", "rates/trials", "/etc", "rates\0"):
        assert client.get("/api/experiments/report", params={"experiment": name}).status_code == 404
    foreign = {"origin": "https://evil.example"}
    assert client.get("/api/experiments", headers=foreign).status_code == 403
