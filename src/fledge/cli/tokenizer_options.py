"""What the commands of `fledge tokenizer` share: their arguments, and the check of a new name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fledge.errors import FledgeError

TOKENIZER = (
    "A fledge tokenizer's folder, tokenizer.json, vocab.json with merges.txt, a .tiktoken file, or a fetched name."
)
SOURCES = "Text: files, folders, globs, compressed or not; JSONL; Parquet; - for standard input; or akjv."

TokenizerPath = Annotated[str, typer.Argument(metavar="TOKENIZER", help=TOKENIZER, show_default=False)]
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help=SOURCES, show_default=False)]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Number of threads; default: one per core.", show_default=False)
]


def require_new(out: Path) -> None:
    """Before any work: nothing may be there yet, and what lies above must be folders."""
    from fledge.tokenizer.checks import as_path

    if os.path.lexists(as_path(out)):
        raise FledgeError(f"{out} is already there. Choose another name, or remove it first.")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir():
        raise FledgeError(f"{out} can't be created, because {above} is a file and not a folder.")
