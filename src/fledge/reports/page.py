"""A report as a list of parts (text, tables, figures, samples), written as one offline HTML file or as Markdown.

Colours follow the reader's light or dark setting and the page prints well; nothing is loaded from anywhere.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fledge.files import atomic_write
from fledge.notebook import FONT, Html, drawing, element
from fledge.plot import GREY

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #5d6675; --paper: #fdfdfb; --line: #d9dbe0; --accent: #2f6f9f;
        --card: #f3f3ef; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --soft: #9aa3b2; --paper: #16181d; --line: #343a46; --accent: #7fb8e0; --card: #1f232b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 54rem; padding: 2.5rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
       font: 1.02rem/1.6 Charter, Georgia, Cambria, serif; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .25rem; } h2 { font-size: 1.3rem; margin: 2.6rem 0 .6rem; }
p.lead { color: var(--soft); margin-top: 0; font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .92rem;
        font-family: system-ui, sans-serif; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.number, th.number { text-align: right; }
tr.strong td { font-weight: 700; color: var(--accent); }
figure { margin: 1rem 0; color: var(--ink); } figure svg { width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; }
pre, blockquote { background: var(--card); border-left: 3px solid var(--accent); margin: .8rem 0; padding: .7rem 1rem;
                  white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 0 .3rem .3rem 0; }
pre { font: .86rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
details > summary { cursor: pointer; color: var(--accent); }
@media print { body { max-width: none; padding: 0; } details { display: block; } }
"""

FIGURE = "figure-{number}.svg"


@dataclass
class Page:
    """Parts are added top to bottom; each knows how it looks in HTML and in Markdown."""

    title: str
    lead: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)
    drawings: list[str] = field(default_factory=list)

    def heading(self, text: str, anchor: str = "") -> None:
        mark = f' id="{html.escape(anchor)}"' if anchor else ""
        self.parts.append(
            (f"<h2{mark}>{html.escape(text)}</h2>", f'<a id="{anchor}"></a>\n\n' * bool(anchor) + f"## {text}")
        )

    def contents(self, entries: Sequence[tuple[str, str]]) -> None:
        """Links to the headings of these anchors, by their texts."""
        items = "".join(
            f'<li><a href="#{html.escape(anchor)}">{html.escape(text)}</a></li>' for anchor, text in entries
        )
        lines = "\n".join(f"{number}. [{text}](#{anchor})" for number, (anchor, text) in enumerate(entries, 1))
        self.parts.append((f"<nav><ol>{items}</ol></nav>", lines))

    def paragraph(self, text: str) -> None:
        self.parts.append((f"<p>{html.escape(text)}</p>", text))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]], strong: int | None = None) -> None:
        """Numbers are set to the right; the row numbered `strong` stands out."""
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
        marks = [' class="number"' if number else "" for number in numeric]
        head = "".join(f"<th{mark}>{html.escape(name)}</th>" for name, mark in zip(header, marks, strict=True))
        body = ""
        for index, row in enumerate(cells):
            data = "".join(f"<td{mark}>{html.escape(cell)}</td>" for cell, mark in zip(row, marks, strict=True))
            row_mark = ' class="strong"' if index == strong else ""
            body += f"<tr{row_mark}>{data}</tr>\n"
        lines = ["| " + " | ".join(header) + " |", "|" + "|".join("--:" if n else "---" for n in numeric) + "|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
        self.parts.append((f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>", "\n".join(lines)))

    def figure(self, svg: str, caption: str) -> None:
        """An SVG drawing: set inline in HTML, so that the page stays one file, and a file beside the Markdown."""
        inline = svg[svg.index("<svg") :].replace(GREY, "var(--soft)")  # the page's own, for light and for dark
        self.drawings.append(svg)
        self.parts.append(
            (
                f'<figure role="img" aria-label="{html.escape(caption, quote=True)}">{inline}'
                f"<figcaption>{html.escape(caption)}</figcaption></figure>",
                f"![{caption}]({FIGURE.format(number=len(self.drawings))})\n\n*{caption}*",
            )
        )

    def quote(self, text: str) -> None:
        lines = "\n".join(f"> {line}" for line in text.splitlines())
        self.parts.append((f"<blockquote>{html.escape(text)}</blockquote>", lines))

    def code(self, text: str, summary: str | None = None) -> None:
        block = f"<pre>{html.escape(text)}</pre>"
        if summary:
            block = f"<details><summary>{html.escape(summary)}</summary>{block}</details>"
        self.parts.append((block, f"{f'{summary}:' if summary else ''}\n\n```\n{text}\n```".lstrip()))

    def html(self) -> str:
        title, lead = html.escape(self.title), html.escape(self.lead)
        body = "\n".join(part for part, _ in self.parts)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>\n'
            f'<body><h1>{title}</h1>\n<p class="lead">{lead}</p>\n{body}\n</body></html>\n'
        )

    def markdown(self) -> str:
        return "\n\n".join([f"# {self.title}", self.lead, *(part for _, part in self.parts)]) + "\n"

    def write(self, path: Path) -> Path:
        """As HTML or, where the name ends in `.md`, as Markdown with its figures beside it."""
        for number, figure in enumerate(self.drawings if path.suffix == ".md" else [], 1):
            with atomic_write(path.parent / FIGURE.format(number=number)) as file:
                file.write(figure.encode())
        with atomic_write(path) as file:
            file.write((self.markdown() if path.suffix == ".md" else self.html()).encode())
        return path


def cell(path: Path) -> Html:
    """A report that was written, for a notebook: its text and tables as they stand, its drawings as pictures."""
    text = path.read_text(encoding="utf-8")
    title, body = re.findall(r"<title>(.*?)</title>.*<body>(.*)</body>", text, re.DOTALL)[0]

    def figure(found: re.Match[str]) -> str:
        return f"<figure>{drawing(found[2].replace('var(--soft)', GREY), html.unescape(found[1]))}"

    body = re.sub(r'<figure[^>]*aria-label="([^"]*)"[^>]*>(<svg.*?</svg>)', figure, body, flags=re.DOTALL)
    body = re.sub(r"(</?h)([12])\b", lambda found: f"{found[1]}{int(found[2]) + 2}", body)
    return Html(element("div", body, f"{FONT};max-width:56em"), f"{html.unescape(title)}: {path}")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if abs(value) >= 1e15 or not math.isfinite(value) or (value and abs(value) < 1e-3):
            return f"{value:.4g}"
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.3f}"
    return str(value)


def _is_number(cell: str) -> bool:
    return bool(cell) and (cell[0].isdigit() or (cell[0] in "-−+" and cell[1:2].isdigit()))
