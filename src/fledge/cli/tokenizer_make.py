"""`fledge tokenizer train`, `convert` and `fetch`: the commands that make a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fledge.cli.corpus import CorpusFields
from fledge.cli.places import destination
from fledge.cli.root import Quiet
from fledge.cli.settings import Fields
from fledge.cli.tokenizer_options import Sources, Threads, TokenizerPath, require_new
from fledge.config import TokenizerConfig, parse
from fledge.errors import FledgeError, command


def train(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", show_default=False)],
    options: CorpusFields,
    settings: Annotated[dict[str, Any], Fields("tokenizer", ("kind", "pattern", "min_frequency", "fit_on"))],
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of ids. 0 merges until no pair occurs twice (BPE), or includes every word or character.",
            show_default=str(TokenizerConfig().vocabulary_size),
        ),
    ] = None,
    special: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A special token of BPE; can be repeated. Default: <|endoftext|>."),
    ] = None,
    threads: Threads = None,
    longest: Annotated[int, typer.Option(min=0, help="Number of longest tokens to show.")] = 10,
    quiet: Quiet = False,
) -> None:
    """Train a tokenizer on text, and save it as a folder that other programs can read.

    It never sees what fledge tokenize holds out of the same sources with the same options, unless --fit-on is all.
    """
    from rich.console import Console

    from fledge.corpus import Corpus
    from fledge.files import require_space
    from fledge.tokenizer import BPETokenizer, train_tokenizer
    from fledge.tokenizer.save import save_new_tokenizer

    require_new(out)
    kind = settings.get("kind", "bpe")
    if kind != "bpe" and (special is not None or "pattern" in settings):
        raise FledgeError(f"--special and --pattern are for BPE; a {kind} tokenizer has its own.")
    if vocab_size is not None:
        settings["vocabulary_size"] = vocab_size or None
    if special is not None:
        settings["special_tokens"] = special
    config = parse(TokenizerConfig, settings)
    corpus = Corpus.open(*sources, **options)
    # About 200 bytes for an id, and hardly more ids than the text has bytes, however many were asked for.
    most_ids = min(config.vocabulary_size or 1_000_000, 300 + (corpus.size or 1_000_000))
    require_space(out, 200 * most_ids, "The tokenizer")
    tokenizer = train_tokenizer(config, corpus, threads, not quiet)
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


def convert(
    tokenizer: TokenizerPath,
    target: Annotated[
        Path | None, typer.Argument(help="The folder to write, or a .tiktoken file.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The same path, given as an option.", show_default=False)
    ] = None,
    to: Annotated[
        Literal["huggingface", "gpt2", "tiktoken"],
        typer.Option(help="The format: tokenizer.json, vocab.json with merges.txt, or a rank file."),
    ] = "huggingface",
    pattern: Annotated[
        str | None,
        typer.Option(help="The pattern, for files that do not name it: gpt2, cl100k, o200k.", show_default=False),
    ] = None,
    special: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT=ID",
            help="A special token, for files that do not name it; can be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Convert a tokenizer to another format."""
    from fledge.tokenizer import export_tokenizer, load_tokenizer
    from fledge.tokenizer.ranks import beside_ranks

    place = destination(target, out, "fledge tokenizer convert")
    for written in (place, beside_ranks(place)) if to == "tiktoken" else (place,):
        require_new(written)
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


def fetch(
    name: Annotated[str, typer.Argument(help="gpt2, cl100k or o200k.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also save it as a folder.", show_default=False)
    ] = None,
) -> None:
    """Download a published vocabulary. Its name can then be given wherever a tokenizer is expected."""
    from fledge.tokenizer import load_tokenizer
    from fledge.tokenizer.fetch import fetch_tokenizer as download

    if out is not None:
        require_new(out)
    place = download(name, progress=True)
    print(f"{name} is in {place}")
    if out is not None:
        load_tokenizer(place).save(out)
        print(f"and as a folder in {out}")
