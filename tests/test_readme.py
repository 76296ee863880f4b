"""The README's commands work as printed: the laptop's path is run on a small text, scaled down."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fledge import cli
from tests.documentation import broken_links, run_page
from tools.site import handbook

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
SMALL = (
    " --set training.steps=3 --set training.batch_size=4 --set training.evaluate_windows=4 --set sampling.max_tokens=8"
)


def test_the_commands_and_examples_run(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    from fledge.corpus import Corpus

    verses = list(Corpus.open("akjv").documents())[:1500]
    (tmp_path / "my.txt").write_bytes(b"<|endoftext|>".join(verses))
    ran = run_page(
        README,
        tmp_path,
        replace={"vocabulary_size=2000": "vocabulary_size=400", " --out runs/mine": SMALL + " --out runs/mine"},
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert [example.language for example in ran] == ["sh", "python"]


def test_every_command_is_on_its_page_and_every_command_on_the_page_exists() -> None:
    app = cli.build()
    verbs = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    named = set(re.findall(r"`fledge ([a-z]+)`", (DOCS / "commands.md").read_text()))
    assert named == verbs


@pytest.mark.parametrize(
    "page", sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    assert broken_links(ROOT / page) == []


def test_every_page_of_the_handbook_is_in_the_readme_s_table() -> None:
    rows = handbook(README.read_text()).values()
    assert {path for row in rows for page in row for path in page.values()} == {
        str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")
    }


def test_the_make_targets_that_the_readme_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    pages = README.read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", pages, re.M)) <= targets


def test_the_continuous_integration_calls_the_readme_s_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
