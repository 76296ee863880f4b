"""What we export to ONNX, onnxruntime calculates: equal scores for any number of texts and any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.bundle import onnx as module
from fledge.bundle.exchange import export_bundle
from fledge.config import TokensConfig
from fledge.errors import FledgeError
from fledge.tokenizer import Tokenizer, train_bpe
from tests.bundle.conftest import small_config, small_model
from tests.bundle.test_exchange import SHAPES

OTHERS: dict[str, dict[str, Any]] = {
    "bdh": {"architecture": "bdh", "multiplier": 4},
    "post-norm": {"norm_place": "post", "qk_norm": True, "feed_forward": "relu2", "position": "sinusoidal"},
    "bare": {"norm": "none", "position": "none", "feed_forward": "silu"},
}
QUICK = ["gpt2"]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in {**SHAPES, **OTHERS} if name not in QUICK]


def make(tmp_path: Path, tokenizer: Tokenizer, context_length: int = 16, **settings: Any) -> Bundle:
    config = small_config(**settings).model_copy(update={"tokens": TokensConfig(context_length=context_length)})
    model = small_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, model))


def opened(path: Path) -> Any:
    return pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_onnxruntime_agrees(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    bundle = make(tmp_path, tokenizer, **{**SHAPES, **OTHERS}[name])
    session = opened(export_bundle(bundle, tmp_path / "model.onnx"))
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.shape) == ("input_ids", ["batch", "length"])
    assert (given.name, given.shape) == ("logits", ["batch", "length", tokenizer.vocab_size])
    for texts, length in [(1, 1), (3, bundle.model.context_length), (2, 5)]:
        ids = torch.randint(0, tokenizer.vocab_size, (texts, length))
        (found,) = session.run(None, {"input_ids": ids.numpy()})
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(found), bundle.model(ids), atol=1e-4, rtol=1e-4)


RECURRENT: dict[str, dict[str, Any]] = {
    "rnn": {"architecture": "rnn", "bias": True},
    "gru": {"architecture": "gru", "tied": True},
    "gru-bias": {"architecture": "gru", "bias": True},
    "lstm": {"architecture": "lstm", "bias": True},
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", RECURRENT)
def test_onnxruntime_goes_on_from_a_state(tmp_path: Path, tokenizer: Tokenizer, name: str, dtype: str) -> None:
    """Any number of texts in pieces of any length, each beginning with what the one before it left."""
    settings = RECURRENT[name]
    bundle = make(tmp_path, tokenizer, **settings)
    session = opened(export_bundle(bundle, tmp_path / "model.onnx", dtype=dtype))
    parts = ["hidden", "cell"] if settings["architecture"] == "lstm" else ["hidden"]
    assert [taken.name for taken in session.get_inputs()] == ["input_ids", *parts]
    assert [given.name for given in session.get_outputs()] == ["logits", *(f"next_{part}" for part in parts)]
    assert session.get_outputs()[0].shape == ["batch", "length", tokenizer.vocab_size]
    tolerance = 1e-5 if dtype == "float32" else 3e-3
    ids = torch.randint(0, tokenizer.vocab_size, (3, 12))
    state = {part: torch.zeros(2, 3, 32).to(getattr(torch, dtype)).numpy() for part in parts}
    rounded = {name: tensor.to(getattr(torch, dtype)).float() for name, tensor in bundle.model.state_dict().items()}
    bundle.model.load_state_dict(rounded)
    with torch.inference_mode():
        ours = bundle.model(ids)
    place = 0
    for length in (5, 1, 6):
        piece = ids[:, place : place + length]
        logits, *after = session.run(None, {"input_ids": piece.numpy(), **state})
        state = dict(zip(parts, after, strict=True))
        found = torch.from_numpy(logits).float()
        torch.testing.assert_close(found, ours[:, place : place + length], atol=tolerance, rtol=tolerance)
        place += length


def test_the_tokenizer_travels_inside(tmp_path: Path, tokenizer: Tokenizer) -> None:
    theirs = pytest.importorskip("tokenizers").Tokenizer
    session = opened(export_bundle(make(tmp_path, tokenizer, 1), tmp_path / "model.onnx", dtype="float16"))
    facts = session.get_modelmeta().custom_metadata_map
    text = "In the beginning — é 你<|endoftext|>"
    assert theirs.from_str(facts["tokenizer.json"]).encode(text).ids == tokenizer.encode(text)
    assert facts["context_length"] == "1"
    assert session.get_outputs()[0].type == "tensor(float16)"


@pytest.mark.slow
def test_a_start_token_stands_before_every_text_there_too(tmp_path: Path) -> None:
    theirs = pytest.importorskip("tokenizers").Tokenizer
    tokenizer = train_bpe([b"In the beginning was the Word. " * 4], 280, ["<s>", "</s>"])
    session = opened(export_bundle(make(tmp_path, tokenizer), tmp_path / "model.onnx"))
    inside = theirs.from_str(session.get_modelmeta().custom_metadata_map["tokenizer.json"])
    assert inside.encode("In the").ids == [tokenizer.roles.start, *tokenizer.encode("In the")]


def test_what_no_such_file_holds_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make(tmp_path / "b", tokenizer)
    with pytest.raises(FledgeError, match="Give --dtype float32 or float16"):
        export_bundle(bundle, tmp_path / "x.onnx", dtype="bfloat16")
    with pytest.raises(FledgeError, match="x.onnx is the name of an ONNX file, and gguf writes another"):
        export_bundle(bundle, tmp_path / "x.onnx", "gguf")
    monkeypatch.setattr(module, "LARGEST", 1000)
    with pytest.raises(FledgeError, match="holds at most 1.0 kB. Give --dtype float16 if that is less"):
        export_bundle(bundle, tmp_path / "x.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
