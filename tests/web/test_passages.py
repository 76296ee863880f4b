"""Where a text comes from: its copied stretches and their passages, on the API and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.tokens import TokenStore
from fledge.web.app import create_app
from tests.web.browser import browsing, chromium
from tests.web.conftest import serving
from tests.web.test_browser import until

NAME = "aaa/checkpoints/step-00000200"


@pytest.fixture
def api(learned: Path) -> Iterator[TestClient]:
    with TestClient(create_app([learned.parent], rate=1e5), base_url="http://127.0.0.1:8765") as client:
        yield client


def test_a_copied_stretch_leads_to_its_passage(api: TestClient, learned: Path) -> None:
    store = TokenStore.open(learned / "tokens")
    document = store.split("train").document(0).tolist()
    other = store.tokenizer.encode("zzzz", special="text")
    ids = [*other, *document[30:70], *other]
    [source] = api.post("/api/sources", json={"bundle": NAME, "ids": ids}).json()["sources"]
    assert (source["start"], source["length"], source["document"], source["place"]) == (len(other), 40, 0, 30)
    where = {"bundle": NAME, **{name: source[name] for name in ("document", "place", "length")}}
    passage = api.get("/api/sources/passage", params=where).json()
    assert passage["text"] == source["text"] == store.tokenizer.decode(document[30:70])
    assert passage["before"] == store.tokenizer.decode(document[:30])
    assert passage["begins"]
    whole = passage["before"] + passage["text"] + passage["after"]
    assert store.tokenizer.decode(document).startswith(whole)
    assert api.post("/api/sources", json={"bundle": NAME, "ids": other * 3}).json()["sources"] == []


def test_what_is_not_there_is_a_sentence(api: TestClient, client: TestClient) -> None:
    ask = {"bundle": NAME, "document": 0, "place": 0, "length": 5}
    for change in ({"document": 10**9}, {"place": 10**6}, {"length": 16_000}, {"bundle": "../aaa"}):
        answer = api.get("/api/sources/passage", params={**ask, **change})
        assert answer.status_code == 404
        assert "document" in answer.json()["error"]["message"].lower() or "bundle" in change
    assert api.post("/api/sources", json={"bundle": NAME, "ids": [10**6]}).status_code == 400
    assert api.post("/api/sources", json={"bundle": NAME, "ids": []}).status_code == 422
    unknown = client.post("/api/sources", json={"bundle": "alpha", "ids": [1, 2]}).json()  # a run without tokens
    assert unknown["sources"] == []
    assert "not beside it" in unknown["note"]


@pytest.mark.slow
def test_the_page_underlines_what_was_copied_and_shows_the_passage(learned: Path) -> None:
    chromium()
    with serving([learned.parent]) as address, browsing() as page:
        page.goto(f"{address}/#/generate")
        write(page, 60)
        page.get_by_role("heading", name="Sources").wait_for()
        assert page.locator(".written .g.copied").count() >= 20
        page.locator(".sources li button").first.click()
        passage = page.locator(".passage")
        passage.get_by_text("of the training text").wait_for()
        assert passage.locator("mark").inner_text().strip()
        assert "the hen said" in passage.inner_text()
        page.locator(".written .g").last.click()  # a token of the stretch shows the alternatives, and the passage
        assert page.get_by_text(": alternatives").is_visible()
        write(page, 5)
        page.get_by_text("No passage of 20 tokens").wait_for()
        page.get_by_role("button", name="Take 1").click()
        until(page, "document.querySelectorAll('.written .g.copied').length >= 20")
        assert page.problems == []


def write(page: Any, tokens: int) -> None:
    page.get_by_label("Prompt").fill("the egg")
    page.get_by_label("Temperature", exact=True).fill("0")
    page.get_by_label("Maximum tokens", exact=True).fill(str(tokens))
    page.get_by_role("button", name="Generate", exact=True).click()
