"""Tokenizers compared, as a report: what a token holds, what it costs, and the command to measure it again."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Sequence
from pathlib import Path

from fledge.errors import FledgeError
from fledge.files import atomic_write, readable_bytes
from fledge.plot import COLOURS, GREY
from fledge.progress import readable_time
from fledge.reports.page import Page
from fledge.tokenizer.compare import THE_PILE, Measurement, clearly_fastest

TABLE = "outcomes.csv"
COLUMNS = (
    "tokenizer",
    "corpus",
    "source_bytes",
    "tokens",
    "seconds",
    "width",
    "bytes_per_token",
    "bytes_per_second",
    "pile_seconds",
    "pile_bytes",
)


def report_tokenizers(measured: Sequence[Measurement], folder: Path, command: str) -> Path:
    """`report.html`, the same as Markdown with its figures, and every measurement as CSV."""
    names = list(dict.fromkeys(one.tokenizer for one in measured))
    corpora = list(dict.fromkeys(one.corpus for one in measured))
    page = Page(f"Which tokenizer suits {', '.join(corpora)}: {', '.join(names)}?", tokenizer_answer(measured))
    page.heading("Result")
    page.table(
        ["corpus", "tokenizer", "bytes per token", "tokens", "MB/s", "825 GB would take", "and fill", "bits per id"],
        [
            (
                one.corpus,
                one.tokenizer,
                one.bytes_per_token,
                one.tokens,
                one.bytes_per_second / 1e6,
                readable_time(one.pile_seconds),
                readable_bytes(one.pile_bytes),
                one.width,
            )
            for one in measured
        ],
    )
    page.paragraph(
        "More bytes per token means shorter sequences for the same text; a larger vocabulary buys them with a larger "
        f"embedding and head. Speed is of encoding alone, on this machine; {THE_PILE / 1e9:.0f} GB is the size of The "
        "Pile. Compare models with different tokenizers in bits per byte, never in loss per token."
    )
    page.heading("Compression")
    page.figure(bars(measured), "Bytes of text that one token holds, by tokenizer and corpus.")
    page.heading("How to repeat it")
    page.code(command)
    from fledge import __version__

    sizes = ", ".join(dict.fromkeys(f"{one.corpus} ({readable_bytes(one.source_bytes)})" for one in measured))
    page.paragraph(
        f"Measured on {sizes}. fledge {__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}."
    )
    require_own(folder)
    page.write(folder / "report.md")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([[one.record()[name] for name in COLUMNS] for one in measured])
    with atomic_write(folder / TABLE) as file:
        file.write(text.getvalue().encode())
    return page.write(folder / "report.html")


def require_own(folder: Path) -> None:
    """Refuse a folder with anything but an earlier report of this kind, which is replaced."""
    kept = folder / TABLE
    if kept.is_file() and kept.read_text(errors="replace").partition("\n")[0] == ",".join(COLUMNS):
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FledgeError(f"{folder} exists already and is something else. Name another folder with --out.")


def bars(measured: Sequence[Measurement]) -> str:
    """Bytes per token as an SVG drawing: a group of bars for each corpus, a colour for each tokenizer."""
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(one.tokenizer for one in measured))
    corpora = list(dict.fromkeys(one.corpus for one in measured))
    height = 0.8 / len(names)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fledge", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, 1.2 + 0.35 * len(measured)), layout="constrained")
        axes = figure.subplots()
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        for index, name in enumerate(names):
            found = [one for one in measured if one.tokenizer == name]
            places = [corpora.index(one.corpus) + index * height for one in found]
            values = [one.bytes_per_token for one in found]
            drawn = axes.barh(places, values, height * 0.9, label=name, color=COLOURS[index % len(COLOURS)])
            axes.bar_label(drawn, [f"{value:.2f}" for value in values], color=GREY, padding=3)
        axes.set_yticks([place + (len(names) - 1) * height / 2 for place in range(len(corpora))], corpora)
        axes.invert_yaxis()
        axes.set_xlabel("bytes per token", color=GREY)
        axes.tick_params(colors=GREY)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "left")
            spine.set_color(GREY)
        axes.legend(frameon=False, labelcolor=GREY, loc="upper left", bbox_to_anchor=(1, 1))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def tokenizer_answer(measured: Sequence[Measurement]) -> str:
    """The tokenizer with the longest tokens on each corpus, and by how much."""
    sentences = []
    for corpus in dict.fromkeys(one.corpus for one in measured):
        found = sorted((one for one in measured if one.corpus == corpus), key=lambda one: -one.bytes_per_token)
        first = found[0]
        text = f"On {corpus}, {first.tokenizer} makes the longest tokens: {first.bytes_per_token:.2f} bytes each"
        if len(found) > 1:
            second = found[1]
            more = first.bytes_per_token / second.bytes_per_token - 1
            text += f", {more:.0%} more than {second.tokenizer} ({second.bytes_per_token:.2f})"
        best = clearly_fastest(found)
        speed = "None is clearly the fastest: passes of one differ as much as they do."
        if best is not None:
            speed = f"The fastest is {best.tokenizer} with {best.bytes_per_second / 1e6:,.0f} MB/s."
        sentences.append(f"{text}. {speed}")
    return " ".join(sentences)
