"""`fledge tokenizer`: train, look at, compare, convert and fetch tokenizers."""

from __future__ import annotations

import typer

from fledge.cli.tokenizer_look import compare, contrast, decode, encode, inspect, show, unicode
from fledge.cli.tokenizer_make import convert, fetch, train

app = typer.Typer(
    help="Train, inspect, compare, convert and fetch tokenizers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (train, show, inspect, compare, contrast, unicode, encode, decode, convert, fetch):
    app.command()(verb)
