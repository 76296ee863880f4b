"""`fledge kaggle`: the handbook's page runs, and a mistake is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.errors import FledgeError
from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "kaggle.md"


def test_the_page_s_command_packs_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    assert len(run_page(PAGE, tmp_path)) == 1
    packed = tmp_path / "kaggle" / "akjv-demo"
    assert (packed / "dataset" / "recipe.json").is_file()
    assert list((packed / "notebook").glob("*.ipynb"))
    assert {path.suffix for path in (packed / "dataset").glob("fledge_lm-*")} & {".whl", ".sdist"}
    assert list((packed / "dataset").glob("pythonbible_akjv-*.whl"))  # the text itself
    assert "kaggle kernels push" in (packed / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["akjv-dmo"], "Did you mean akjv-demo"),
        (["akjv-demo", "--time", "later"], "not a duration"),
        (["akjv-demo", "--set", "model.laers=2"], "Did you mean model.layers"),
    ],
)
def test_a_mistake_is_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(build(), ["kaggle", *arguments, "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, FledgeError)
    assert words in str(result.exception)
    assert not (tmp_path / "out").exists()
