"""A fact of the page: pointing at a long text takes less of a frame than there is at 60 a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fledge.bundle import load_bundle
from fledge.config import load_recipe
from tests.web.browser import browsing
from tests.web.conftest import serving
from tests.web.world import SMALL, TEXT, make_bundle

FRAME = 1 / 60
WORK = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


@pytest.fixture(scope="module")
def wide(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that sees a thousand tokens at once."""
    folder = tmp_path_factory.mktemp("wide")
    tokenizer = load_bundle(world / "runs" / "alpha" / "checkpoints" / "step-00000200").tokenizer
    config = load_recipe("akjv-demo", [*SMALL, "tokens.context_length=1024"])
    make_bundle(folder / "wide", config, tokenizer, seed=1)
    return folder


def fits(page: Any, part: str, moves: list[tuple[float, float]]) -> None:
    """Every move of the pointer takes less of the page's own thread than one frame has.

    It is the processor's time, not the clock's: others may take the machine.
    """
    told = page.context.new_cdp_session(page)
    told.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> float:
        values = {each["name"]: each["value"] for each in told.send("Performance.getMetrics")["metrics"]}
        return sum(values[name] for name in WORK)

    before = read()
    for x, y in moves:
        page.mouse.move(x, y)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    each = (read() - before) / len(moves)
    print(f"{part}: {1000 * each:.1f} ms of {1000 * FRAME:.1f} ms")
    assert 0 < each < FRAME, part


@pytest.mark.slow
def test_pointing_at_a_thousand_tokens_fits_a_frame(wide: Path) -> None:
    with serving([wide]) as address, browsing() as page:
        page.set_default_timeout(60_000)
        page.goto(f"{address}/#/inside?bundle=wide")
        page.get_by_label("Text", exact=True).fill((TEXT * 40)[:6000])
        page.get_by_role("button", name="Look", exact=True).click()
        page.locator(".looked .g").nth(900).wait_for(state="attached", timeout=60_000)
        page.locator(".large-head[aria-label]").wait_for(timeout=60_000)
        box = page.locator(".looked").bounding_box()
        places = [(box["x"] + 20 + 14 * i, box["y"] + 15 + 8 * (i % 30)) for i in range(40)]
        fits(page, "text", places)
        head = page.locator(".large-head")
        head.scroll_into_view_if_needed()
        box = head.bounding_box()
        fits(page, "picture", [(box["x"] + 50, box["y"] + 5 + 9 * i) for i in range(40)])
        assert page.problems == []


@pytest.mark.slow
def test_pointing_at_coloured_tokens_fits_a_frame(wide: Path) -> None:
    with serving([wide]) as address, browsing() as page:
        page.goto(f"{address}/#/tokens")
        page.get_by_label("Text", exact=True).fill((TEXT * 200)[:30_000])
        page.locator(".coloured .t").nth(1000).wait_for(state="attached", timeout=60_000)
        box = page.locator(".coloured").first.bounding_box()
        fits(page, "tokens", [(box["x"] + 20 + 9 * i, box["y"] + 15 + 8 * (i % 30)) for i in range(40)])
        assert page.problems == []
