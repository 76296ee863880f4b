"""Facts about taking a bundle up: what it begins with, its file, its run's report, and the experiment it belongs to."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fledge.bundle import load_bundle
from fledge.bundle.archive import pack
from fledge.config import load_recipe
from fledge.run import Run
from fledge.web.app import create_app
from tests.small import SMALL
from tests.web.world import make_bundle


def serve(*folders: Path) -> TestClient:
    return TestClient(create_app(folders), base_url="http://127.0.0.1")


def test_a_bundle_begins_with_its_own_settings(world: Path, tmp_path: Path) -> None:
    tokenizer = load_bundle(world / "runs/alpha/checkpoints/step-00000200").tokenizer
    config = load_recipe("akjv-demo", ["sampling.temperature=0.35", "sampling.top_k=7", "sampling.prompt=the hen"])
    make_bundle(tmp_path / "own", config, tokenizer, seed=1)
    pack(tmp_path / "own", tmp_path / "packed.zip")
    client = serve(tmp_path, tmp_path / "packed.zip")
    for name in ("own", "packed.zip"):
        answer = client.get("/api/bundles/sampling", params={"bundle": name}).json()
        assert (answer["temperature"], answer["top_k"], answer["prompt"]) == (0.35, 7, "the hen")
    assert client.post("/api/account", json={"bundle": "packed.zip"}).status_code == 200


@pytest.mark.filterwarnings("ignore")
def test_a_run_s_bundle_begins_with_words_that_were_held_out(tmp_path: Path) -> None:
    rows = random.Random(0)
    words = ["".join(rows.choices("aeioumnrst", k=rows.randint(2, 7))) for _ in range(300)]
    documents = [" ".join(rows.choices(words, k=60)) for _ in range(60)]  # no two alike: copies stay on one side
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(documents))
    overrides = [*SMALL, "training.steps=1", f"corpus.source={tmp_path / 'text.txt'}"]
    run = Run("akjv-demo", tmp_path / "runs" / "hen", overrides=overrides, quiet=True)
    run.train()
    answer = serve(tmp_path / "runs").get("/api/bundles/sampling", params={"bundle": "hen"})
    validation = run.tokenizer.decode(run.tokens.split("validation").tokens[:60].tolist())
    prompt = answer.json()["prompt"]
    assert len(prompt.split()) == 4
    assert prompt in validation
    shutil.rmtree(run.folder / "tokens")
    assert serve(tmp_path / "runs").get("/api/bundles/sampling", params={"bundle": "hen"}).json()["prompt"] == ""


def test_a_download_is_a_bundle_without_its_training(client: TestClient, tmp_path: Path) -> None:
    answer = client.get("/api/bundles/download", params={"bundle": "alpha/checkpoints/step-00000200"})
    assert answer.headers["content-type"] == "application/zip"
    assert 'filename="alpha-checkpoints-step-00000200.zip"' in answer.headers["content-disposition"]
    (tmp_path / "got.zip").write_bytes(answer.content)
    assert load_bundle(tmp_path / "got.zip").model.parameters_count() > 0
    assert client.get("/api/bundles/download", params={"bundle": "../alpha"}).status_code == 404


def test_trials_name_their_experiment_and_reports_open_without_scripts(world: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(world / "runs" / "alpha", tmp_path / "runs" / "study" / "trials" / name)
    shutil.copytree(world / "runs" / "alpha", tmp_path / "runs" / "alone")
    (tmp_path / "runs" / "study" / "plan.json").write_text("{}")
    (tmp_path / "runs" / "study" / "report.html").write_text("<h1>Study</h1><script>alert(1)</script>")
    client = serve(tmp_path / "runs")
    answer = client.get("/api/runs").json()
    assert answer["experiments"] == [{"name": "study", "has_report": True}]
    of = {run["name"]: run["experiment"] for run in answer["runs"]}
    assert of == {"alone": None, "study/trials/one": "study", "study/trials/two": "study"}
    page = client.get("/api/experiments/report", params={"experiment": "study"})
    assert "<h1>Study</h1>" in page.text
    assert "sandbox" in page.headers["content-security-policy"]
    assert "script-src" not in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for asked in ({"run": "alone"}, {"run": "nobody"}):
        assert client.get("/api/runs/report", params=asked).status_code == 404
    assert client.get("/api/experiments/report", params={"experiment": "alone"}).status_code == 404
    (tmp_path / "runs" / "alone" / "report.html").symlink_to(world / "runs" / "alpha" / "config.json")
    assert client.get("/api/runs/report", params={"run": "alone"}).status_code == 404
    alone = serve(tmp_path / "runs" / "study").get("/api/runs").json()  # served by itself
    assert [run["experiment"] for run in alone["runs"]] == ["study", "study"]
