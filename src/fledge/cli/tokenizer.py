"""`fledge tokenizer`: train, look at, compare, convert and fetch tokenizers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fledge.cli.corpus import LONGEST, Field, Format, Fraction, HeldOut, Longest, Separator, SkipBad, Titles
from fledge.cli.places import destination
from fledge.errors import FledgeError, command

if TYPE_CHECKING:
    from fledge.config import CorpusConfig, TokenizerConfig
    from fledge.corpus import Corpus
    from fledge.tokenizer import Tokenizer

app = typer.Typer(
    help="Train, look at, compare, convert and fetch tokenizers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

TOKENIZER = "Our folder, a tokenizer.json, vocab.json with merges.txt, a .tiktoken file, or a fetched name."
SOURCES = "Text: files, folders, globs, compressed or not; JSONL; Parquet; - for standard input; or akjv."

TokenizerPath = Annotated[str, typer.Argument(metavar="TOKENIZER", help=TOKENIZER, show_default=False)]
Tokenizers = Annotated[
    list[str],
    typer.Option("--tokenizer", "-t", metavar="TOKENIZER", help=TOKENIZER + " Repeat for several.", show_default=False),
]
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help=SOURCES, show_default=False)]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; one per core unless given.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Special = Annotated[
    Literal["recognise", "text", "refuse"],
    typer.Option(help="Whether the text of a special token is that token, plain text, or an error."),
]


@app.command()
def train(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.", show_default=False)],
    vocab_size: Annotated[
        int,
        typer.Option(min=0, help="Ids in all. 0 goes on until no pair occurs twice, or no piece is left out."),
    ] = 4096,
    kind: Annotated[
        Literal["bpe", "word", "character"], typer.Option(help="Byte pairs, whole words, or characters.")
    ] = "bpe",
    special: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A special token of BPE; repeat for several. <|endoftext|> unless given."),
    ] = None,
    pattern: Annotated[
        str, typer.Option(help="How BPE cuts text first: gpt2, cl100k, o200k, or a regular expression.")
    ] = "gpt2",
    min_frequency: Annotated[int, typer.Option(min=1, help="Leave out pairs or words seen less often.")] = 1,
    fit_on: Annotated[
        Literal["train", "all"],
        typer.Option(help="Learn from what fledge tokenize does not hold out for validation, or from all of the text."),
    ] = "train",
    format: Format = "auto",
    separator: Separator = "<|endoftext|>",
    field: Field = "text",
    validation_fraction: Fraction = 0.1,
    validation: HeldOut = None,
    book_titles: Titles = False,
    skip_bad: SkipBad = False,
    max_document_bytes: Longest = LONGEST,
    threads: Threads = None,
    longest: Annotated[int, typer.Option(min=0, help="How many of the longest tokens to show.")] = 10,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Train a tokenizer on text and save it as a folder that other programs read too.

    It never sees what fledge tokenize holds out of the same sources with the same options, unless --fit-on is all.
    """
    from rich.console import Console

    from fledge.config import CorpusConfig, TokenizerConfig, parse
    from fledge.corpus import Corpus
    from fledge.files import require_space
    from fledge.tokenizer import BPETokenizer
    from fledge.tokenizer.save import save_new_tokenizer

    _require_new(out)
    if kind != "bpe" and (special is not None or pattern != "gpt2"):
        raise FledgeError(f"--special and --pattern are for BPE; a {kind} tokenizer has its own.")
    given = {
        "source": sources,
        "format": format,
        "separator": separator,
        "field": field,
        "book_titles": book_titles,
        "validation_fraction": validation_fraction,
        "validation_source": validation or (),
        "skip_bad": skip_bad,
        "max_document_bytes": max_document_bytes,
    }
    text = parse(CorpusConfig, given)
    settings: dict[str, Any] = {"kind": kind, "vocabulary_size": vocab_size or None, "fit_on": fit_on}
    settings["min_frequency"] = min_frequency
    if kind == "bpe":
        settings |= {"pattern": pattern} | ({} if special is None else {"special_tokens": special})
    corpus = Corpus.from_config(text)
    # About 200 bytes for an id, and hardly more ids than the text has bytes, however many were asked for.
    most_ids = min(vocab_size or 1_000_000, 300 + (corpus.size or 1_000_000))
    require_space(out, 200 * most_ids, "The tokenizer")
    tokenizer = _train(parse(TokenizerConfig, settings), corpus, text, threads, not quiet)
    out = save_new_tokenizer(tokenizer, out)
    if quiet:
        return
    from fledge.cli.tokenizer_tables import longest_table, profile_table

    console = Console()
    profile = tokenizer.training_profile if isinstance(tokenizer, BPETokenizer) else None
    if profile is not None:
        console.print(profile_table(profile))
        console.print(
            f"{profile.source_bytes:,} bytes of text, {profile.distinct_pretokens:,} distinct pre-tokens, "
            f"{profile.merges:,} merges.",
            highlight=False,
        )
    if longest:
        console.print(longest_table(tokenizer, longest))
    console.print(f"{tokenizer.vocab_size:,} ids in {out}. See it at work:", highlight=False, markup=False)
    print("  " + command("tokenizer", "show", "An egg is an egg.", "-t", out))


def _train(
    config: TokenizerConfig, corpus: Corpus, text: CorpusConfig, threads: int | None, progress: bool
) -> Tokenizer:
    """Plain files of which all is wanted go to native code as they are; everything else through the corpus."""
    from fledge.config import CorpusConfig
    from fledge.tokenizer import train_bpe, train_tokenizer

    usual = text == CorpusConfig(source=text.source, validation_fraction=text.validation_fraction)
    everything = config.fit_on == "all" or not text.validation_fraction
    left_out = text.separator in config.special_tokens  # by native code too, for it divides at special tokens
    if config.kind == "bpe" and usual and everything and left_out and all(map(_is_plain_file, text.source)):
        return train_bpe(
            [Path(source) for source in text.source],
            config.vocabulary_size,
            config.special_tokens,
            pattern=config.pattern,
            threads=threads,
            min_frequency=config.min_frequency,
            progress=progress,
        )
    return train_tokenizer(config, corpus, threads, progress)


def _is_plain_file(source: str) -> bool:
    return Path(source).is_file() and Path(source).suffix.lower() in ("", ".txt", ".text", ".md", ".en")


def _corpus(*sources: str) -> Corpus:
    from fledge.corpus import Corpus

    return Corpus.open(*sources, validation_fraction=0.0)


@app.command()
def show(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="One row each; standard input if none.", show_default=False),
    ] = None,
    tokenizer: Tokenizers = [],  # noqa: B006  (only read)
    special: Special = "recognise",
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids below the text.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page instead.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Colour the tokens of a text; several tokenizers stand side by side."""
    from rich.console import Console

    from fledge.files import atomic_write
    from fledge.tokenizer.display import show as make_view

    if not tokenizer:
        raise FledgeError("name a tokenizer to look through: fledge tokenizer show TEXT --tokenizer FOLDER")
    if html is not None:
        _require_new(html)
    rows = [text.encode("utf-8", "surrogateescape") for text in texts] if texts else [sys.stdin.buffer.read()]
    view = make_view(rows, _load_named(tokenizer), special, ids)
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
        print(json.dumps(cells, indent=2, ensure_ascii=False))
    elif html is not None:
        with atomic_write(html) as file:
            file.write(view.page().encode())
        print(f"Open {html} in a browser.")
    else:
        Console().print(view)


@app.command()
def inspect(
    tokenizer: TokenizerPath,
    corpus: Annotated[
        list[str] | None, typer.Option("--corpus", "-c", metavar="SOURCE", help=SOURCES, show_default=False)
    ] = None,
    longest: Annotated[int, typer.Option(min=0, help="How many of the longest tokens to show.")] = 10,
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
        record: dict[str, Any] = facts._asdict() | {"longest": [token._asdict() for token in facts.longest]}
        if used is not None:
            record["usage"] = used._asdict() | {"bytes_per_token": used.bytes_per_token}
        print(json.dumps(record, indent=2, ensure_ascii=False, default=_readable))
        return
    from fledge.cli.tokenizer_tables import print_facts

    print_facts(Console(), facts, used)


def _readable(data: Any) -> str:
    return data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else str(data)


@app.command()
def compare(
    sources: Sources,
    tokenizer: Tokenizers = [],  # noqa: B006  (only read)
    limit: Annotated[float, typer.Option(min=0, help="Megabytes of each source to read; 0 for all.")] = 64.0,
    threads: Threads = None,
    as_json: Json = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write a report into this folder too: HTML, Markdown, CSV, SVG.", show_default=False
        ),
    ] = None,
) -> None:
    """Measure bytes per token and speed of every tokenizer on every source, and the time for 825 GB."""
    from rich.console import Console

    from fledge.tokenizer.compare import compare as measure

    if not tokenizer:
        raise FledgeError("name the tokenizers to compare: fledge tokenizer compare SOURCE -t FOLDER -t FOLDER")
    corpora = {name: _corpus(source) for name, source in _short_names(sources).items()}
    most = max(1, int(limit * 1e6)) if 0 < limit < 1e12 else None
    measured = measure(_load_named(tokenizer), corpora, limit=most, threads=threads)
    if out is not None:
        from fledge.cli.experiment import command_line
        from fledge.experiments.tokenizers import report_tokenizers

        print(f"The report: {report_tokenizers(measured, out, command_line())}", file=sys.stderr)
    if as_json:
        print(json.dumps([one.record() for one in measured], indent=2, ensure_ascii=False))
        return
    from fledge.cli.tokenizer_tables import print_comparison

    print_comparison(Console(), measured)


@app.command()
def unicode(
    text: Annotated[str | None, typer.Argument(help="The text; standard input if none.", show_default=False)] = None,
    hexadecimal: Annotated[
        str | None,
        typer.Option("--hex", metavar="BYTES", help="Bytes instead, as in 'E2 82 AC'.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read a file instead.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Characters and flaws to show at most.")] = 100,
    as_json: Json = False,
) -> None:
    """Show a text's code points and their bytes, what is invisible, and why bytes do not decode."""
    from itertools import islice

    from rich.console import Console

    from fledge.tokenizer.unicode import code_points, flaws, text_facts

    data = _bytes_to_look_at(text, hexadecimal, file)
    limit = min(limit, len(data))
    found = list(islice(flaws(data), limit + 1))
    clean = data.decode("utf-8", "ignore")
    points, facts = list(code_points(clean[:limit])), text_facts(clean)
    if as_json:
        record = {
            "facts": facts._asdict(),
            "code_points": [point._asdict() for point in points],
            "flaws": [flaw._asdict() for flaw in found[:limit]],
        }
        print(json.dumps(record, indent=2, ensure_ascii=False, default=lambda data: data.hex(" ").upper()))
        return
    from fledge.cli.tokenizer_tables import print_code_points, print_flaws

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


@app.command()
def encode(
    tokenizer: TokenizerPath,
    text: Annotated[str | None, typer.Argument(help="The text; standard input if none.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(help="Encode this file into --out.", show_default=False)] = None,
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
        _require_new(out)
        report = loaded.encode_file(file, out, special, threads)
        invalid = f"; {report.invalid_bytes:,} bytes are not UTF-8, and are kept" if report.invalid_bytes else ""
        print(f"{report.tokens:,} ids of {loaded.token_dtype} from {report.source_bytes:,} bytes in {out}{invalid}.")
        return
    data = sys.stdin.buffer.read() if text is None else text.encode("utf-8", "surrogateescape")
    print(*loaded.encode_array(data, special).tolist())


@app.command()
def decode(
    tokenizer: TokenizerPath,
    ids: Annotated[list[int] | None, typer.Argument(help="Ids; standard input if none.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(help="A file of raw ids instead.", show_default=False)] = None,
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


@app.command()
def convert(
    tokenizer: TokenizerPath,
    target: Annotated[
        Path | None, typer.Argument(help="The folder to make, or a .tiktoken file.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The same, named as on every other verb.", show_default=False)
    ] = None,
    to: Annotated[
        Literal["huggingface", "gpt2", "tiktoken"],
        typer.Option(help="tokenizer.json; vocab.json with merges.txt; or a rank file."),
    ] = "huggingface",
    pattern: Annotated[
        str | None, typer.Option(help="For files that do not say: gpt2, cl100k, o200k.", show_default=False)
    ] = None,
    special: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT=ID", help="For files that do not say; repeat for several.", show_default=False),
    ] = None,
) -> None:
    """Read a tokenizer of any format and write it in another."""
    from fledge.tokenizer import export_tokenizer, load_tokenizer
    from fledge.tokenizer.files import beside_ranks

    place = destination(target, out, "fledge tokenizer convert")
    for written in (place, beside_ranks(place)) if to == "tiktoken" else (place,):
        _require_new(written)
    loaded = load_tokenizer(tokenizer, pattern=pattern, special_tokens=_special_ids(special))
    for path in export_tokenizer(loaded, place, to):
        print(path)


def _special_ids(given: list[str] | None) -> dict[str, int] | None:
    if given is None:
        return None
    numbered = {}
    for entry in given:
        text, _, token = entry.rpartition("=")
        if not text or not token.isdecimal() or len(token) > 9:  # of more digits than any id has
            raise FledgeError(f"--special {entry} must be a text, = and its id, as in '<|endoftext|>=50256'.")
        numbered[text] = int(token)
    return numbered


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="gpt2, cl100k or o200k.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Save it as a folder too.", show_default=False)
    ] = None,
) -> None:
    """Download a published vocabulary once; its name then stands for it wherever a tokenizer is asked for."""
    from fledge.tokenizer import load_tokenizer
    from fledge.tokenizer.fetch import fetch as download

    if out is not None:
        _require_new(out)
    place = download(name, progress=True)
    print(f"{name} is in {place}")
    if out is not None:
        load_tokenizer(place).save(out)
        print(f"and as a folder in {out}")


def _require_new(out: Path) -> None:
    """Before any work: nothing may be there yet, and what lies above must be folders."""
    from fledge.tokenizer.checks import as_path

    if os.path.lexists(as_path(out)):
        raise FledgeError(f"{out} is already there. Choose another name, or remove it first.")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if not above.is_dir():
        raise FledgeError(f"{out} can't be made: {above} is a file, and a folder is needed there.")


def _load_named(paths: list[str]) -> dict[str, Tokenizer]:
    from fledge.tokenizer import open_tokenizer

    return {name: open_tokenizer(path, "--tokenizer") for name, path in _short_names(paths).items()}


def _short_names(paths: list[str]) -> dict[str, str]:
    """Each path by its last part, or whole where two would be the same."""
    distinct = list(dict.fromkeys(paths))
    short = [Path(path).name or path for path in distinct]
    return {name if short.count(name) == 1 else path: path for name, path in zip(short, distinct, strict=True)}
