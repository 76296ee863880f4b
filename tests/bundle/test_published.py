"""Models as transformers publishes them, with random weights: imported, used, trained further on either side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fledge.bundle import load_bundle
from fledge.bundle.exchange import export_bundle, import_bundle
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import generate
from fledge.runs import find_bundle
from fledge.tokenizer import Tokenizer
from tests.bundle.test_exchange import make
from tests.cli.conftest import Fledge
from tests.cli.conftest import fledge as fledge
from tests.tokenizer import test_files

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 280,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**GROUPED, "rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama with biases of attention": ("Llama", {**GROUPED, "attention_bias": True}),
    "mistral": ("Mistral", {**GROUPED, "sliding_window": 20}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen3": ("Qwen3", {**GROUPED, "head_dim": 8}),
    "qwen3 with heads of 128": ("Qwen3", {**GROUPED, "tie_word_embeddings": True}),
    "mistral with wide heads": ("Mistral", {**GROUPED, "head_dim": 16, "sliding_window": None}),
    "smollm3": ("SmolLM3", {**GROUPED, "no_rope_layers": [1, 1]}),
    "arcee": ("Arcee", {**GROUPED, "mlp_bias": True}),
    "starcoder2": ("Starcoder2", {**GROUPED, "use_bias": False}),
    "stablelm": ("StableLm", {**GROUPED, "use_qkv_bias": True, "partial_rotary_factor": 1.0}),
    "gpt_neox": ("GPTNeoX", {**SIZES, "use_parallel_residual": False, "rotary_pct": 1.0}),
}


def published(folder: Path, tokenizer: Tokenizer, kind: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_imported(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """Equal scores here, and again in the folder that it is exported to."""
    theirs = published(tmp_path / "hub", tokenizer, *PUBLISHED[name])
    if name == "gpt_neox":  # the masks that its older files carry along
        file, layer = tmp_path / "hub" / "model.safetensors", "gpt_neox.layers.0.attention."
        masks = {layer + "bias": torch.ones(1, 1, 32, 32).bool(), layer + "masked_bias": torch.tensor(-1e9)}
        save_file({**load_file(file), **masks}, file, {"format": "pt"})
    bundle = load_bundle(import_bundle(tmp_path / "hub", tmp_path / "bundle"))
    length = 20 if name == "mistral" else 32
    assert bundle.model.context_length == length
    ids = torch.randint(0, tokenizer.vocab_size, (2, length))
    with torch.inference_mode():
        expected = theirs(ids).logits
        torch.testing.assert_close(bundle.model(ids), expected, atol=1e-4, rtol=1e-4)
        folder = export_bundle(bundle, tmp_path / "again")
        own = name == "stablelm"  # biases of its attention alone have no home beside LayerNorm and SwiGLU
        assert bool(list(folder.glob("modeling_*.py"))) is own
        again = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=own).eval()
        torch.testing.assert_close(again(ids).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_a_published_model_is_tuned_measured_and_exported(
    tmp_path: Path, tokenizer: Tokenizer, fledge: Fledge, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the commands, with a tokenizer like its own, and a text that is not in the form NFC."""
    monkeypatch.chdir(tmp_path)
    kind, settings = PUBLISHED[name]
    published(Path("hub"), tokenizer, kind, {**settings, "vocab_size": 1000})
    for path in Path("hub").glob("tokenizer*"):
        path.unlink()
    sentencepiece = name == "mistral"
    theirs = (
        test_files.sentencepiece(Path("hub"), "first") if sentencepiece else test_files.published(Path("hub"), "Qwen")
    )
    text = "Cafe\u0301 and nai\u0308ve, 1234 e\u0301tudes.\n" * 60
    Path("text.txt").write_text(text)
    assert fledge("bundle", "import", "hub", "base").code == 0
    sets = ("corpus.source=text.txt", "training.steps=2", "training.batch_size=2", "training.device=cpu")
    tuned = fledge("train", "--from", "base", *(word for each in sets for word in ("--set", each)), "--out", "tuned")
    assert tuned.code == 0, tuned.err
    measured = json.loads(fledge("evaluate", "tuned", "--text", "text.txt", "--json", "--quiet").out)["tuned"]
    assert measured["tokens"] == len(theirs.encode(text).ids) + 1  # the end of the text
    assert fledge("generate", "tuned", "--prompt", "Cafe\u0301", "--max-tokens", "3").code == 0
    assert fledge("bundle", "export", "tuned", "again").code == 0
    reader = transformers.AutoTokenizer.from_pretrained("again")
    assert reader(text)["input_ids"] == [reader.bos_token_id] * sentencepiece + theirs.encode(text).ids
    ids = torch.tensor([theirs.encode(text).ids[:20]])
    with torch.inference_mode():
        scores = transformers.AutoModelForCausalLM.from_pretrained("again").eval()(ids).logits
        torch.testing.assert_close(load_bundle(find_bundle("tuned")).model(ids), scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("GPTNeoX", {**SIZES, "rotary_pct": 1.0}, "gpt_neox with use_parallel_residual = True is not supported"),
        ("GPTNeoX", {**SIZES, "use_parallel_residual": False}, "rotary_pct = 0.25 is not supported: it is 1.0"),
        ("StableLm", GROUPED, "partial_rotary_factor = 0.25 is not supported"),
        ("Qwen2", {**GROUPED, "use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window = True"),
        ("SmolLM3", {**GROUPED, "no_rope_layers": [1, 0]}, "no_rope_layers = .1, 0. is not supported"),
        ("Gemma2", GROUPED, "model_type = 'gemma2' can't be imported"),
    ],
)
def test_what_would_be_another_model_here_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, kind: str, settings: dict[str, Any], sentence: str
) -> None:
    published(tmp_path / "hub", tokenizer, kind, settings)
    with pytest.raises(FledgeError, match=sentence):
        import_bundle(tmp_path / "hub", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_transformers_trains_an_export_further(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """Ten steps of its own Trainer; the result comes back, and its pipeline writes what we write."""
    pytest.importorskip("accelerate")
    folder = export_bundle(make(tmp_path, tokenizer, name), tmp_path / "hub")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer.encode("In the beginning God created")[:8]
    data = [{"input_ids": ids, "labels": ids}] * 4
    options = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=10, learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no"
    )
    trainer = transformers.Trainer(model, options, train_dataset=data)
    with torch.inference_mode():
        before = model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    assert trainer.train().training_loss < before
    trainer.save_model(str(tmp_path / "tuned"))
    tokenizer.save(tmp_path / "tuned")
    bundle = load_bundle(import_bundle(tmp_path / "tuned", tmp_path / "back"))
    model.eval()
    with torch.inference_mode():
        given = torch.tensor([ids])
        torch.testing.assert_close(bundle.model(given), model(given).logits, atol=1e-4, rtol=1e-4)
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=reader, device="cpu")
    written = pipeline("In the", max_new_tokens=4, do_sample=False)[0]["generated_text"]
    ours = generate(bundle.model, tokenizer, ["In the"], SamplingConfig(temperature=0, max_tokens=4))[0].text
    assert written == "In the" + ours
