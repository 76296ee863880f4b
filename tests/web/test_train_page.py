"""A newcomer's walk in a real browser: from an empty folder to a text of their own model, without leaving the page."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fledge.files import read_json, write_json
from fledge.tokenizer import train_bpe
from fledge.web.jobs import Jobs
from fledge.web.launch import JOB, LOCK, STATE
from tests.web.browser import browsing, chromium
from tests.web.conftest import serving
from tests.web.test_browser import FOCUSED, until
from tests.web.test_training import LINES, make_plan
from tests.web.world import make_run

PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}
NAMED = """(() => { const at = document.activeElement;
  return (at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent).trim(); })()"""
CLICKS = """
addEventListener("click", (event) => { if (event.isTrusted) window.clicks = (window.clicks ?? 0) + 1; }, true);
addEventListener("keydown", () => { window.keys = (window.keys ?? 0) + 1; }, true)"""


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with nothing in it, and the server that shows it."""
    chromium()
    runs = tmp_path / "runs"
    runs.mkdir()
    with serving([runs]) as address:
        yield runs, address
    for job in Jobs(runs).all():
        if job.state in ("waiting", "running"):
            os.killpg(read_json(runs / ".jobs" / job.id / STATE)["pid"], signal.SIGKILL)


def give(page: Any, *texts: tuple[str, bytes]) -> None:
    page.get_by_label("Text files").set_input_files(
        [{"name": name, "mimeType": "text/plain", "buffer": text} for name, text in texts]
    )


def test_a_newcomer_meets_the_text_first(empty: tuple[Path, str]) -> None:
    """Without a model the page opens here; what is dropped is looked at, and what is no text is a sentence."""
    runs, address = empty
    with browsing() as page:
        page.goto(address)
        page.locator(".train-view").wait_for()
        plan = page.get_by_role("button", name="Plan", exact=True)
        assert plan.is_disabled()
        give(page, ("eggs.jsonl", LINES))
        page.get_by_text("500", exact=True).wait_for()
        assert plan.is_enabled()
        page.get_by_text("Or paste a text").click()
        page.get_by_role("textbox", name="Text").fill("The egg was warm. " * 50)
        page.get_by_role("button", name="Use this text").click()
        page.get_by_text("pasted.txt").wait_for()
        assert page.problems == []
        give(page, ("book.txt", b"%PDF-1.7 and more"))
        page.get_by_role("alert").get_by_text("is a PDF file").wait_for()
        assert {path.name for path in runs.rglob("*") if path.is_file()} == {"eggs.jsonl", "pasted.txt"}
        page.get_by_text("Change a setting").click()
        page.get_by_label("A setting to change").fill("model.layers")
        page.keyboard.press("Enter")
        until(page, f"({FOCUSED}) === 'model.layers'")
        assert page.locator(".changes").get_by_text("Number of blocks.").is_visible()


def test_the_keyboard_alone_sets_up_a_plan(empty: tuple[Path, str]) -> None:
    """A text is pasted, chosen and looked at, the time and a setting are changed, and the plan is asked for."""
    _, address = empty
    with browsing() as page:
        sent: list[Any] = []
        page.route("**/api/training/plan", lambda route: (sent.append(route.request.post_data_json), route.abort()))
        page.goto(f"{address}/#/train")
        page.get_by_role("button", name="Choose files").focus()

        def walk(name: str) -> None:
            """Tab until the focus is there."""
            for _ in range(20):
                page.keyboard.press("Tab")
                if page.evaluate(NAMED).startswith(name):
                    return
            raise AssertionError(f"{name} is not reached by Tab: {page.evaluate(NAMED)}")

        walk("Or paste a text")
        page.keyboard.press("Enter")
        walk("Text")
        page.keyboard.insert_text("The egg was warm. " * 50)
        walk("Use this text")
        page.keyboard.press("Enter")
        page.get_by_label("About the text").get_by_text("900 bytes").first.wait_for()
        walk("All of it may take")
        page.keyboard.press("ArrowRight")
        walk("Change a setting")
        page.keyboard.press("Enter")
        walk("A setting to change")
        page.keyboard.type("model.layers")
        page.keyboard.press("Enter")
        until(page, f"({FOCUSED}) === 'model.layers'")
        page.keyboard.press("Control+A")
        page.keyboard.type("2")
        walk("Plan")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        asked = {"texts": ["texts/pasted.txt"], "seconds": 1200, "set": {"model.layers": "2"}, "run": None}
        assert sent == [asked]


def test_what_was_asked_for_elsewhere_is_asked_for_again_with_a_change(empty: tuple[Path, str]) -> None:
    """A plan or a training that another page began is whole here: its text, its time and what was set by hand."""
    runs, address = empty
    (runs / "texts").mkdir()
    (runs / "texts" / "eggs.jsonl").write_bytes(LINES)
    text = str(runs.absolute() / "texts" / "eggs.jsonl")
    make_plan(runs, "eggs", [text], time="20m", set={"model.width": 32})
    asked = {"recipe": "akjv", "bundle": None, "texts": ["texts/eggs.jsonl"], "set": {"training.steps": "12"}}
    make_job(runs, "0", "plan", "eggs")
    make_job(runs, "1", "train", "birds", asked)
    make_run(runs / "birds", train_bpe([LINES], 300, []), [], steps=200, seed=1)
    with browsing() as page:
        sent: list[Any] = []
        page.route("**/api/training/p*", lambda route: (sent.append(route.request.post_data_json), route.abort()))
        page.route("**/api/training/train", lambda route: (sent.append(route.request.post_data_json), route.abort()))
        page.goto(f"{address}/#/train")
        page.get_by_role("button", name="eggs").click()
        plan = page.get_by_label("Plan", exact=True)
        plan.get_by_text("nine times in ten between 1.25 and 2.00").wait_for()
        plan.get_by_label("model.layers").fill("3")
        page.keyboard.press("Enter")
        page.get_by_role("alert").wait_for()
        assert sent.pop() == {
            "texts": ["texts/eggs.jsonl"],
            "seconds": 1200,
            "run": "eggs",
            "set": {"model.width": "32", "model.layers": "3"},
        }
        page.get_by_role("button", name="birds").click()
        page.get_by_role("button", name="Start again with a change").click()
        page.get_by_label("training.steps", exact=True).fill("24")
        page.get_by_role("button", name="Start training").click()
        until(page, "document.querySelector('[role=alert]').textContent !== ''")
        assert sent.pop() == {"recipe": "akjv", "texts": ["texts/eggs.jsonl"], "set": {"training.steps": "24"}}


def make_job(runs: Path, name: str, kind: str, run: str, asked: dict[str, Any] | None = None) -> None:
    """One that has ended, as the server keeps it."""
    folder = runs / ".jobs" / name
    job = {"kind": kind, "run": run, "device": "cpu", "commands": [["--version"]], "asked": asked, "created": 1.0}
    write_json(folder / JOB, job)
    write_json(folder / STATE, {"state": "ended", "started": 1.0, "ended": 2.0, "code": 0, "stopped": False})
    (folder / LOCK).touch()


@pytest.mark.slow
def test_six_clicks_from_an_empty_folder_to_a_text(empty: tuple[Path, str]) -> None:
    """No key is pressed. The page is closed while it trains, and finds the training again."""
    _, address = empty
    with browsing() as page:
        page.add_init_script(CLICKS)
        page.goto(address)
        page.get_by_role("button", name="Choose files").wait_for()
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Choose files").click()
        chooser.value.set_files([{"name": "eggs.jsonl", "mimeType": "text/plain", "buffer": LINES}])
        slider = page.get_by_label("All of it may take")
        slider.evaluate("(e) => { e.value = 1; e.dispatchEvent(new Event('input')); }")  # two minutes, for the test
        page.get_by_role("button", name="Plan", exact=True).click()
        start = page.get_by_role("button", name="Start training")
        start.wait_for(timeout=240_000)
        for fact in ("parameters", "tokens/s", "while it trains", "bits per byte"):
            assert page.get_by_label("Plan", exact=True).get_by_text(fact).first.is_visible()
        start.click()
        page.get_by_role("button", name="Stop").wait_for()
        page.goto("about:blank")  # closed, and opened again
        page.goto(f"{address}/#/train")
        page.get_by_role("link", name="Generate text").wait_for(timeout=240_000)
        assert page.frame_locator("iframe.report").get_by_text("What the numbers mean").count() == 1
        assert page.get_by_text(re.compile("overfit")).first.is_visible()
        page.get_by_role("link", name="Generate text").click()
        page.get_by_role("button", name="Generate", exact=True).click()
        page.get_by_text(re.compile(r"tokens? in [\d.]+ s")).first.wait_for()
        assert page.evaluate("window.clicks") + 3 <= 6  # three before the page was closed
        assert page.evaluate("window.keys ?? 0") == 0
        assert page.problems == []


@pytest.mark.slow
def test_on_a_phone_in_the_dark_nothing_is_cut_off(empty: tuple[Path, str]) -> None:
    _, address = empty
    with browsing(**PHONE) as page:
        page.goto(f"{address}/#/train")
        give(page, ("eggs.jsonl", LINES))
        page.get_by_text("500", exact=True).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Plan", exact=True).click()
        page.get_by_role("button", name="Start training").wait_for(timeout=240_000)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Discard").click()
        page.get_by_text("Choose a text and a time").wait_for()
        assert page.problems == []


@pytest.mark.slow
def test_two_pages_see_one_queue(empty: tuple[Path, str]) -> None:
    """What another server began waits its turn, is shown here, and can leave the queue."""
    runs, address = empty
    (runs.parent / "nothing").mkdir()
    lasting = [["serve", str(runs.parent / "nothing"), "--port", "0", "--no-open"]]
    elsewhere = Jobs(runs)
    elsewhere.begin("train", "first", "cpu", lasting)
    second = elsewhere.begin("train", "second", "cpu", lasting)
    with browsing() as page:
        page.goto(f"{address}/#/train")
        page.get_by_label("Trainings").get_by_text("1 training before it").wait_for()
        page.get_by_role("button", name="second").click()
        page.get_by_role("button", name="Leave the queue").click()
        page.get_by_label("Training", exact=True).get_by_text("stopped").first.wait_for()
        assert elsewhere.one(second.id).state == "stopped"
        assert page.problems == []
