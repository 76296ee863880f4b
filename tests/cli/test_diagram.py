"""`fledge diagram`: an SVG or Mermaid text of any recipe, shape or setting, and of the house."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.config import ModelConfig, RunConfig, TokensConfig, recipe_names
from fledge.errors import FledgeError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build(), ["diagram", *arguments])
    if isinstance(result.exception, FledgeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("name", [*recipe_names(), "xl"])
def test_every_recipe_has_a_diagram(name: str, tmp_path: Path) -> None:
    picture = tmp_path / "model.svg"
    assert str(picture) in run(name, "-o", str(picture), "--vocabulary", "1000").replace("\n", "")
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_mermaid_text_is_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("tinystories", "--mermaid")
    assert "flowchart TD" in Path("tinystories.mmd").read_text()


def test_a_packed_bundle_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its manifest, under its own name without the suffix."""
    from fledge.bundle import save_bundle
    from fledge.bundle.archive import pack
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    monkeypatch.chdir(tmp_path)
    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    config = RunConfig(model=ModelConfig(layers=1, width=16, heads=2))
    model = build_model(config.model, tokenizer.vocab_size, config.tokens.context_length)
    folder = save_bundle(tmp_path / "bundle", config, tokenizer, model)
    for suffix in (".zip", ".tar.zst"):
        pack(folder, tmp_path / f"verses{suffix}")
        assert run(f"verses{suffix}") == "Drawn in verses.svg\n"
        assert f"{model.parameters_count():,} parameters" in Path("verses.svg").read_text()
        Path("verses.svg").unlink()


def test_a_bundle_trained_on_shorter_windows_is_drawn_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuned on 8 tokens at once, a model of 32 learned positions still has all of them."""
    from fledge.bundle import save_bundle
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    monkeypatch.chdir(tmp_path)
    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    model_config = ModelConfig(layers=1, width=16, heads=2, position="learned")
    model = build_model(model_config, tokenizer.vocab_size, 32)
    config = RunConfig(model=model_config, tokens=TokensConfig(context_length=8))
    save_bundle("verses", config, tokenizer, model)
    run("verses")
    assert f"{model.parameters_count():,} parameters · T: up to 32 tokens" in Path("verses.svg").read_text()


def test_the_house_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "house.svg"
    run("--house", "-o", str(picture))
    assert "tokenizer" in picture.read_text()


def test_the_suffix_says_what_is_written(tmp_path: Path) -> None:
    """Mermaid for .mmd, with the option or without; for the house too."""
    for arguments in (("tinystories",), ("tinystories", "--mermaid"), ("--house",), ("--house", "--mermaid")):
        text = tmp_path / "model.mmd"
        run(*arguments, "-o", str(text))
        assert text.read_text().splitlines()[3] == "flowchart TD"
    assert "  training --> accounting" in text.read_text()


def test_the_house_in_mermaid_has_every_import_of_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("--house", "--mermaid")
    arrows = Path("house.mmd").read_text().count(" --> ")
    run("--house")
    assert Path("house.svg").read_text().count("<polygon") == arrows > 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tinystories", "-o", "model.png"), r"model\.png: a drawing is written as \.svg or \.mmd"),
        (("tinystories", "-o", "model"), "a drawing is written as"),
        (("tinystories", "--mermaid", "-o", "model.svg"), r"written as \.mmd"),
        (("--house", "-o", "house.pdf"), "a drawing is written as"),
        (("tinystories", "-o", "."), "is a folder"),
        (("tinystories", "-o", "/dev/null/model.svg"), "/dev/null/model.svg can't be written"),
        (("--house", "--set", "model.layers=2"), "--set changes a model"),
        (("--house", "--context", "8", "--vocabulary", "9"), "--context, --vocabulary changes a model"),
        (("",), "The name of the model is empty"),
        (("tinystorys",), "Did you mean tinystories"),
        (("xl", "--set", "model.architecture=mamba"), "'mamba'"),
        (("xl", "--set", "model.heads=7"), "does not divide"),
        (
            ("bdh", "--set", "model.width=6", "--set", "model.heads=2", "--set", "model.multiplier=1"),
            "even number of neurons per head",
        ),
        (("Lstm2",), "no recipe or shape called 'Lstm2'. Did you mean lstm"),
        (("no/such.toml",), "There is no recipe file"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FledgeError, match=sentence) as error:
        run(*arguments)
    assert ".partial" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("tinystories", "--house")])
def test_one_thing_is_drawn_at_a_time(arguments: tuple[str, ...]) -> None:
    with pytest.raises(FledgeError, match="Name one thing"):
        run(*arguments)
