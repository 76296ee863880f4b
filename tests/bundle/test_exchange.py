"""What we export, transformers and gguf read: equal ids, logits and greedy text; and it comes back as it went."""

from __future__ import annotations

import json
import random
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.bundle.describe import describe, describe_differences
from fledge.bundle.exchange import export_bundle, import_bundle
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import generate
from fledge.generation.generate import Decoding
from fledge.model import build_model
from fledge.model.exchange import export_weights
from fledge.model.families import GGUF
from fledge.run import load
from fledge.tokenizer import CharacterTokenizer, Tokenizer, WordTokenizer, train_bpe
from tests.bundle.conftest import TEXT, scores, small_config, small_model

_GPT2 = {
    "norm": "layer",
    "bias": True,
    "position": "learned",
    "feed_forward": "gelu_tanh",
    "tied": True,
    "initialisation": "gpt2",
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-grouped": {"kv_heads": 2, "hidden": 48, "rope_theta": 5000.0, "norm_epsilon": 1e-6},
    "llama-tied": {"tied": True},
    "gpt2": _GPT2,
}
OTHERS: dict[str, dict[str, Any]] = {
    "llama-bias": {"bias": True},
    "llama3": {"rope_scaling": (8.0, 1.0, 4.0, 16.0), "rope_theta": 1000.0},
    "qwen3": {"qk_norm": True, "kv_heads": 2, "norm_epsilon": 1e-6},
    "qwen3-heads": {"qk_norm": True, "heads": 3, "head_size": 16, "tied": True},
    "llama-heads": {"head_size": 4, "kv_heads": 2},
    "arcee": {"feed_forward": "relu2", "tied": True},
    "arcee-silu": {"feed_forward": "silu", "bias": True},
    "starcoder2": {"norm": "layer", "bias": True, "feed_forward": "gelu_tanh", "kv_heads": 2},
    "starcoder2-relu2": {"norm": "layer", "feed_forward": "relu2"},
    "stablelm": {"norm": "layer"},
    "smollm3": {"position": "none", "bias": True},
    "gpt2-sinusoidal": {**_GPT2, "position": "sinusoidal", "bias": False, "tied": False},
    "gpt2-nowhere": {**_GPT2, "position": "none", "feed_forward": "relu2"},
    "openai-gpt": {**_GPT2, "norm_place": "post"},
}
"""One of each of the other kinds that hold ours elsewhere, by the name that it has there."""


def make(tmp_path: Path, tokenizer: Tokenizer, name: str, **changes: Any) -> Bundle:
    config = small_config(**{**SHAPES, **OTHERS}[name], **changes)
    model = small_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, model))


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_agrees(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    bundle = make(tmp_path, tokenizer, name)
    folder = export_bundle(bundle, tmp_path / "hub")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "In the beginning, the earth — é 你"
    ids = tokenizer.encode("In the beg")
    assert their_tokenizer(text)["input_ids"] == tokenizer.encode(text)
    assert their_tokenizer("void<|endoftext|>")["input_ids"] == tokenizer.encode("void<|endoftext|>")
    with torch.inference_mode():
        torch.testing.assert_close(
            theirs(torch.tensor([ids])).logits, bundle.model(torch.tensor([ids])), atol=1e-4, rtol=1e-4
        )
    written = theirs.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0]
    ours = generate(bundle.model, tokenizer, ["In the beg"], SamplingConfig(temperature=0, max_tokens=6))[0]
    assert their_tokenizer.decode(written, skip_special_tokens=True) == "In the beg" + ours.text


@pytest.mark.parametrize("name", OTHERS)
def test_other_shapes_have_homes_in_transformers(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """Equal scores there, and again when the folder comes back, whatever it is called here then."""
    transformers = pytest.importorskip("transformers")
    bundle = make(tmp_path, tokenizer, name)
    folder = export_bundle(bundle, tmp_path / "hub")
    assert json.loads((folder / "config.json").read_text())["model_type"] in (name, name.partition("-")[0], "llama")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    back = load_bundle(import_bundle(folder, tmp_path / "back"))
    ids = torch.randint(0, tokenizer.vocab_size, (2, 16))
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, bundle.model(ids), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(back.model(ids), bundle.model(ids), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", SHAPES)
def test_a_hugging_face_folder_comes_back(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    bundle = make(tmp_path, tokenizer, name)
    export_bundle(bundle, tmp_path / "hub")
    back = load_bundle(import_bundle(tmp_path / "hub", tmp_path / "back"))
    assert torch.equal(scores(back.model), scores(bundle.model))
    assert back.tokenizer.fingerprint == tokenizer.fingerprint
    ignored = {"dropout", "initialisation", "hidden"}
    assert back.config.model.model_dump(exclude=ignored) == bundle.config.model.model_dump(exclude=ignored)


def test_a_folder_saved_by_transformers_is_imported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "hub")
    tokenizer.save(tmp_path / "tokenizer")
    with pytest.raises(FledgeError, match="tokenizer"):
        import_bundle(tmp_path / "hub", tmp_path / "back")
    back = load_bundle(import_bundle(tmp_path / "hub", tmp_path / "back", tmp_path / "tokenizer"))
    ids = torch.randint(0, 300, (2, 20))
    with torch.inference_mode():
        torch.testing.assert_close(back.model(ids), theirs(ids).logits, atol=1e-4, rtol=1e-4)
    greedy = generate(back.model, back.tokenizer, ["void"], SamplingConfig(temperature=0, max_tokens=9))[0]
    assert len(greedy.ids) <= 9
    assert max(greedy.ids, default=0) < tokenizer.vocab_size


def test_a_folder_of_several_types_is_imported_in_the_widest(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """As transformers loads it; and the native step then generates from it what the model itself says."""
    transformers = pytest.importorskip("transformers")
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].bfloat16()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    back = load_bundle(import_bundle(folder, tmp_path / "back"))
    assert back.manifest.model.dtype == "float32"
    ids = torch.tensor([tokenizer.encode("In the beg")])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, back.model(ids), atol=1e-4, rtol=1e-4)
    written = generate(back.model, tokenizer, ["In the beg"], SamplingConfig(temperature=0, max_tokens=6))[0]
    greedy = ids
    with torch.inference_mode():
        for _ in written.ids:
            greedy = torch.cat([greedy, back.model(greedy)[:, -1:].argmax(-1)], dim=1)
    assert greedy[0, ids.shape[1] :].tolist() == written.ids


@pytest.mark.parametrize(("specials", "begins"), [(["<|endoftext|>"], False), (["<s>", "</s>"], True), ([], False)])
def test_gguf_says_whether_a_text_begins_with_a_start_token(tmp_path: Path, specials: list[str], begins: bool) -> None:
    gguf = pytest.importorskip("gguf")
    tokenizer = train_bpe([b"In the beginning " * 9], 260, specials)
    bundle = make(tmp_path, tokenizer, "llama")
    reader = gguf.GGUFReader(export_bundle(bundle, tmp_path / "model.gguf", "gguf"))
    assert reader.fields["tokenizer.ggml.add_bos_token"].contents() is begins
    assert (
        Decoding(bundle.model, tokenizer, ["In"], SamplingConfig()).histories[0] != tokenizer.encode("In")
    ) is begins


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama-grouped", "llama-tied"])
def test_gguf_reads_back_equal(tmp_path: Path, tokenizer: Tokenizer, name: str, dtype: str | None) -> None:
    gguf = pytest.importorskip("gguf")
    bundle = make(tmp_path, tokenizer, name)
    reader = gguf.GGUFReader(export_bundle(bundle, tmp_path / "model.gguf", "gguf", dtype))
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["llama.attention.head_count_kv"] == (bundle.config.model.kv_heads or 4)
    assert fields["tokenizer.ggml.eos_token_id"] == tokenizer.roles.end
    assert len(fields["tokenizer.ggml.tokens"]) == tokenizer.vocab_size
    assert len(fields["tokenizer.ggml.merges"]) == len(tokenizer.merges)
    weights = export_weights(bundle.config.model, bundle.model.state_dict(), family=GGUF[0])
    assert {tensor.name for tensor in reader.tensors} == set(weights)
    for tensor in reader.tensors:
        ours = weights[tensor.name]
        found = np.array(tensor.data)
        if tensor.tensor_type.name == "BF16":
            found = torch.from_numpy(found).view(torch.bfloat16).float().numpy()
            ours = ours.bfloat16()
        elif tensor.tensor_type.name == "F16":
            ours = ours.half()
        assert np.array_equal(found.reshape(ours.shape).astype(np.float32), ours.detach().float().numpy())


def test_gguf_describes_the_model(tmp_path: Path, tokenizer: Tokenizer) -> None:
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(export_bundle(make(tmp_path, tokenizer, "llama-grouped"), tmp_path / "model.gguf"))
    found = {key: field.contents() for key, field in reader.fields.items() if key.startswith("llama.")}
    assert found == {
        "llama.context_length": 16,
        "llama.embedding_length": 32,
        "llama.block_count": 2,
        "llama.feed_forward_length": 48,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(1e-6),
        "llama.rope.freq_base": 5000.0,
        "llama.rope.dimension_count": 8,
        "llama.vocab_size": tokenizer.vocab_size,
    }


def test_gguf_names_every_token_as_transformers_does(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Special tokens are marked as such, and so are ids that the model has scores for and the tokenizer no token."""
    gguf = pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    config, size = small_config(), tokenizer.vocab_size
    model = build_model(config.model, size + 1, config.tokens.context_length)
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, model))
    theirs = transformers.AutoTokenizer.from_pretrained(export_bundle(bundle, tmp_path / "hub"))
    reader = gguf.GGUFReader(export_bundle(bundle, tmp_path / "model.gguf"))
    found = {key: field.contents() for key, field in reader.fields.items()}
    assert found["tokenizer.ggml.tokens"] == [*theirs.convert_ids_to_tokens(range(size)), f"[unused{size}]"]
    kinds = [gguf.TokenType.NORMAL] * size + [gguf.TokenType.UNUSED]
    kinds[tokenizer.special_tokens["<|endoftext|>"]] = gguf.TokenType.CONTROL
    assert found["tokenizer.ggml.token_type"] == kinds
    merges = json.loads((tmp_path / "hub" / "tokenizer.json").read_text())["model"]["merges"]
    assert found["tokenizer.ggml.merges"] == merges


@pytest.mark.parametrize(
    ("pattern", "name"), [("gpt2", "gpt-2"), ("cl100k", "llama-bpe"), ("o200k", "granite-embed-multi-97m")]
)
def test_gguf_names_the_pattern_as_llama_cpp_does(tmp_path: Path, pattern: str, name: str) -> None:
    gguf = pytest.importorskip("gguf")
    bundle = make(tmp_path, train_bpe([TEXT], 260, pattern=pattern), "llama")
    reader = gguf.GGUFReader(export_bundle(bundle, tmp_path / "model.gguf"))
    assert reader.fields["tokenizer.ggml.pre"].contents() == name


def test_a_model_is_converted_one_tensor_at_a_time(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the way out and in: of a large model there is no second copy in memory."""
    from fledge.bundle import exchange, gguf

    bundle = make(tmp_path, tokenizer, "gpt2")
    own = {tensor.data_ptr() for tensor in bundle.model.state_dict().values()}
    converted: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watched(convert: Any) -> Any:
        def each(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in convert(*arguments):
                if tensor.data_ptr() not in own:
                    converted.append(weakref.ref(tensor))
                alive.append(sum(kept() is not None for kept in converted))
                yield name, tensor

        return each

    monkeypatch.setattr(exchange, "exported", watched(exchange.exported))
    monkeypatch.setattr(gguf, "exported", watched(gguf.exported))
    monkeypatch.setattr(exchange, "imported", watched(exchange.imported))
    export_bundle(bundle, tmp_path / "model.gguf")
    import_bundle(export_bundle(bundle, tmp_path / "hub"), tmp_path / "back")
    assert len(converted) > 30
    assert max(alive) <= 4


def test_two_gguf_exports_at_once_leave_a_whole_file(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pytest.importorskip("gguf").GGUFWriter
    bundle = make(tmp_path, tokenizer, "llama")
    alone = export_bundle(bundle, tmp_path / "alone.gguf", "gguf").read_bytes()
    target, usual = tmp_path / "model.gguf", writer.write_kv_data_to_file

    def meanwhile(half_written: Any) -> None:
        monkeypatch.setattr(writer, "write_kv_data_to_file", usual)
        export_bundle(bundle, target, "gguf")
        usual(half_written)

    monkeypatch.setattr(writer, "write_kv_data_to_file", meanwhile)
    assert export_bundle(bundle, target, "gguf").read_bytes() == alone
    assert not list(tmp_path.glob("*.partial"))


def test_an_export_that_comes_second_names_what_is_in_its_way(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fledge.bundle import exchange

    bundle, target, usual = make(tmp_path, tokenizer, "llama"), tmp_path / "hub", exchange.write_hub_tokenizer

    def meanwhile(work: Path, tokenizer: Tokenizer, context_length: int) -> None:
        monkeypatch.setattr(exchange, "write_hub_tokenizer", usual)
        export_bundle(bundle, target)
        usual(work, tokenizer, context_length)

    monkeypatch.setattr(exchange, "write_hub_tokenizer", meanwhile)
    with pytest.raises(FileExistsError) as refused:
        export_bundle(bundle, target)
    assert refused.value.filename == str(target)
    assert refused.value.filename2 is None


def test_what_cannot_be_exported_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config(architecture="gru")
    recurrent = load_bundle(save_bundle(tmp_path / "a", config, tokenizer, small_model(config, tokenizer)))
    with pytest.raises(FledgeError, match="No architecture of GGUF is like this model"):
        export_bundle(recurrent, tmp_path / "x.gguf", "gguf")
    words = WordTokenizer.train(["abc"])
    config = small_config()
    spelled = load_bundle(save_bundle(tmp_path / "b", config, words, small_model(config, words)))
    with pytest.raises(FledgeError, match=r"GGUF has no tokenizer that cuts text into words\. .*tokenizer\.kind=bpe"):
        export_bundle(spelled, tmp_path / "model.gguf")
    with pytest.raises(FledgeError, match="Did you mean gguf"):
        export_bundle(spelled, tmp_path / "hub", "ggufs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("kind", [CharacterTokenizer, WordTokenizer])
def test_a_tokenizer_of_characters_or_words_leaves_and_comes_back(
    tmp_path: Path, kind: type[CharacterTokenizer | WordTokenizer]
) -> None:
    """Equal ids and text in transformers, whatever the characters, also those that have no id of their own."""
    transformers = pytest.importorskip("transformers")
    chance = random.Random(0)
    odd = "".join(chr(code) for code in chance.choices([*range(0xD800), *range(0xE000, 0x110000)], k=4000))
    known = "Naïve cafés don’t say don't:\u3000हिन्दी, ไทย, e\u0301 — x² \u001d\u2028 <0x80> ▁  1,000\n\n"
    tokenizer = kind.train([known])
    config = small_config()
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    folder = export_bundle(bundle, tmp_path / "hub")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (known, odd, known.upper(), "".join(map(chr, range(0x3100))), "<|end|>a<|start|>"):
        ids = tokenizer.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert theirs(text)["input_ids"] == [tokenizer.roles.start, *ids]
        assert theirs.decode(ids) == text
    back = load_bundle(import_bundle(folder, tmp_path / "back"))
    assert back.tokenizer.fingerprint == tokenizer.fingerprint
    assert torch.equal(scores(back.model), scores(bundle.model))
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"]["merges"] = [["a", "b"]]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(FledgeError, match="its section model is not that of a"):
        import_bundle(folder, tmp_path / "again")


def test_pickled_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match="no config.json"):
        import_bundle(tmp_path, tmp_path / "b")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(FledgeError, match="mamba"):
        import_bundle(tmp_path, tmp_path / "b")
    settings = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 10}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(FledgeError, match=r"pytorch_model\.bin is a pickled file"):
        import_bundle(tmp_path, tmp_path / "b")


def test_a_tokenizer_of_more_ids_than_the_model_is_not_imported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    train_bpe([TEXT], tokenizer.vocab_size + 1, ["<|endoftext|>"]).save(tmp_path / "larger")
    with pytest.raises(FledgeError, match=r"they do not belong together\. Name the right one with --tokenizer"):
        import_bundle(folder, tmp_path / "back", tmp_path / "larger")
    assert not (tmp_path / "back").exists()


WRONG: dict[str, list[tuple[str, Any]]] = {
    "llama": [
        *(
            (key, value)
            for key in ("vocab_size", "hidden_size", "num_attention_heads")
            for value in (None, "x", 0, 1.5)
        ),
        *((key, 10**30) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")),
        *((key, value) for key in ("num_hidden_layers", "intermediate_size") for value in (None, -1, 1.5, True)),
        *(("max_position_embeddings", value) for value in (None, 1.5, 0, 10**30, [])),
        *(("num_key_value_heads", value) for value in (3, "x", 8, -1)),
        *(("rms_norm_eps", value) for value in (None, "x", 0, -1e-5, float("inf"), 10**400)),
        *(("rope_theta", value) for value in (None, "1.5", False)),
        *(("tie_word_embeddings", value) for value in (1.5, None, "yes")),
        *(("rope_scaling", value) for value in ("x", 1, [1])),
        ("rope_parameters", "x"),
        ("rope_theta", {"in": "rope_parameters", "value": None}),
        ("num_attention_heads", 5),
        ("head_dim", "x"),
        ("head_dim", 7),
        ("attention_bias", 1.5),
    ],
    "gpt2": [
        *(
            (key, value)
            for key in ("vocab_size", "n_embd", "n_head", "n_layer")
            for value in (None, "x", 0, 1.5, 10**30)
        ),
        *(("n_positions", value) for value in (None, 0, "x")),
        *(("n_inner", value) for value in ("x", 1.5, -1)),
        *(("layer_norm_epsilon", value) for value in (None, 0)),
        *(("resid_pdrop", value) for value in (None, 1, -0.1)),
        ("tie_word_embeddings", 2),
        ("activation_function", ["relu"]),
        ("n_head", 5),
    ],
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_value_in_a_description_is_one_sentence(tmp_path: Path, tokenizer: Tokenizer, kind: str) -> None:
    """It names the file and the key, and nothing is written."""
    export_bundle(make(tmp_path, tokenizer, kind), tmp_path / "hub")
    path = tmp_path / "hub" / "config.json"
    right = json.loads(path.read_text())
    for key, value in WRONG[kind]:
        nested = isinstance(value, dict)
        wrong = {value["in"]: {key: value["value"]}} if nested else {key: value}
        path.write_text(json.dumps({**right, **wrong}))
        with pytest.raises(FledgeError) as refused:
            import_bundle(tmp_path / "hub", tmp_path / "back")
        sentence = str(refused.value)
        assert sentence.startswith(str(path)), (key, value, sentence)
        assert key in sentence, (key, value, sentence)
        assert "allowed: " in sentence or "supported" in sentence, (key, value, sentence)
        assert len(sentence) < 400 + len(str(path))
        assert not (tmp_path / "back").exists()
    for key in ("vocab_size", "num_hidden_layers" if kind == "llama" else "n_layer"):
        path.write_text(json.dumps({name: value for name, value in right.items() if name != key}))
        with pytest.raises(FledgeError, match=f"lacks {key}"):
            import_bundle(tmp_path / "hub", tmp_path / "back")


@pytest.mark.parametrize(
    ("kind", "wrong", "sentence"),
    [
        ("llama", {"hidden_size": 2048, "head_dim": None}, "do not fill it|shape"),
        ("llama", {"num_attention_heads": 32}, "shape"),
        ("llama", {"max_position_embeddings": 2**31 - 1}, "tables of"),
        ("llama", {"num_hidden_layers": 2**31 - 1}, "no weights for them"),
        ("llama", {"vocab_size": 2**31 - 1, "hidden_size": 2**31 - 2**10, "head_dim": None}, "config.json|shape"),
        ("gpt2", {"n_positions": 2**31 - 1}, "tables of|shape"),
        ("gpt2", {"n_embd": 64}, "shape"),
    ],
)
def test_a_description_of_another_model_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, kind: str, wrong: dict[str, Any], sentence: str
) -> None:
    export_bundle(make(tmp_path, tokenizer, kind), tmp_path / "hub")
    path = tmp_path / "hub" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(FledgeError, match=sentence):
        import_bundle(tmp_path / "hub", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_imported_model_does_not_claim_a_training(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on its card, not where it is shown or compared, and not in a copy of it."""
    bundle = make(tmp_path, tokenizer, "llama")
    hub = export_bundle(bundle, tmp_path / "hub")
    monkeypatch.chdir(hub)
    import_bundle(".", tmp_path / "back")
    load(tmp_path / "back").save(tmp_path / "copy")
    for name in ("back", "copy"):
        card = (tmp_path / name / "README.md").read_text()
        rows = describe(tmp_path / name)["how it was trained"]
        assert "| imported from | hub |\n| training | not known: " in card
        assert dict(rows)["imported from"] == "hub"
        assert "not known" in dict(rows)["training"]
        for claim in ("akjv", "adamw", "seed", "batch"):
            assert claim not in card
            assert claim not in str(rows)
    found = {one.name: one[1:] for one in describe_differences(bundle.path, tmp_path / "back")}
    assert found["how it was trained"] == ("by fledge: see bundle show", "not known: imported from hub")
    assert not [name for name in found if name.startswith(("corpus", "optimizer", "schedule", "training"))]
    assert "akjv" in (bundle.path / "README.md").read_text()


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "max_tokens": 7},
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sampling_settings_come_back(
    tmp_path: Path, tokenizer: Tokenizer, name: str, sampling: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    config = small_config(**SHAPES[name]).model_copy(update={"sampling": SamplingConfig(**sampling)})
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    folder = export_bundle(bundle, tmp_path / "hub")
    assert load_bundle(import_bundle(folder, tmp_path / "back")).config.sampling == config.sampling
    assert not [warning for warning in recwarn if "Not taken" in str(warning.message)]


@pytest.mark.parametrize("max_tokens", [8, 9, 15, 16, 128])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_transformers_generates_with_our_settings(
    tmp_path: Path, tokenizer: Tokenizer, name: str, max_tokens: int
) -> None:
    """Up to the end of the context, where ours are for longer texts than it has room for."""
    transformers = pytest.importorskip("transformers")
    sampling = SamplingConfig(max_tokens=max_tokens, stop_at_end=False)
    config = small_config(**SHAPES[name]).model_copy(update={"sampling": sampling})
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    folder = export_bundle(bundle, tmp_path / "hub")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    theirs.generation_config.eos_token_id = None
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])  # half of the context of 16
    written = theirs.generate(ids)
    longest = 8 if name == "gpt2" else 15
    assert written.shape[1] == (8 + max_tokens if max_tokens <= longest else 16)


def test_what_is_set_and_not_exported_is_said_in_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(stop=("Amen",), seed=3, stop_at_end=False, max_tokens=100, top_k=5)
    config = small_config(**SHAPES["llama"]).model_copy(update={"sampling": sampling})
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    with pytest.warns(UserWarning, match="Not written to generation_config.json") as said:
        folder = export_bundle(bundle, tmp_path / "hub")
    [line] = {str(warning.message) for warning in said}
    for told in ("sampling.stop = ('Amen',)", "sampling.seed = 3", "sampling.stop_at_end = False", "max_tokens = 100"):
        assert told in line
    assert not any(name in line for name in ("top_k", "samples", "prompt"))
    path = folder / "generation_config.json"
    for theirs, ours in ((["Amen", "Selah"], ("Amen", "Selah")), ("Amen", ("Amen",))):
        path.write_text(json.dumps({"stop_strings": theirs}))
        back = load_bundle(import_bundle(folder, tmp_path / f"back-{len(ours)}"))
        assert back.config.sampling == SamplingConfig(stop=ours)


def test_what_is_not_taken_from_a_generation_config_is_said_in_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    path = folder / "generation_config.json"
    values = {"do_sample": True, "temperature": 0.6, "top_p": 1.5, "top_k": "x", "num_beams": 4, "eos_token_id": 7}
    path.write_text(json.dumps({**values, "repetition_penalty": 10**400, "_from_model_config": True}))
    with pytest.warns(UserWarning, match="Not taken from") as said:
        back = load_bundle(import_bundle(folder, tmp_path / "back"))
    assert back.config.sampling == SamplingConfig(temperature=0.6)
    [line] = {str(warning.message) for warning in said}
    for name in ("top_p = 1.5 (it must be above 0 and at most 1)", "top_k = 'x'", "num_beams = 4", "eos_token_id = 7"):
        assert name in line
    assert "temperature" not in line
    for wrong in ("[1]", "{"):
        path.write_text(wrong)
        with pytest.raises(FledgeError, match="generation_config.json is not"):
            import_bundle(folder, tmp_path / "again")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_start_token_stands_before_every_text_there_as_here(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_bpe([b"In the beginning was the Word. " * 4], 280, ["<s>", "</s>"])
    bundle = make(tmp_path, tokenizer, name)
    folder = export_bundle(bundle, tmp_path / "hub")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("In the")
    assert their_tokenizer("In the", add_special_tokens=False)["input_ids"] == ids
    assert their_tokenizer("In the")["input_ids"] == [tokenizer.roles.start, *ids]
    given = torch.tensor([[tokenizer.roles.start, *ids]])
    written = theirs.generate(given, max_new_tokens=6, do_sample=False)[0, given.shape[1] :].tolist()
    ours = generate(bundle.model, tokenizer, ["In the"], SamplingConfig(temperature=0, max_tokens=6))[0].ids
    assert written[: len(ours)] == ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = load_bundle(import_bundle(folder, tmp_path / "back"))
    assert (back.tokenizer.roles, back.tokenizer.fingerprint) == (tokenizer.roles, tokenizer.fingerprint)


@pytest.mark.parametrize(("name", "embeddings"), [("llama-tied", "model.embed_tokens"), ("gpt2", "transformer.wte")])
def test_a_head_that_is_not_the_embeddings_is_not_taken_for_them(
    tmp_path: Path, tokenizer: Tokenizer, name: str, embeddings: str
) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, name), tmp_path / "hub")
    weights = load_file(folder / "model.safetensors")
    same = weights[f"{embeddings}.weight"].clone()
    save_file({**weights, "lm_head.weight": same}, folder / "model.safetensors")
    import_bundle(folder, tmp_path / "equal")
    save_file({**weights, "lm_head.weight": same + 1}, folder / "model.safetensors")
    with pytest.raises(FledgeError, match="lm_head.weight is another matrix than the embeddings. Set"):
        import_bundle(folder, tmp_path / "other")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}}, "rope_scaling.type"),
        ({"rope_parameters": {"rope_theta": 500}, "rope_scaling": {"rope_type": "default"}}, "another rope_theta each"),
        ({"num_hidden_layers": 1}, "holds model.layers.1.*, which a model of its config.json does not have"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type = 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "it lacks rope_parameters.factor"),
        ({"attention_bias": True}, "no tensor model.layers.0.self_attn.q_proj.bias"),
        ({"mlp_bias": True}, "no tensor model.layers.0.mlp.gate_proj.bias"),
        ({"model_type": "qwen3", "attention_bias": True}, "attention_bias = True is not supported: it is False"),
        ({"model_type": "mistral", "sliding_window": "x"}, "sliding_window = "),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported: it is silu"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2."),
        ({"intermediate_size": 50}, r"model.layers.0.mlp.\w+.weight has the shape"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named_as_it_is_there(
    tmp_path: Path, tokenizer: Tokenizer, changes: dict[str, Any], sentence: str
) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changes}))
    with pytest.raises(FledgeError, match=sentence):
        import_bundle(folder, tmp_path / "back")


def test_numbers_that_a_type_does_not_hold_are_not_exported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    bundle = make(tmp_path, tokenizer, "llama")
    with torch.no_grad():
        next(bundle.model.parameters())[0, 0] = 1e6
    with pytest.raises(FledgeError, match="holds 1e.06, which is too large for float16"):
        export_bundle(bundle, tmp_path / "hub", dtype="float16")
    export_bundle(bundle, tmp_path / "hub", dtype="bfloat16")
    with torch.no_grad():
        next(bundle.model.parameters())[0, 0] = torch.inf
    for name in ("other", "x.gguf", "x.onnx"):
        with pytest.raises(FledgeError, match="token_embeddings.weight holds numbers that are not finite"):
            export_bundle(bundle, tmp_path / name)


def test_weights_that_are_not_finite_are_not_imported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(FledgeError, match="not finite, in the weights that fledge calls ln_final.weight"):
        import_bundle(folder, tmp_path / "back")


def test_every_sampling_setting_that_stays_behind_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config().model_copy(update={"sampling": SamplingConfig(temperature=0, top_k=5, top_p=0.5, seed=3)})
    bundle = load_bundle(save_bundle(tmp_path / "b", config, tokenizer, small_model(config, tokenizer)))
    with pytest.warns(UserWarning, match="sampling.seed = 3, sampling.top_k = 5, sampling.top_p = 0.5"):
        folder = export_bundle(bundle, tmp_path / "hub")
    values = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**values, "max_length": 7}))
    with pytest.warns(UserWarning, match="max_length = 7 .it counts the prompt, too: set sampling.max_tokens"):
        import_bundle(folder, tmp_path / "back")


def test_a_template_that_adds_nothing_is_passed_over_in_silence(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    document = json.loads((folder / "tokenizer.json").read_text())
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    for number, (single, said) in enumerate([([text], 0), ([end, text], 1), ([text, text], 1), ([], 1)]):
        after = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
        for processor in (after, {"type": "Sequence", "processors": [{"type": "ByteLevel"}, after]}):
            (folder / "tokenizer.json").write_text(json.dumps({**document, "post_processor": processor}))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                import_bundle(folder, tmp_path / f"back-{number}-{processor['type']}")
            assert sum("adds tokens around every text" in str(each.message) for each in told) == said


def test_gguf_tells_tokens_that_are_found_in_every_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    gguf = pytest.importorskip("gguf")
    folder = export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "hub")
    document = json.loads((folder / "tokenizer.json").read_text())
    document["added_tokens"][0]["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text("{}")
    bundle = load_bundle(import_bundle(folder, tmp_path / "back"))
    assert bundle.tokenizer.encode("a<|endoftext|>", special="text")[-1] == 0
    reader = gguf.GGUFReader(export_bundle(bundle, tmp_path / "model.gguf"))
    types = reader.get_field("tokenizer.ggml.token_type").contents()
    assert types[:2] == [gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL]
