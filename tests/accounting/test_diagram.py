"""Diagrams: they show the configured model, its sizes, residual paths and state, and nothing overlaps."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from fledge.accounting.diagram import draw_chart, draw_house, model_chart, write_mermaid
from fledge.accounting.diagram.chart import Chart
from fledge.accounting.diagram.house import SOURCE, imported_rooms
from fledge.accounting.parameters import list_parameters
from fledge.accounting.svg import text_width
from fledge.config import ModelConfig
from fledge.errors import FledgeError
from tests.accounting.configurations import configurations

SVG = "{http://www.w3.org/2000/svg}"


def words(chart: Chart) -> str:
    return " ".join(element.text or "" for element in ElementTree.fromstring(draw_chart(chart)).iter(f"{SVG}text"))


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_every_configuration_is_drawn_whole(config: ModelConfig) -> None:
    """Each node is reached, each name is on the page, and the total is the account's."""
    chart = model_chart(config, 100, 16)
    keys = [node.key for row in chart.rows for node in row]
    assert len(keys) == len(set(keys))
    assert {edge.target for edge in chart.edges} == set(keys) - {"ids"}
    assert {edge.source for edge in chart.edges} == set(keys) - {"logits"}
    shown = words(chart)
    assert f"{list_parameters(config, 100, 16).total:,} parameters" in shown
    assert f"× {config.layers}" in shown


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_parameters_in_the_boxes_add_up(config: ModelConfig) -> None:
    """The counts written in boxes, a block's taken n times, are the model's."""
    chart = model_chart(config, 100, 16)
    group = chart.groups[0]
    shared = config.architecture == "bdh"
    total = 0
    for number, row in enumerate(chart.rows):
        times = config.layers if group.first <= number <= group.last and not shared else 1
        for node in row:
            if node.kind != "plain" and (found := re.search(r"([\d,]+)(?: parameters)?$", node.detail)):
                written = "·" in node.detail or "parameters" in node.detail
                total += times * int(found[1].replace(",", "")) if written and "T ×" not in node.detail else 0
    assert total == list_parameters(config, 100, 16).total


@settings(max_examples=40, deadline=None)
@given(configurations())
def test_boxes_do_not_overlap_and_hold_their_text(config: ModelConfig) -> None:
    root = ElementTree.fromstring(draw_chart(model_chart(config, 50_257, 1_024, "a-name")))
    boxes = []
    for element in root.iter(f"{SVG}rect"):
        if (kind := element.get("class", "")).startswith("box-") and kind != "box-group":
            x, y, width, height = (float(element.get(key, 0)) for key in ("x", "y", "width", "height"))
            boxes.append((x, y, x + width, y + height))
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= float(root.get("width", 0))
        for x, y, end, low in boxes[number + 1 :]:
            assert right <= x or end <= left or bottom <= y or low <= top


@pytest.mark.parametrize("name", ["short", "a-very-long-name-" * 20])
def test_a_long_title_stays_in_the_picture(name: str) -> None:
    """It loses its middle; what a reader of the file's own title sees is whole."""
    root = ElementTree.fromstring(draw_chart(model_chart(ModelConfig(), 256, 64, name)))
    title = next(element for element in root.iter(f"{SVG}text") if element.get("class") == "title")
    shown = title.text or ""
    assert float(title.get("x", 0)) + text_width(shown, 17, bold=True) <= float(root.get("width", 0))
    assert shown.startswith(name[:5])
    assert shown.endswith(": Transformer")
    assert ("…" in shown) == (name != "short")
    assert name in (root.findtext(f"{SVG}title") or "")


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "lstm"])
def test_large_numbers_have_separators(architecture: str) -> None:
    config = ModelConfig(architecture=architecture, layers=1200, width=8192, heads=1, qk_norm=True)
    assert re.findall(r"\d{4,}", words(model_chart(config, 50_257, 16_384))) == []


@pytest.mark.parametrize("architecture", ["bdh", "rnn", "gru", "lstm"])
def test_state_loops_back(architecture: str) -> None:
    chart = model_chart(ModelConfig(architecture=architecture), 256, 64)
    rows = {node.key: number for number, row in enumerate(chart.rows) for node in row}
    loops = [edge for edge in chart.edges if edge.style == "state"]
    assert loops
    assert all(rows[edge.target] <= rows[edge.source] for edge in loops)
    assert "state: carried from one token to the next" in words(chart)


def test_residual_paths_follow_the_place_of_the_norm() -> None:
    for place, order in (("pre", ["split1", "ln1", "add1"]), ("post", ["split1", "add1", "ln1"])):
        chart = model_chart(ModelConfig(norm_place=place), 256, 64)  # type: ignore[arg-type]
        keys = [node.key for row in chart.rows for node in row]
        assert [key for key in keys if key in order] == order
        assert sum(edge.style == "residual" for edge in chart.edges) == 2


def test_mermaid_says_the_same() -> None:
    chart = model_chart(ModelConfig(architecture="lstm", layers=2), 256, 64)
    text = write_mermaid(chart)
    assert text.count("-->") + text.count("-.->") == len(chart.edges)
    assert 'subgraph group2["layer × 2' in text
    assert "state -.->" in text


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "lstm"])
def test_mermaid_has_the_notes_of_the_picture(architecture: str) -> None:
    chart = model_chart(ModelConfig(architecture=architecture, dropout=0.1), 256, 64, 'a "quoted\\name"')
    text = write_mermaid(chart)
    assert chart.notes
    assert all(note in text for note in chart.notes)
    assert "a #quot;quoted#92;name#quot;" in text


def test_an_unknown_architecture_has_no_diagram() -> None:
    with pytest.raises(FledgeError, match="'mamba'"):
        model_chart(ModelConfig(architecture="mamba"), 256, 64)


def test_pictures_are_readable_on_light_and_dark_pages() -> None:
    for picture in (draw_chart(model_chart(ModelConfig(), 256, 64)), draw_house()):
        assert "prefers-color-scheme: dark" in picture
        assert "<title>" in picture


def test_the_house_in_the_documentation_is_the_code() -> None:
    """After a change of imports or of a room's first sentence: fledge diagram --house -o docs/house.svg"""
    kept = SOURCE.parents[1] / "docs" / "house.svg"
    if not kept.is_file():
        pytest.skip("fledge is installed without its documentation")
    assert kept.read_text() == draw_house(), "run: fledge diagram --house -o docs/house.svg"


def test_the_house_has_every_room() -> None:
    picture = draw_house()
    assert all(f">{room}<" in picture or f"{room}," in picture or f"{room}<" in picture for room in imported_rooms())
