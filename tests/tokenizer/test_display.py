"""Tokens before the eye: nothing is lost, nothing invisible stays so, and no text breaks the HTML."""

from __future__ import annotations

import html
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fledge import train_bpe
from fledge.tokenizer import CharacterTokenizer, Tokenizer, WordTokenizer
from fledge.tokenizer.display import plain_tokens, show, shown_tokens, visible_bytes

EGGS = ["egg", "Egg", " egg"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    texts = ["egg Egg egg an egg, an Egg. "] * 10
    return {"bpe": train_bpe(texts, 264, ["<|endoftext|>"]), "word": WordTokenizer.train(texts)}


@settings(deadline=None)
@given(st.text(max_size=30))
def test_every_byte_of_the_text_is_in_a_token(tokenizers: dict[str, Tokenizer], text: str) -> None:
    for tokenizer in tokenizers.values():
        shown = shown_tokens(tokenizer, text)
        assert b"".join(token.data for token in shown) == text.encode()
        assert [token.token for token in shown] == tokenizer.encode(text)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=8))
def test_what_is_shown_can_be_seen(data: bytes) -> None:
    shown = visible_bytes(data)
    assert shown
    assert all(character.isprintable() or character in "\n\t" for character in shown), shown


def test_three_eggs_differ_by_tokenizer(tokenizers: dict[str, Tokenizer]) -> None:
    view = show(tokenizers, EGGS)
    assert view.names == ["bpe", "word"]
    assert [[plain_tokens(cell) for cell in row] for row in view.rows] == [
        ["egg", "egg"],
        ["Egg", "Egg"],
        [" egg", " ¦egg"],
    ]


def test_special_tokens_stand_out(tokenizers: dict[str, Tokenizer]) -> None:
    special = [token.special for token in shown_tokens(tokenizers["bpe"], "egg<|endoftext|>")]
    assert special[-1]
    assert not any(special[:-1])
    assert not any(token.special for token in shown_tokens(tokenizers["bpe"], "<|endoftext|>", "text"))


def printed(view: object, colour: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=colour, color_system="truecolor" if colour else None)
    console.print(view)
    return out.getvalue()


def test_the_terminal_gets_colours_and_a_pipe_gets_bars(tokenizers: dict[str, Tokenizer]) -> None:
    view = show(tokenizers, " egg egg", ids=True)
    colourful, colourless = printed(view, True), printed(view, False)
    assert "\x1b[" in colourful
    assert "\x1b[" not in colourless
    assert " ¦egg¦ ¦egg" in colourless
    assert "4 tokens, 2.00 bytes each" in colourless
    assert str(tokenizers["word"].encode("egg")[0]) in colourless


def test_markup_in_the_text_stays_text(tokenizers: dict[str, Tokenizer]) -> None:
    assert "[¦b¦o¦l¦d¦]" in printed(show({"c": CharacterTokenizer([])}, "[bold]"), False)


def test_markup_in_a_name_stays_text() -> None:
    view = show({"tok[new]": CharacterTokenizer([]), "[/x]": CharacterTokenizer([])}, "a")
    assert "tok[new]" in printed(view, False)
    assert "[/x]" in printed(view, True)


def test_html_holds_the_tokens_and_their_ids(tokenizers: dict[str, Tokenizer]) -> None:
    text = "<script>alert('egg')</script>&\n"
    page = show(tokenizers, text)._repr_html_()
    assert "<script" not in page
    first_cell = page.split("<td")[1]
    spans = re.findall(r'<span style="[^"]*" title="id (\d+): ([0-9A-F ]+)">(.*?)</span>', first_cell, re.S)
    assert [int(token) for token, _, _ in spans] == tokenizers["bpe"].encode(text)
    assert b"".join(bytes.fromhex(data) for _, data, _ in spans) == text.encode()
    assert "".join(html.unescape(shown) for _, _, shown in spans) == text.replace("\n", "↵\n")


def test_a_page_stands_alone(tokenizers: dict[str, Tokenizer]) -> None:
    page = show(tokenizers, EGGS).page()
    assert page.startswith("<!doctype html>")
    assert "http" not in page


def test_one_tokenizer_needs_no_name() -> None:
    view = show(CharacterTokenizer([]), "a")
    assert view.names == ["character"]
    assert show(CharacterTokenizer([]), "").rows[0][0].summary == "0 tokens"
