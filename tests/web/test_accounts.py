"""Facts about the account behind the sliders, and the diagram that goes with it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.accounting import account
from fledge.config import ModelConfig, load_recipe
from fledge.model.registry import ARCHITECTURES
from fledge.model.transformer import Transformer


def ask(client: TestClient, **values: Any) -> dict[str, Any]:
    answer = client.post("/api/account", json=values)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_numbers_are_those_of_the_accounting(client: TestClient) -> None:
    shape = {"layers": 48, "width": 1600, "heads": 25, "hidden": 6400, "tied": False}
    answer = ask(client, model=shape, vocabulary_size=50_257, context_length=1024, batch=4)
    optimizer = load_recipe("akjv-demo").optimizer.name
    expected = account(ModelConfig(**shape), 50_257, 1024, batch=4, optimizer=optimizer)
    assert answer["parameters"] == expected.parameters.total == 2_127_057_600
    assert answer["forward_flops"] == expected.forward_flops == 4_513_336_524_800
    assert answer["memory"] == pytest.approx(expected.memory.total)
    assert sum(part["bytes"] for part in answer["memory_parts"]) == pytest.approx(answer["memory"])
    assert sum(answer["parameters_by_component"].values()) == answer["parameters"]


@pytest.mark.parametrize("recipe", ["akjv", "akjv-demo", "gpt2-small", "lstm", "bdh"])
def test_the_numbers_are_those_of_the_command(
    client: TestClient, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    """Whatever the recipe says of optimizer, precision and recomputation: `akjv` trains with Muon."""
    from fledge.cli.account import show

    show(recipe, batch=3, as_json=True)
    told = json.loads(capsys.readouterr().out)
    answer = ask(client, recipe=recipe, batch=3, vocabulary_size=told["vocabulary_size"])
    assert answer["memory"] == told["memory"]["total"]
    assert answer["optimizer"] == load_recipe(recipe).optimizer.name
    for name in ("forward_flops", "flops_per_token", "context_length"):
        assert answer[name] == told[name]
    held = {part["name"]: part["constant"] for part in told["memory"]["parts"]}
    weights = held["parameters"] + held["gradients"] + held["optimizer state"]
    assert sum(tensor["training_bytes"] for tensor in answer["tensors"]) == pytest.approx(
        weights, rel=1e-3
    )  # its vocabulary is padded


def test_a_bundle_is_accounted_as_the_command_does(
    client: TestClient, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fledge.cli.account import show

    show(str(world / "runs" / "alpha"), batch=2, as_json=True)
    told = json.loads(capsys.readouterr().out)
    answer = ask(client, bundle="alpha", batch=2)
    assert answer["memory"] == told["memory"]["total"]
    assert answer["context_length"] == told["context_length"]


def test_an_architecture_of_ones_own_has_an_account_and_no_drawing_of_another(client: TestClient) -> None:
    class Mine(Transformer):
        pass

    answer = client.post("/api/account", json={"model": {"architecture": "mine"}})
    assert answer.status_code == 400
    assert "mine" in answer.json()["error"]["message"]
    ARCHITECTURES["mine"] = Mine
    try:
        answer = ask(client, model={"architecture": "mine"})
    finally:
        del ARCHITECTURES["mine"]
    assert answer["parameters"] > 0
    assert (answer["diagram"], answer["nodes"]) == ("", [])


def test_a_bundle_is_accounted_as_it_was_built(client: TestClient) -> None:
    runs = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert ask(client, bundle="alpha")["parameters"] == runs["alpha"]["parameters"]


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "rnn", "gru", "lstm"])
def test_every_box_of_the_diagram_is_a_node_and_every_tensor_has_a_box(client: TestClient, architecture: str) -> None:
    answer = ask(client, model={"architecture": architecture})
    boxes = re.findall(r'<rect class="box-(?!group)', answer["diagram"])
    assert len(boxes) == len(answer["nodes"])
    shown = {name for node in answer["nodes"] for name in node["tensors"]}
    missing = {t["name"] for t in answer["tensors"] if t["name"] not in shown and "bias" not in t["name"]}
    assert not missing
    products = {name for node in answer["nodes"] for name in node["products"]}
    assert products == {product["name"] for product in answer["products"]}


def test_the_diagram_brings_no_style_that_the_policy_would_refuse(client: TestClient) -> None:
    drawing = ask(client)["diagram"]
    assert "<style" not in drawing
    assert "style=" not in drawing


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": {"width": 100, "heads": 3}}, "does not divide"),
        ({"model": {"layers": 10**9}}, "at most"),
        ({"model": {"layers": "1000000000"}}, "at most"),
        ({"model": {"width": 1e18, "heads": 2}}, "at most"),
        ({"model": {"colour": "red"}}, "no setting"),
        ({"recipe": "akvj-demo"}, "Did you mean akjv-demo"),
        ({"recipe": "/etc/passwd"}, "no recipe called"),
    ],
)
def test_what_can_t_be_built_is_one_sentence(client: TestClient, values: dict[str, Any], words: str) -> None:
    answer = client.post("/api/account", json=values)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("width", [10**18, "1000000000000000000", 1e18])
def test_no_number_keeps_the_server_busy(client: TestClient, width: object) -> None:
    """Divisors of a width without end are not all looked for."""
    answer = client.post("/api/account", json={"model": {"width": width, "heads": 3}})
    assert answer.status_code == 400
    assert "does not divide" in answer.json()["error"]["message"]


def test_a_slider_is_followed_at_once(client: TestClient) -> None:
    ask(client)
    started = time.perf_counter()
    for layers in range(1, 21):
        ask(client, model={"layers": layers})
    assert (time.perf_counter() - started) / 20 < 0.1
