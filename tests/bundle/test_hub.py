"""Models, tokenizers and text by their names on a hub: pushed, fetched once, pinned, resumed; hostile ones refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fledge
from fledge.bundle import Bundle, load_bundle
from fledge.bundle.exchange import export_bundle
from fledge.bundle.hub import local_bundle, push_bundle
from fledge.cli import main
from fledge.corpus import fetch
from fledge.corpus.hub import address_of, is_hub, parse_address
from fledge.errors import FledgeError
from fledge.runs import find_bundle
from fledge.tokenizer import Tokenizer
from tests.bundle.conftest import TEXT, scores
from tests.bundle.test_exchange import make
from tests.hub import Handler, Hub, serving

pytest.importorskip("huggingface_hub")
TOKEN = "hf_secretsecretsecretsecretsecret"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    with serving() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        found.token = TOKEN
        yield found


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("format", ["huggingface", "bundle"])
def test_a_model_is_pushed_and_loaded_by_its_name(tmp_path: Path, tokenizer: Tokenizer, hub: Hub, format: str) -> None:
    bundle = make(tmp_path, tokenizer, "qwen3")
    (tmp_path / "loss.svg").write_text("<svg/>")
    address = push_bundle(bundle, "owner/verses", format, curve=tmp_path / "loss.svg")
    (commit,) = [name for name, files in hub.repositories["models/owner/verses"].items() if files]
    assert address == f"hf://owner/verses@{commit}"
    run = fledge.load("hf://owner/verses")
    assert torch.equal(scores(run.model), scores(bundle.model))
    assert run.tokenizer.fingerprint == bundle.tokenizer.fingerprint
    there = hub.repositories["models/owner/verses"][commit]
    card = there["README.md"].decode()
    assert 'fledge.load("hf://owner/verses")' in card
    assert "![The loss while it was trained](loss.svg)" in card
    assert "fledge train fledge.json" in card
    assert there["loss.svg"] == b"<svg/>"
    assert json.loads(there["fledge.json"])["model"]["qk_norm"] is True
    count = len(hub.requests)
    again = load_bundle(f"hf://owner/verses@{commit}")
    assert torch.equal(scores(again.model), scores(bundle.model))
    assert len(hub.requests) == count, "a commit that is here asks nobody"
    assert address_of(Path(fledge.load(address).folder)) == address
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_transformers_reads_what_was_pushed(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its own downloader finds it there."""
    transformers = pytest.importorskip("transformers")
    from huggingface_hub import snapshot_download

    bundle = make(tmp_path, tokenizer, "llama")
    push_bundle(bundle, "owner/verses")
    folder = snapshot_download("owner/verses", endpoint=hub.address, cache_dir=tmp_path / "theirs")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(1, 17).reshape(1, 16)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, bundle.model(ids), atol=1e-4, rtol=1e-4)


def test_a_push_replaces_what_was_there(tmp_path: Path, tokenizer: Tokenizer, hub: Hub) -> None:
    hub.commit("models/owner/verses", {"model-00001-of-00002.safetensors": b"old", "notes.txt": b"mine"})
    push_bundle(make(tmp_path, tokenizer, "llama"), "owner/verses")
    assert fledge.load("hf://owner/verses").model.context_length == 16
    files = list(hub.repositories["models/owner/verses"].values())[-1]
    assert "notes.txt" in files
    assert "model-00001-of-00002.safetensors" not in files


def test_a_branch_that_moves_on_is_fetched_anew_and_a_commit_stays(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub
) -> None:
    first = make(tmp_path / "a", tokenizer, "llama")
    second = make(tmp_path / "b", tokenizer, "llama-tied")
    old = push_bundle(first, "owner/verses")
    assert not fledge.load("hf://owner/verses").config.model.tied
    push_bundle(second, "owner/verses")
    assert fledge.load("hf://owner/verses").config.model.tied
    assert not fledge.load(old).config.model.tied


def test_a_cut_download_goes_on_where_it_stopped(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make(tmp_path, tokenizer, "llama")
    push_bundle(bundle, "owner/verses")
    hub.cut_at = 20_000
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    with pytest.raises(FledgeError, match="goes on from there"):
        fledge.load("hf://owner/verses")
    hub.requests.clear()
    assert torch.equal(scores(fledge.load("hf://owner/verses").model), scores(bundle.model))
    assert [headers["Range"] for _, path, headers in hub.requests if "Range" in headers and "/stored/" in path] == [
        "bytes=20000-"
    ]


def test_without_a_network_the_last_copy_serves(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    push_bundle(make(tmp_path, tokenizer, "llama"), "owner/verses")
    fledge.load("hf://owner/verses")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fledge.load("hf://owner/verses").model.context_length == 16
    assert "The hub can't be reached" in str([str(each.message) for each in recwarn])
    with pytest.raises(FledgeError, match="The hub can't be reached for hf://owner/other"):
        fledge.load("hf://owner/other")


def test_a_private_repository_opens_to_its_token_alone_which_goes_nowhere_else(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_bundle(make(tmp_path, tokenizer, "llama"), "owner/verses")
    hub.private.add("models/owner/verses")
    hub.requests.clear()
    assert fledge.load("hf://owner/verses").model.context_length == 16
    stored = [headers for _, path, headers in hub.requests if path.startswith("/stored/")]
    assert stored
    assert not any("Authorization" in headers for headers in stored)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(FledgeError, match="There is no hf://owner/verses on the hub, or it is private"):
        fledge.load("hf://owner/verses")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."}, "pytorch_model.bin is a pickled file"),
        ({"config.json": b"{}"}, "there is no model.safetensors in it"),
        ({"config.json": b"{}", "../model.safetensors": b"x"}, "there is no model.safetensors in it"),
        ({"config.json": b"{}", "sub/model.safetensors": b"x"}, "there is no model.safetensors in it"),
        (
            {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"\xff" * 64},
            "config.json: it lacks num_hidden_layers",
        ),
        (
            {"config.json": b'{"model_type": "evil"}', "model.safetensors": b"x"},
            "model_type = 'evil' can't be imported",
        ),
        ({"config.json": b"[" * 100_000, "model.safetensors": b"x"}, "is not valid JSON"),
        ({"bundle.json": b"{}", "model.safetensors": b"x"}, "bundle.json"),
    ],
)
def test_a_hostile_repository_is_refused_in_a_sentence(
    tmp_path: Path, hub: Hub, files: dict[str, bytes], words: str
) -> None:
    hub.commit("models/evil/model", {**files, "modeling_evil.py": b"raise SystemExit"})
    with pytest.raises(FledgeError, match=words) as refused:
        fledge.load("hf://evil/model")
    assert "\n" not in str(refused.value)
    fetched = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert not {"modeling_evil.py", "pytorch_model.bin"} & fetched
    assert not (tmp_path / "model.safetensors").exists()


def test_a_giant_header_and_giant_texts_are_refused(tmp_path: Path, tokenizer: Tokenizer, hub: Hub) -> None:
    files = files_of(export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub"))
    giant = {**files, "model.safetensors": (1 << 62).to_bytes(8, "little") + files["model.safetensors"][8:]}
    hub.commit("models/evil/header", giant)
    with pytest.raises(FledgeError, match="not a whole safetensors file"):
        fledge.load("hf://evil/header")
    hub.commit("models/evil/text", {**files, "tokenizer.json": bytes(100_000_001)})
    with pytest.raises(FledgeError, match="far too much for a text"):
        fledge.load("hf://evil/text")


def test_a_file_that_is_not_what_the_hub_said_is_thrown_away(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_bundle(make(tmp_path, tokenizer, "llama"), "owner/verses")
    (name,) = [n for n, data in hub.stored.items() if len(data) > 5000]
    zeros = bytes(len(hub.stored[name]))
    monkeypatch.setattr(Handler, "object", lambda self, *_: self.send_part(zeros, {"ETag": f'"{name}"'}))
    with pytest.raises(FledgeError, match="does not match its checksum"):
        fledge.load("hf://owner/verses")


@pytest.mark.parametrize("place", ["hf://", "hf://name", "hf://a/b/../c", "hf://owner/na me", "hf://datasets/x"])
def test_what_is_no_address_is_refused(place: str) -> None:
    assert is_hub(place)
    with pytest.raises(FledgeError, match="Write hf://owner/name"):
        parse_address(place)


def cli(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["fledge", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)


def test_text_tokenizer_and_weights_of_a_run_come_from_a_hub_and_stay_pinned(
    tmp_path: Path, tokenizer: Tokenizer, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run keeps the commits it began with, and goes on with them when the branches moved."""
    monkeypatch.chdir(tmp_path)
    bundle = make(tmp_path, tokenizer, "llama")
    weights = push_bundle(bundle, "owner/verses")
    data = hub.commit("datasets/owner/text", {"part/a.txt": TEXT * 20, "part/b.txt": b"another text, and more. " * 40})
    small = ["training.steps=2", "training.batch_size=2", "training.device=cpu", "corpus.split=document"]
    sets = [word for setting in small for word in ("--set", setting)]
    source = ("--set", "corpus.source=hf://datasets/owner/text/part")
    train = ("train", "akjv-demo", "--set", "model.width=32", "--set", "tokens.context_length=16", *sets, *source)
    train = (*train, "--set", "tokenizer.path=hf://owner/verses")
    cli(monkeypatch, *train, "--out", "run")
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["corpus"]["source"] == [f"hf://datasets/owner/text@{data}/part"]
    assert kept["tokenizer"]["path"] == weights
    inside = fledge.load("run")
    assert inside.config.corpus.source == (f"hf://datasets/owner/text@{data}/part",)
    assert inside.tokenizer.fingerprint == tokenizer.fingerprint
    assert load_bundle(find_bundle("run")).config.tokenizer.path == weights
    hub.commit("datasets/owner/text", {"part/a.txt": b"Something else is there now. " * 40})
    cli(monkeypatch, *train, "--set", "training.steps=3", "--out", "run2")
    assert json.loads((tmp_path / "run2" / "config.json").read_text())["corpus"]["source"] != kept["corpus"]["source"]
    cli(monkeypatch, "train", "--resume", "run", "--set", "training.steps=4")
    cli(
        monkeypatch,
        "train",
        "--from",
        "hf://owner/verses",
        *sets,
        "--set",
        "corpus.source=bundle/README.md",
        "--out",
        "tuned",
    )
    assert json.loads((tmp_path / "tuned" / "origin.json").read_text())["name"].startswith(weights)
    capsys.readouterr()
    cli(monkeypatch, "bundle", "push", "tuned", "owner/tuned")
    assert "hf://owner/tuned" in capsys.readouterr().out
    assert "loss.svg" in list(hub.repositories["models/owner/tuned"].values())[-1]
    cli(monkeypatch, "generate", "hf://owner/tuned", "--prompt", "In", "--max-tokens", "3")


def test_local_places_are_what_they_were(bundle: Bundle) -> None:
    assert address_of(bundle.path) is None
    assert not is_hub(bundle.path)
    with pytest.raises(FledgeError, match="is no model"):
        local_bundle("hf://datasets/owner/name")
