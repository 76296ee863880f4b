"""`fledge diagram`: an SVG or Mermaid text of any recipe, shape or setting, and of the house."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.config import recipe_names
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


def test_the_house_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "house.svg"
    run("--house", "-o", str(picture))
    assert "tokenizer" in picture.read_text()


@pytest.mark.parametrize("arguments", [(), ("tinystories", "--house")])
def test_one_thing_is_drawn_at_a_time(arguments: tuple[str, ...]) -> None:
    with pytest.raises(FledgeError, match="Name one thing"):
        run(*arguments)
