"""A page is one file that needs nothing else, and what is written into it stays text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from fledge.config import RunConfig, override_config
from fledge.plot import GREY, curves
from fledge.reports.course import add_course, why_below
from fledge.reports.page import Page
from fledge.reports.tokenizers import report_tokenizers
from fledge.tokenizer.compare import Measurement


def sample() -> Page:
    page = Page("Loss & <other> things", "A lead.")
    page.heading("Numbers")
    page.table(["name", "loss"], [("a|b", 1.25), ("<script>alert(1)</script>", 2)], strong=0)
    page.figure(
        curves({"a": ([1, 2], [3.0, 2.0]), "b": ([1, 2], [2.0, 1.0])}, "steps", "nats", levels={"bigram": 2.5}),
        "Curves",
    )
    page.quote("And God said,\nLet there be <b>light</b>")
    page.code("fledge demo", summary="how")
    return page


def test_what_people_wrote_stays_text_and_nothing_is_loaded_from_elsewhere() -> None:
    html = sample().html()
    assert "<script>" not in html
    assert "&lt;b&gt;light" in html
    assert not re.search(r'(?:src|href)="https?:', html.replace("http://www.w3.org", ""))
    assert "@import" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.S)
    parser = HTMLParser()
    parser.feed(html)


def test_markdown_has_the_same_numbers() -> None:
    text = sample().markdown()
    assert "| a\\|b | 1.250 |" in text
    assert "> Let there be <b>light</b>" in text


def test_a_figure_marks_its_point_and_says_large_numbers_in_words() -> None:
    line = {"a": ([0, 1_500_000, 3_000_000], [3.0, 2.0, 1.5])}
    svg = curves(line, "tokens", "nats", point=("the model: 1.400", 3_000_000, 1.4))
    assert "the model: 1.400" in svg
    assert "1.5 million" in svg
    assert "1e6" not in svg
    svg = curves({"a": ([1.0, 2.0, 3.0], [0.0, 2e6, 4e6])}, "x", "y")
    assert "3 million" in svg
    assert "1e6" not in svg


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1e-5, 1e-3, 1.0], ["0.00001", "0.001", "1"]),
        ([10.0, 1e4, 2e7], ["100", "10,000", "10 million"]),
        ([2.0, 3.0, 4.0], ["2", "3"]),  # less than one power of ten: the numbers between
    ],
)
def test_logarithmic_axes_have_plain_numbers(values: list[float], wanted: list[str]) -> None:
    for axes in ({"log_x": True}, {"log_y": True}):
        line = (values, [3.0, 2.0, 1.5]) if "log_x" in axes else ([1.0, 2.0, 3.0], values)
        labels = re.findall(r"<text[^>]*>([^<]*)</text>", curves({"a": line}, "x", "y", **axes))
        assert set(wanted) <= set(labels)
        assert not any(label.startswith("10^") or "mathdefault" in label or "e-" in label for label in labels)
        assert "tspan" not in curves({"a": line}, "x", "y", **axes)  # as powers are drawn


def test_no_label_of_a_figure_is_black_in_the_dark() -> None:
    """Ticks of logarithmic axes included; on a page they take its own colour."""
    line = {"a": ([1, 9], [3.0, 2.0]), "b": ([1, 9], [3.5, 2.0])}
    svg = curves(line, "x", "y", log_x=True, log_y=True, levels={"bigram": 2.5}, point=("model", 2, 2.5))
    texts = re.findall(r"<g[^>]*>\s*<text[^>]*>|<text[^>]*>", svg)
    assert len(texts) > 5
    assert all("fill: #" in text for text in texts)
    page = Page("A page")
    page.figure(svg, "caption")
    assert GREY in svg
    assert GREY not in page.html()


def test_large_numbers_in_tables_are_not_in_powers_of_ten() -> None:
    page = Page("A page")
    page.table(["n"], [(1.992e7,), (123_456.0,)])
    assert "19,920,000" in page.html()
    assert "123,456" in page.html()


def test_a_report_says_why_validation_may_lie_below_training() -> None:
    config = override_config(RunConfig(), ["model.dropout=0.1", "training.average=0.99"])
    said = why_below(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert "dropout hides parts" in said
    assert "a moving average" in said
    plain = why_below(SimpleNamespace(config=override_config(config, ["model.dropout=0", "training.average=0"])))  # type: ignore[arg-type]
    assert "dropout" not in plain
    assert "moving average" not in plain
    assert "a mean over the steps before" in plain


def test_equal_plots_are_equal_bytes() -> None:
    assert curves({"a": ([1], [2.0])}, "x", "y") == curves({"a": ([1], [2.0])}, "x", "y")


def test_a_page_is_written_whole(tmp_path) -> None:
    assert sample().write(tmp_path / "report.html").read_text().endswith("</html>\n")
    assert sample().write(tmp_path / "report.md").read_text().startswith("# Loss")


def test_the_figures_of_markdown_lie_beside_it(tmp_path) -> None:
    text = sample().write(tmp_path / "report.md").read_text()
    assert "![Curves](figure-1.svg)" in text
    assert "<svg" in (tmp_path / "figure-1.svg").read_text()


def test_compared_tokenizers_are_a_report_too(tmp_path) -> None:
    measured = [
        Measurement("small", "stories", 1000, 400, 0.1, 16),
        Measurement("large", "stories", 1000, 250, 0.2, 16),
        Measurement("small", "news", 500, 200, 0.1, 16),
        Measurement("large", "news", 500, 220, 0.2, 16),
    ]
    report = report_tokenizers(measured, tmp_path, "fledge tokenizer compare …").read_text()
    assert "On stories, large makes the longest tokens: 4.00 bytes each, 60% more than small (2.50)." in report
    assert "On news, small" in report
    assert "fledge tokenizer compare" in report
    assert (tmp_path / "figure-1.svg").is_file()
    assert (tmp_path / "report.md").is_file()
    assert (tmp_path / "outcomes.csv").read_text().splitlines()[1].startswith("small,stories,1000,400,0.1,16,2.5,")


@pytest.mark.parametrize(
    ("losses", "best", "verdict"),
    [
        (
            [3.0, 2.0, 2.4],
            2,
            "The run overfitted: the validation loss was lowest at step 2 (2.000) and had risen to 2.400",
        ),
        ([3.0, 2.5, 2.0], 3, "did not overfit: the validation loss was lowest at its last evaluation, at step 3"),
        ([3.0, 2.0, 2.001], 2, "did not overfit notably: the validation loss was lowest at step 2"),
    ],
)
def test_a_report_says_whether_the_run_overfitted(tmp_path, losses: list[float], best: int, verdict: str) -> None:
    """And names the step handed over."""
    rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(losses, 1))
    (tmp_path / "metrics.csv").write_text(f"step,validation_loss\n{rows}")
    page = Page("Run")
    result = SimpleNamespace(best=tmp_path / "checkpoints" / f"step-{best:08}", step=3, steps=3)
    add_course(page, SimpleNamespace(folder=tmp_path), result)  # type: ignore[arg-type]
    assert verdict in page.markdown()
    assert f"The model handed over is that of step {best} of 3." in page.markdown()
