"""The three commands around a bundle, as a person types them: what is printed, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
import zipfile
from io import BytesIO, TextIOWrapper
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fledge.cli
from fledge.bundle import load_bundle, save_bundle
from fledge.bundle.archive import pack
from fledge.bundle.gguf import rounded_as_stored
from fledge.bundle.manifest import describe_file
from fledge.bundle.migrations import VERSION
from fledge.config import ModelConfig, RunConfig, SamplingConfig, TokensConfig
from fledge.corpus import Corpus
from fledge.evaluation import evaluate, evaluate_texts
from fledge.generation import Decoding, generate
from fledge.model import build_model
from fledge.runs.checkpoints import find_bundle
from fledge.tokenizer import train_bpe
from fledge.tokens import TokenStore, write_store
from tests.bundle.conftest import forge
from tests.bundle.test_versions import FIXTURES
from tests.bundle.verses import make_run
from tests.cli.conftest import Fledge

VERSES = [f"And the earth number {number} was without form, and void." for number in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles with different tokenizers, a store of the first, and a text."""
    folder = tmp_path_factory.mktemp("cli")
    for name, size in (("one", 290), ("two", 270)):
        tokenizer = train_bpe([verse.encode() for verse in VERSES], size, ["<|endoftext|>"])
        config = RunConfig(
            name=name, model=ModelConfig(layers=1, width=32, heads=2), tokens=TokensConfig(context_length=32)
        )
        torch.manual_seed(0)
        model = build_model(config.model, tokenizer.vocab_size, 32)
        save_bundle(folder / name, config, tokenizer, model, metrics={"validation_loss": 2.5})
        if name == "one":
            write_store(Corpus.from_documents(VERSES), tokenizer, folder / "tokens", progress=False)
    (folder / "text.txt").write_text("<|endoftext|>".join(VERSES))
    return folder


def fledge_cli(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `fledge ARGUMENTS` in this process."""
    monkeypatch.setattr(sys, "argv", ["fledge", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    try:
        fledge.cli.main()
    except SystemExit as done:
        return int(done.code or 0)
    return 0


Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_check_finds_the_kept_bundle_of_every_version_whole(version: int, fledge: Fledge) -> None:
    found = fledge("bundle", "check", FIXTURES / f"version-{version}")
    assert (found.code, found.err) == (0, "")
    assert f"version-{version} is whole: 3,848 parameters, with a training state" in found.out


def test_generate_prints_the_prompt_and_goes_on(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    arguments = ("generate", folder / "one", "--prompt", "And the", "--max-tokens", 5, "--seed", 3)
    assert fledge_cli(monkeypatch, *arguments) == 0
    first = capsys.readouterr().out
    assert first.startswith("And the")
    assert fledge_cli(monkeypatch, *arguments) == 0
    assert capsys.readouterr().out == first


def test_generate_several_as_json(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    options = ("-p", "And", "-p", "void", "--samples", 2, "--json", "--alternatives", 2, "--max-tokens", 3)
    assert fledge_cli(monkeypatch, "generate", folder / "one", *options) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["prompt"] for result in results] == ["And", "And", "void", "void"]
    assert all(len(result["ids"]) == len(result["logprobs"]) == len(result["alternatives"]) for result in results)


def test_generate_from_a_file_and_standard_input(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    (folder / "prompts.txt").write_text("And the\nvoid\n")
    lines = ("--file", folder / "prompts.txt", "--lines", "--max-tokens", 2, "--alternatives", 1)
    assert fledge_cli(monkeypatch, "generate", folder / "one", *lines) == 0
    out = capsys.readouterr().out
    assert "And the" in out
    assert "%" in out
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("né void".encode())))
    assert fledge_cli(monkeypatch, "generate", folder / "one", "--file", "-", "--max-tokens", 2) == 0
    assert capsys.readouterr().out.startswith("né void")


def test_generate_takes_a_file_as_it_is(fledge: Fledge, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b" \tAnd the \r\n\n")
    found = fledge("generate", folder / "one", "--file", tmp_path / "prompt.txt", "--max-tokens", 1, "--json")
    assert json.loads(found.out)["prompt"] == " \tAnd the \r\n\n"


def test_generate_prints_what_else_was_likely(fledge: Fledge, folder: Path) -> None:
    options = ("generate", folder / "one", "-p", "And", "--temperature", 0, "--max-tokens", 4, "--alternatives", 2)
    result = json.loads(fledge(*options, "--json").out)
    assert [len(others) for others in result["alternatives"]] == [2] * 4
    bundle, out = load_bundle(folder / "one"), fledge(*options).out
    text = f"And{result['text']}\n"
    assert out.startswith(text)
    chosen = zip(result["ids"], result["logprobs"], strict=True)
    for line, one, others in zip(out[len(text) :].splitlines(), chosen, result["alternatives"], strict=True):
        words = [f"{bundle.tokenizer.decode([token])!r} {exp(logprob):.1%}" for token, logprob in (one, *others)]
        assert line.split() == " ".join(words).split()


def test_generate_takes_every_option_and_the_rest_from_the_bundle(
    fledge: Fledge, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    bundle = load_bundle(folder / "one")
    own = SamplingConfig(temperature=0.3, stop=("void",), stop_at_end=False, prompt="And")
    config = bundle.config.model_copy(update={"sampling": own})
    save_bundle(tmp_path / "b", config, bundle.tokenizer, bundle.model)
    asked: list[object] = []

    def remember(model: Any, tokenizer: Any, prompts: Any, sampling: Any, *more: Any) -> Decoding:
        asked.append((prompts, sampling, more))
        return Decoding(model, tokenizer, [], sampling)

    monkeypatch.setattr("fledge.generation.Decoding", remember)
    typed = "--temperature 0.5 --top-k 7 --top-p 0.9 --min-p 0.05 --repetition-penalty 1.3 --max-tokens 9 --seed 11"
    typed += " --stop earth --stop heaven --samples 2 --alternatives 3"
    given = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "max_tokens": 9,
        "seed": 11,
        "stop": ("earth", "heaven"),
        "samples": 2,
    }
    assert fledge("generate", tmp_path / "b").code == 0
    assert fledge("generate", tmp_path / "b", *typed.split()).code == 0
    assert asked == [
        (["And"], own, (0,)),
        (["And"], own.model_copy(update=given), (3,)),
    ]


def test_generate_takes_lines_as_an_editor_counts_them(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    prompts = folder / "lines.txt"
    given = ("generate", folder / "one", "--file", prompts, "--lines", "--max-tokens", 1, "--json")
    prompts.write_bytes("And\u2028the\x85\x0cearth\r\n\nvoid\n".encode())
    assert fledge_cli(monkeypatch, *given) == 0
    found = [json.loads(line)["prompt"] for line in capsys.readouterr().out.split("\n")[:-1]]
    assert found == ["And\u2028the\x85\x0cearth", "", "void"]
    prompts.write_bytes(b"")
    assert fledge_cli(monkeypatch, *given) == 2
    assert "lines.txt is empty: it has no line to go on from" in capsys.readouterr().err


def test_generate_interactively(folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    typed = iter(["And the", ":again", ":set temperature=0", ":set temperature=-1", ":show", ":help", ":quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert fledge_cli(monkeypatch, "generate", folder / "one", "--interactive", "--max-tokens", 4) == 0
    out = capsys.readouterr().out
    assert out.count("And the") == 2
    assert "temperature = -1 is not allowed" in out
    assert "temperature = 0.0" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--temperature", "-1"), "temperature = -1.0 is not allowed"),
        (("--top-p", "1.5"), "top_p = 1.5 is not allowed: it must be above 0 and at most 1"),
        (("--lines", "--prompt", "x"), "--lines goes with --file"),
        (("--top-k", "0"), "top_k = 0 is not allowed"),
        (("--prompt", "a", "--file", "b"), "not with both"),
        (("--file", "nowhere.txt"), "nowhere.txt"),
        (("--device", "gpu"), "--device = 'gpu' is not a device"),
        (("-i", "--prompt", "x"), "--prompt is not for --interactive"),
        (("-i", "--json"), "--json is not for --interactive"),
        (("-i", "--samples", "2"), "--samples is not for --interactive"),
        (("--max-tokens", "99999999999999999999"), "it must be at least 1 and at most 16777216"),
        (("--seed", str(2**64)), "it must be at least 0 and below"),
    ],
)
def test_generate_refuses(
    folder: Path, monkeypatch: Patch, capsys: Capture, options: tuple[str, ...], sentence: str
) -> None:
    assert fledge_cli(monkeypatch, "generate", folder / "one", *options) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_evaluate_side_by_side_on_text(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    plot = folder / "positions.svg"
    places = ("evaluate", folder / "one", folder / "two", "--text", folder / "text.txt")
    assert fledge_cli(monkeypatch, *places, "--plot", plot, "--worst", 2) == 0
    out = capsys.readouterr().out
    assert "bits per byte" in out
    assert "one" in out
    assert "two" in out
    assert "document" in out
    assert plot.is_file()
    assert fledge_cli(monkeypatch, *places, "--json", "--stride", 8, "--alone") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2
    assert all(0 < values["bits_per_byte"] < 20 for values in found.values())


def test_evaluate_on_tokens(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    assert fledge_cli(monkeypatch, "evaluate", folder / "one", "--tokens", folder / "tokens", "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert fledge_cli(monkeypatch, "evaluate", folder / "two", "--tokens", folder / "tokens") == 2
    assert "another tokenizer" in capsys.readouterr().err
    assert fledge_cli(monkeypatch, "evaluate", folder / "one") == 2
    assert "--text FILE" in capsys.readouterr().err
    below = folder / "text.txt" / "plot.svg"
    assert fledge_cli(monkeypatch, "evaluate", folder / "one", "--tokens", folder / "tokens", "--plot", below) == 2
    refused = capsys.readouterr()
    assert "can't be written" in refused.err
    assert refused.out == ""


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        (("--split", "train"), {}),
        (("--stride", 5), {"stride": 5}),
        (("--alone",), {"documents": "alone"}),
        (("--max-tokens", 40), {"max_tokens": 40}),
    ],
)
def test_evaluate_takes_every_option(
    fledge: Fledge, folder: Path, typed: tuple[object, ...], options: dict[str, Any]
) -> None:
    def found(*more: object) -> object:
        return json.loads(fledge("evaluate", folder / "one", *more, "--json").out)[str(folder / "one")]

    bundle, store = load_bundle(folder / "one"), TokenStore.open(folder / "tokens")
    split = store.split("train" if "--split" in typed else "validation")
    expected = evaluate(bundle.model, split, tokenizer=bundle.tokenizer, **options).summary()
    usual = evaluate(bundle.model, store.split("validation"), tokenizer=bundle.tokenizer).summary()
    assert found("--tokens", folder / "tokens", *typed) == pytest.approx(expected) != usual
    if "stride" in options or "documents" in options:
        expected = evaluate_texts(bundle.model, bundle.tokenizer, VERSES, **options).summary()
        usual = evaluate_texts(bundle.model, bundle.tokenizer, VERSES).summary()
        assert found("--text", folder / "text.txt", *typed) == pytest.approx(expected) != usual


def test_evaluate_takes_one_text_for_one_document(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    text = "\n".join(VERSES) + "\n"
    (folder / "one.txt").write_text(text)
    assert fledge_cli(monkeypatch, "evaluate", folder / "one", "--text", folder / "one.txt", "--json") == 0
    printed = capsys.readouterr()
    assert "held out" not in printed.err
    assert json.loads(printed.out)[str(folder / "one")] == fledge.load(folder / "one").evaluate([text]).summary()
    (folder / "blank.txt").write_text(" \n")
    assert fledge_cli(monkeypatch, "evaluate", folder / "one", "--text", folder / "blank.txt") == 2
    assert "no text but white space" in capsys.readouterr().err


def test_evaluate_prints_nothing_but_json(folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    options = ("--text", folder / "text.txt", "--json", "--worst", 3, "--plot", tmp_path / "plot.svg")
    assert fledge_cli(monkeypatch, "evaluate", folder / "one", *options) == 0
    printed = capsys.readouterr()
    worst = json.loads(printed.out)[str(folder / "one")]["worst"]
    assert [set(one) for one in worst] == [{"document", "loss"}] * 3
    assert worst[0]["loss"] >= worst[1]["loss"] >= worst[2]["loss"]
    assert "plot.svg" in printed.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--text", "text.txt", "--max-tokens", "5"), "--max-tokens goes with --tokens"),
        (("--text", "text.txt", "--split", "train"), "--split goes with --tokens"),
        (("--text", "text.txt", "--limit", "5"), "--limit goes with --tasks"),
        (("--text", "text.txt", "--task-folder", "."), "--task-folder goes with --tasks"),
        (("--text", "text.txt", "--tokens", "tokens"), "not both"),
        (("--tasks", "wikitext", "--text", "text.txt"), "--text is not for --tasks"),
        (("--text", "text.txt", "--plot", "x.bmp"), "x.bmp must end in .svg"),
    ],
)
def test_evaluate_refuses_what_it_would_not_use(
    folder: Path, monkeypatch: Patch, capsys: Capture, options: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    assert fledge_cli(monkeypatch, "evaluate", "one", *options) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""


def test_evaluate_and_check_refuse_scores_that_are_not_finite(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    broken = folder / "broken"
    bundle = load_bundle(folder / "one")
    with torch.no_grad():
        next(bundle.model.parameters()).fill_(float("nan"))
    save_bundle(broken, bundle.config, bundle.tokenizer, bundle.model)
    places = (folder / "one", broken, "--text", folder / "text.txt", "--json")
    assert fledge_cli(monkeypatch, "evaluate", *places) == 2
    printed = capsys.readouterr()
    assert f"fledge: {broken}: The model's scores are not finite" in printed.err
    assert printed.out == ""
    assert fledge_cli(monkeypatch, "bundle", "check", broken) == 2
    printed = capsys.readouterr()
    assert f"fledge: {broken} is whole, but token_embeddings.weight holds numbers that are not finite" in printed.err
    assert printed.out == ""


def test_a_strangers_manifest_cannot_steer_the_terminal(
    folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    steer = "\x1b[2J\x1b]0;owned\x07\u202e\n"
    bundle = load_bundle(folder / "one")
    config = bundle.config.model_copy(update={"name": steer})
    save_bundle(tmp_path / "b", config, bundle.tokenizer, bundle.model, metrics={steer: steer})
    assert fledge_cli(monkeypatch, "bundle", "show", tmp_path / "b") == 0
    assert fledge_cli(monkeypatch, "bundle", "diff", folder / "one", tmp_path / "b") == 0
    forge(tmp_path / "b", lambda values: values["config"].update({steer: 1}))
    assert fledge_cli(monkeypatch, "bundle", "show", tmp_path / "b") == 2
    for printed in capsys.readouterr():
        assert "⟨U+001B⟩[2J" in printed
        assert not set(steer) & set("\x1b\x07\u202e") & set(printed)


def test_a_name_that_no_encoding_has_is_a_sentence(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "b")
    path = tmp_path / "b" / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["\ud800"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data) - 8 - length] * 2}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    entry = describe_file(path).model_dump()
    forge(tmp_path / "b", lambda values: values["files"].update({"model.safetensors": entry}))
    found = fledge("bundle", "check", tmp_path / "b")
    assert found.code == 2
    assert found.err == f"fledge: {path} holds ⟨U+D800⟩, which the model of these settings does not have.\n"


def test_bundle_import_refuses_a_wrong_value(folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    assert fledge_cli(monkeypatch, "bundle", "export", folder / "one", tmp_path / "hub") == 0
    config = tmp_path / "hub" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_attention_heads": 0}))
    assert fledge_cli(monkeypatch, "bundle", "import", tmp_path / "hub", tmp_path / "back") == 2
    error = capsys.readouterr().err
    assert f"{config}: num_attention_heads = 0 is not allowed: it is a whole number from 1" in error
    assert not (tmp_path / "back").exists()


def test_bundle_show_check_and_diff(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    assert fledge_cli(monkeypatch, "bundle", "show", folder / "one") == 0
    out = capsys.readouterr().out
    for text in ("what it is", "how it was trained", "what it costs", "validation_loss", "MFLOPs a token"):
        assert text in out
    assert fledge_cli(monkeypatch, "bundle", "check", folder / "one") == 0
    assert "is whole" in capsys.readouterr().out
    assert fledge_cli(monkeypatch, "bundle", "diff", folder / "one", folder / "two") == 0
    out = capsys.readouterr().out
    assert "tokenizer: vocabulary_size" in out
    assert "optimizer.beta1" not in out
    assert fledge_cli(monkeypatch, "bundle", "diff", folder / "one", folder / "one") == 0
    assert "same settings" in capsys.readouterr().out


def test_bundle_pack_export_import(folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    assert fledge_cli(monkeypatch, "bundle", "pack", folder / "one", tmp_path / "one.zip") == 0
    assert fledge_cli(monkeypatch, "bundle", "pack", folder / "one", "-o", tmp_path / "again.zip") == 0
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "one.zip").read_bytes()
    for places in ((), (tmp_path / "a.zip", "-o", tmp_path / "b.zip")):
        assert fledge_cli(monkeypatch, "bundle", "pack", folder / "one", *places) == 2
        assert "writes to one place" in capsys.readouterr().err
    assert fledge_cli(monkeypatch, "bundle", "import", folder / "one", tmp_path / "mine") == 2
    assert "Use it as it is" in capsys.readouterr().err
    assert fledge_cli(monkeypatch, "bundle", "check", tmp_path / "one.zip") == 0
    assert f"{tmp_path / 'one.zip'} is whole" in capsys.readouterr().out
    assert fledge_cli(monkeypatch, "bundle", "pack", tmp_path / "one.zip", tmp_path / "one.tar.zst") == 0
    assert fledge_cli(monkeypatch, "bundle", "check", tmp_path / "one.tar.zst") == 0
    assert fledge_cli(monkeypatch, "bundle", "show", tmp_path / "one.zip") == 0
    assert "what it costs" in capsys.readouterr().out
    assert fledge_cli(monkeypatch, "generate", tmp_path / "one.zip", "-p", "And", "--max-tokens", 2) == 0
    assert fledge_cli(monkeypatch, "bundle", "export", folder / "one", tmp_path / "hub") == 0
    assert fledge_cli(monkeypatch, "bundle", "import", tmp_path / "hub", tmp_path / "back") == 0
    assert fledge_cli(monkeypatch, "bundle", "check", tmp_path / "back") == 0
    assert fledge_cli(monkeypatch, "bundle", "export", folder / "one", tmp_path / "m.gguf", "--format", "gguf") == 0
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"


def test_bundle_check_refuses_a_flipped_byte(folder: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "broken")
    path = tmp_path / "broken" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert fledge_cli(monkeypatch, "bundle", "check", tmp_path / "broken") == 2
    assert "does not match its checksum" in capsys.readouterr().err


def broken_copies(folder: Path, place: Path) -> dict[str, Path]:
    """Copies of a bundle without its weights, and with half of them; and of the packed one, without them."""
    for name in ("missing", "cut"):
        shutil.copytree(folder / "one", place / name)
    (place / "missing" / "model.safetensors").unlink()
    half = (place / "cut" / "model.safetensors").read_bytes()
    (place / "cut" / "model.safetensors").write_bytes(half[: len(half) // 2])
    pack(folder / "one", place / "whole.zip")
    with zipfile.ZipFile(place / "whole.zip") as whole, zipfile.ZipFile(place / "packed.zip", "w") as packed:
        for member in whole.namelist():
            if member != "model.safetensors":
                packed.writestr(member, whole.read(member))
    return {name: place / name for name in ("missing", "cut", "packed.zip")}


def test_bundle_diff_refuses_what_its_manifest_does_not_describe(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    for broken in broken_copies(folder, tmp_path).values():
        for pair in ((broken, folder / "one"), (folder / "one", broken)):
            found = fledge("bundle", "diff", *pair)
            assert (found.code, found.out) == (2, "")
            assert "model.safetensors" in found.err
            assert "again, or" in found.err
    same = fledge("bundle", "diff", folder / "one", tmp_path / "whole.zip")
    assert same.code == 0
    assert "The weights were compared by the checksums in the manifests" in same.out


def test_bundle_show_says_which_files_are_not_whole(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    size = (folder / "one" / "model.safetensors").stat().st_size
    words = {"missing": "missing", "packed.zip": "missing", "cut": f"{size // 2:,} bytes instead of {size:,}"}
    for name, broken in broken_copies(folder, tmp_path).items():
        found = fledge("bundle", "show", broken)
        assert found.code == 0
        row = next(line for line in found.out.splitlines() if line.startswith("model.safetensors"))
        assert row.split(maxsplit=1)[1].strip() == words[name]
        last = f"1 file is not as the manifest says. Check the bundle: fledge bundle check {broken}"
        assert found.out.splitlines()[-1] == last
    assert "bundle check" not in fledge("bundle", "show", folder / "one").out
    packed = pack(folder / "one", tmp_path / "one.tar.zst")
    last = f"A .tar.zst tells its files' sizes only when it is unpacked: fledge bundle check {packed}"
    assert fledge("bundle", "show", packed).out.splitlines()[-1] == last


def test_bundle_export_writes_the_type_that_is_asked_for(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    for name, options in (("same", ()), ("half", ("--dtype", "bfloat16"))):
        assert fledge("bundle", "export", folder / "one", tmp_path / name, *options).code == 0
    same, half = (load_file(tmp_path / name / "model.safetensors") for name in ("same", "half"))
    assert half.keys() == same.keys()
    for name, tensor in half.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, same[name].bfloat16())
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


def test_bundle_export_takes_the_format_from_the_name(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    assert fledge("bundle", "export", folder / "one", tmp_path / "x.gguf").code == 0
    assert (tmp_path / "x.gguf").read_bytes()[:4] == b"GGUF"
    refused = fledge("bundle", "export", folder / "one", tmp_path / "y.gguf", "--format", "huggingface")
    assert refused.code == 2
    assert "y.gguf is the name of a GGUF file, and huggingface writes a folder" in refused.err
    assert not (tmp_path / "y.gguf").exists()
    for name in ("z.ollama", "z.safetensors", "my.model.bin"):
        refused = fledge("bundle", "export", folder / "one", tmp_path / name)
        assert refused.code == 2
        assert f"has the extension .{name.rpartition('.')[2]}" in refused.err
        assert not (tmp_path / name).exists()
    assert fledge("bundle", "export", folder / "one", tmp_path / "mine-0.1").code == 0
    assert fledge("bundle", "export", folder / "one", tmp_path / "z.hf", "--format", "huggingface").code == 0
    assert (tmp_path / "mine-0.1" / "config.json").is_file()
    assert (tmp_path / "z.hf" / "config.json").is_file()


@pytest.mark.parametrize("lines", [(), ("--lines",)])
def test_generate_goes_on_from_the_bytes_of_its_input(
    fledge: Fledge, folder: Path, monkeypatch: Patch, lines: tuple[str, ...]
) -> None:
    """As Python does, and they are printed as they came."""
    given = b"bad \xff\xfe bytes"
    bundle = load_bundle(folder / "one")
    expected = generate(bundle.model, bundle.tokenizer, [given], SamplingConfig(max_tokens=8))[0]
    options = ("generate", folder / "one", "--file", "-", "--max-tokens", 8, *lines)
    found = fledge(*options, "--json", stdin=given)
    result = json.loads(found.out)
    assert result["ids"] == expected.ids
    assert result["logprobs"] == pytest.approx(expected.logprobs, abs=1e-4)
    assert result["prompt"] == given.decode("utf-8", "replace")
    plain = fledge(*options, stdin=given)
    assert plain.out == (given.decode("utf-8", "surrogateescape") + expected.text + "\n")


def test_generate_says_that_it_does_not_read_what_is_piped_to_it(
    folder: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """Without waiting for input, and only where there is some and no prompt was given."""
    sentence = "standard input is not read: add --file - to go on from it."
    (tmp_path / "text").write_bytes(b"And")

    def said(stdin: int, *more: str) -> bool:
        with open(stdin) as file, warnings.catch_warnings():
            warnings.simplefilter("always")  # Python says the same thing once in a process
            monkeypatch.setattr(sys, "stdin", file)
            assert fledge_cli(monkeypatch, "generate", folder / "one", "--max-tokens", "1", *more) == 0
        return sentence in capsys.readouterr().err

    def pipe(data: bytes) -> int:
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        return read

    assert said(os.open(tmp_path / "text", os.O_RDONLY))
    assert said(pipe(b"piped"))
    assert not said(pipe(b""))
    assert not said(os.open(os.devnull, os.O_RDONLY))
    assert not said(pipe(b"piped"), "--file", "-")
    assert not said(pipe(b"piped"), "--prompt", "And")
    read, write = os.pipe()  # that nobody closes: a reader would wait for ever
    assert not said(read)
    os.close(write)


def test_evaluate_holds_every_tokenizer_against_the_store_first(
    fledge: Fledge, folder: Path, monkeypatch: Patch
) -> None:
    def evaluated(*given: object, **more: object) -> None:
        raise AssertionError("the first bundle was evaluated before the second was refused")

    monkeypatch.setattr("fledge.evaluation.compare.evaluate", evaluated)
    found = fledge("evaluate", folder / "one", folder / "two", "--tokens", folder / "tokens")
    assert found.code == 2
    assert f"{folder / 'two'}: The store" in found.err
    assert "works across tokenizers: --text FILE" in found.err


def test_evaluate_finds_the_tokens_that_a_run_was_given(
    fledge: Fledge, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """By a name below the working folder: a bundle keeps no absolute place."""
    monkeypatch.chdir(tmp_path)
    bundle = load_bundle(folder / "one")
    store = tmp_path / "store"
    write_store(
        Corpus.from_documents([f"void and form {number}" for number in range(200)]),
        bundle.tokenizer,
        store,
        progress=False,
    )
    tokens = bundle.config.tokens.model_copy(update={"store": "store"})
    save_bundle(tmp_path / "b", bundle.config.model_copy(update={"tokens": tokens}), bundle.tokenizer, bundle.model)
    found = fledge("evaluate", tmp_path / "b", "--json")
    assert found.code == 0
    assert list(json.loads(found.out)) == [str(tmp_path / "b")]
    shutil.rmtree(store)
    assert "Say what to evaluate" in fledge("evaluate", tmp_path / "b").err


def test_names_and_numbers_of_a_table_are_never_cut(
    fledge: Fledge, folder: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = [tmp_path / f"an-experiment-with-a-rather-long-name-and-seed-{number}" for number in (1, 2)]
    for name in names:
        shutil.copytree(folder / "one", name)
    out = fledge("evaluate", *names, "--text", folder / "text.txt").out
    assert all(str(name) in out for name in names)
    assert "…" not in out


def test_a_strangers_settings_cannot_steer_the_terminal(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    assert fledge("bundle", "export", folder / "one", tmp_path / "hub").code == 0
    settings = tmp_path / "hub" / "generation_config.json"
    settings.write_text(json.dumps({"\x1b[2J\nfledge: all is well": 1}))
    told = fledge("bundle", "import", tmp_path / "hub", tmp_path / "back").err
    assert "⟨U+001B⟩[2J⟨U+000A⟩fledge: all is well = 1" in told
    assert "\x1b" not in told


def relist(folder: Path, name: str) -> None:
    """A file as it is now, in the manifest."""
    forge(folder, lambda values: values["files"].update({name: describe_file(folder / name).model_dump()}))


def test_a_card_that_a_manifest_lists_is_packed_once(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    listed = shutil.copytree(folder / "one", tmp_path / "listed")
    relist(listed, "README.md")
    assert fledge("bundle", "pack", listed, tmp_path / "x.zip").code == 0
    assert fledge("bundle", "check", tmp_path / "x.zip").code == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda moments: dict([*moments.items()][1:]), "is missing, and"),
        (lambda moments: {name: each[:1] for name, each in moments.items()}, "is of shape"),
        (lambda moments: {name: each.long() for name, each in moments.items()}, "torch.int64"),
        (lambda moments: {name: each - 1 for name, each in moments.items()}, "negative or non-finite moments"),
        (lambda moments: {name: each * torch.nan for name, each in moments.items()}, "negative or non-finite moments"),
    ],
)
def test_check_says_what_resuming_would(fledge: Fledge, tmp_path: Path, change: Any, sentence: str) -> None:
    make_run(tmp_path)
    checkpoint = find_bundle(tmp_path / "runs" / "verses")
    assert "with its training state" in fledge("bundle", "check", checkpoint).out
    kept = checkpoint / "training" / "state.safetensors"
    save_file(change(load_file(kept)), kept)
    relist(checkpoint, "training/state.safetensors")
    refused = fledge("bundle", "check", checkpoint)
    assert refused.code == 2
    assert sentence in refused.err


def test_prompts_and_json_survive_every_encoding(fledge: Fledge, folder: Path, monkeypatch: Patch) -> None:
    given = ("generate", folder / "one", "--max-tokens", 2, "--json")
    typed = fledge(*given, "--prompt", "bad \udcff").out
    assert typed == fledge(*given, "--file", "-", stdin=b"bad \xff").out
    narrow = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    fledge(*given, "--prompt", "é 光")
    narrow.seek(0)
    assert json.loads(narrow.read())["prompt"] == "é 光"


def test_weights_of_16_bits_are_widened_on_a_cpu(fledge: Fledge, folder: Path, tmp_path: Path) -> None:
    bundle = load_bundle(folder / "one")
    save_bundle(tmp_path / "narrow", bundle.config, bundle.tokenizer, bundle.model.bfloat16())
    save_bundle(tmp_path / "wide", bundle.config, bundle.tokenizer, bundle.model.float())
    given = ("--prompt", "And", "--json", "--device", "cpu")
    narrow, wide = (fledge("generate", tmp_path / name, *given) for name in ("narrow", "wide"))
    assert (narrow.code, narrow.out) == (0, wide.out)


def test_a_checkpoint_named_for_another_step_is_refused(fledge: Fledge, tmp_path: Path) -> None:
    make_run(tmp_path)
    checkpoint = find_bundle(tmp_path / "runs" / "verses")
    other = checkpoint.rename(checkpoint.with_name("step-00000090"))
    assert "says step = 100, and the folder's name another" in fledge("bundle", "check", other).err
    assert fledge("bundle", "check", other.rename(tmp_path / "mine")).code == 0


def test_a_quantised_export_says_what_it_costs(tmp_path: Path, folder: Path, fledge: Fledge) -> None:
    """On the run's own held-out part, or on a text; the bits are those of the model with the file's weights."""
    gguf, kind = tmp_path / "a.gguf", "q4_0"
    said = fledge("bundle", "export", folder / "one", gguf, "--type", kind, "--text", folder / "text.txt")
    assert said.code == 0, said.err
    assert "a.Modelfile is for Ollama" in said.out
    assert "Ollama" not in fledge("bundle", "export", folder / "one", tmp_path / "a").out
    bundle = load_bundle(folder / "one")
    bits = []
    for weights in (bundle.model.state_dict(), rounded_as_stored(bundle.model.state_dict(), kind)):
        bundle.model.load_state_dict(weights)
        text = (folder / "text.txt").read_bytes()
        bits.append(f"{evaluate_texts(bundle.model, bundle.tokenizer, [text]).bits_per_byte:.4f}")
    assert f"{bits[0]} bits per byte as it was, {bits[1]} as q4_0." in said.out
    assert bits[0] != bits[1]
    assert "no held-out text" in fledge("bundle", "export", folder / "one", tmp_path / "b.gguf", "--type", kind).out
    run = tmp_path / "run"
    shutil.copytree(folder / "one", run / "checkpoints" / "step-00000001")
    shutil.copytree(folder / "tokens", run / "tokens")
    (run / "config.json").write_text(bundle.config.model_dump_json())
    assert "tokens of held-out text" in fledge("bundle", "export", run, tmp_path / "c.gguf", "--type", "Q8_0").out
    refused = fledge("bundle", "export", run, tmp_path / "hub", "--text", folder / "text.txt")
    assert refused.code == 2
    assert "--text measures what a quantised type costs" in refused.err
