"""A person sees a run learn, in a real browser: by mouse, by keyboard alone, on a phone, light and dark."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fledge.web.shelf import Shelf
from tests.web.browser import browsing, chromium
from tests.web.conftest import serving
from tests.web.test_browser import CONTRAST, FOCUSED, until
from tests.web.test_learn import make_grown
from tests.web.test_train_page import PHONE

pytestmark = pytest.mark.slow
FOX = (40, 80, 120, 160)
DONE = "performance.getEntriesByName('replay').length"
TEXT = "the egg was warm; the hen sat on it"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    chromium()
    runs = tmp_path_factory.mktemp("learn") / "runs"
    make_grown(runs / "hen")
    make_grown(runs / "fox", ("model.width=48", "training.steps=320"), FOX)
    weights = runs / "fox" / "checkpoints" / "step-00000080" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7] + b"changed")
    with serving([runs]) as address:
        yield address


def replay(page: Any, address: str, **texts: str) -> None:
    """Open the view as on a first visit, write what is given, and wait until every checkpoint has answered."""
    page.goto(f"{address}/favicon.ico")
    page.evaluate("localStorage.clear()")
    page.goto(f"{address}/#/learn?run=hen")
    until(page, f"{DONE} === 1")
    for label, text in {"Text that each reads, loss by token": TEXT, **texts}.items():
        control = page.get_by_label(label, exact=True)
        if label == "Beside it":
            control.select_option(text)
        else:
            control.fill(text)
    page.get_by_role("button", name="Replay").click()
    until(page, f"{DONE} === 2")


def where(page: Any) -> str:
    return str(page.locator(".learn-bar output").inner_text())


def test_the_slider_goes_through_the_checkpoints(address: str) -> None:
    with browsing() as page:
        replay(page, address, **{"Prompt that each goes on from": "the hen"})
        slider = page.get_by_role("slider", name="Checkpoint")
        assert where(page) == "step 200 of 200"  # it followed the answers to the last
        texts, shades, nearest = set(), set(), set()
        slider.focus()
        page.keyboard.press("Home")
        for step in (50, 100, 150, 200):
            assert where(page) == f"step {step} of 200"
            assert f"step {step} ·" in page.locator(".learned .number").first.inner_text()
            assert page.locator(".learned-text").inner_text().startswith("the hen")
            texts.add(page.locator(".learned-text").inner_text())
            shades.add(tuple(page.locator(".looked .g").evaluate_all("(all) => all.map((one) => one.title)")))
            nearest.add(page.locator(".neighbours").inner_text())
            page.keyboard.press("ArrowRight")
        assert len(texts) == len(shades) == len(nearest) == 4
        box = slider.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        assert where(page) == "step 100 of 200"
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        assert where(page) == "step 50 of 200"
        page.get_by_role("button", name="Checkpoint after").click()
        assert where(page) == "step 100 of 200"
        picture = page.locator(".learned-picture canvas").bounding_box()
        page.mouse.click(picture["x"] + 9, picture["y"] + picture["height"] * 0.6)
        assert where(page) == "step 150 of 200"
        page.get_by_role("button", name="Play", exact=True).click()
        until(page, "document.querySelector('.learn-bar output').textContent === 'step 200 of 200'")
        assert page.get_by_role("button", name="Play", exact=True).is_visible()  # and not "Pause": it is over
        assert page.problems == []


def test_a_token_is_chosen_and_its_neighbours_and_its_story_appear(address: str) -> None:
    with browsing() as page:
        replay(page, address)
        page.locator(".looked .g").nth(2).click()
        name = page.locator(".looked .g").nth(2).inner_text().strip()
        until(page, f"document.querySelector('.learned .near h3').textContent.includes({name!r})")
        until(page, "document.querySelectorAll('.neighbour').length === 8")
        story = page.locator(".learned .read > p").first.inner_text()
        assert re.search(r"%? at step 50, .* at step 200\.", story)
        chosen = page.locator(".looked .g.active")
        assert chosen.count() == 1
        page.locator(".looked").focus()
        page.keyboard.press("ArrowRight")
        until(page, "document.querySelectorAll('.looked .g')[3].classList.contains('active')")
        until(page, "document.getElementById('live').textContent.includes('at step 50')")
        until(page, "document.querySelectorAll('.neighbour').length === 8")
        assert page.problems == []


def test_two_runs_share_a_slider_by_step_or_by_share(address: str) -> None:
    with browsing() as page:
        replay(page, address, **{"Beside it": "fox"})
        slider = page.get_by_role("slider", name="Checkpoint")
        assert slider.get_attribute("max") == "7"  # 40, 50, 80, 100, 120, 150, 160, 200
        slider.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        facts = page.locator(".learned .number:not(.small *)")
        assert where(page) == "step 80"
        assert [text.split(" ·")[0] for text in facts.all_inner_texts() if "step" in text] == ["step 50", "step 80"]
        assert "does not match its checksum" in page.locator(".learned .problem").last.inner_text()
        page.get_by_role("button", name="by share of training").click()
        page.get_by_role("slider", name="Checkpoint").focus()
        page.keyboard.press("End")
        assert where(page) == "100 % of the training"
        page.keyboard.press("Home")
        assert where(page) == "12.5 % of the training"
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert where(page) == "50 % of the training"  # step 100 of 200, and step 160 of 320
        assert [text.split(" ·")[0] for text in facts.all_inner_texts() if "step" in text] == ["step 100", "step 160"]
        page.locator(".looked").last.locator(".g").nth(3).click()
        until(page, "document.querySelectorAll('.looked .g.active').length === 2")
        until(page, "document.querySelectorAll('.neighbour').length === 16")
        assert page.problems == []


def test_the_keyboard_alone_is_enough(address: str) -> None:
    with browsing() as page:
        replay(page, address)
        page.get_by_label("Prompt that each goes on from", exact=True).focus()
        page.keyboard.press("Control+a")
        page.keyboard.type("the fox said")
        page.keyboard.press("Control+Enter")
        until(page, f"{DONE} === 3")
        for _ in range(20):
            if page.evaluate(FOCUSED) == "Checkpoint":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowLeft")
        assert where(page) == "step 150 of 200"
        assert "validation loss" in page.get_by_role("slider", name="Checkpoint").get_attribute("aria-valuetext")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "looked"
        page.keyboard.press("End")
        until(page, "[...document.querySelectorAll('.looked .g')].at(-1).classList.contains('active')")
        assert page.locator(".learned-text").inner_text().startswith("the fox said")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_a_finger_moves_the_slider(address: str, scheme: str) -> None:
    with browsing(**{**PHONE, "color_scheme": scheme}) as page:
        replay(page, address, **{"Beside it": "fox"})
        slider = page.get_by_role("slider", name="Checkpoint")
        slider.scroll_into_view_if_needed()
        page.evaluate("scrollBy(0, 300)")
        box = slider.bounding_box()
        assert 0 < box["y"] < 844 - 80  # it stays in sight, above the bar of views
        page.touchscreen.tap(box["x"] + 3, box["y"] + box["height"] / 2)
        assert where(page) == "step 40"
        page.touchscreen.tap(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
        assert where(page) == "step 200"
        page.locator(".looked .g").nth(1).tap()
        until(page, "document.querySelectorAll('.looked .g.active').length === 2")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        worst = page.evaluate(CONTRAST)
        assert worst["ratio"] >= 4.5, worst
        assert page.problems == []


def test_a_replay_is_stopped_and_what_is_wrong_is_a_sentence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Shelf.read_bundle
    monkeypatch.setattr(Shelf, "read_bundle", lambda *given: (time.sleep(0.3), read(*given))[1])
    with browsing() as page:
        replay(page, address)
        page.get_by_label("Tokens at most", exact=True).fill("300")
        page.get_by_role("button", name="Replay").click()
        page.get_by_text("less than or equal to 256").wait_for()
        page.problems.clear()  # the browser logs the status
        page.get_by_label("Tokens at most", exact=True).fill("256")
        page.get_by_label("Temperature", exact=True).fill("2")
        page.get_by_label("Seed", exact=True).fill("7")
        page.get_by_role("button", name="Replay").click()
        page.get_by_role("button", name="Stop").click()
        until(page, f"{DONE} === 4")
        assert int(page.locator(".learn-view > .stack > p").inner_text().split()[0]) < 4
        page.get_by_role("button", name="Replay").click()
        until(page, f"{DONE} === 5")
        assert page.locator(".learn-view > .stack > p").inner_text().startswith("4 checkpoints in")
        assert page.problems == []


def test_a_run_s_line_leads_here(address: str) -> None:
    with browsing() as page:
        page.goto(f"{address}/#/runs")
        page.get_by_label("See how hen learned").click()
        until(page, f"document.querySelector('.learn-view') && {DONE} === 1")
        assert page.get_by_label("Run", exact=True).input_value() == "hen"
        assert page.problems == []


def test_the_picture_goes_with_the_colours(address: str) -> None:
    with browsing(color_scheme="light") as page:
        replay(page, address)
        corner = "[...document.querySelector('.learned-picture canvas').getContext('2d').getImageData(0, 0, 1, 1).data]"
        light = page.evaluate(corner)
        page.emulate_media(color_scheme="dark")
        until(page, f"String({corner}) !== '{','.join(map(str, light))}'")
