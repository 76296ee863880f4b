"""Facts about a look inside over HTTP: what is told is what the library sees, and nobody can ask for too much."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from fledge.bundle import load_bundle
from fledge.config import load_recipe
from fledge.model.inside import Text, look_inside
from fledge.web import inside
from fledge.web.app import create_app
from tests.web.world import SMALL, make_bundle

ALPHA = "alpha/checkpoints/step-00000200"


def values(picture: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(picture["data"]), dtype=np.uint8)
    return (data.reshape(picture["rows"], picture["columns"]) / 255.0) ** 2


def look(client: TestClient, text: str, bundle: str = ALPHA, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/inside", json={"bundle": bundle, "text": text, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_look_tells_what_the_model_does(client: TestClient, world: Path) -> None:
    bundle = load_bundle(world / "runs" / ALPHA)
    text = "the egg, and the hen said: let there be light."
    ids = bundle.tokenizer.encode(text)
    seen = look(client, text)
    assert [token["id"] for token in seen["tokens"]] == ids
    assert b"".join(base64.b64decode(token["bytes"]) for token in seen["tokens"]).decode() == text
    with torch.inference_mode():
        logprobs = bundle.model(torch.tensor([ids]))[0].log_softmax(-1)
    wanted = [float(logprobs[place, token]) for place, token in enumerate(ids[1:])]
    assert [token["logprob"] for token in seen["tokens"][1:]] == pytest.approx(wanted, abs=1e-3)
    assert seen["tokens"][0]["logprob"] is None
    assert seen["lens"][-1][:-1] == pytest.approx(wanted, abs=1e-3)
    found = look_inside(bundle.model, Text.of([ids], torch.device("cpu")))
    for layer in range(2):
        for head in range(4):
            asked = {"look": seen["look"], "layer": layer, "head": head}
            large = values(client.get("/api/inside/head", params=asked).json())
            np.testing.assert_allclose(large, found.attention[layer](head).numpy(), atol=0.005)
            np.testing.assert_array_equal(values(seen["heads"][layer][head]), large)  # few tokens are shown as they are
    token = client.get("/api/inside/token", params={"look": seen["look"], "place": 5}).json()
    assert [layer["likeliest"][0]["id"] for layer in token["layers"]][-1] == int(logprobs[5].argmax())
    assert token["layers"][-1]["next_logprob"] == pytest.approx(wanted[5], abs=1e-3)
    row = np.frombuffer(base64.b64decode(token["attention"][1][2]), dtype=np.uint8)
    np.testing.assert_allclose((row / 255.0) ** 2, found.attention[1](2)[5, :6].numpy(), atol=0.005)


def test_paragraphs_are_documents_that_see_no_other(client: TestClient) -> None:
    seen = look(client, "the egg was warm\n\nthe hen sat on it", paragraphs=True)
    documents = [token["document"] for token in seen["tokens"]]
    border = documents.index(1)
    assert sorted(documents) == documents
    for layer in seen["heads"]:
        for picture in layer:
            assert not values(picture)[border:, :border].any()
    assert seen["tokens"][border]["logprob"] is None


@pytest.mark.parametrize("architecture", ["bdh", "gru", "lstm", "rnn"])
def test_every_architecture_shows_what_it_has(world: Path, tmp_path: Path, architecture: str) -> None:
    tokenizer = load_bundle(world / "runs" / ALPHA).tokenizer
    config = load_recipe("akjv-demo", [*SMALL, f"model.architecture={architecture}", "model.multiplier=4"])
    make_bundle(tmp_path / "one", config, tokenizer, seed=1)
    client = TestClient(create_app([tmp_path / "one"]), base_url="http://127.0.0.1")
    seen = look(client, "the egg, and the egg was warm", "one")
    gates = {gate["name"] for gate in seen["gates"]}
    states = {"lstm": {"input", "forget", "output", "cell", "hidden"}, "gru": {"reset", "update", "hidden"}}
    assert gates == (set() if architecture == "bdh" else states.get(architecture, {"hidden"}))
    assert bool(seen["heads"]) == bool(seen["neurons"]) == (architecture == "bdh")
    token = client.get("/api/inside/token", params={"look": seen["look"], "place": 3}).json()
    assert len(token["layers"]) == 3
    assert bool(token["neurons"]) == (architecture == "bdh")
    for layer in seen["neurons"]:
        assert all(0 <= gated <= share <= 1 for share, gated in zip(layer["share"], layer["gated_share"], strict=True))


def test_what_is_too_much_is_refused_or_cut(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    long = look(client, "the egg " * 400)
    assert len(long["tokens"]) == 64  # the model's context
    assert "first 64 tokens" in long["note"]

    def refused(**body: Any) -> str:
        answer = client.post("/api/inside", json={"bundle": ALPHA, "text": "a", **body})
        assert answer.status_code in (400, 404, 422, 503), answer.text
        return str(answer.json()["error"]["message"])

    assert "at most 64" in refused(text="a\n\n" * 200, paragraphs=True)
    assert "at least 1 character" in refused(text="")
    assert "at most 20000" in refused(text="a" * 20_001)
    assert "no bundle called" in refused(bundle="../alpha")
    monkeypatch.setattr(inside, "MOST_FLOPS", 1e6)
    assert "would take long on a CPU" in refused(text="the egg, and the hen " * 3)


def test_only_the_last_looks_are_kept(client: TestClient) -> None:
    first = look(client, "the egg")["look"]
    asked = {"look": first, "place": 0}
    assert client.get("/api/inside/token", params=asked).status_code == 200
    assert client.get("/api/inside/token", params={**asked, "place": 60}).status_code == 404
    assert client.get("/api/inside/head", params={"look": first, "layer": 9, "head": 0}).status_code == 404
    for _ in range(inside.KEPT):
        look(client, "the hen")
    answer = client.get("/api/inside/token", params=asked)
    assert answer.status_code == 404
    assert "look again" in answer.json()["error"]["message"]
