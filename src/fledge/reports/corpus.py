"""What `fledge corpus show` found, as a page: how much of a text is copied, of what, and what would be left out."""

from __future__ import annotations

import html

from fledge.corpus.inspect import Report
from fledge.files import readable_bytes
from fledge.plot import COLOURS, GREY, curves
from fledge.reports.page import Page

WIDTH, BAR, LINE = 800, 36, 22
"Pixels: of the bar, across and down, and of a line below it."
OPENING = 100  # characters of a document or a passage


def corpus_page(name: str, report: Report) -> Page:
    """The page of a corpus by this name."""
    size, count = sum(report.bytes.values()), sum(report.documents.values())
    page = Page(name, f"{count:,} documents, {readable_bytes(size)}.")
    parts = [(part, report.documents[part], readable_bytes(report.bytes[part])) for part in report.documents]
    page.table(["part", "documents", "text"], parts)
    page.heading("How much of it is copied")
    out = report.left_out_bytes
    pieces = {"kept by fledge corpus clean": size - out.total(), **dict(out)}
    page.figure(shares_bar(pieces), "The text by what fledge corpus clean would do with it.")
    page.table(
        ["left out as", "documents", "text"], [(why, n, readable_bytes(out[why])) for why, n in report.left_out.items()]
    )
    page.paragraph(
        f"{readable_bytes(report.repeated_bytes)} ({report.repeated_bytes / max(1, size):.1%}) lie in passages of 100 "
        "bytes or more that stand earlier in the text, too."
    )
    if report.groups:
        page.table(["copies", "opening of the first"], [(n, opening[:OPENING]) for n, opening in report.groups])
    if report.passages:
        passages = [(times, longest, opening) for opening, times, longest in report.passages]
        page.table(["times", "bytes at most", "passage that takes most"], passages)
    if report.leaked:
        page.heading("Held-out text that stands in the training text")
        lengths = list(report.leaked)
        line = [float(length) for length in lengths], [100 * report.leaked[length] for length in lengths]
        drawing = curves({"held-out text": line}, "least length of the match, bytes", "% of the text", log_x=True)
        page.figure(drawing, "A loss on text that was trained on says little.")
        page.table(["in matches of at least", "share"], [(f"{n:,} bytes", f"{report.leaked[n]:.2%}") for n in lengths])
    page.heading("What else was found")
    found = [(f"script: {script}", n) for script, n in report.scripts.most_common()]
    found += [("mis-decoded (mojibake)", report.mojibake), ("markup left over", report.markup)]
    found += [(f"{kind}, such as {report.private_examples[kind]}", n) for kind, n in report.private.most_common()]
    page.table(["", "count"], found)
    if report.examples:
        rows = [(finding, ", ".join(f"{n:,}" for n in numbers)) for finding, numbers in report.examples.items()]
        page.table(["finding", "first documents with it"], rows)
    if report.recurring:
        lines = [(line[:OPENING], f"{share:.0%}") for line, share in report.recurring.items()]
        page.table(["lines that stand in most documents", "of the documents"], lines)
    for warning in report.warnings:
        page.paragraph(warning)
    return page


def shares_bar(parts: dict[str, int]) -> str:
    """One bar for a whole, a piece for each part, and a line with the share of each."""
    whole = max(1, sum(parts.values()))
    pieces, place = [], 0.0
    for number, (name, size) in enumerate(parts.items()):
        wide, colour = WIDTH * size / whole, COLOURS[number % len(COLOURS)]
        down = BAR + LINE * (number + 1)
        pieces.append(
            f'<rect x="{place:.2f}" y="0" width="{wide:.2f}" height="{BAR}" fill="{colour}"/>'
            f'<rect x="0" y="{down - 12}" width="14" height="14" fill="{colour}"/>'
            f'<text x="22" y="{down}" fill="{GREY}" font-size="14" font-family="sans-serif">'
            f"{html.escape(name)}: {size / whole:.2%}, {readable_bytes(size)}</text>"
        )
        place += wide
    tall = BAR + LINE * len(parts) + 10
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}">{"".join(pieces)}</svg>'
