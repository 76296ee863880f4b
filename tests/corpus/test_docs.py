"""The handbook's page on trust: its commands print what it says."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest

from fledge.corpus import Corpus
from tests.documentation import run_page

HERE = Path(__file__).parents[2]
PAGE = HERE / "docs" / "trust.md"


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    ran = run_page(PAGE, tmp_path, environment={"OMP_NUM_THREADS": "1"})
    assert len(ran) == 4
    assert (tmp_path / "tokens" / "passages" / "order.bin").is_file()


def test_the_verses_that_stand_twice_are_those_that_the_page_names() -> None:
    pytest.importorskip("pythonbible_akjv")
    text = PAGE.read_text()
    count = Counter(Corpus.open("akjv", validation_fraction=0).documents())
    extra = {verse: times - 1 for verse, times in count.items() if times > 1}
    assert f"{sum(extra.values())} repeat an earlier verse to the letter: {len(extra)} verses" in text
    speeches = sum(times for verse, times in extra.items() if re.search(rb"(saying|said|says),$", verse.strip()))
    assert f"{speeches} of the {sum(extra.values())} open a speech" in text
    assert count[b"And the LORD spoke to Moses, saying,"] == 72
    assert count[b"Moreover the LORD spoke to Moses, saying,"] == 1


def test_the_books_that_hold_the_licence_are_as_many_as_the_page_says(shared_data: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    with open(shared_data / "gutenberg" / "gutenberg_64m.txt.zst", "rb") as file:
        text = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file)).read()
    ends = []
    for book in text.split(b"<|endoftext|>"):
        if b"FULL PROJECT GUTENBERG LICENSE" in book:
            first = min(
                match.start() for match in re.finditer(rb"\nEnd of (the )?Project Gutenberg|\*\*\* ?END OF TH", book)
            )
            ends.append((len(book) - first) / len(book))
            text_left = len(book) - first
            assert 18_500 < text_left < 19_100
    assert len(ends) == 9
    assert min(ends) > 0.5
    assert "nine short\nones still end with it: 170 kB" in PAGE.read_text()
