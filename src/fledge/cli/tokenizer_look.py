"""`fledge tokenizer show`, `inspect`, `compare`, `unicode`, `encode` and `decode`: a tokenizer at work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fledge.cli.tokenizer_options import SOURCES, TOKENIZER, Sources, Threads, TokenizerPath, require_new
from fledge.cli.values import Json, print_json
from fledge.errors import FledgeError

if TYPE_CHECKING:
    from fledge.corpus import Corpus
    from fledge.tokenizer import Tokenizer

Tokenizers = Annotated[
    list[str],
    typer.Option("--tokenizer", "-t", metavar="TOKENIZER", help=TOKENIZER + " Repeat for several.", show_default=False),
]
Special = Annotated[
    Literal["recognise", "text", "refuse"],
    typer.Option(help="Treat the text of a special token as that token, as plain text, or as an error."),
]


def show(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="The texts, one row each; default: standard input.", show_default=False),
    ] = None,
    tokenizer: Tokenizers = [],  # noqa: B006  (only read)
    special: Special = "recognise",
    ids: Annotated[bool, typer.Option("--ids", help="Print ids below the text.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page instead.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Colour the tokens of a text; several tokenizers stand side by side."""
    from rich.console import Console

    from fledge.files import atomic_write
    from fledge.tokenizer.display import show as make_view

    if not tokenizer:
        raise FledgeError("name a tokenizer to look through: fledge tokenizer show TEXT --tokenizer FOLDER")
    if html is not None:
        require_new(html)
    rows = [text.encode("utf-8", "surrogateescape") for text in texts] if texts else [sys.stdin.buffer.read()]
    view = make_view(_load_named(tokenizer), rows, special, ids)
    if as_json:
        cells = [
            {
                "tokenizer": name,
                "text": cell.text,
                "ids": [shown.token for shown in cell.tokens],
                "tokens": [shown.text for shown in cell.tokens],
            }
            for row in view.rows
            for name, cell in zip(view.names, row, strict=True)
        ]
        print_json(cells)
    elif html is not None:
        with atomic_write(html) as file:
            file.write(view.page().encode())
        print(f"Open {html} in a browser.")
    else:
        Console().print(view)


def inspect(
    tokenizer: TokenizerPath,
    corpus: Annotated[
        list[str] | None, typer.Option("--corpus", "-c", metavar="SOURCE", help=SOURCES, show_default=False)
    ] = None,
    longest: Annotated[int, typer.Option(min=0, help="Number of longest tokens to show.")] = 10,
    as_json: Json = False,
) -> None:
    """List what a vocabulary is made of, and what a text uses of it."""
    from rich.console import Console

    from fledge.tokenizer import open_tokenizer
    from fledge.tokenizer.inspect import usage, vocabulary_facts

    loaded = open_tokenizer(tokenizer, "TOKENIZER")
    facts = vocabulary_facts(loaded, longest)
    used = None
    if corpus:
        text = _corpus(*corpus)
        used = usage(loaded, text.blocks(), text.special)
    if as_json:
        usage_of_text = {} if used is None else {"usage": used._asdict() | {"bytes_per_token": used.bytes_per_token}}
        print_json(facts._asdict() | usage_of_text)
        return
    from fledge.cli.tokenizer_tables import print_facts

    print_facts(Console(), facts, used)


def compare(
    sources: Sources,
    tokenizer: Tokenizers = [],  # noqa: B006  (only read)
    limit: Annotated[float, typer.Option(min=0, help="Megabytes to read of each source; 0 reads all.")] = 64.0,
    threads: Threads = None,
    documents: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, help="Also measure this many single documents of each source, chosen at random."
        ),
    ] = 0,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Also write a report to this folder: HTML, Markdown, CSV, SVG.", show_default=False
        ),
    ] = None,
) -> None:
    """Measure bytes per token and speed of each tokenizer on each source, and estimate the time for 825 GB."""
    from rich.console import Console

    from fledge.tokenizer.compare import compare_documents
    from fledge.tokenizer.compare import compare_tokenizers as measure

    if not tokenizer:
        raise FledgeError("name the tokenizers to compare: fledge tokenizer compare SOURCE -t FOLDER -t FOLDER")
    corpora = {name: _corpus(source) for name, source in _short_names(sources).items()}
    most = max(1, int(limit * 1e6)) if 0 < limit < 1e12 else None
    if out is not None:
        from fledge.reports.tokenizers import require_own

        require_own(out)
    loaded = _load_named(tokenizer)
    measured = measure(loaded, corpora, limit=most, threads=threads)
    samples = compare_documents(loaded, corpora, documents, limit=most) if documents else []
    if out is not None:
        from fledge.cli.experiment import command_line
        from fledge.reports.tokenizers import report_tokenizers

        print(f"The report: {report_tokenizers(measured, out, command_line())}", file=sys.stderr)
    if as_json:
        sampled = {(one.tokenizer, one.corpus): {"sample": one.record()} for one in samples}
        records = [one.record() | sampled.get((one.tokenizer, one.corpus), {}) for one in measured]
        print_json(records)
        return
    from fledge.cli.tokenizer_tables import print_comparison, sample_table

    print_comparison(Console(), measured)
    if samples:
        Console().print(sample_table(samples))


def contrast(
    tokenizers: Annotated[list[str], typer.Argument(metavar="TOKENIZER TOKENIZER", help=TOKENIZER, show_default=False)],
    limit: Annotated[int, typer.Option(min=1, help="Tokens to show of each, in the order they were learned.")] = 40,
    as_json: Json = False,
) -> None:
    """Show which tokens one vocabulary has and the other has not."""
    from rich.console import Console

    from fledge.tokenizer.inspect import contrast as hold_against

    named = _load_named(tokenizers)
    if len(tokenizers) != 2 or len(named) != 2:
        raise FledgeError("name two different tokenizers: fledge tokenizer contrast FOLDER FOLDER")
    found = hold_against(*named.values())
    if as_json:
        alone = dict(zip(named, (found.only_first, found.only_second), strict=True))
        print_json({"shared": found.shared, "only": alone})
        return
    from fledge.cli.tokenizer_tables import print_contrast

    print_contrast(Console(), list(named), found, limit)


def unicode(
    text: Annotated[str | None, typer.Argument(help="The text; default: standard input.", show_default=False)] = None,
    hexadecimal: Annotated[
        str | None,
        typer.Option(
            "--hex", metavar="BYTES", help="Bytes in hexadecimal instead, such as 'E2 82 AC'.", show_default=False
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read a file instead.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of characters and flaws to show.")] = 100,
    as_json: Json = False,
) -> None:
    """Show a text's code points and their bytes, what is invisible, and why bytes do not decode."""
    from itertools import islice

    from rich.console import Console

    from fledge.cli.tokenizer_tables import print_code_points, print_flaws, spaced
    from fledge.tokenizer.unicode import code_points, flaws, string_sizes

    data = _bytes_to_look_at(text, hexadecimal, file)
    limit = min(limit, len(data))
    found = list(islice(flaws(data), limit + 1))
    clean = data.decode("utf-8", "ignore")
    points, facts = list(code_points(clean[:limit])), string_sizes(clean)
    if as_json:

        def in_hexadecimal(record: Any) -> dict[str, Any]:
            return {
                name: spaced(value) if isinstance(value, bytes) else value for name, value in record._asdict().items()
            }

        shown: dict[str, list[Any]] = {"code_points": points, "flaws": [*found[:limit]]}
        lists = {name: [in_hexadecimal(record) for record in records] for name, records in shown.items()}
        return print_json({"facts": facts, **lists})

    console = Console()
    if points:
        print_code_points(console, points, facts)
    if found:
        print_flaws(console, found[:limit], len(found) > limit)


def _bytes_to_look_at(text: str | None, hexadecimal: str | None, file: Path | None) -> bytes:
    if sum(given is not None for given in (text, hexadecimal, file)) > 1:
        raise FledgeError("give one of a text, --hex and --file.")
    if hexadecimal is not None:
        try:
            return bytes.fromhex(hexadecimal.replace("\\x", " ").replace("0x", " ").replace(",", " "))
        except ValueError:
            raise FledgeError(
                f"--hex {hexadecimal!r:.60} is not bytes in hexadecimal; write for example 'E2 82 AC'."
            ) from None
    if file is not None:
        return file.read_bytes()
    if text is not None:
        return text.encode("utf-8", "surrogateescape")  # what the shell passed on, valid or not
    return sys.stdin.buffer.read()


def encode(
    tokenizer: TokenizerPath,
    text: Annotated[str | None, typer.Argument(help="The text; default: standard input.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(help="Encode this file to --out.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file of raw little-endian ids.", show_default=False)
    ] = None,
    special: Special = "recognise",
    threads: Threads = None,
) -> None:
    """Turn text into ids: printed, or written as a file that numpy.memmap reads."""
    from fledge.tokenizer import open_tokenizer

    if (file is None) != (out is None) or (file is not None and text is not None):
        raise FledgeError("give a text, or both --file and --out.")
    loaded = open_tokenizer(tokenizer, "TOKENIZER")
    if file is not None and out is not None:
        if file.is_dir() or not file.exists():
            raise FledgeError(f"{file} is {'a folder' if file.exists() else 'not there'}; --file names one text file.")
        require_new(out)
        report = loaded.encode_file(file, out, special, threads)
        invalid = f"; {report.invalid_bytes:,} bytes are not UTF-8, and are kept" if report.invalid_bytes else ""
        print(f"{report.tokens:,} ids of {loaded.token_dtype} from {report.source_bytes:,} bytes in {out}{invalid}.")
        return
    data = sys.stdin.buffer.read() if text is None else text.encode("utf-8", "surrogateescape")
    print(*loaded.encode_array(data, special).tolist())


def decode(
    tokenizer: TokenizerPath,
    ids: Annotated[
        list[int] | None, typer.Argument(help="The ids; default: standard input.", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read a file of raw ids instead.", show_default=False)] = None,
) -> None:
    """Turn ids back into text; bytes that are not UTF-8 come out as they went in."""
    from fledge.tokenizer import open_tokenizer

    loaded = open_tokenizer(tokenizer, "TOKENIZER")
    if file is not None:
        import numpy as np

        width = loaded.token_dtype.newbyteorder("<")
        data = file.read_bytes()
        if ids or len(data) % width.itemsize:
            raise FledgeError(f"{file} does not hold whole ids of {8 * width.itemsize} bits, or ids are given besides.")
        ids = np.frombuffer(data, width).tolist()
    elif not ids:
        words = sys.stdin.buffer.read().replace(b",", b" ").split()
        try:
            ids = [int(word) for word in words]
        except ValueError:
            raise FledgeError("ids are whole numbers with spaces between them.") from None
    sys.stdout.buffer.write(loaded.decode_bytes(ids))
    if sys.stdout.isatty():
        print()


def _corpus(*sources: str) -> Corpus:
    from fledge.corpus import Corpus

    return Corpus.open(*sources, validation_fraction=0.0)


def _load_named(paths: list[str]) -> dict[str, Tokenizer]:
    from fledge.tokenizer import open_tokenizer

    return {name: open_tokenizer(path, "--tokenizer") for name, path in _short_names(paths).items()}


def _short_names(paths: list[str]) -> dict[str, str]:
    """Each path by its last part, or whole where two would be the same."""
    distinct = list(dict.fromkeys(paths))
    short = [Path(path).name or path for path in distinct]
    return {name if short.count(name) == 1 else path: path for name, path in zip(short, distinct, strict=True)}
