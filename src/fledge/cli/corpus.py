"""`fledge corpus`: get text, and look at it before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fledge.corpus.inspect import Report

from fledge.cli.root import Quiet
from fledge.cli.settings import Fields
from fledge.cli.values import Json, plain, print_json

app = typer.Typer(help="Fetch text, look at it, and clean it.", no_args_is_help=True)

Sources = Annotated[
    list[str], typer.Argument(help="Files, folders, globs, addresses, - for standard input, or a corpus (akjv).")
]
CorpusFields = Annotated[dict[str, Any], Fields("corpus", without=("source",))]
PLAIN = ("format", "separator", "field")
BAR = 24  # blocks of the picture of what is copied


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A named corpus, or an http(s) address; `list` shows the names.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to save it in.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download a public corpus, or resume its download, and compare it with its SHA-256.

    `list` shows the corpora whose SHA-256 is known. For others, only the size that the server states is compared.
    """
    from fledge.corpus.fetch import NAMED
    from fledge.corpus.fetch import fetch_corpus as fetch_corpus
    from fledge.files import readable_bytes

    if name == "list" and as_json:
        return print_json(
            {known: {**plain(corpus), "checked_by": corpus.checked_by} for known, corpus in NAMED.items()}
        )
    if name == "list":
        for known, corpus in NAMED.items():
            print(f"{known:16} {corpus.about}; checked by {corpus.checked_by}")
        return
    paths = fetch_corpus(name, out, progress=not quiet)
    if as_json:
        return print_json([{"path": path, "size": path.stat().st_size} for path in paths])
    for path in paths:
        print(f"{path}  {readable_bytes(path.stat().st_size)}")


@app.command()
def show(
    source: Sources,
    options: CorpusFields,
    samples: Annotated[int, typer.Option(min=0, help="Number of documents whose beginning is printed.")] = 3,
    page: Annotated[
        Path | None, typer.Option(help="Write everything, with figures, to this .html or .md file.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print counts, sizes, a few samples, and likely problems."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.corpus import Corpus
    from fledge.corpus.inspect import inspect
    from fledge.errors import harmless, notes_kept
    from fledge.files import readable_bytes

    corpus = Corpus.open(*source, **options)
    with notes_kept():  # the report says it, too
        report = inspect(corpus, samples, progress=not quiet)
    if page is not None:
        from fledge.reports.corpus import corpus_page

        corpus_page(corpus.name, report).write(page)
    if as_json:
        return print_json({"name": corpus.name, **plain(report), "warnings": report.warnings})
    console = Console(emoji=False)  # :heart: in a text is no heart
    formats = ", ".join(f"{count:,} × {name}" for name, count in report.formats.items())
    title = f"{corpus.name} ({formats})"
    table = Table("split", "documents", "text", title=escape(harmless(title)), title_justify="left")
    for name in report.documents:
        table.add_row(name, f"{report.documents[name]:,}", readable_bytes(report.bytes[name]))
    console.print(table)
    console.print(f"documents of {readable_bytes(report.shortest)} to {readable_bytes(report.longest)}")
    for text in report.samples:
        console.print(f"  {text!r}", markup=False, soft_wrap=True)
    copied(console, report)
    for warning in report.warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if page is not None:
        print(f"Page: {page}")


def copied(console: Console, report: Report) -> None:
    """How much of the text stands there more than once, as a picture, and the largest of it."""
    from rich.markup import escape
    from rich.table import Table

    from fledge.errors import harmless
    from fledge.files import readable_bytes

    def row(share: float) -> str:
        filled = min(BAR, round(BAR * share + 0.49)) if share else 0
        return f"{'█' * filled}{'░' * (BAR - filled)} {share:6.1%}"

    size = sum(report.bytes.values())
    if size and (report.copied_bytes or report.repeated_bytes):
        table = Table("stands there more than once", "share of the text", "", title_justify="left")
        table.add_row("copies and near-copies", row(report.copied_bytes / size), readable_bytes(report.copied_bytes))
        table.add_row("passages of 100 bytes", row(report.repeated_bytes / size), readable_bytes(report.repeated_bytes))
        console.print(table)
    for count, opening in report.groups:
        console.print(escape(harmless(f"  {count:,} × {opening[:70]!r}")), soft_wrap=True)
    if report.passages:
        console.print("passages that take most:")
    for opening, times, longest in report.passages:
        console.print(escape(harmless(f"  {times:,} × up to {longest:,} bytes: {opening!r}")), soft_wrap=True)
    if any(report.leaked.values()):
        found = [f"{share:.2%} in {length:,} bytes or more" for length, share in report.leaked.items() if share]
        console.print(f"held-out text that stands in the training text: {', '.join(found)}", soft_wrap=True)
    if report.left_out:
        reasons = ", ".join(f"{count:,} × {why}" for why, count in report.left_out.most_common())
        console.print(
            f"fledge corpus clean would leave out {report.left_out.total():,} of {sum(report.documents.values()):,} "
            f"documents, {readable_bytes(report.left_out_bytes.total())}: {reasons}",
            soft_wrap=True,
        )
    scripts = [f"{name} {count:,}" for name, count in report.scripts.most_common()]
    if len(scripts) > 1:
        console.print(f"documents by script: {', '.join(scripts)}", soft_wrap=True)
    for kind, example in report.private_examples.items():
        console.print(escape(harmless(f"  {report.private[kind]:,} × {kind}, such as {example}")), soft_wrap=True)
    for finding, numbers in report.examples.items():
        listed = ", ".join(f"{number:,}" for number in numbers)
        console.print(f"  {finding}: first in document {listed} (counted from 0)", soft_wrap=True)
    for line, share in list(report.recurring.items())[:5]:
        console.print(escape(harmless(f"  in {share:.0%} of documents: {line[:100]!r}")), soft_wrap=True)


@app.command()
def leak(
    held_out: Annotated[list[str], typer.Argument(help="The held-out text, or a text that fledge splits.")],
    options: Annotated[dict[str, Any], Fields("corpus", (*PLAIN, "validation_fraction", "test_fraction", "split"))],
    train: Annotated[
        list[str] | None,
        typer.Option("--in", help="The training text; without it, the two parts of the first text are compared."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print how much of the held-out text is also in the training text word for word, by length of the match."""
    from rich.console import Console
    from rich.table import Table

    from fledge.corpus import Corpus
    from fledge.corpus import inspect as look
    from fledge.errors import FledgeError

    whole = options | {"validation_fraction": 0.0, "test_fraction": 0.0}
    held = Corpus.open(*held_out, **(whole if train else options))
    found = look.leak(held, Corpus.open(*train, **whole) if train else None, not quiet)
    if not found:
        raise FledgeError("One of the two sides holds no text. Name another text with --in, or hold something out.")
    if as_json:
        return print_json({"shares_by_length": found})
    table = Table("matches of at least", "share of the held-out text")
    for length, share in found.items():
        table.add_row(f"{length:,} bytes", f"{share:.2%}")
    Console().print(table)


@app.command()
def clean(
    source: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file: .jsonl, or a text with separators.")],
    options: Annotated[dict[str, Any], Fields("corpus", (*PLAIN, "book_titles", "skip_bad", "max_document_bytes"))],
    alike: Annotated[
        float, typer.Option(min=0.1, max=1.0, help="Share of word shingles that near-copies have in common.")
    ] = 0.6,
    keep: Annotated[Literal["first", "longest"], typer.Option(help="Which document of a group to keep.")] = "first",
    mask: Annotated[bool, typer.Option("--mask", help="Replace private-looking text with a placeholder.")] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Leave out mojibake, markup, documents in a script unlike most others', or recurring lines."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a new corpus that keeps one of each group of copies, and list what was removed and why."""
    from fledge.corpus import Corpus
    from fledge.corpus.clean import DROPS
    from fledge.corpus.clean import clean as clean_corpus
    from fledge.errors import FledgeError, nearest
    from fledge.files import readable_bytes

    for name in drop or ():
        if name not in DROPS:
            raise FledgeError(f"--drop {name} is not known. {nearest(name, DROPS)}")
    corpus = Corpus.open(*source, **options, validation_fraction=0.0)
    done = clean_corpus(corpus, out, alike, keep, mask, drop or (), progress=not quiet)
    print(
        f"{out}: {done.kept:,} of {done.documents:,} documents, {readable_bytes(done.kept_bytes)} of "
        f"{readable_bytes(done.bytes)}"
    )
    for why, count in done.left_out.most_common():
        print(f"  {count:>9,} left out: {why}")
    for kind, count in done.masked.most_common():
        print(f"  {count:>9,} × {kind} masked")
    if done.replaced:
        print(f"  {done.replaced:>9,} documents held bytes that are no UTF-8; they are U+FFFD now")
    print(f"Left out, with the reason: {done.list}")
