"""Every packaged recipe in every format, and folders that were damaged on the way: `make exchange` runs all of it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.bundle.exchange import export_bundle, import_bundle
from fledge.bundle.gguf import rounded_as_stored
from fledge.config import RunConfig, TokensConfig, load_recipe, recipe_names
from fledge.errors import FledgeError
from fledge.start.choose import model_of
from fledge.tokenizer import CharacterTokenizer, Tokenizer
from tests.bundle.conftest import small_model
from tests.bundle.test_exchange import make
from tests.llama_cpp import LlamaCpp

FORMATS = ["huggingface", "gguf f16", "gguf q8_0", "onnx"]
HOMELESS = ("bdh", "lstm", "gru")
"What llama.cpp has no architecture for: each is a refusal that names what does."
CHOSEN = ("start on a CPU", "start on a GPU", "start on little text")
"What `fledge start` chooses; a text of less than 100 kB is cut into characters."
ADVICE = r"nearest one that does is \w+: train with model\."
IDS = [40, 41, 42, 43, 44, 45, 46]


def shrunk(tmp_path: Path, tokenizer: Tokenizer, recipe: str) -> Bundle:
    """The recipe's model with its kinds of parts, and small ones."""
    if recipe in CHOSEN:
        config = RunConfig(model=model_of(2, 64, fast=recipe == "start on a GPU"))
    else:
        config = load_recipe(recipe)
        heads = {"heads": 4, "kv_heads": config.model.kv_heads and 2, "multiplier": 8, "width": 64, "layers": 2}
        model = config.model.model_copy(update={**heads, "hidden": None, "dropout": 0.0})
        config = config.model_copy(update={"model": model})
    config = config.model_copy(update={"tokens": TokensConfig(context_length=16)})
    built = small_model(config, tokenizer)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, built))


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("recipe", [*recipe_names(), *CHOSEN])
def test_a_packaged_recipe_leaves(tmp_path: Path, tokenizer: Tokenizer, recipe: str, format: str) -> None:
    if recipe == "start on little text":
        tokenizer = CharacterTokenizer.train(["In the beginning — naïve"])
    bundle = shrunk(tmp_path, tokenizer, recipe)
    kind, _, dtype = format.partition(" ")
    target = tmp_path / {"huggingface": "hub", "gguf": "model.gguf", "onnx": "model.onnx"}[kind]
    if recipe in HOMELESS and kind == "gguf":
        with pytest.raises(FledgeError, match=ADVICE):
            export_bundle(bundle, target, dtype=dtype or None)
        assert not target.exists()
        return
    export_bundle(bundle, target, dtype=dtype or None)
    given = torch.tensor([IDS])
    if kind == "gguf":
        bundle.model.load_state_dict(rounded_as_stored(bundle.model.state_dict(), {"f16": "float16"}.get(dtype, dtype)))
    with torch.inference_mode():
        ours = bundle.model(given)[0, -1].log_softmax(-1)
    if kind == "huggingface":
        transformers = pytest.importorskip("transformers")
        with torch.inference_mode():
            read = transformers.AutoModelForCausalLM.from_pretrained(target, trust_remote_code=recipe in HOMELESS)
            theirs = read.eval()(given).logits[0, -1]
    elif kind == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(target, providers=["CPUExecutionProvider"])
        sizes = {"batch": 1, "length": len(IDS)}
        memory = {
            taken.name: torch.zeros([sizes.get(size, size) for size in taken.shape]).numpy()
            for taken in session.get_inputs()[1:]
        }
        theirs = torch.from_numpy(session.run(None, {"input_ids": given.numpy(), **memory})[0])[0, -1]
    else:
        judge = LlamaCpp(target, 16)
        theirs = judge.log_probabilities(IDS, tokenizer.vocab_size, tokenizer.encode("a")[0])
    tolerance = {"gguf f16": 0.03, "gguf q8_0": 0.3}.get(format, 1e-4)
    torch.testing.assert_close(theirs.log_softmax(-1), ours, atol=tolerance, rtol=1e-4)


def damage(folder: Path, chance: random.Random) -> None:
    """Flip, cut, repeat or replace some bytes of one file, most often where they say something."""
    path = chance.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    reach = min(len(data), 4000) if path.suffix == ".safetensors" and chance.random() < 0.8 else len(data)
    place = chance.randrange(reach)
    match chance.randrange(5):
        case 0:
            data[place] ^= 1 << chance.randrange(8)
        case 1:
            del data[place:]
        case 2:
            data[place : place + 1] = chance.choice([b'"', b"{", b"9" * 30, b"-", b"null", b"\x00", b"\xff", b"1e999"])
        case 3:
            del data[place : place + chance.randrange(1, 40)]
        case _:
            data[place:place] = data[: chance.randrange(1, 200)]
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "count"),
    [("qwen3", 25), *(pytest.param(name, 1000, marks=pytest.mark.slow) for name in ("qwen3", "gpt2"))],
)
def test_a_damaged_folder_is_imported_whole_or_refused(
    tmp_path: Path, tokenizer: Tokenizer, name: str, count: int
) -> None:
    """Never half a bundle, never another error; what is imported is as it was, or as transformers reads it now."""
    transformers = pytest.importorskip("transformers")
    whole = make(tmp_path, tokenizer, name)
    right = export_bundle(whole, tmp_path / "hub")
    outcomes = {"imported": 0, "refused": 0}
    text = "In the beginning — é void"
    for seed in range(count):
        folder, target = tmp_path / "damaged", tmp_path / "back"
        shutil.copytree(right, folder)
        damage(folder, random.Random(seed))
        try:
            bundle = load_bundle(import_bundle(folder, target))
            ids = bundle.tokenizer.encode(text)
            with torch.inference_mode():
                found, wanted = (model(torch.tensor([IDS])) for model in (bundle.model, whole.model))
                if not torch.equal(found, wanted) or ids != tokenizer.encode(text):
                    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(torch.tensor([IDS]))
                    torch.testing.assert_close(found, theirs.logits, atol=1e-3, rtol=1e-3, equal_nan=True)
                    assert transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == ids
            outcomes["imported"] += 1
        except FledgeError as refused:
            outcomes["refused"] += 1
            sentence = str(refused)
            complete = not target.exists() and sentence.rstrip().endswith((".", "?", ")", "TOKENIZER"))
            if not complete:
                pytest.fail(f"seed {seed}: {sentence}")
        shutil.rmtree(folder)
        shutil.rmtree(target, ignore_errors=True)
    assert min(outcomes.values()) > count // 20, outcomes
