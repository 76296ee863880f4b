"""A person follows experiments in a real browser: under way, killed, resumed, done; on a phone, by keyboard alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from fledge.experiments.engines import alone_in
from fledge.experiments.trials import Outcome
from fledge.files import locked, write_json
from tests.small import SMALL
from tests.web.browser import browsing, chromium
from tests.web.conftest import serving
from tests.web.test_browser import CONTRAST, HURRY, until
from tests.web.test_experiments import GRID, make_plan, make_trial
from tests.web.test_train_page import PHONE

pytestmark = pytest.mark.slow
LOSSES = (3.5, 3.2, 3.9)
CELL = ".experiments-view tbody tr"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A sweep that is done, with a report, and the server that shows it."""
    chromium()
    runs = tmp_path / "runs"
    make_plan(runs / "rates")
    for rate, loss in zip(GRID, LOSSES, strict=True):
        make_trial(runs / "rates", f"learning_rate={rate}", loss=loss)
    (runs / "rates" / "report.html").write_text("<h1>What came of the rates</h1>")
    (runs / "rates" / "report.md").write_text("# Which?\n\nLowest: learning_rate=0.01.\n\n## Result\n")
    with serving([runs]) as address:
        yield runs, address


def test_a_sweep_shows_its_points_its_curves_and_its_report(served: tuple[Path, str]) -> None:
    _, address = served
    with browsing() as page:
        page.goto(f"{address}/#/experiments")
        page.get_by_text("Lowest: learning_rate=0.01.").wait_for()
        assert page.locator(CELL).first.inner_text().startswith(" ★ learning_rate=0.01")
        assert page.locator(CELL).count() == 3
        for name in ("Loss by setting", "Trials in the order in which they ended", "Curves"):
            assert page.get_by_label(name, exact=True).locator(".dot").count() >= 3
        frame = page.frame_locator("iframe.report")
        frame.get_by_role("heading", name="What came of the rates").wait_for()
        page.get_by_label("Curves", exact=True).locator(".chart").hover(position={"x": 300, "y": 100})
        assert "learning_rate=" in page.get_by_label("Curves", exact=True).locator(".readout").inner_text()
        page.get_by_label("Run of learning_rate=0.01, seed 0").click()
        until(page, "document.querySelector('.runs-view .chart .line')")
        page.get_by_label("Open the experiment rates").click()
        page.get_by_text("Lowest: learning_rate=0.01.").wait_for()
        assert page.problems == []


def test_it_is_live_and_what_is_under_the_eye_stays(served: tuple[Path, str]) -> None:
    """A trial gets on, ends, is the best; the process goes, comes again, and writes the report: without a reload."""
    runs, address = served
    folder = runs / "more"
    make_plan(folder)
    make_trial(folder, "learning_rate=0.001", loss=3.5)
    with browsing() as page:
        page.goto(f"{address}/#/experiments?experiment=more")
        page.evaluate(HURRY)
        with alone_in(folder):
            going = make_trial(folder, "learning_rate=0.01", step=50)
            with locked(going, ""):
                page.get_by_text("Under way: learning_rate=0.01, seed 0 (step 50 of 200)").wait_for()
                row = page.locator('[data-name="more"]')
                row.focus()
                assert "running" in row.inner_text()
                assert "1 of 3 trials" in row.inner_text()
                page.get_by_text("Best so far: learning_rate=0.001").wait_for()
            end = Outcome("learning_rate=0.01", 0, "complete", 200, 1, 1, 1.0, validation_loss=3.1)
            write_json(going / "outcome.json", asdict(end))
            page.get_by_text("Best so far: learning_rate=0.01, 3.1000 nats per token").wait_for()
            assert page.evaluate("document.activeElement.dataset.name") == "more"
        page.get_by_text("It is not at work. The command that began it goes on").wait_for()
        until(page, "document.getElementById('live').textContent === 'more: stopped'")
        with alone_in(folder):
            until(page, "document.getElementById('live').textContent === 'more: running'")
            make_trial(folder, "learning_rate=0.1", status="diverged", step=40)
            (folder / "report.html").write_text("<h1>What came of more</h1>")
            (folder / "report.md").write_text("# Which?\n\nLowest of three.\n")
            page.get_by_label("Arms").get_by_text("✕ diverged").wait_for()
        page.frame_locator("iframe.report").get_by_text("What came of more").wait_for()
        page.get_by_text("Lowest of three.").wait_for()
        assert page.problems == []


def test_the_keyboard_chooses_an_experiment(served: tuple[Path, str]) -> None:
    runs, address = served
    make_plan(runs / "nets", kind="compare", seeds=(0, 1))
    make_trial(runs / "nets", "gru ×1", loss=3.3)
    (runs / "torn").mkdir()
    (runs / "torn" / "plan.json").write_text("{")
    with browsing() as page:
        page.goto(f"{address}/#/experiments?experiment=rates")
        page.get_by_text("Lowest: learning_rate=0.01.").wait_for()
        page.locator('[data-name="rates"]').focus()
        for _ in range(3):
            if page.evaluate("document.activeElement.dataset.name") == "nets":
                break
            page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        page.get_by_text("Best so far: gru ×1").wait_for()
        assert not page.get_by_label("Loss by setting", exact=True).is_visible()  # a comparison has none
        assert page.evaluate("document.activeElement.dataset.name") == "nets"
        page.locator('[data-name="torn"]').click()
        page.get_by_label("Experiment", exact=True).get_by_text("not valid JSON").wait_for()
        assert page.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(served: tuple[Path, str], scheme: str) -> None:
    runs, address = served
    make_plan(runs / "parts", kind="ablate", seeds=(0, 1, 2))
    for seed in (0, 1):
        make_trial(runs / "parts", "learning_rate=0.01", seed, loss=3.3 + seed / 10)
    with browsing(**{**PHONE, "color_scheme": scheme}) as page:
        for name in ("rates", "parts"):
            page.goto("about:blank")
            page.goto(f"{address}/#/experiments?experiment={name}")
            page.locator(f"{CELL} .trial").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            worst = page.evaluate(CONTRAST)
            assert worst["ratio"] >= 4.5, worst
        bar = page.locator(".views").bounding_box()
        link = page.get_by_role("link", name="Experiments", exact=True).bounding_box()
        assert bar["x"] <= link["x"]
        assert link["x"] + link["width"] <= bar["x"] + bar["width"]  # the bar shows where one is


def test_without_an_experiment_the_page_says_how_to_begin_one(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with serving([tmp_path / "runs"]) as address, browsing() as page:
        page.goto(f"{address}/#/experiments")
        page.evaluate(HURRY)
        page.get_by_text("No experiment yet").wait_for()
        make_plan(tmp_path / "runs" / "rates")
        page.locator('[data-name="rates"]').wait_for()
        assert page.problems == []


def test_a_sweep_that_was_killed_and_resumed(tmp_path: Path) -> None:
    """The ordinary command, killed without a word in the middle of a trial, and begun again."""
    rows = random.Random(0)
    words = ["".join(rows.choices("aeioumnrst", k=5)) for _ in range(300)]
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>".join(" ".join(rows.choices(words, k=60)) for _ in range(60)))
    runs = tmp_path / "runs"
    runs.mkdir()
    settings = [*SMALL, f"corpus.source={text}", "training.steps=1000"]
    changes = [part for setting in settings for part in ("--set", setting)]
    over = ["--over", "optimizer.learning_rate=0.001,0.01", "--out", str(runs / "rates")]
    command = [sys.executable, "-m", "fledge", "sweep", "akjv-demo", *over, *changes]

    def begin() -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)  # type: ignore[call-overload,no-any-return]

    process = begin()
    try:
        with serving([runs]) as address, browsing() as page:
            page.set_default_timeout(180_000)
            page.goto(f"{address}/#/experiments")
            page.get_by_text("Under way: learning_rate=0.001").wait_for()
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
            page.get_by_text("It is not at work.").wait_for()
            time.sleep(0.2)
            process = begin()
            page.get_by_text("Under way: learning_rate=0.001").wait_for()
            page.frame_locator("iframe.report").get_by_role("heading", name="Result").wait_for()
            assert page.locator(".trial.complete").count() == 2
            assert process.wait(timeout=60) == 0
            assert page.problems == []
    finally:
        process.kill()
