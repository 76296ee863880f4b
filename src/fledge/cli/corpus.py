"""`fledge corpus`: get text, and look at it before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fledge.cli.root import Quiet

app = typer.Typer(help="Fetch text, and look at it.", no_args_is_help=True)

Sources = Annotated[
    list[str],
    typer.Argument(help="Files, folders, globs, addresses, - for standard input, or a corpus (akjv)."),
]
Format = Annotated[
    Literal["auto", "text", "files", "lines", "jsonl", "parquet", "akjv"],
    typer.Option("--format", help="How documents lie in the source; told by its name unless given."),
]
Separator = Annotated[str, typer.Option(help="What stands between documents in a text file.")]
Field = Annotated[str, typer.Option(help="The JSONL field or Parquet column that holds the text.")]
Fraction = Annotated[float, typer.Option(min=0.0, max=0.5, help="The share of the documents held out.")]
HeldOut = Annotated[
    list[str] | None, typer.Option("--validation", help="Sources held out as they are, instead of a share.")
]
Titles = Annotated[bool, typer.Option(help="For akjv: begin each verse with the title of its book.")]
SkipBad = Annotated[bool, typer.Option(help="Skip broken JSON lines, and count them.")]
Longest = Annotated[
    int, typer.Option("--max-document-bytes", min=1, help="Refuse longer documents: each has to fit in memory.")
]
LONGEST = 1 << 28
Split = Annotated[
    Literal["document", "group"] | None,
    typer.Option(help="Hold out each document by itself, or near-copies together (group, unless given)."),
]


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A named corpus, or an http(s) address; `list` shows the names.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to put it into.")] = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a public corpus: resumed where it stopped, and compared at the end with its SHA-256, where fledge knows
    it; `list` says of which corpora. Of others only the size that the server states is compared.
    """
    from fledge.corpus.fetch import NAMED
    from fledge.corpus.fetch import fetch as fetch_corpus
    from fledge.files import readable_bytes

    if name == "list":
        for known, corpus in NAMED.items():
            print(f"{known:16} {corpus.about}; checked by {corpus.checked_by}")
        return
    for path in fetch_corpus(name, out, progress=not quiet):
        print(f"{path}  {readable_bytes(path.stat().st_size)}")


@app.command()
def show(
    source: Sources,
    format: Format = "auto",
    separator: Separator = "<|endoftext|>",
    field: Field = "text",
    validation_fraction: Fraction = 0.1,
    validation: HeldOut = None,
    split: Split = None,
    book_titles: Titles = False,
    skip_bad: SkipBad = False,
    max_document_bytes: Longest = LONGEST,
    samples: Annotated[int, typer.Option(min=0, help="Documents to print the beginning of.")] = 3,
) -> None:
    """Print counts, sizes, a few samples, and what looks wrong."""

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.corpus import Corpus
    from fledge.corpus.inspect import inspect
    from fledge.errors import harmless, notes_kept
    from fledge.files import readable_bytes

    corpus = Corpus.open(
        *source,
        format=format,
        separator=separator,
        field=field,
        book_titles=book_titles,
        validation_fraction=validation_fraction,
        validation_source=validation or (),
        split=split,
        skip_bad=skip_bad,
        max_document_bytes=max_document_bytes,
    )
    with notes_kept():  # the report says it, too
        report = inspect(corpus, samples)
    console = Console(emoji=False)  # :heart: in a text is no heart
    formats = ", ".join(f"{count:,} × {name}" for name, count in report.formats.items())
    title = f"{corpus.name} ({formats})"
    table = Table("split", "documents", "text", title=escape(harmless(title)), title_justify="left")
    for name in ("train", "validation"):
        table.add_row(name, f"{report.documents[name]:,}", readable_bytes(report.bytes[name]))
    console.print(table)
    console.print(f"documents of {readable_bytes(report.shortest)} to {readable_bytes(report.longest)}")
    for text in report.samples:
        console.print(f"  {text!r}", markup=False, soft_wrap=True)
    for warning in report.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
