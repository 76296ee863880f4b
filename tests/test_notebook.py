"""Facts about a notebook's cells: one output that is replaced, HTML that needs no script, numbers that are true."""

from __future__ import annotations

import base64
import html
import re
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fledge
from fledge import notebook
from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.evaluation.look import ReadText, look
from fledge.model import Model, build_model
from fledge.progress import progress_bar
from fledge.reports.page import Page, cell
from fledge.reports.run import report_run
from fledge.training import chart
from tests.documentation import examples

ROOT = Path(__file__).parents[1]

SMALL = [
    "model.width=32",
    "model.layers=2",
    "model.heads=2",
    "tokenizer.vocabulary_size=300",
    "tokens.context_length=32",
    "training.batch_size=2",
    "training.threads=1",
    "training.log_every=1",
    "training.evaluate_windows=2",
    "sampling.max_tokens=12",
]
# What JupyterLab's sanitizer leaves of an output that is not trusted, and we use.
TAGS = {
    "b",
    "blockquote",
    "br",
    "details",
    "div",
    "figcaption",
    "figure",
    "h3",
    "h4",
    "hr",
    "img",
    "p",
    "pre",
    "progress",
}
TAGS |= {"small", "span", "summary", "table", "tbody", "td", "th", "thead", "tr"}


class Shown(notebook.Cell):
    """A cell that keeps what was shown in it."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.texts: list[str] = []

    def show(self, body: str, text: str) -> None:
        self.bodies.append(body)
        self.texts.append(text)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """As if a notebook's cell ran: every output that was asked for."""
    found: list[Shown] = []

    def running_cell() -> Shown:
        found.append(Shown())
        return found[-1]

    for module in ("fledge.progress", "fledge.training.view"):
        monkeypatch.setattr(f"{module}.running_cell", running_cell)
    return found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    words = "the hen sat on the egg and the egg was warm. let there be light, said the hen."
    path = tmp_path / "eggs.jsonl"
    path.write_text("".join(f'{{"text": "{number} {words}"}}\n' for number in range(80)))
    return path


def is_plain(body: str) -> bool:
    """Whether all of it stays in a notebook that is not trusted, and nothing is fetched."""
    tags = set(re.findall(r"<([a-z0-9]+)", body))
    sources = re.findall(r'src="([^"]*)"', body)
    return (
        tags <= TAGS
        and all(source.startswith("data:image/") for source in sources)
        and " on" not in re.sub(r'(title|alt)="[^"]*"', "", " ".join(re.findall(r"<[^>]*>", body)))
    )


def pixels(body: str, label: str) -> np.ndarray:
    """The bytes of the picture with this label, which are its opacity."""
    data = re.search(rf'<img alt="{re.escape(label)}[^>]*base64,([^"]*)"', body)
    assert data is not None
    png = base64.b64decode(data[1])
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT")
    size = struct.unpack(">I", png[start - 4 : start])[0]
    lines = np.frombuffer(zlib.decompress(png[start + 4 : start + 4 + size]), np.uint8)
    return lines.reshape(height, width + 1)[:, 1:]


def test_no_cell_runs_here_and_ipython_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert notebook.running_cell() is None
    assert "IPython" not in sys.modules
    for shell, runs in ((None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert (notebook.running_cell() is not None) == runs  # plain Python in IPython's place, its terminal, a kernel


def test_training_is_one_output_with_losses_speed_and_a_sample(
    text: Path, tmp_path: Path, cells: list[Shown], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart, "EVERY", 0.0)
    changes = [
        *SMALL,
        f"corpus.source={text}",
        "corpus.split=document",
        "training.steps=8",
        "training.evaluate_every=4",
        "training.sample_every=4",
    ]
    run = fledge.Run("akjv-demo", tmp_path / "run", overrides=changes)
    result = run.train()
    bodies = [each.bodies for each in cells if each.bodies]
    assert len(bodies) == 1
    last = bodies[0][-1]
    assert is_plain(last)
    for fact in ("step 8 of 8", "validation loss", "bits per byte", "tokens/s", "It wrote after step 8:", "Training "):
        assert fact in last
    drawings = [base64.b64decode(each).decode() for each in re.findall(r"svg\+xml;base64,([^\"]*)", last)]
    assert len(drawings) == 2
    assert ">training<" in drawings[0]
    assert ">validation<" in drawings[0]
    assert ">tokens/s<" in drawings[1]
    assert len(last) < 100_000
    assert "step 8/8" not in capsys.readouterr().err
    assert f"{result.validation_loss:.4f}" in last
    assert is_plain(result._repr_html_())
    report = report_run(run, result, ("the",))
    assert is_plain(report._repr_html_())
    assert "the model:" in "".join(
        base64.b64decode(each).decode() for each in re.findall(r"svg\+xml;base64,([^\"]*)", report._repr_html_())
    )


def test_a_chart_is_updated_once_a_second_and_takes_little_time_for_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = 1000.0, []

    def draw(rows: Sequence[object]) -> list[str]:
        nonlocal now
        now += 0.1
        drawn.append(len(rows))
        return ["curves"]

    monkeypatch.setattr(chart.time, "monotonic", lambda: now)
    monkeypatch.setattr(chart, "draw_losses", draw)
    cell, rows = Shown(), []
    shown = chart.LossChart("run", 1000, cell)
    shown.rows = lambda: rows
    for step in range(1000):  # a hundred seconds
        rows.append({**dict.fromkeys(chart.NUMBERS, ""), "step": str(step + 1), "loss": "3.0"})
        now += 0.1
        shown.update(f"step {step + 1}/1000")
    assert 80 <= len(cell.bodies) <= 105
    assert 0.1 * len(drawn) <= 0.04 * 100
    before = len(drawn)
    shown.close("the end")
    assert drawn[before:] == [1000]
    assert cell.texts[-1] == "the end"


def test_a_bar_is_one_line_in_a_cell(cells: list[Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fledge.progress.time.monotonic", lambda: now)
    with progress_bar("eggs", 100, "eggs", 1) as bar:
        for _ in range(100):
            now += 0.1
            bar.advance(1)
    assert len(cells) == 1
    assert 9 <= len(cells[0].bodies) <= 12
    assert "100 of 100 (100%) eggs" in cells[0].texts[-1]
    assert is_plain(cells[0].bodies[-1])


@pytest.fixture(scope="module")
def tokenizer() -> fledge.CharacterTokenizer:
    return fledge.CharacterTokenizer([])


def model_of(tokenizer: fledge.CharacterTokenizer, **settings: object) -> Model:
    torch.manual_seed(1)
    config = ModelConfig(**{"layers": 2, "width": 32, "heads": 2, **settings})
    return build_model(config, tokenizer.vocab_size, 128).eval()


@pytest.fixture(scope="module")
def seen(tokenizer: fledge.CharacterTokenizer) -> ReadText:
    return look(model_of(tokenizer), tokenizer, "the hen <b>sat</b> on the egg")


def test_the_pictures_of_attention_are_its_weights(seen: ReadText) -> None:
    body = seen.attention(layer=1, head=2, token=5).body
    assert is_plain(body)
    weights = seen.inside.attention[0](1).numpy()
    small, large = pixels(body, "layer 1, head 2"), pixels(body, "Layer 1, head 2")
    for found in (small, large):
        scale = found.shape[0] // len(seen.ids)
        np.testing.assert_allclose((found[::scale, ::scale] / 255) ** 2, weights, atol=0.005)
    assert "<b>sat" not in body
    grounds = [float(each) for each in re.findall(r"rgba\(47,156,140,([\d.]+)\)", body)]
    shares = np.delete(np.sqrt(weights[4]), 4)
    np.testing.assert_allclose(grounds, 0.7 * shares, atol=0.01)


def test_shades_and_tips_tell_the_loss(seen: ReadText) -> None:
    body = seen.losses().body
    assert is_plain(body)
    with torch.inference_mode():
        logprobs = seen.model(torch.tensor([seen.ids]))[0].log_softmax(-1)
    wanted = [-float(logprobs[place, token]) for place, token in enumerate(seen.ids[1:])]
    told = re.findall(r'title="([\d.]+) nats, [^;]*; expected: ([^"]*)"', body)
    assert [float(nats) for nats, _ in told] == pytest.approx(wanted, abs=0.006)
    assert html.unescape(told[0][1]).count("“") == 4
    worst = int(np.argmax(wanted)) + 1
    assert f"(token {worst})" in seen.lens().body
    assert is_plain(seen.lens(3).body)
    assert f"{len(seen.ids)} tokens" in repr(seen)


@pytest.mark.parametrize("architecture", ["gru", "lstm", "rnn", "bdh"])
def test_every_architecture_is_a_cell(tokenizer: fledge.CharacterTokenizer, architecture: str) -> None:
    found = look(
        model_of(tokenizer, architecture=architecture, multiplier=4), tokenizer, "an egg\n\na hen", paragraphs=True
    )
    body = found._repr_html_()
    assert is_plain(body)
    assert "Over the text" in body
    assert ("Scores of each head" in body) == (architecture == "bdh")
    if architecture != "bdh":
        with pytest.raises(FledgeError, match=r"has no attention: try states\(\)"):
            found.attention()


def test_a_wrong_place_is_refused(seen: ReadText) -> None:
    for chosen in ({"layer": 3}, {"head": 0}, {"token": 99}):
        with pytest.raises(FledgeError, match="is not there: there are"):
            seen.attention(**chosen)


def test_a_long_text_stays_a_small_cell(tokenizer: fledge.CharacterTokenizer) -> None:
    wide = build_model(ModelConfig(layers=2, width=32, heads=2), tokenizer.vocab_size, 1024).eval()
    body = look(wide, tokenizer, "the egg and the hen. " * 60)._repr_html_()
    assert "the first 1,024 tokens" in body
    assert len(body) < 600_000


def test_generated_texts_show_each_token(text: Path, tmp_path: Path) -> None:
    run = fledge.Run("akjv-demo", tmp_path / "run", overrides=[*SMALL, f"corpus.source={text}"], quiet=True)
    texts = run.generate(["the <i>", "an egg"], seed=3)
    assert len(texts) == 2
    body = texts._repr_html_()
    assert is_plain(body)
    found = re.sub(r"<[^>]*>", "", body.replace("<hr>", "\n"))
    assert html.unescape(found).startswith(f"the <i>{texts[0].text}")
    assert body.count("<span") == sum(len(one.ids) for one in texts)


def test_several_tokenizers_stand_side_by_side() -> None:
    one, two = fledge.CharacterTokenizer([]), fledge.CharacterTokenizer(["é"])
    view = fledge.show([one, two, two], "é<")
    assert len(set(view.names)) == 3
    assert is_plain(view._repr_html_())
    assert repr(fledge.show(one, "ab")) == "character: a¦b (2 tokens, 1.00 bytes each)"


def test_a_report_of_any_kind_is_a_cell(tmp_path: Path) -> None:
    page = Page("Eggs & hens", "How they are.")
    page.heading("Of eggs", "eggs")
    page.table(["egg", "weight"], [["brown", 1.5]], strong=0)
    page.figure('<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><g fill="#808790"/></svg>', 'An "egg"')
    page.code("boil egg", "How")
    found = cell(page.write(tmp_path / "report.html"))
    assert is_plain(found.body)
    assert '<img alt="An &quot;egg&quot;"' in found.body
    assert repr(found) == f"Eggs & hens: {tmp_path / 'report.html'}"


@pytest.mark.slow
def test_the_handbook_page_runs_in_a_real_notebook(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    blocks = [each.code for each in examples((ROOT / "docs" / "notebooks.md").read_text()) if each.language == "python"]
    written = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in blocks])
    manager = pytest.importorskip("jupyter_client").KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(written, km=manager, timeout=300, resources=place).execute()
    nbformat.validate(written)
    outputs = [[each for each in cell.outputs if "data" in each] for cell in written.cells]
    trained = [each for each in outputs[0] if "step 60 of 60" in each["data"]["text/html"]]
    assert len(trained) == 1
    assert len(outputs[0]) <= 3  # bars of the tokenizer's training and of encoding, where they take over a second
    assert not any("step 1/60" in each.get("text", "") for each in written.cells[0].outputs)
    assert [len(shown) for shown in outputs[1:]] == [1, 1, 1, 1]
    bodies = [each["data"]["text/html"] for shown in outputs for each in shown]
    assert all(is_plain(body) for body in bodies)
    assert len(nbformat.writes(written)) < 500_000
