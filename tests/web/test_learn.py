"""Facts about a run that is replayed: each checkpoint says what the library says of it, one model at a time, and what
was said is kept."""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from fledge.bundle import load_bundle
from fledge.config import SamplingConfig, load_recipe
from fledge.generation import generate
from fledge.model import ARCHITECTURES, register
from fledge.model.transformer import Transformer
from fledge.tokenizer import train_bpe
from fledge.web import inside, learn
from fledge.web.app import create_app
from fledge.web.shelf import Shelf
from tests.web.conftest import serving
from tests.web.world import SMALL, TEXT, make_bundle, read_lines, write_metrics

TOLD = "the egg was warm"
STEPS = (50, 100, 150, 200)


def make_grown(folder: Path, changes: tuple[str, ...] = (), steps: tuple[int, ...] = STEPS) -> Path:
    """A run of a few checkpoints that differ."""
    tokenizer = train_bpe([TEXT.encode()] * 3, 370, ["<|endoftext|>"])
    config = load_recipe("akjv-demo", [*SMALL, *changes])
    for seed, step in enumerate(steps):
        make_bundle(folder / "checkpoints" / f"step-{step:08d}", config, tokenizer, seed)
    (folder / "config.json").write_text(config.model_dump_json())
    write_metrics(folder, range(0, 201, 50), seed=1)
    return folder


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_grown(tmp_path_factory.mktemp("grown") / "runs" / "hen")


@pytest.fixture
def client(grown: Path) -> Iterator[TestClient]:
    with TestClient(create_app([grown.parent]), base_url="http://127.0.0.1") as client:
        yield client


def replay(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/learn", json={"run": "hen", **body})
    assert answer.status_code == 200, answer.text
    return read_lines(answer.text)  # type: ignore[return-value]


def test_each_checkpoint_says_what_the_library_says_of_it(client: TestClient, grown: Path) -> None:
    bundle = load_bundle(grown / "checkpoints" / "step-00000050")
    ids = bundle.tokenizer.encode(TOLD)
    chosen = ids[1]
    start, *told, end = replay(client, prompt="the hen", max_tokens=8, temperature=0.8, seed=3, text=TOLD, token=chosen)
    assert (start["event"], end["event"]) == ("start", "end")
    assert [each["step"] for each in start["checkpoints"]] == [each["step"] for each in told] == list(STEPS)
    assert start["steps"] == 200
    assert [token["id"] for token in start["tokens"]] == ids
    assert base64.b64decode(start["token"]["bytes"]) == bundle.tokenizer.vocab[chosen]
    assert len({json.dumps(each["written"]) for each in told}) == len(STEPS)
    for each in told:
        bundle = load_bundle(grown / "checkpoints" / f"step-{each['step']:08d}")
        settings = SamplingConfig(temperature=0.8, max_tokens=8, seed=3)
        assert [token["id"] for token in each["written"]["tokens"]] == generate(
            bundle.model, bundle.tokenizer, ["the hen"], settings
        )[0].ids
        with torch.inference_mode():
            logprobs = bundle.model(torch.tensor([ids]))[0].log_softmax(-1)
            rows = bundle.model.token_embeddings.used
            cosines = torch.nn.functional.cosine_similarity(rows, rows[chosen][None])
        wanted = [float(logprobs[place, token]) for place, token in enumerate(ids[1:])]
        assert each["logprobs"][0] is None
        assert each["logprobs"][1:] == pytest.approx(wanted, abs=1e-3)
        nearest = [token for token in cosines.argsort(descending=True).tolist() if token != chosen][: learn.NEAREST]
        assert [neighbour["id"] for neighbour in each["nearest"]] == nearest
        assert [neighbour["cosine"] for neighbour in each["nearest"]] == pytest.approx(
            cosines[nearest].tolist(), abs=1e-3
        )


def test_what_was_said_is_kept_until_a_checkpoint_changes(
    client: TestClient, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"prompt": "the", "max_tokens": 4, "text": TOLD}
    first = replay(client, **asked)
    read: list[Path] = []
    once = Shelf.read_bundle

    def counted(shelf: Shelf, path: Path) -> Any:
        read.append(path)
        return once(shelf, path)

    monkeypatch.setattr(Shelf, "read_bundle", counted)
    assert replay(client, **asked)[:-1] == first[:-1]
    assert read == []
    replay(client, **asked, token=300)  # only what is new is asked
    assert len(read) == len(STEPS)
    read.clear()
    manifest = grown / "checkpoints" / "step-00000100" / "bundle.json"
    manifest.write_bytes(manifest.read_bytes())
    replay(client, **asked)
    assert [path.name for path in read] == ["step-00000100"]


def test_one_model_is_in_memory_at_a_time_whoever_asks(
    client: TestClient, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside_now, most = [0], [0]
    read, score = Shelf.read_bundle, learn.score_tokens

    def slow(shelf: Shelf, path: Path) -> Any:
        inside_now[0] += 1
        most[0] = max(most[0], inside_now[0])
        time.sleep(0.02)
        return read(shelf, path)

    def last(*given: Any) -> Any:
        found = score(*given)
        inside_now[0] -= 1
        return found

    monkeypatch.setattr(Shelf, "read_bundle", slow)
    monkeypatch.setattr(learn, "score_tokens", last)
    asks = [
        threading.Thread(target=replay, args=(client,), kwargs={"text": f"the egg {number}", "max_tokens": 0})
        for number in range(3)
    ]
    for ask in asks:
        ask.start()
    for ask in asks:
        ask.join()
    assert (most[0], inside_now[0]) == (1, 0)


def test_a_damaged_checkpoint_is_a_sentence_and_the_others_answer(grown: Path, tmp_path: Path) -> None:
    run = shutil.copytree(grown, tmp_path / "runs" / "hen")
    weights = run / "checkpoints" / "step-00000100" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7] + b"changed")
    other = train_bpe([TEXT.encode()], 300, ["<|endoftext|>"])
    shutil.rmtree(run / "checkpoints" / "step-00000150")
    make_bundle(run / "checkpoints" / "step-00000150", load_recipe("akjv-demo", SMALL), other, seed=1)
    with TestClient(create_app([run.parent]), base_url="http://127.0.0.1") as client:
        _, *told, _ = replay(client, text=TOLD, max_tokens=2)
        problems = {each["step"]: each["problem"] for each in told}
        assert "does not match its checksum" in problems[100]
        assert "another tokenizer" in problems[150]
        assert problems[50] is problems[200] is None
        assert len(told[0]["logprobs"]) == len(told[3]["logprobs"]) > 2


def test_every_architecture_is_replayed_own_ones_too(tmp_path: Path) -> None:
    class Mine(Transformer):
        pass

    register("mine", Mine)
    try:
        for architecture in ("bdh", "gru", "mine"):
            make_grown(tmp_path / "runs" / architecture, (f"model.architecture={architecture}", "model.multiplier=4"))
        with TestClient(create_app([tmp_path / "runs"]), base_url="http://127.0.0.1") as client:
            for architecture in ("bdh", "gru", "mine"):
                _, *told, _ = replay(client, run=architecture, text=TOLD, max_tokens=3, token=300, prompt="the")
                assert [each["problem"] for each in told] == [None] * len(STEPS)
                assert all(each["written"]["tokens"] and each["nearest"] for each in told)
    finally:
        ARCHITECTURES.pop("mine", None)


def test_a_model_without_embeddings_says_so_and_tells_the_rest(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Shelf.read_bundle

    def bare(shelf: Shelf, path: Path) -> Any:
        bundle = read(shelf, path)
        found, bundle.model._modules["token_embeddings"] = bundle.model.token_embeddings, torch.nn.Embedding(370, 32)
        bundle.model._modules["token_embeddings"].weight = found.weight
        return bundle

    monkeypatch.setattr(Shelf, "read_bundle", bare)
    _, *told, _ = replay(client, text=f"{TOLD} and more", max_tokens=0, token=301)
    for each in told:
        assert "has no token_embeddings" in each["problem"]
        assert each["nearest"] is None
        assert len(each["logprobs"]) > 4


def test_what_is_too_much_or_not_there_is_refused_in_a_sentence(
    client: TestClient, grown: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**body: Any) -> tuple[int, str]:
        answer = client.post("/api/learn", json={"run": "hen", **body})
        return answer.status_code, answer.json()["error"]["message"]

    for name in ("../hen", "/etc", "hen/checkpoints", "hen/checkpoints/step-00000050", ".", "hen\0"):
        assert refused(run=name)[0] == 404
    assert refused(token=5_000)[0] == 400
    assert "at most 20000" in refused(text="a" * 20_001)[1]
    assert refused(max_tokens=257)[0] == refused(max_tokens=True)[0] == refused(run="hen", steps=3)[0] == 422
    start, *_ = replay(client, text="the egg " * 200, max_tokens=0)
    assert len(start["tokens"]) == 64  # the model's context
    assert "first 64 tokens" in start["note"]
    _, *told, _ = replay(client, text="e", max_tokens=0)
    assert told[0]["logprobs"] == [None]
    monkeypatch.setattr(inside, "MOST_FLOPS", 1e5)
    assert "would take long on a CPU" in refused(text=TOLD)[1]
    monkeypatch.setattr(learn, "STREAMS", 0)
    assert refused(text=TOLD)[0] == 503
    foreign = client.post("/api/learn", json={"run": "hen"}, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403


def test_links_that_lead_out_are_no_checkpoints(grown: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "hen"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-00000050").symlink_to(grown / "checkpoints" / "step-00000050")
    shutil.copytree(grown / "checkpoints" / "step-00000100", run / "checkpoints" / "step-00000100")
    (run / "checkpoints" / "step-00000100" / "model.safetensors").unlink()
    (run / "checkpoints" / "step-00000100" / "model.safetensors").symlink_to(
        grown / "checkpoints" / "step-00000100" / "model.safetensors"
    )
    client = TestClient(create_app([run.parent]), base_url="http://127.0.0.1")
    answer = client.post("/api/learn", json={"run": "hen"})
    assert answer.status_code == 404
    assert "no checkpoint yet" in answer.json()["error"]["message"]


def test_of_very_many_checkpoints_some_are_shown(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "SHOWN", 3)
    start, *told, _ = replay(client, max_tokens=0, text=TOLD)
    assert start["left_out"] == 1
    assert [each["step"] for each in told] == [50, 150, 200]


def test_who_goes_away_ends_the_work(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoints that were not asked yet are not read, and the place in the queue is free again."""
    import httpx

    read: list[Path] = []
    once = Shelf.read_bundle

    def slow(shelf: Shelf, path: Path) -> Any:
        read.append(path)
        time.sleep(0.2)
        return once(shelf, path)

    monkeypatch.setattr(Shelf, "read_bundle", slow)
    monkeypatch.setattr(learn, "STREAMS", 1)
    with serving([grown.parent]) as address, httpx.Client(base_url=address) as web:
        with web.stream("POST", "/api/learn", json={"run": "hen", "max_tokens": 0, "text": TOLD}) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines))["event"] == "start"
            assert json.loads(next(lines))["step"] == 50
        time.sleep(0.6)
        assert len(read) <= 3
        again = web.post("/api/learn", json={"run": "hen", "max_tokens": 0, "text": TOLD})
        assert again.status_code == 200
        assert again.text.count('"checkpoint"') == len(STEPS)
