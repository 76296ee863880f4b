"""The workbook: every question is answered from numbers of this machine, kept once, and never computed twice."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fledge.config import load_recipe
from fledge.errors import FledgeError
from fledge.experiments.timing import Cost
from fledge.reports.page import Page
from fledge.workbook import costs, plan, sweeps, texts, variants, write_workbook
from fledge.workbook.book import ASKED, SECTIONS, Book
from fledge.workbook.plan import BookPlan, batch_sizes_around, paces_of, settle
from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "workbook.md"
TEXTS = {"words": PAGE.parents[1] / "CONTRIBUTING.md", "tables": PAGE}
SMALL = [
    "training.steps=3",
    "training.batch_size=8",
    "training.evaluate_windows=4",
    "training.threads=1",
    "tokens.context_length=16",
    "tokenizer.vocabulary_size=300",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "sampling.max_tokens=8",
]


def test_the_page_of_the_handbook_makes_a_workbook_that_is_never_computed_twice(tmp_path, monkeypatch) -> None:
    """The handbook's page run as it stands, with a few steps in the place of minutes; one run serves all the checks."""
    pytest.importorskip("optuna")
    for name, page in TEXTS.items():
        lines = [line for line in page.read_text().splitlines() if line.strip()]
        (tmp_path / f"{name}.txt").write_text("<|endoftext|>".join(lines * 4))
    small = " ".join([*(f"--corpus {name}.txt" for name in TEXTS), *(f"--set {change}" for change in SMALL)])
    ran = run_page(PAGE, tmp_path, replace={"--budget 5m": small}, environment={"OMP_NUM_THREADS": "1"}, timeout=560)
    assert len(ran) == 2
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/workbook")
    every_question_is_answered(folder)
    a_second_call_computes_nothing(folder)
    a_lost_answer_is_computed_from_finished_trials(folder)
    with pytest.raises(FledgeError, match=r"holds another workbook \(budget = '5m' there, '1h' here"):
        write_workbook([f"{name}.txt" for name in TEXTS], folder, "1h", "akjv-demo", SMALL)


def again(folder: Path) -> str:
    """The same workbook once more, and its page."""
    sources = [f"{name}.txt" for name in TEXTS]
    report = write_workbook(sources, folder, "5m", "akjv-demo", SMALL, "fledge workbook …")
    return report.with_suffix(".md").read_text()


def stamps(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob(pattern)}


def every_question_is_answered(folder: Path) -> None:
    page, html = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    for section in SECTIONS:
        assert section.title in page
        assert section.title in html
        assert page.index(section.question) > page.index(f". {section.title}"), "the question stands before its answer"
    assert html.count('<a href="#q') == html.count('<h2 id="q') == len(SECTIONS)
    for number in ("2,127,057,600", "4,513,336,524,800", "825 GB", "uint16", "AdamW", "nats"):
        assert number in page
    for name in TEXTS:
        assert f"The model of {name} goes on from" in page
        assert f"On {name}, the tokenizer of" in page
    assert html.count("<svg") >= 3
    for drawing in (folder / "figures").glob("*.svg"):
        assert f"figures/{drawing.name}" in page


def a_second_call_computes_nothing(folder: Path) -> None:
    kept, before = stamps(folder, "*.json"), (folder / "report.md").read_text()
    page = again(folder)
    assert stamps(folder, "*.json") == kept
    command = before[before.index("How to repeat it") :].split("```")[1]
    assert page == before.replace(command, "\nfledge workbook …\n")


def a_lost_answer_is_computed_from_finished_trials(folder: Path) -> None:
    """As after a kill between the last trial and the answer: the trials are read, and the numbers are the same."""
    answers = folder / "answers"
    before = {name: json.loads((answers / f"{name}.json").read_text()) for name in ("rates", "toy", "main")}
    outcomes = stamps(folder, "outcome.json")
    for name in before:
        (answers / f"{name}.json").unlink()
    sources = [f"{name}.txt" for name in TEXTS]
    book = Book(settle(sources, folder, "5m", 300.0, "akjv-demo", SMALL), folder, "")
    for name, question in ASKED:
        book.ask(name, question)
    assert {name: book.answers[name] for name in before} == before
    assert stamps(folder, "outcome.json") == outcomes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "soon"}, "not a duration"),
        ({"budget": "5s"}, "too short for a workbook"),
        ({"sources": ["nowhere.txt"]}, "nowhere.txt"),
        ({"changes": ["model.laers=2"]}, "Did you mean model.layers"),
        ({"recipe": "akjv-dmo"}, "Did you mean akjv-demo"),
    ],
)
def test_a_mistake_is_found_before_anything_is_written(options, words, tmp_path, monkeypatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("word " * 5000)
    with pytest.raises(FledgeError, match=words):
        write_workbook(**{"sources": ["text.txt"], "folder": "out", **options})
    assert not (tmp_path / "out").exists()


def test_a_text_without_enough_to_measure_on_is_refused(tmp_path, monkeypatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("one line of words\n" * 30)
    with pytest.raises(FledgeError, match="more text"):
        write_workbook(["text.txt"], "out", changes=["training.steps=2", "tokenizer.vocabulary_size=260"])


def test_the_budget_becomes_steps_that_fit_it(tmp_path, monkeypatch) -> None:
    """With known costs of a step, all trainings together take no more than their shares of the time."""

    class Clock:
        def __init__(self, folder: Path, budget: float, began: float | None) -> None:
            pass

        def cost(self, config, base_batch=None) -> Cost:
            return Cost(step=0.1, window=0.001)

    monkeypatch.setattr(plan, "CostClock", Clock)
    config = load_recipe("akjv-demo")
    asked = BookPlan({"a": ["a"], "b": ["b"]}, "5m", "akjv-demo", [], 300.0, {}, 0, 1, {})
    paces = paces_of(config, asked, tmp_path)
    trials = {"rates": 6, "batches": 9, "ablations": 6, "main": 2, "windows": 8, "vocabulary": 4, "comparison": 8}
    seconds = {part: 0.1 * pace.steps * trials[part] for part, pace in paces.items()}
    assert all(value <= plan.SHARES[part] * 300 for part, value in seconds.items())
    assert sum(seconds.values()) > 0.4 * 300
    short = BookPlan({"a": ["a"]}, "30s", "akjv-demo", [], 30.0, {}, 0, 1, {})
    with pytest.raises(FledgeError, match="too short for the trainings of a workbook") as caught:
        paces_of(config, short, tmp_path)
    enough = str(caught.value).partition("Give about ")[2].partition(",")[0]
    assert paces_of(config, replace(short, seconds=60.0 * int(enough.removesuffix("m"))), tmp_path)


def test_what_a_budget_has_no_time_for_is_left_out_and_the_rest_is_done(tmp_path, monkeypatch) -> None:
    class Clock:
        def __init__(self, folder: Path, budget: float, began: float | None) -> None:
            pass

        def cost(self, config, base_batch=None) -> Cost:
            return Cost(step=5.0 if config.model.architecture == "bdh" else 0.1, window=0.001)

    monkeypatch.setattr(plan, "CostClock", Clock)
    asked = BookPlan({"a": ["a"]}, "5m", "akjv-demo", [], 300.0, {}, 0, 1, {})
    paces = paces_of(load_recipe("akjv-demo"), asked, tmp_path)
    assert paces["comparison"].steps == 0
    assert all(pace.steps >= 10 for part, pace in paces.items() if part != "comparison")
    book = Book(replace(asked, steps={part: pace.steps for part, pace in paces.items()}), tmp_path, "")
    assert variants.ask_comparison(book) is None
    page = Page("?")
    variants.show_comparison(page, None, book)
    assert "fledge compare gpt2 bdh --recipe akjv-demo" in page.markdown()
    old = replace(asked, steps={"rates": 7, "batches": 7, "ablations": 9, "main": 7})
    assert old.steps_of("windows") == 9, "a workbook begun before the question was asked goes on"


def test_the_original_gpt2_xl_is_that_of_the_formula() -> None:
    facts = costs.ask_tied(None)  # type: ignore[arg-type]
    assert facts["total"] == 1_557_611_200, "as published"
    assert facts["forward"] == facts["by hand"]


def test_of_a_large_text_the_beginning_is_trained_on(tmp_path: Path) -> None:
    from fledge.corpus import Corpus

    (tmp_path / "large.txt").write_text("<|endoftext|>".join(f"document {n}" for n in range(2000)))
    corpus = Corpus.open(tmp_path / "large.txt")
    assert plan.training_text("large", corpus, ["large.txt"], 1 << 20, tmp_path) == {"source": ["large.txt"]}
    found = plan.training_text("large", corpus, ["large.txt"], 1000, tmp_path)
    cut = Corpus.open(*found["source"])
    documents = list(cut.documents())
    assert documents == list(corpus.documents())[: len(documents)]
    assert 900 < sum(map(len, documents)) <= 1000


def test_answers_are_kept_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was answered before an interruption is there after it."""
    asked = Book(BookPlan({"a": ["a"]}, "5m", "r", [], 300.0, {}, 0, 1, {}), tmp_path, "")
    calls = []

    def answer(_: Book) -> dict[str, int]:
        calls.append(1)
        return {"n": len(calls)}

    def interrupted(_: Book) -> None:
        raise KeyboardInterrupt

    asked.ask("one", answer)
    with pytest.raises(KeyboardInterrupt):
        asked.ask("two", interrupted)
    asked.ask("one", answer)
    assert asked.answers == {"one": {"n": 1}}
    assert not (tmp_path / "answers/two.json").exists()


def test_the_toy_does_what_the_notes_saw() -> None:
    """At 1e1 the loss falls to about a tenth, at 1e2 to nothing, at 1e3 it grows without bound."""
    losses = costs.ask_toy(None)  # type: ignore[arg-type]
    first = losses["10"][0]
    assert all(found[0] == first for found in losses.values())
    assert 0.05 * first < losses["10"][-1] < 0.2 * first
    assert losses["100"][-1] < 1e-12
    assert losses["1000"][-1] > 1e9
    assert [costs.toy_verdict(found).split()[0] for found in losses.values()] == ["falls", "reaches", "diverges"]


def test_answers_that_are_needed_come_first() -> None:
    names = [name for name, _ in ASKED]
    assert {section.answer for section in SECTIONS} == set(names)
    assert names.index("rates") < names.index("batches") < names.index("generation")
    assert names.index("main") < names.index("generation")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({8: 1e-3, 128: 4e-3}, "grew 4 times, from 0.001 to 0.004: nearer to its square root"),
        ({8: 1e-3, 128: 1e-2}, "nearer to the factor itself"),
        ({8: 1e-3, 128: 1e-3}, "no larger rate was needed"),
        ({8: 1e-2, 128: 1e-3}, "at a smaller rate"),
        ({8: 1e-2}, "Too few"),
    ],
)
def test_what_is_said_of_rates_and_batches_follows_from_them(chosen, words) -> None:
    assert words in sweeps.rate_growth(chosen, [1e-4, 1e-1])


def test_sizes_are_whole_and_rise() -> None:
    assert batch_sizes_around(32) == [4, 32, 128]
    assert batch_sizes_around(1) == [1, 4]
    sizes = [texts.vocabulary_for(10**power) for power in range(3, 11)]
    assert sizes == sorted(sizes)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FledgeError, match="holds no workbook"):
        settle(["akjv"], tmp_path, "5m", 300.0, "akjv-demo", [])


def test_without_optuna_the_first_sentence_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FledgeError, match=r"fledge workbook needs the package optuna: pip install .*\[sweep\]"):
        write_workbook(["akjv"], tmp_path / "out")


def test_a_recipe_without_the_parts_that_are_taken_away_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(FledgeError, match="ablations need a Transformer, and --recipe lstm is not one"):
        write_workbook(["akjv"], tmp_path / "out", recipe="lstm")
    assert not (tmp_path / "out").exists()
