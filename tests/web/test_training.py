"""Training from the page: what is refused before a process begins, and the whole way with one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.config import load_recipe
from fledge.files import read_json, write_json
from fledge.runs.layout import CONFIG, START
from fledge.web.app import create_app
from fledge.web.jobs import Jobs
from fledge.web.launch import STATE
from fledge.web.orders import OURS, duration
from tests.web.test_uploads import ADDRESS, send
from tests.web.world import write_metrics

WORDS = [first + vowel + last for first in "bdfglmnprst" for vowel in "aeiou" for last in "dgmnt"]
LINES = "".join(
    json.dumps({"text": f"The {' '.join(random.Random(n).choices(WORDS, k=12))}."}) + "\n" for n in range(500)
).encode()


def client_of(*folders: Path) -> TestClient:
    return TestClient(create_app(list(folders), rate=1e6, waiting=True), base_url=ADDRESS)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    runs = tmp_path / "runs"
    yield runs
    for job in Jobs(runs).all():
        if job.state in ("waiting", "running"):
            os.killpg(read_json(runs / ".jobs" / job.id / STATE)["pid"], signal.SIGKILL)


def make_plan(home: Path, name: str, texts: list[str], teachers: int = 0, **kept: Any) -> Path:
    """A run as `fledge start --plan` leaves it."""
    folder = home / name
    values = {"training.steps": 200, "model.layers": 2}
    config = load_recipe("akjv-demo", [f"{key}={value}" for key, value in values.items()])
    taught = config.training.model_copy(update={"teachers": tuple(map(str, range(teachers)))})
    write_json(folder / CONFIG, config.model_copy(update={"training": taught}).model_dump(mode="json"))
    plan = {"texts": texts, "time": "2m", "set": {}, "speed": 1000.0, "counts": {"bigram": 2.5, "trigram": 2.25}}
    forecast = {"bits_per_byte": 1.5, "low": 1.25, "high": 2.0}
    choices = [[{key: value}, f"as {key} has to be"] for key, value in values.items()]
    write_json(folder / START, {**plan, "forecast": forecast, "choices": choices, **kept})
    return folder


def refused(answer: Any, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_what_names_files_or_runs_code_is_not_set_from_the_page(home: Path) -> None:
    client = client_of(home)
    name = send(client, "eggs.jsonl", LINES).json()["text"]
    for setting in (*OURS, "training.trackers"):
        for path, body in (
            ("plan", {"texts": [name], "seconds": 60}),
            ("train", {"recipe": "akjv-demo", "texts": [name]}),
        ):
            answer = client.post(f"/api/training/{path}", json={**body, "set": {setting: "/etc/passwd"}})
            refused(answer, 400, "can't be set from this page")
    listed = {setting["name"] for setting in client.get("/api/training/settings").json()["settings"]}
    assert "model.layers" in listed
    assert not listed & {*OURS, "training.trackers"}
    assert not (home / ".jobs").exists()


def test_what_can_t_be_meant_is_refused_before_a_process_begins(home: Path) -> None:
    client = client_of(home)
    name = send(client, "eggs.jsonl", LINES).json()["text"]

    def ask(what: str, **values: Any) -> Any:
        return client.post(f"/api/training/{what}", json=values)

    refused(ask("plan", texts=["/etc/passwd"], seconds=60), 404, "There is no text called")
    refused(ask("plan", texts=[name], seconds=1), 422, "seconds")
    refused(ask("plan", texts=[name], seconds=60, set={"model.laers": "2"}), 400, "Did you mean")
    refused(ask("plan", texts=[name], seconds=60, set={"--out": "/tmp/x"}), 400, "not of the form")
    refused(ask("plan", texts=[name], seconds=60, run="../x"), 404, "There is no run")
    refused(ask("train", recipe="/etc/passwd"), 404, "There is no recipe")
    refused(ask("train", recipe="akjv-demo", bundle="x"), 400, "either a recipe or a bundle")
    refused(ask("train", bundle="../x"), 404, "There is no bundle")
    refused(ask("train", recipe="akjv-demo", set={"model.heads": "3"}), 400, "model.heads")
    refused(ask("train", recipe="akjv-demo", name="../x"), 422, "name")
    for what in ("start", "discard", "go-on"):
        refused(ask(what, run="../.."), 404, "There is no run")
    refused(ask("stop", job="../.."), 404, "There is no training")
    assert client.get("/api/training/log", params={"job": ".."}).status_code == 404
    assert client.get("/api/training/run", params={"run": ".jobs"}).status_code == 404
    assert not (home / ".jobs").exists()


def test_a_run_that_learned_something_is_not_discarded_or_planned_anew(world: Path) -> None:
    client = client_of(world / "runs")
    for what in ("start", "discard"):
        refused(client.post(f"/api/training/{what}", json={"run": "alpha"}), 400, "not a plan")
    assert (world / "runs" / "alpha" / "checkpoints").is_dir()


def test_where_no_folder_of_runs_is_served_there_is_a_sentence(world: Path) -> None:
    client = client_of(world / "runs" / "alpha")
    answer = client.post("/api/training/train", json={"recipe": "akjv-demo"})
    refused(answer, 400, "fledge serve runs")
    assert client.get("/api/training").json()["jobs"] == []


def test_the_verdict_is_that_of_the_evaluations(world: Path) -> None:
    standing = client_of(world / "runs").get("/api/training/run", params={"run": "alpha"}).json()
    assert standing["trained"]
    assert standing["plan"] is None
    assert "overfit" in standing["verdict"]


def test_a_plan_says_what_is_expected_and_counts_the_time_of_its_teachers(home: Path) -> None:
    """What the command says, the page says too; a plan that is damaged is a sentence."""
    name = send(client_of(home), "eggs.jsonl", LINES).json()["text"]
    folder = make_plan(home, "eggs", [str(home / name)], teachers=3)
    client = client_of(home)
    standing = client.get("/api/training/run", params={"run": "eggs"}).json()
    plan = standing["plan"]
    assert plan["expected"] == {"bits_per_byte": 1.5, "low": 1.25, "high": 2.0}
    assert plan["seconds"] == pytest.approx((1 + 3 * 1.4) * plan["tokens"] / plan["speed"])
    assert (standing["trained"], standing["teacher"]) == (False, None)
    for place in ("tokens", "teachers/1/checkpoints", "teachers/2/checkpoints"):
        (folder / place).mkdir(parents=True)
    write_metrics(folder / "teachers" / "1", range(0, 20, 5), seed=1)
    standing = client_of(home).get("/api/training/run", params={"run": "eggs"}).json()
    assert (standing["trained"], standing["teacher"]) == (False, "eggs/teachers/1")  # nothing to generate with yet
    write_metrics(folder, range(0, 20, 5), seed=1)
    assert client.get("/api/training/run", params={"run": "eggs"}).json()["teacher"] is None
    kept = read_json(folder / START)
    for key, value in (("choices", 3), ("speed", "fast"), ("forecast", {"low": 1})):
        write_json(folder / START, {**kept, key: value})
        refused(client.get("/api/training/run", params={"run": "eggs"}), 400, "start.json is damaged")


def test_a_new_text_gets_a_run_of_its_own_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan that it replaces goes, and its name with it; a training can be asked for again as it was."""
    monkeypatch.setattr("fledge.web.jobs.subprocess.Popen", lambda *_, **__: SimpleNamespace(poll=lambda: 0))
    client = client_of(home)
    eggs, birds = (
        send(client, f"{name}.jsonl", LINES + tail).json()["text"] for name, tail in (("eggs", b"\n"), ("birds", b""))
    )
    make_plan(home, "eggs", [str(home / eggs)])
    client = client_of(home)
    job = client.post("/api/training/plan", json={"texts": [birds], "seconds": 60, "run": "eggs"}).json()
    assert job["run"] == "birds"
    assert not (home / "eggs").exists()
    asked = {"recipe": "akjv-demo", "bundle": None, "texts": [eggs], "set": {"training.steps": "12"}}
    client.post("/api/training/train", json={**asked, "name": "first"})
    assert client.get("/api/training/run", params={"run": "first"}).json()["asked"] == asked
    shutil.rmtree(home / ".jobs")  # no process is behind them


@pytest.mark.parametrize(("seconds", "text"), [(60, "1m"), (5400, "90m"), (86400, "24h"), (45, "45s")])
def test_a_time_is_written_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def settle(client: TestClient, state: str, seconds: float = 240) -> None:
    """Wait for the newest training to end, as it should."""
    deadline = time.monotonic() + seconds
    while (job := client.get("/api/training").json()["jobs"][0])["state"] in ("waiting", "running"):
        assert time.monotonic() < deadline, client.get("/api/training/log", params={"job": job["id"]}).json()["text"]
        time.sleep(0.2)
    assert job["state"] == state, client.get("/api/training/log", params={"job": job["id"]}).json()["text"]


SMALL = {
    "model.layers": "1",
    "model.width": "32",
    "model.heads": "2",
    "tokens.context_length": "32",
    "tokenizer.vocabulary_size": "300",
    "training.batch_size": "4",
    "training.evaluate_windows": "4",
    "training.sample_every": "0",
}


@pytest.mark.slow
def test_from_a_text_to_a_plan_a_stop_a_kill_and_a_report(home: Path) -> None:
    """Another server finds the training of the first; a killed one goes on where it was."""
    client, other = client_of(home), client_of(home)
    name = send(client, "My Eggs.jsonl", LINES).json()["text"]
    asked = {"texts": [name], "seconds": 60, "set": {"training.steps": "800", "training.save_every": "20", **SMALL}}
    assert client.post("/api/training/plan", json=asked).json()["run"] == "my-eggs"
    settle(other, "finished")
    standing = other.get("/api/training/run", params={"run": "my-eggs"}).json()
    assert standing["plan"]["texts"] == [name]
    assert standing["plan"]["parameters"] > 10_000
    assert standing["plan"]["memory"] > 1e5
    assert not standing["trained"]
    assert any(choice["why"].startswith("set by hand") for choice in standing["plan"]["choices"])
    replanned = client.post("/api/training/plan", json={**asked, "run": "my-eggs"})  # in the place of the first
    assert replanned.json()["run"] == "my-eggs"
    settle(client, "finished")
    job = client.post("/api/training/start", json={"run": "my-eggs"}).json()
    refused(other.post("/api/training/start", json={"run": "my-eggs"}), 400, "trained already")
    deadline = time.monotonic() + 120
    while not list(home.glob("my-eggs/checkpoints/step-*/bundle.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(read_json(home / ".jobs" / job["id"] / STATE)["pid"], signal.SIGKILL)
    settle(other, "killed")
    assert other.post("/api/training/go-on", json={"run": "my-eggs"}).status_code == 200
    time.sleep(5)
    running = other.get("/api/training").json()["jobs"][0]
    if running["state"] == "running":
        other.post("/api/training/stop", json={"job": running["id"]})
        settle(client, "stopped")
        client.post("/api/training/go-on", json={"run": "my-eggs"})
    settle(client, "finished")
    assert client.get("/api/runs/report", params={"run": "my-eggs"}).status_code == 200
    assert client.get("/api/training/run", params={"run": "my-eggs"}).json()["verdict"]
    outside = {path.name for path in home.parent.iterdir()}
    assert outside == {"runs"}


@pytest.mark.slow
def test_a_recipe_and_then_its_model_are_trained_on_a_text(home: Path) -> None:
    client = client_of(home)
    name = send(client, "eggs.jsonl", LINES).json()["text"]
    asked = {"recipe": "akjv-demo", "texts": [name], "set": {"training.steps": "12", **SMALL}, "name": "first"}
    client.post("/api/training/train", json=asked)
    settle(client, "finished")
    longer = client.post("/api/training/go-on", json={"run": "first", "twice": True})
    assert longer.status_code == 200, longer.text
    settle(client, "finished")
    assert client.get("/api/training/run", params={"run": "first"}).json()["steps"] == 24
    tuned = {"bundle": "first", "texts": [name], "set": {"training.steps": "10", "training.batch_size": "4"}}
    assert client.post("/api/training/train", json=tuned).json()["run"] == "first-tuned"
    settle(client, "finished")
    assert client.get("/api/runs/report", params={"run": "first-tuned"}).status_code == 200
