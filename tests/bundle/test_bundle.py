"""A bundle gives back what was saved, whole or not at all, for every architecture."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fledge.bundle import Bundle, TrainingState, load_bundle, save_bundle
from fledge.bundle.card import CARD
from fledge.bundle.describe import describe, describe_differences
from fledge.bundle.save import record_metrics
from fledge.bundle.weights import read_header, write_tensors
from fledge.config import CorpusConfig
from fledge.errors import FledgeError
from fledge.files import sha256
from fledge.run import load
from fledge.runs import find_bundle
from fledge.tokenizer import CharacterTokenizer, Tokenizer, WordTokenizer
from tests.accounting.counting import torch_flops
from tests.bundle.conftest import forge, scores, small_config, small_model

ARCHITECTURES = [
    {},
    {"tied": True, "kv_heads": 2},
    {"norm": "layer", "bias": True, "position": "learned", "feed_forward": "gelu_tanh", "tied": True},
    {"position": "sinusoidal", "qk_norm": True, "norm_place": "post"},
    {"architecture": "bdh", "multiplier": 4},
    {"architecture": "rnn"},
    {"architecture": "gru"},
    {"architecture": "lstm"},
]


@pytest.mark.parametrize("shape", ARCHITECTURES, ids=lambda shape: "-".join(map(str, shape.values())) or "plain")
def test_every_architecture_comes_back_equal(tmp_path: Path, tokenizer: Tokenizer, shape: dict[str, object]) -> None:
    config = small_config(**shape)
    model = small_model(config, tokenizer)
    loaded = load_bundle(save_bundle(tmp_path / "b", config, tokenizer, model))
    assert torch.equal(scores(loaded.model), scores(model))
    assert loaded.config == config
    assert loaded.manifest.model.parameters == model.parameters_count()
    assert loaded.training is None
    for name, parameter in model.named_parameters():
        assert vars(loaded.model.get_parameter(name)) == vars(parameter), name


@pytest.mark.parametrize("kind", [CharacterTokenizer, WordTokenizer])
def test_every_tokenizer_comes_back_equal(tmp_path: Path, kind: type[CharacterTokenizer]) -> None:
    tokenizer = kind.train(["naïve café in the beginning"])
    config = small_config()
    loaded = load_bundle(save_bundle(tmp_path / "b", config, tokenizer, small_model(config, tokenizer)))
    assert loaded.tokenizer.encode("the café") == tokenizer.encode("the café")


def test_training_state_comes_back_when_asked_for(bundle: Bundle) -> None:
    assert bundle.training is not None
    assert torch.equal(bundle.training.tensors["moment"], torch.arange(6.0))
    assert bundle.training.values == {"step": 5, "samples": 160}
    assert bundle.metrics == {"step": 5, "validation_loss": 2.5}


def test_loading_needs_only_the_folder(bundle: Bundle, tmp_path: Path) -> None:
    """Another process in another directory, with no corpus and no recipe, gets the same scores."""
    elsewhere = shutil.copytree(bundle.path, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(bundle.path)
    code = (
        "import fledge, torch; run = fledge.load('copy'); "
        "print(run.model(torch.arange(1, 17)[None]).double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=elsewhere.parent, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(scores(bundle.model).double().sum().item(), abs=1e-4)


def test_saving_is_whole_or_absent(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    model = small_model(config, tokenizer)
    with pytest.raises(ValueError):
        save_bundle(tmp_path / "b", config, tokenizer, model, metrics={"step": object()})
    assert list(tmp_path.iterdir()) == []
    save_bundle(tmp_path / "b", config, tokenizer, model)
    with pytest.raises(FledgeError, match="exists already"):
        save_bundle(tmp_path / "b", config, tokenizer, model)
    other = small_model(config, tokenizer, seed=1)
    save_bundle(tmp_path / "b", config, tokenizer, other, replace=True)
    assert torch.equal(scores(load_bundle(tmp_path / "b").model), scores(other))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_metrics_that_are_not_numbers_survive(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    metrics = {"loss": float("nan"), "best": float("inf"), "curve": [1.5, 2], "note": "é|<b>"}
    folder = save_bundle(tmp_path / "b", config, tokenizer, small_model(config, tokenizer), metrics=metrics)
    found = load_bundle(folder).metrics
    assert found["loss"] != found["loss"]
    assert {**found, "loss": 0} == {**metrics, "loss": 0}


def test_large_models_are_sharded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    model = small_model(config, tokenizer)
    state = TrainingState({str(n): torch.full((100,), float(n)) for n in range(5)}, {})
    folder = save_bundle(tmp_path / "b", config, tokenizer, model, training=state, shard_bytes=1000)
    assert (folder / "model.safetensors.index.json").is_file()
    assert len(list(folder.glob("model-*.safetensors"))) > 5
    loaded = load_bundle(folder)
    assert torch.equal(scores(loaded.model), scores(model))
    assert loaded.training is not None
    assert loaded.training.tensors["4"].tolist() == [4.0] * 100


def test_a_run_gives_its_newest_checkpoint(bundle: Bundle, tmp_path: Path) -> None:
    for step in (90, 1000):
        shutil.copytree(bundle.path, tmp_path / "run" / "checkpoints" / f"step-{step:08}")
    (tmp_path / "run" / "checkpoints" / "step-00002000.partial").mkdir()
    assert find_bundle(tmp_path / "run").name == "step-00001000"


def test_other_types_and_devices(bundle: Bundle) -> None:
    half = load_bundle(bundle.path, dtype=torch.bfloat16).model
    assert next(half.parameters()).dtype == torch.bfloat16
    difference = (scores(half).float() - scores(bundle.model)).abs().max()
    assert difference < 0.2


@pytest.mark.parametrize("device", ["nope", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_refused(bundle: Bundle, device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is one")
    with pytest.raises(FledgeError, match=f"device = '{device}' is no device, or there is none here. Use cpu"):
        load_bundle(bundle.path, device=device)


def test_settings_without_effect_are_no_difference(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Of a tokenizer that was given, what counts is the tokenizer, and not how one would have been trained."""
    places = []
    for name, size in (("a", 1024), ("b", 257)):
        plain = small_config()
        given = plain.tokenizer.model_copy(update={"path": "tokenizer", "vocabulary_size": size})
        config = plain.model_copy(update={"tokenizer": given})
        places.append(save_bundle(tmp_path / name, config, tokenizer, small_model(config, tokenizer)))
    assert describe_differences(*places) == []
    stored = plain.model_copy(update={"tokens": plain.tokens.model_copy(update={"store": "tokens"})})
    place = save_bundle(tmp_path / "c", stored, tokenizer, small_model(stored, tokenizer))
    assert {difference.name for difference in describe_differences(place, tmp_path / "a")} >= {
        "tokens.store",
        "corpus.source",
    }
    assert ("token store", "tokens") in describe(place)["how it was trained"]
    card = (place / "README.md").read_text()
    assert "| token store | tokens |" in card
    assert "akjv" not in card


def test_the_card_says_what_is_shown(bundle: Bundle) -> None:
    """Of the model and its training; not where it lies, on which machine, and what can be done with it."""
    card, shown = (bundle.path / "README.md").read_text(), describe(bundle.path)
    others = ("bundle", "name", "format version", "machine", "training state")
    for name, value in [*shown["what it is"], *shown["how it was trained"]]:
        assert (f"| {name} | {value} |" in card) == (name not in others)


def test_differences_beyond_four_digits_are_shown_in_full(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    model, places = small_model(config, tokenizer), []
    for name, loss in (("a", 2.7801), ("b", 2.7804)):
        metrics = {"validation_loss": loss, "best": float("nan"), "step": 5}
        places.append(save_bundle(tmp_path / name, config, tokenizer, model, metrics=metrics))
    assert describe_differences(*places) == [("metrics: validation_loss", "2.7801", "2.7804")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architecture": "mine"}, "not known. There is no model.architecture = 'mine'"),
        ({"width": 4 * 10**200}, "beyond reckoning"),
    ],
    ids=["unknown", "huge"],
)
def test_what_can_not_be_reckoned_does_not_hide_the_rest(bundle: Bundle, change: dict[str, object], words: str) -> None:
    forge(bundle.path, lambda values: values["config"]["model"].update(change))
    costs = dict(describe(bundle.path)["what it costs"])
    assert words in costs["forward"]
    assert "weights" in costs


def test_the_cost_that_is_shown_is_what_torch_counts(bundle: Bundle) -> None:
    forge(bundle.path, lambda values: values["config"]["model"].update(width=256))
    shape = (small_config(width=256).model, bundle.tokenizer.vocab_size, 16)
    forward, training = (torch_flops(*shape, backward=backward) / 16 / 1e6 for backward in (False, True))
    costs = dict(describe(bundle.path)["what it costs"])
    assert forward > 1
    assert costs["forward"] == f"{forward:,.1f} MFLOPs a token at the full context"
    assert costs["training"] == f"{training:,.1f} MFLOPs a token"


def test_weights_of_more_than_one_type_are_not_saved(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    model = small_model(config, tokenizer).bfloat16()
    model.layers[0].ln1.float()
    with pytest.raises(FledgeError, match="have the types bfloat16, float32, and a bundle needs a single type"):
        save_bundle(tmp_path / "b", config, tokenizer, model)
    save_bundle(tmp_path / "b", config, tokenizer, model.float())


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not tell what is mapped")
def test_weights_are_mapped_not_copied(bundle: Bundle) -> None:
    """All but those that join several tensors of the file in one."""
    path = bundle.path / "model.safetensors"
    lines = [line for line in MAPS.read_text().splitlines() if line.endswith(f" {path}")]
    spans = [[int(place, 16) for place in line.split()[0].split("-")] for line in lines]
    names = read_header(path).keys() & dict(bundle.model.named_parameters()).keys()
    assert {"token_embeddings.weight", "layers.0.attn.output_proj.weight", "lm_head.weight"} <= names
    for name in names:
        place = bundle.model.get_parameter(name).data_ptr()
        assert any(start <= place < end for start, end in spans), name


def test_a_write_to_a_loaded_weight_stays_in_memory(bundle: Bundle) -> None:
    """The file keeps its checksum."""
    before = sha256(bundle.path / "model.safetensors")
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.zero_()
    assert sha256(bundle.path / "model.safetensors") == before


def test_our_files_are_plain_safetensors(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "empty": torch.empty(0, 7),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "half": torch.randn(5).bfloat16(),
        "flag": torch.tensor([True, False]),
        "turned": torch.randn(4, 3).t(),
        "long": torch.arange(3),
    }
    entry = write_tensors(tmp_path / "t.safetensors", tensors, {"format": "pt"})
    assert entry.sha256 == sha256(tmp_path / "t.safetensors")
    assert entry.size == (tmp_path / "t.safetensors").stat().st_size
    found = load_file(tmp_path / "t.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    header = read_header(tmp_path / "t.safetensors")
    assert {name: shape.shape for name, shape in header.items()} == {n: tuple(t.shape) for n, t in tensors.items()}


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 62, (1 << 64) - 1])
def test_a_forged_header_length_allocates_nothing(tmp_path: Path, length: int) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.ones(8)})
    data = bytearray(path.read_bytes())
    data[:8] = struct.pack("<Q", length)
    path.write_bytes(data)
    with pytest.raises(FledgeError, match="not a whole safetensors file"):
        read_header(path)


@pytest.mark.parametrize("path", [None, 3, b"runs/akjv", ["runs/akjv"]])
def test_what_is_no_path_is_a_sentence(path: Any) -> None:
    for read in (load, load_bundle):
        with pytest.raises(FledgeError, match=r"is not a path of a bundle\. Give the path"):
            read(path)


def test_a_corpus_whose_name_is_no_utf8_is_kept_as_it_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config().model_copy(update={"corpus": CorpusConfig(source=("te\udcffxt.txt",))})
    folder = save_bundle(tmp_path / "b", config, tokenizer, small_model(config, tokenizer), metrics={"a": "\udcff"})
    record_metrics(folder, {"loss": 2.5})
    found = load_bundle(folder)
    assert found.config.corpus.source == ("te\udcffxt.txt",)
    assert found.metrics == {"a": "\udcff", "loss": 2.5}
    assert "te\\udcffxt.txt" in (folder / CARD).read_text("utf-8")


def test_while_a_bundle_is_replaced_one_of_the_two_has_its_name(
    bundle: Bundle, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before the older one is removed leaves the newer one in its place."""

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            raise KeyboardInterrupt

    other = small_model(bundle.config, tokenizer, seed=1)
    monkeypatch.setattr("fledge.bundle.save.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save_bundle(bundle.path, bundle.config, tokenizer, other, replace=True)
    assert torch.equal(scores(load_bundle(bundle.path).model), scores(other))
    monkeypatch.undo()
    save_bundle(bundle.path, bundle.config, tokenizer, bundle.model, replace=True)
    assert [path.name for path in bundle.path.parent.iterdir()] == ["bundle"]
