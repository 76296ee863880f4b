"""Models that no stock program holds leave with code of their own: transformers reads them where fledge is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.bundle.exchange import export_bundle, import_bundle
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import generate
from fledge.model.families import OWN
from fledge.tokenizer import Tokenizer
from tests.bundle.conftest import small_config, small_model

HOMELESS: dict[str, dict[str, Any]] = {
    "post-norm": {"norm_place": "post", "kv_heads": 2},
    "no-norm": {"norm": "none", "tied": True, "feed_forward": "gelu"},
    "learned": {"position": "learned", "norm": "layer", "bias": True, "qk_norm": True},
    "sinusoidal": {"position": "sinusoidal", "feed_forward": "relu2", "norm_place": "post", "tied": True},
    "nowhere": {"position": "none", "feed_forward": "gelu_tanh", "qk_norm": True},
    "stretched": {"qk_norm": True, "bias": True, "rope_scaling": (8.0, 1.0, 4.0, 16.0), "feed_forward": "silu"},
    "wide-heads": {"norm_place": "post", "heads": 3, "head_size": 16, "kv_heads": 1},
    "bdh": {"architecture": "bdh", "multiplier": 4},
    "rnn": {"architecture": "rnn", "bias": True},
    "gru": {"architecture": "gru", "tied": True},
    "lstm": {"architecture": "lstm", "bias": True},
}
ELSEWHERE = """
import importlib.abc, json, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "fledge":
            raise ImportError("fledge is not here")
sys.meta_path.insert(0, Refuse())
import torch, transformers
torch.manual_seed(0)
transformers.logging.set_verbosity_error()
results = {}
for folder, ids in json.loads(sys.stdin.read()).items():
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=True)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    given = torch.tensor(ids)
    with torch.inference_mode():
        logits = model(given).logits
    texts = ["void", "In the beg"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    greedy = {"max_new_tokens": 5, "do_sample": False}
    together = tokenizer.batch_decode(model.generate(**inputs, **greedy))
    singly = [tokenizer(text, return_tensors="pt") for text in texts]
    alone = [tokenizer.decode(model.generate(**one, **greedy)[0]) for one in singly]
    plain = [tokenizer.decode(model.generate(**one, **greedy, use_cache=False)[0]) for one in singly]
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = model(given, labels=given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(folder + "-saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(folder + "-saved", trust_remote_code=True).eval()
    with torch.inference_mode():
        kept = bool(torch.equal(again(given).logits, model.eval()(given).logits))
    texts = {"together": together, "alone": alone, "plain": plain}
    results[folder] = {"logits": logits.tolist(), **texts, "losses": losses, "kept": kept}
print(json.dumps(results))
"""


def make(place: Path, tokenizer: Tokenizer, name: str) -> Bundle:
    config = small_config(**HOMELESS[name])
    model = small_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return load_bundle(save_bundle(place / "bundle", config, tokenizer, model))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Bundle]:
    return {name: make(tmp_path_factory.mktemp(name), tokenizer, name) for name in HOMELESS}


@pytest.fixture(scope="module")
def judged(bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a process that cannot import fledge makes of all the folders."""
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("hub")
    folders = {name: str(export_bundle(bundle, place / name)) for name, bundle in bundles.items()}
    given = json.dumps({folder: ids().tolist() for folder in folders.values()})
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, input=given, capture_output=True, text=True, env={"HF_HOME": str(place / "home")})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: found[folder] for name, folder in folders.items()}


def ids() -> torch.Tensor:
    return torch.randint(0, 280, (2, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", HOMELESS)
def test_transformers_calculates_the_same_without_fledge(
    bundles: dict[str, Bundle], judged: dict[str, dict[str, Any]], tokenizer: Tokenizer, name: str
) -> None:
    bundle, found = bundles[name], judged[name]
    with torch.inference_mode():
        torch.testing.assert_close(torch.tensor(found["logits"]), bundle.model(ids()), atol=1e-4, rtol=1e-4)
    texts = ["void", "In the beg"]
    greedy = SamplingConfig(temperature=0, max_tokens=5)
    ours = [
        text + each.text for text, each in zip(texts, generate(bundle.model, tokenizer, texts, greedy), strict=True)
    ]
    for kind in ("alone", "together", "plain"):
        assert [text.replace("<|endoftext|>", "") for text in found[kind]] == ours
    assert found["kept"]
    assert found["losses"][2] < found["losses"][0]


@pytest.mark.parametrize("name", HOMELESS)
def test_such_a_folder_comes_back(tmp_path: Path, bundles: dict[str, Bundle], name: str) -> None:
    bundle = bundles[name]
    folder = export_bundle(bundle, tmp_path / "hub")
    (folder / next(folder.glob("modeling_*.py")).name).write_text("raise SystemExit('code from a stranger')")
    back = load_bundle(import_bundle(folder, tmp_path / "back"))
    with torch.inference_mode():
        assert torch.equal(back.model(ids()), bundle.model(ids()))
    ignored = {"hidden", "attention_dropout", "rope_theta"}
    assert back.config.model.model_dump(exclude=ignored) == bundle.config.model.model_dump(exclude=ignored)


def test_wrong_values_in_its_description_are_refused_by_name(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    folder = export_bundle(bundles["lstm"], tmp_path / "hub")
    settings = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"architecture": "bdh"}, "architecture = 'bdh' is not allowed in a fledge_recurrent: it is rnn, gru, lstm"),
        ({"architecture": 3}, "architecture = 3 is not allowed: it is a name"),
        ({"layers": "two"}, "layers = 'two' is not allowed"),
        ({"layers": 3}, "no tensor recurrent"),
        ({"vocab_size": 0}, "vocab_size = 0 is not allowed"),
        ({"tie_word_embeddings": True}, "lm_head.weight, which the model of these settings does not have"),
    ):
        (folder / "config.json").write_text(json.dumps({**settings, **change}))
        with pytest.raises(FledgeError, match=words):
            import_bundle(folder, tmp_path / "back")
        assert not (tmp_path / "back").exists()


def test_every_file_says_how_it_is_read() -> None:
    """The class that config.json names stands in the file, which imports nothing but torch and transformers."""
    from importlib.resources import files

    for family in OWN:
        text = files("fledge.model").joinpath("standalone", family.file).read_text("utf-8")
        assert f"class {family.model}(" in text
        assert f'model_type = "{family.name}"' in text
        roots = {
            line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
        }
        assert roots <= {"math", "dataclasses", "torch", "transformers"}
        assert "trust_remote_code=True" in text
