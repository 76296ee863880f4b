"""A person's walk through every view, in a real browser: type, hover, run, stop, branch, compare, resize."""

from __future__ import annotations

import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import browsing, chromium, others_share
from tests.web.conftest import serving
from tests.web.world import TEXT, write_metrics

ALPHA, BETA = "alpha/checkpoints/step-00000200", "beta/checkpoints/step-00000120"


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Any]:
    chromium()
    with browsing() as page:
        page.address = address
        yield page


def visit(page: Any, view: str) -> Any:
    """Open a view as on a first visit: a new document, and nothing remembered from before."""
    page.goto(f"{page.address}/favicon.ico")
    page.evaluate("localStorage.clear()")
    page.problems.clear()
    page.goto(f"{page.address}/#/{view}")
    page.locator(f".{view}-view").wait_for()
    return page


def until(page: Any, expression: str, seconds: float = 15) -> None:
    """Wait until an expression is true. (Playwright's own waiting evaluates in the page, which our policy forbids.)"""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never true: {expression}"
        page.wait_for_timeout(20)


def set_text(page: Any, text: str) -> None:
    page.get_by_label("Text", exact=True).fill(text)


def test_the_page_opens_and_colours_what_is_typed(page: Any) -> None:
    """The short walk: one view, one text, and nothing is asked from another host."""
    visit(page, "tokens")
    set_text(page, "the egg, the Egg")
    until(page, "document.querySelector('.coloured').textContent === 'the·egg,·the·Egg'")
    tokens = page.locator(".coloured").first.locator(".t")
    assert tokens.count() > 4
    tokens.nth(1).hover()
    tip = page.get_by_role("tooltip")
    tip.wait_for()
    assert re.search(r"id \d+", tip.inner_text())
    assert page.problems == []


@pytest.mark.slow
class TestTokens:
    def test_invisible_characters_and_parts_of_characters_are_shown(self, page: Any) -> None:
        visit(page, "tokens")
        set_text(page, "a\tb 🐢")
        until(page, "document.querySelector('.coloured').textContent.includes('⇥')")
        assert "‹F0" in page.locator(".coloured").first.inner_text()  # no token holds the turtle
        page.get_by_label("Show invisible characters").uncheck()
        assert "⇥" not in page.locator(".coloured").first.inner_text()
        page.get_by_label("Show invisible characters").check()

    def test_up_to_four_tokenizers_side_by_side(self, page: Any) -> None:
        visit(page, "tokens")
        add = page.get_by_role("button", name="Add a tokenizer")
        while add.is_visible():
            before = page.locator(".panel").count()
            add.click()
            until(page, f"document.querySelectorAll('.panel').length === {before + 1}")
        assert page.locator(".panel").count() == 4
        assert page.evaluate(FOCUSED) == "Tokenizer 4"  # the button that had the focus is gone
        page.get_by_label("Tokenizer 2", exact=True).select_option("characters")
        until(page, "document.querySelectorAll('.panel')[1].textContent.includes('character,')")
        page.get_by_label("Tokenizer 2", exact=True).focus()
        page.keyboard.press("ArrowUp")
        until(page, "document.querySelector('[aria-label=\"Tokenizer 2\"]').value === 'bpe-370'")
        assert page.evaluate(FOCUSED) == "Tokenizer 2"
        page.get_by_role("button", name=re.compile("^Remove")).last.click()
        assert page.locator(".panel").count() == 3
        assert page.evaluate(FOCUSED) == "Tokenizer 3"

    def test_the_keyboard_walks_from_token_to_token(self, page: Any) -> None:
        visit(page, "tokens")
        set_text(page, "the egg was warm")
        until(page, "document.querySelector('.coloured').textContent.includes('warm')")
        page.locator(".coloured").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        until(page, "document.getElementById('live').textContent.startsWith('Token 2 of')")
        page.keyboard.press("Enter")
        assert page.get_by_label("Word", exact=True).input_value().strip()

    def test_the_merges_of_a_word_are_replayed(self, page: Any) -> None:
        visit(page, "tokens")
        page.get_by_label("Tokenizer", exact=True).select_option("bpe-370")
        page.get_by_label("Word", exact=True).fill("therefore")
        page.wait_for_timeout(600)  # the page waits for the typing to end before it asks
        until(page, "document.querySelector('.replay')?.textContent.includes('with ids')")
        page.get_by_role("button", name="First step").click()
        assert page.locator(".replay .piece").all_text_contents() == list("therefore")
        page.get_by_role("button", name="Step forward").click()
        assert page.locator(".replay .piece").count() == 8
        assert page.locator(".replay .piece.made").count() == 1
        assert page.problems == []

    def test_a_line_s_end_has_a_story_and_no_word_has_none(self, page: Any) -> None:
        visit(page, "tokens")
        set_text(page, "egg\n\n\negg")
        page.locator(".coloured").first.get_by_text("↵").first.click()
        until(page, "/^↵+$/.test([...document.querySelectorAll('.replay .piece')].map((p) => p.textContent).join(''))")
        page.get_by_label("Word", exact=True).fill("egg")
        until(page, "document.querySelectorAll('.details tbody tr').length === 3")
        page.get_by_label("Word", exact=True).fill("")
        until(page, "document.querySelectorAll('.details tbody tr, .piece').length === 0")
        assert page.problems == []

    def test_bytes_that_do_not_decode_are_explained(self, page: Any) -> None:
        visit(page, "tokens")
        page.get_by_label("Or enter bytes in hexadecimal").fill("C0 AF")
        page.get_by_text("two-byte form of U+002F").wait_for()

    def test_a_megabyte_does_not_freeze_the_page(self, page: Any) -> None:
        """While a megabyte is coloured and scrolled, no task holds the page for long, and few elements exist."""
        visit(page, "tokens")
        page.evaluate(
            """() => { window.longest = 0; new PerformanceObserver((list) => list.getEntries().forEach((e) => {
                window.longest = Math.max(window.longest, e.duration); })).observe({ type: "longtask" }); }"""
        )
        page.evaluate(PASTE, "In the beginning was the egg, and it was warm.\n" * 22_000)
        until(page, "document.querySelector('#sizes').textContent.includes('1,0')")
        until(page, "document.querySelectorAll('.block').length > 50")
        for _ in range(5):
            page.locator(".coloured").first.evaluate("(box) => box.scrollBy(0, box.scrollHeight / 6)")
            page.wait_for_timeout(100)
        assert page.locator(".t").count() < 60_000
        assert page.evaluate("window.longest") < 2500
        page.locator(".block .t").first.wait_for()
        set_text(page, "short again")
        until(page, "document.querySelector('.coloured').textContent === 'short·again'")
        assert page.problems == []

    def test_a_megabyte_of_line_ends_does_not_freeze_the_page_either(self, page: Any) -> None:
        """A field of so many lines would take the browser many seconds: it shows the first, all tokens are there."""
        visit(page, "tokens")
        started = time.monotonic()
        page.evaluate(PASTE, "\n" * 1_000_000)
        until(page, "document.querySelector('#sizes').textContent.startsWith('1,000,000 char')")
        until(page, "document.querySelectorAll('.block .t').length > 0")
        assert page.locator(".coloured").first.evaluate("(box) => box.scrollHeight") > 1_000_000
        assert page.get_by_label("Text", exact=True).evaluate("(box) => box.value.length") < 2000
        page.get_by_text("Only the first 1,000 lines").wait_for()
        assert time.monotonic() - started < 8
        page.get_by_role("button", name="Empty the field").click()
        set_text(page, "short again")
        until(page, "document.querySelector('.coloured').textContent === 'short·again'")
        assert page.problems == []

    def test_ten_kilobytes_are_coloured_within_fifty_milliseconds(self, page: Any, shared_data: Path) -> None:
        """From the typing until all that the screen holds is painted, request and all, with GPT-2's tokens: half of the
        times, or the best of them where others keep the machine busy."""
        words = TEXT.split()
        with serving([shared_data / "ranks" / "gpt2.tiktoken"]) as address:
            page.goto(f"{address}/#/tokens")
            page.locator(".panel .t").first.wait_for()
            page.evaluate(WATCH)
            busy = others_share()
            for number in range(30):
                shuffled = random.Random(number).choices(words, k=2400)  # another text each time: no element is kept
                set_text(page, " ".join(shuffled)[:10_000])
                until(page, f"{COLOURINGS.format('colour-all')}.length > {number}")
            busy = max(busy, others_share())
            times, whole = (page.evaluate(COLOURINGS.format(name))[5:] for name in ("colour", "colour-all"))
        assert page.evaluate("window.full.slice(-30).every(Boolean)")  # at that moment no line of the box was empty
        assert page.locator(".facts b").first.inner_text() == f"{page.locator('.t').count():,}"
        print(
            f"colouring of 10 kB: median {statistics.median(times):.0f} ms, best {min(times):.0f}; "
            f"all in the document: {statistics.median(whole):.0f} ms; others use {busy:.0%} of the machine"
        )
        assert min(times) < 50, times
        assert statistics.median(times) < 50 or busy > 0.15, times

    def test_the_end_of_a_text_is_reached_before_it_is_painted(self, page: Any) -> None:
        """The screen's part comes first; a key that leads behind it does not have to wait."""
        visit(page, "tokens")
        page.get_by_label("Tokenizer 1", exact=True).select_option("bpe-370")
        set_text(page, "the egg ")
        until(page, "document.querySelector('.coloured').textContent.includes('egg')")
        last = page.evaluate(
            """(text) => new Promise((done) => {
                const input = document.getElementById("text"), box = document.querySelector(".coloured");
                new MutationObserver((_, watch) => {
                    if (!box.textContent.includes("hen")) return;  // a late answer for the text before
                    watch.disconnect();
                    const first = box.querySelectorAll(".t").length;
                    box.dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));
                    const spans = box.querySelectorAll(".t");
                    done([first, spans.length, [...spans].findIndex((span) => span.classList.contains("active"))]);
                }).observe(box, { childList: true });
                input.value = text;
                input.dispatchEvent(new Event("input"));
            })""",
            "and the hen sat " * 550,
        )
        first, every, active = last
        assert first < every == active + 1
        until(page, "document.getElementById('live').textContent.startsWith('Token ')")
        page.wait_for_timeout(200)
        assert page.locator(".coloured").first.text_content() == "and·the·hen·sat·" * 550
        assert page.locator(".coloured").first.locator(".t").count() == every
        assert page.problems == []

    def test_who_has_scrolled_stays_there(self, page: Any) -> None:
        """Other signs or another character far away do not move a text under the eye."""
        visit(page, "tokens")
        set_text(page, "and the hen sat\n" * 300)
        box = page.locator(".coloured").first
        until(page, "document.querySelector('.coloured').scrollHeight > 6000")
        box.evaluate("(box) => box.scrollTo(0, 3000)")
        page.wait_for_timeout(100)
        page.get_by_label("Show invisible characters").uncheck()
        page.wait_for_timeout(100)
        assert box.evaluate("(box) => box.scrollTop") == 3000
        page.get_by_label("Show invisible characters").check()

    def test_the_first_paint_comes_within_300_milliseconds(self, page: Any) -> None:
        paints = []
        for _ in range(5):
            visit(page, "tokens")
            until(page, "performance.getEntriesByType('paint').length > 0")
            paints.append(page.evaluate("performance.getEntriesByType('paint')[0].startTime"))
        print(f"first paint: {sorted(paints)} ms")
        assert statistics.median(paints) < 300, paints


@pytest.mark.slow
class TestInside:
    def test_a_token_shows_where_heads_look_and_what_layers_say(self, page: Any) -> None:
        visit(page, "inside")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Text", exact=True).fill("the egg was warm\n\nthe hen sat on it")
        page.get_by_label("each paragraph is a document of its own").check()
        page.get_by_role("button", name="Look", exact=True).click()
        until(page, "document.querySelectorAll('.looked hr').length === 1")
        assert page.locator(".head-row button").count() == 8  # two layers of four heads
        page.get_by_label("Layer 1, head 3").click()
        until(page, "document.querySelector('.large-head').width > 5")
        page.locator(".looked .g").nth(1).hover()
        until(page, "/token 2\\)/.test(document.querySelector('.inside-view').textContent)")
        assert page.locator(".lens tbody tr").count() == 3
        weights = (
            "[...document.querySelectorAll('.looked .g')].map((g) => Number(g.style.getPropertyValue('--weight')))"
        )
        until(page, f"{weights}[0] > 0")
        assert not any(page.evaluate(weights)[2:])
        page.locator(".looked").focus()
        page.keyboard.press("ArrowRight")
        until(page, "/token 3\\)/.test(document.querySelector('.inside-view').textContent)")
        assert page.problems == []

    def test_a_take_leads_inside(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Maximum tokens", exact=True).fill("8")
        page.get_by_label("Prompt", exact=True).fill("the egg")
        page.get_by_role("button", name="Generate").click()
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        page.get_by_role("button", name="Look inside").click()
        page.locator(".looked").wait_for()
        assert page.get_by_label("Text", exact=True).input_value().startswith("the egg")
        assert page.get_by_label("Bundle", exact=True).input_value() == ALPHA


@pytest.mark.slow
class TestRuns:
    def test_a_run_leads_to_its_text_and_its_file(self, page: Any) -> None:
        visit(page, "runs")
        with page.expect_download() as download:
            page.get_by_label("Download the model of alpha").click()
        assert download.value.suggested_filename.endswith(".zip")
        page.get_by_label("Generate with beta").click()
        page.locator(".generate-view form").wait_for()
        assert page.get_by_label("Bundle", exact=True).input_value() == BETA
        assert page.problems == []

    def test_runs_are_listed_compared_and_followed(self, page: Any) -> None:
        visit(page, "runs")
        page.get_by_label("Show alpha", exact=True).check()
        page.get_by_label("Show beta", exact=True).check()
        until(page, "document.querySelectorAll('.chart .line').length >= 6")
        assert "broken" in page.locator(".run-list").inner_text()
        alpha = page.locator(".run", has=page.get_by_label("Show alpha", exact=True))
        assert re.search(r"best: step (100|200)", alpha.inner_text())
        table = page.locator(".compare")
        assert "optimizer.learning_rate" in table.inner_text()
        assert "model.layers" not in table.inner_text()  # the same in both, so not a difference
        page.get_by_label("all, not only what differs").check()
        assert "model.layers" in page.locator(".compare").inner_text()
        assert "And the egg said 100" in page.get_by_label("Samples", exact=True).inner_text()

    def test_no_two_ticks_of_an_axis_say_the_same(self, page: Any) -> None:
        visit(page, "runs")
        ticks = page.evaluate(
            """async () => {
              const { Chart } = await import("/static/chart.js"), chart = new Chart("loss");
              document.querySelector("main").append(chart.element);
              chart.set([{ name: "a", colour: 1, xs: [10, 20], ys: [5.205, 5.24] }], { x: "step" });
              const told = [...chart.drawing.querySelectorAll("g .tick")].map((text) => text.textContent);
              chart.element.remove();
              return told;
            }"""
        )
        assert len(ticks) > 3
        assert len(set(ticks)) == len(ticks), ticks

    def test_a_run_without_settings_or_rows_changes_nothing_else(self, page: Any, world: Path, tmp_path: Path) -> None:
        served = tmp_path / "runs"
        shutil.copytree(world / "runs", served)
        (served / "empty" / "checkpoints").mkdir(parents=True)
        with serving([served]) as address:
            page.goto(f"{address}/#/runs?run=alpha&run=beta&run=empty&run=broken")
            until(page, "document.querySelector('.compare')?.textContent.includes('optimizer.learning_rate')")
            until(page, "document.querySelector('.compare').textContent.includes('empty')")
            assert "model.layers" not in page.locator(".compare").inner_text()
            badge = page.locator(".state.empty")
            assert badge.evaluate("(badge) => getComputedStyle(badge).borderStyle") == "none"

    def test_a_refresh_leaves_focus_place_and_selection_alone(self, page: Any, world: Path, tmp_path: Path) -> None:
        served = shutil.copytree(world / "runs", tmp_path / "runs")
        page.set_viewport_size({"width": 1280, "height": 500})
        with serving([served]) as address:
            page.goto(f"{address}/#/runs?run=alpha&run=beta")
            page.evaluate(HURRY)
            until(page, "document.querySelector('.compare')?.textContent.includes('optimizer.learning_rate')")
            page.get_by_label("all, not only what differs").focus()
            page.keyboard.press("Space")
            assert page.evaluate("document.activeElement.closest('section').ariaLabel") == "Settings"
            page.get_by_label("Show alpha", exact=True).focus()
            page.evaluate("getSelection().selectAllChildren(document.querySelector('.sample pre'))")
            page.evaluate("scrollTo(0, 700); window.row = document.activeElement.closest('.run')")
            place = page.evaluate("scrollY")
            write_metrics(served / "alpha", range(0, 190, 5), seed=1)  # now the newest: the list is ordered anew
            until(page, "document.querySelector('.run').textContent.includes('training, step 185')")
            page.wait_for_timeout(300)
            assert page.evaluate("scrollY") == place > 0
            assert page.evaluate(FOCUSED) == "Show alpha"
            assert page.evaluate("row.isConnected && row.contains(document.activeElement)")
            assert page.evaluate("getSelection().toString()").startswith("And the egg said")
        page.set_viewport_size({"width": 1280, "height": 860})

    def test_what_is_new_comes_once_and_what_is_wrong_is_said(self, page: Any, world: Path, tmp_path: Path) -> None:
        served = shutil.copytree(world / "runs", tmp_path / "runs")
        points = "document.querySelector('.chart .line.thin').getAttribute('d').match(/[ML]/g).length"
        with serving([served]) as address:
            page.goto(f"{address}/#/runs?run=alpha")
            page.evaluate(HURRY)
            until(page, f"document.querySelector('.chart .line') && {points} === 41")
            page.evaluate(  # slow rows, so that a choice falls between asking and hearing
                """() => { const quick = fetch; window.fetch = async (path, options) => {
                    if (path.includes("metrics")) await new Promise((done) => setTimeout(done, 3000));
                    return quick(path, options); }; }"""
            )
            (served / "alpha" / "config.json").write_text("{")
            (served / "alpha" / "samples.txt").write_text("──── step 300 ────\nAnd the hen said 300.\n")
            write_metrics(served / "alpha", range(0, 301, 5), seed=1)
            until(page, "document.querySelector('.run').textContent.includes('not valid JSON')")
            page.get_by_label("Show beta", exact=True).check()
            page.get_by_text("And the hen said 300").wait_for()
            page.wait_for_timeout(500)
            assert page.evaluate(points) == 61
            assert "alpha: " in page.locator(".runs-layout > .stack > .problem").last.inner_text()
            page.evaluate(
                """() => { window.kept = fetch; window.fetch = () => Promise.reject(new TypeError("gone")); }"""
            )
            page.get_by_text("The server does not answer").wait_for()
            page.evaluate("() => { window.fetch = kept; }")
            page.get_by_text("The server does not answer").wait_for(state="hidden")

    def test_axes_smoothing_and_the_readout(self, page: Any) -> None:
        visit(page, "runs")
        page.get_by_label("Show alpha", exact=True).check()
        line = page.locator(".chart .line").nth(1)
        line.wait_for()
        before = line.get_attribute("d")
        for name in ("Tokens", "Time", "FLOPs", "Steps"):
            page.get_by_role("button", name=name, exact=True).click()
        page.get_by_label("log y", exact=True).check()
        assert page.locator(".chart .line").nth(1).get_attribute("d") != before
        page.get_by_label("log y", exact=True).uncheck()
        page.get_by_role("slider", name=re.compile("^Smoothing")).fill("0.95")
        assert page.locator(".chart .line").nth(1).get_attribute("d") != before
        chart = page.locator(".chart").first
        chart.hover(position={"x": 300, "y": 100})
        assert "validation" in page.locator(".readout").first.inner_text()
        chart.focus()
        page.keyboard.press("ArrowRight")
        until(page, "document.getElementById('live').textContent.includes('step:')")
        assert re.search(r"; alpha, training \d", page.locator("#live").inner_text())
        assert page.problems == []

    def test_a_run_appears_and_grows_while_it_is_written(self, page: Any, world: Path, tmp_path: Path) -> None:
        served = tmp_path / "runs"
        served.mkdir()
        with serving([served]) as address:
            page.problems.clear()
            page.goto(f"{address}/#/runs")
            page.get_by_text("No run yet").wait_for()
            shutil.copytree(world / "runs" / "alpha", served / "live")
            write_metrics(served / "live", range(0, 50, 5), seed=1)
            page.get_by_text("training, step 45").wait_for()
            write_metrics(served / "live", range(0, 100, 5), seed=1)
            page.get_by_text("training, step 95").wait_for()
            shutil.rmtree(served / "live" / "checkpoints")
            (served / "live" / "metrics.csv").write_bytes(b"\xff" * 5000)
            page.get_by_text("broken", exact=True).wait_for()
            assert page.problems == []


@pytest.mark.slow
class TestGenerate:
    def test_a_text_streams_in_and_the_seed_repeats_it(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Maximum tokens", exact=True).fill("20")
        page.get_by_label("Temperature", exact=True).fill("0.725")  # between two steps of the arrow keys
        page.get_by_label("Repetition penalty", exact=True).fill("1.01")
        page.get_by_label("Prompt", exact=True).fill("the egg")
        texts = []
        for _ in range(2):
            page.get_by_role("button", name="Generate").click()
            until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
            texts.append(page.locator(".written").inner_text())
            page.wait_for_timeout(50)
        assert texts[0] == texts[1]
        assert texts[0].startswith("the egg")
        assert page.get_by_role("button", name="Take 2").is_visible()

    def test_the_button_is_seen_at_once_and_the_bundle_says_what_to_begin_with(self, page: Any) -> None:
        page.set_viewport_size({"width": 1280, "height": 900})
        visit(page, "generate")
        button = page.get_by_role("button", name="Generate", exact=True).bounding_box()
        page.set_viewport_size({"width": 1280, "height": 860})
        assert button["y"] + button["height"] < 900
        temperature = page.get_by_label("Temperature", exact=True)
        until(page, "document.querySelector('.generate-view form').elements.length > 0")
        assert temperature.input_value() == "0.7"  # akjv-demo's, and not the page's own
        temperature.fill("0.35")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.wait_for_timeout(300)
        assert temperature.input_value() == "0.35"  # what the person chose stays

    def test_alternatives_and_branches(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Prompt", exact=True).fill("In the beginning")
        page.get_by_label("Maximum tokens", exact=True).fill("12")
        page.get_by_role("button", name="Generate").click()
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        page.locator(".g").nth(3).click()
        rows = page.locator(".alternative")
        assert rows.count() >= 8
        for row in rows.all()[:3]:  # a bar is as long as its token is likely
            told = float(re.sub(r"[^\d.]", "", row.locator(".number").inner_text()))
            whole, bar = (row.locator(part).bounding_box()["width"] for part in (".bar", ".bar i"))
            assert 100 * bar / whole == pytest.approx(told, abs=0.6)
        assert page.locator(".alternative.chosen").count() == 1
        bars = page.locator(".alternative .bar").evaluate_all("bars => bars.map((bar) => bar.clientWidth)")
        assert len(set(bars)) == 1, "all are drawn to one scale, that of the token itself among them"
        page.get_by_role("button", name=re.compile("^Branch with")).nth(2).click()
        until(page, "document.querySelectorAll('.g.kept').length === 4")
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        page.get_by_role("button", name="Take 1").click()
        assert page.locator(".g.kept").count() == 0
        assert page.problems == []

    def test_a_branch_by_keyboard_keeps_the_focus_at_its_place(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Maximum tokens", exact=True).fill("12")
        page.get_by_role("button", name="Generate").click()
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        page.locator(".written").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        page.get_by_role("button", name=re.compile("^Branch with")).nth(2).focus()
        page.keyboard.press("Enter")
        until(page, "document.querySelectorAll('.g.kept').length === 4")
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        assert page.evaluate("document.activeElement.className") == "written"
        page.keyboard.press("ArrowRight")
        page.get_by_text("Token 5: alternatives").wait_for()

    def test_a_server_that_dies_is_told_in_a_sentence(self, page: Any, world: Path) -> None:
        command = [sys.executable, "-m", "fledge", "serve", str(world / "runs"), "--port", "0", "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                page.goto(process.stdout.readline().split()[5] + "#/generate")  # type: ignore[union-attr]
                page.get_by_label("Maximum tokens", exact=True).fill("8000")
                page.get_by_label("Temperature", exact=True).fill("1")
                page.get_by_role("button", name="Generate").click()
                until(page, "document.querySelectorAll('.g').length > 5")
            finally:
                process.kill()
        until(page, "document.querySelector('.take-status').textContent.startsWith('The connection to the server')")

    def test_a_long_text_can_be_stopped(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Prompt", exact=True).fill("In the beginning")
        page.get_by_label("Maximum tokens", exact=True).fill("8000")
        page.get_by_label("Temperature", exact=True).fill("1")
        page.evaluate(
            """() => { window.said = 0; new MutationObserver(() => { window.said++; })
                .observe(document.querySelector(".take-status"), { childList: true }); }"""
        )
        page.get_by_role("button", name="Generate").click()
        until(page, "document.querySelectorAll('.g').length > 100")
        assert page.evaluate("said") < 20  # not for every token: who listens to the page would hear nothing else
        page.get_by_role("button", name="Stop").click()
        until(page, "/^Stopped after/.test(document.querySelector('.take-status').textContent)")
        count = page.locator(".g").count()
        page.wait_for_timeout(300)
        assert page.locator(".g").count() == count
        assert page.get_by_role("button", name="Generate").is_enabled()

    def test_an_earlier_take_is_left_alone_by_the_one_being_written(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Temperature", exact=True).fill("1")
        page.get_by_label("Maximum tokens", exact=True).fill("5")
        page.get_by_role("button", name="Generate").click()
        until(page, "/tokens in/.test(document.querySelector('.take-status').textContent)")
        page.get_by_label("Maximum tokens", exact=True).fill("8000")
        page.get_by_role("button", name="Generate").click()
        until(page, "document.querySelectorAll('.g').length > 5 && document.querySelectorAll('.caret').length === 1")
        page.get_by_role("button", name="Take 1").click()
        page.wait_for_timeout(1100)
        assert page.locator(".take-status").inner_text().startswith("5 tokens in")
        assert page.locator(".caret").count() == 0
        page.get_by_role("button", name="Take 2").click()
        page.locator(".written").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        page.get_by_role("button", name=re.compile("^Branch with")).first.click()
        until(page, "document.querySelectorAll('.g.kept').length === 4 && document.querySelectorAll('.g').length > 20")
        assert page.locator(".caret").count() == 1  # the take that was given up removes its own only
        page.get_by_role("button", name="Stop").click()
        until(page, "document.querySelectorAll('.caret').length === 0")

    def test_a_split_character_is_joined_with_nothing_else(self, page: Any) -> None:
        visit(page, "generate")
        texts = page.evaluate(
            """async (pieces) => {
                const { Take } = await import("/static/take.js");
                const take = new Take("x", {});
                const tokens = pieces.map((bytes) => ({ bytes: btoa(String.fromCharCode(...bytes)), logprob: -1 }));
                take.choose({ request: {}, tokens, kept: 0, status: "", ended: true });
                return [...take.written.children].map((span) => span.textContent);
            }""",
            [[0xFF], [0xC3], [0xA9], *([letter] for letter in b"xyzwv"), [0xE2], [0x82, 0xAC], [0xC3], [0x21]],
        )
        assert texts == ["‹FF›", "\u200b", "é", *"xyzwv", "\u200b", "€", "‹C3›", "!"]

    def test_two_bundles_on_the_same_prompt(self, page: Any) -> None:
        visit(page, "generate")
        page.get_by_label("Bundle", exact=True).select_option(ALPHA)
        page.get_by_label("Beside it", exact=True).select_option(BETA)
        page.get_by_label("Maximum tokens", exact=True).fill("10")
        page.get_by_role("button", name="Generate").click()
        until(
            page,
            "[...document.querySelectorAll('.take-status')].filter(s => /tokens in/.test(s.textContent)).length === 2",
        )
        first, second = page.locator(".written").all_inner_texts()
        assert first != second


@pytest.mark.slow
class TestModel:
    def test_sliders_move_the_account_and_boxes_tell_their_share(self, page: Any) -> None:
        visit(page, "model")
        parameters = page.locator(".big b").first
        parameters.wait_for()
        before = parameters.inner_text()
        page.get_by_role("slider", name=re.compile("^Layers")).focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        until(page, f"document.querySelector('.big b').textContent !== '{before}'")
        page.locator('.pick[data-key="w1"]').click()
        chosen = page.get_by_label("Chosen part", exact=True)
        assert "layers.N.ffn.w1.weight" in chosen.inner_text()
        page.wait_for_timeout(600)  # the diagram is drawn anew once the sliders rest
        page.locator('.pick[data-key="token_embeddings"]').focus()
        page.keyboard.press("Enter")
        until(page, "document.body.innerText.includes('token_embeddings.weight')")
        assert "token_embeddings.weight" in chosen.inner_text()
        assert page.problems == []

    def test_every_architecture_is_drawn(self, page: Any) -> None:
        visit(page, "model")
        for name, words in {"bdh": "Baby Dragon", "lstm": "LSTM", "gru": "GRU", "rnn": "recurrent"}.items():
            page.get_by_label("Architecture", exact=True).select_option(name)
            until(page, f"document.querySelector('.diagram').textContent.includes('{words}')")
        assert page.problems == []

    def test_what_can_t_be_built_is_said_and_the_last_account_stays(self, page: Any) -> None:
        visit(page, "model")
        page.locator(".big b").first.wait_for()
        page.get_by_role("slider", name=re.compile("^Heads")).fill("10")  # 25 heads do not divide the width
        page.get_by_text("does not divide").wait_for()
        assert page.locator(".big b").first.is_visible()
        page.get_by_role("button", name="Back to the start").click()
        until(page, "!document.body.textContent.includes('does not divide')")


@pytest.mark.slow
class TestEverywhere:
    def test_the_views_are_reached_by_keyboard_and_by_link(self, page: Any) -> None:
        visit(page, "tokens")
        for view in ("Runs", "Generate", "Learn", "Experiments", "Model", "API", "Tokens"):
            page.get_by_role("link", name=view, exact=True).focus()
            page.keyboard.press("Enter")
            page.locator(f".{view.lower()}-view h1").wait_for()
            until(page, "document.activeElement === document.querySelector('main')")  # given when the view is whole
            assert page.get_by_role("link", name=view, exact=True).get_attribute("aria-current") == "page"
        assert page.problems == []

    def test_a_view_that_fails_late_stays_away_and_its_link_tries_again(self, page: Any) -> None:
        visit(page, "tokens")
        page.evaluate(
            """() => { const real = fetch; window.held = []; window.release = () => { window.fetch = real; };
                window.fetch = (path, options) => path !== "/api/library" ? real(path, options)
                    : new Promise((_, fail) => held.push(() => fail(new TypeError("gone")))); }"""
        )
        page.get_by_role("link", name="Generate", exact=True).click()
        until(page, "held.length === 1")
        page.get_by_role("link", name="Runs", exact=True).click()
        page.locator(".runs-view h1").wait_for()
        page.evaluate("held.pop()()")
        page.wait_for_timeout(100)
        assert page.locator(".runs-view h1").is_visible()
        page.get_by_role("link", name="Model", exact=True).click()
        until(page, "held.length === 1")
        page.evaluate("held.pop()()")
        page.get_by_text("The server does not answer").wait_for()
        page.evaluate("release()")
        page.get_by_role("link", name="Model", exact=True).click()
        page.locator(".model-view h1").wait_for()
        assert page.problems == []

    @pytest.mark.parametrize("width", [320, 390, 768, 1600])
    def test_no_view_is_wider_than_its_window(self, page: Any, width: int) -> None:
        for view in ("tokens", "runs", "generate", "inside", "learn", "experiments", "model", "api"):
            visit(page, view)
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(250)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), view
        page.set_viewport_size({"width": 1280, "height": 860})

    def test_every_control_has_a_name(self, page: Any) -> None:
        """What a screen reader would say for each control is never nothing."""
        for view in ("tokens", "runs", "generate", "inside", "learn", "experiments", "model", "api"):
            visit(page, view)
            page.wait_for_timeout(300)
            nameless = page.evaluate(
                """() => [...document.querySelectorAll(
                      'button, input, select, textarea, a, [role=button], [tabindex="0"]')]
                    .filter((e) => e.offsetParent !== null || e instanceof SVGElement)
                    .filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim() || e.title))
                    .map((e) => e.outerHTML.slice(0, 120))"""
            )
            assert nameless == [], view

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_is_readable_in_both_schemes(self, page: Any, scheme: str) -> None:
        """The contrast of words on their ground is at least 4.5, as WCAG AA asks."""
        page.emulate_media(color_scheme=scheme)
        for view in ("tokens", "runs", "generate", "learn", "experiments", "model"):
            visit(page, view)
            page.wait_for_timeout(300)
            worst = page.evaluate(CONTRAST)
            assert worst["ratio"] >= 4.5, worst

    def test_the_theme_can_be_chosen_and_stays(self, page: Any) -> None:
        visit(page, "tokens")
        button = page.locator("#theme")
        while page.evaluate("document.documentElement.dataset.theme") != "dark":
            button.click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.locator("#theme").click()

    def test_with_a_token_the_printed_address_opens_the_page(self, page: Any, world: Path) -> None:
        token = "a-secret-of-enough-characters"
        with serving([world / "runs"], token=token) as address:
            page.goto(f"{address}/#token=that-of-an-earlier-server")
            page.get_by_text("This server needs its token").wait_for()
            page.problems.clear()
            page.goto(f"{address}/#token={token}")  # in the same tab: nothing but the fragment changes
            page.locator(".tokens-view h1").wait_for()
            assert token not in page.url
            page.get_by_role("link", name="API", exact=True).click()
            page.locator(".api-view h1").wait_for()
            assert page.title() == "API · fledge workshop"
            examples = " ".join(page.locator("pre.code").all_inner_texts())
            assert "authorization: Bearer TOKEN" in examples
            assert 'api_key="TOKEN"' in examples
            with page.expect_popup() as opened:
                page.get_by_role("link", name="/openapi.json").click()
            assert "/v1/completions" in opened.value.locator("body").inner_text()
            opened.value.close()
            assert page.problems == []


FOCUSED = "document.activeElement.ariaLabel"

# What the page does every two seconds, it does every fifth of one.
HURRY = "() => { const later = setTimeout; window.setTimeout = (work, pause) => later(work, pause / 10); }"

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgb(getComputedStyle(document.documentElement).backgroundColor);
  };
  let worst = { ratio: 99 };
  const words = ["p", "span", "label", "h1", "h2", "h3", "td", "th", "button", "code"].map((tag) => `main ${tag}`);
  for (const element of document.querySelectorAll(`${words}, nav a`)) {
    if (element.closest(":disabled, [hidden], svg, .written") || !element.offsetParent) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const [a, b] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst.ratio) worst = { ratio, text: element.textContent.slice(0, 40), kind: element.className };
  }
  return worst;
}"""

COLOURINGS = """performance.getEntriesByName("{}")
  .filter((entry) => entry.detail.bytes > 9000).map((entry) => entry.duration)"""

WATCH = """() => {
  const measure = performance.measure.bind(performance), box = document.querySelector(".coloured");
  window.full = [];
  performance.measure = (name, options) => {
    const entry = measure(name, options);
    if (name === "colour") window.full.push(box.scrollHeight > box.clientHeight);
    return entry;
  };
}"""

PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const input = document.getElementById("text");
  input.select();
  input.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}"""
