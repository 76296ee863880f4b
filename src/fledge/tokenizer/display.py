"""Tokens in colour: in the terminal, as HTML in a notebook, as plain text; tokenizers side by side."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fledge.tokenizer.base import Special, Tokenizer

# Light grounds that differ from their neighbours for most kinds of colour blindness, under black text.
GROUNDS = ("#a8d5ff", "#ffe08a", "#b7e4c7", "#f7b7d2", "#d6c9ff")
SPECIAL_GROUND = "#333333"
BAR = "¦"  # hardly ever in a text, unlike |
MARKS = {"\n": "↵\n", "\r": "␍", "\t": "→\t"}


class Shown(NamedTuple):
    """One token of a text, as it is put before the eye."""

    token: int
    data: bytes
    text: str
    special: bool


class ShownText(NamedTuple):
    """One text as one tokenizer sees it."""

    text: str
    tokens: list[Shown]

    @property
    def summary(self) -> str:
        """
        >>> ShownText("egg", [Shown(7, b"eg", "eg", False), Shown(9, b"g", "g", False)]).summary
        '2 tokens, 1.50 bytes each'
        """
        count = len(self.tokens)
        size = sum(len(shown.data) for shown in self.tokens)
        return f"{count:,} token{'s' * (count != 1)}" + (f", {size / count:.2f} bytes each" if count else "")


def shown_tokens(tokenizer: Tokenizer, text: str | bytes, special: Special = "recognise") -> list[Shown]:
    """Every token of a text with its bytes, and how to show it.

    A token that holds only part of a character is shown by its bytes, as no letter stands for it.
    """
    special_ids = set(tokenizer.special_tokens.values())
    return [
        Shown(token, data, visible_bytes(data), token in special_ids)
        for token in tokenizer.encode_array(text, special).tolist()
        for data in (tokenizer.vocab[token],)
    ]


def visible_bytes(data: bytes) -> str:
    """Text that can be seen: line ends and tabs are marked, what is invisible is numbered, bytes in hex.

    >>> visible_bytes(b"a\\n"), visible_bytes(b"\\xe2\\x82"), visible_bytes("\\u200b".encode())
    ('a↵\\n', '⟨E2 82⟩', '⟨U+200B⟩')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"⟨{data.hex(' ').upper()}⟩"
    if text.isprintable():
        return text
    return "".join(
        MARKS.get(character) or (character if character.isprintable() else f"⟨U+{ord(character):04X}⟩")
        for character in text
    )


class TokenView:
    """Texts against tokenizers: print it in a terminal, or leave it as the last line of a notebook's cell."""

    def __init__(self, names: list[str], rows: list[list[ShownText]], ids: bool = False) -> None:
        self.names, self.rows, self.ids = names, rows, ids

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        colour = bool(console.color_system) and not console.no_color
        table = Table(show_lines=True, header_style="bold")
        for name in self.names:
            table.add_column(Text(name), overflow="fold")
        for row in self.rows:
            table.add_row(*(self._terminal_cell(cell, colour) for cell in row))
        yield table

    def _terminal_cell(self, cell: ShownText, colour: bool) -> Text:
        text = coloured(cell) if colour else Text(plain_tokens(cell))
        text.append(f"\n{cell.summary}", style="dim")
        if self.ids:
            text.append("\n" + " ".join(str(shown.token) for shown in cell.tokens), style="dim")
        return text

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {plain_tokens(cell)} ({cell.summary})"
            for row in self.rows
            for name, cell in zip(self.names, row, strict=True)
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self.names)
        body = "".join(
            "<tr>" + "".join(f"<td style='vertical-align:top'>{self._html_cell(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return f"<table class='fledge-tokens'><tr>{head}</tr>{body}</table>"

    def _html_cell(self, cell: ShownText) -> str:
        spans, ground = [], 0
        for shown in cell.tokens:
            style = (
                f"background:{SPECIAL_GROUND};color:#fff"
                if shown.special
                else f"background:{GROUNDS[ground]};color:#000"
            )
            ground = (ground + 1) % len(GROUNDS)
            title = html.escape(f"id {shown.token}: {shown.data.hex(' ').upper()}")
            spans.append(f'<span style="{style}" title="{title}">{html.escape(shown.text)}</span>')
        ids = " ".join(str(shown.token) for shown in cell.tokens) if self.ids else ""
        return (
            f"<div style='white-space:pre-wrap;font-family:monospace'>{''.join(spans)}</div>"
            f"<small>{cell.summary}{'<br>' + ids if ids else ''}</small>"
        )

    def page(self) -> str:
        """A whole HTML page that opens offline."""
        return (
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Tokens</title>"
            "<style>body{font-family:sans-serif;margin:2em}td,th{padding:.4em .8em;border:1px solid #ccc}"
            f"table{{border-collapse:collapse}}</style>{self._repr_html_()}</html>\n"
        )


def show(
    tokenizers: Tokenizer | Mapping[str, Tokenizer] | Sequence[Tokenizer],
    texts: str | bytes | Iterable[str | bytes],
    special: Special = "recognise",
    ids: bool = False,
) -> TokenView:
    """Texts in rows, tokenizers in columns, every token in its own colour.

    >>> from fledge.tokenizer import CharacterTokenizer
    >>> view = show(CharacterTokenizer([]), ["egg", " egg"])
    >>> [plain_tokens(row[0]) for row in view.rows]
    ['e¦g¦g', ' ¦e¦g¦g']
    """
    named = _named(tokenizers)
    rows = [
        [ShownText(_readable(text), shown_tokens(tokenizer, text, special)) for tokenizer in named.values()]
        for text in ([texts] if isinstance(texts, (str, bytes)) else texts)
    ]
    return TokenView(list(named), rows, ids)


def _named(tokenizers: Tokenizer | Mapping[str, Tokenizer] | Sequence[Tokenizer]) -> dict[str, Tokenizer]:
    """Tokenizers without names go by their kind and, where two are of one kind, their number of ids."""
    if isinstance(tokenizers, Mapping):
        return dict(tokenizers)
    several = [tokenizers] if isinstance(tokenizers, Tokenizer) else list(tokenizers)
    kinds = Counter(tokenizer.kind for tokenizer in several)
    names = [f"{one.kind}, {one.vocab_size:,} ids" if kinds[one.kind] > 1 else one.kind for one in several]
    return {
        f"{name} ({number})" if names.count(name) > 1 else name: one
        for number, (name, one) in enumerate(zip(names, several, strict=True), 1)
    }


def _readable(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def coloured(cell: ShownText) -> Text:
    text = Text()
    for position, shown in enumerate(cell.tokens):
        ground = GROUNDS[position % len(GROUNDS)]
        text.append(shown.text, style=f"bold white on {SPECIAL_GROUND}" if shown.special else f"black on {ground}")
    return text


def plain_tokens(cell: ShownText) -> str:
    """The tokens with a bar between them, for where there is no colour."""
    return BAR.join(shown.text for shown in cell.tokens)
