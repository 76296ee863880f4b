"""`fledge tokens`: check a token store, look into it, adopt a foreign token file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fledge.cli.places import writable
from fledge.cli.root import Quiet
from fledge.cli.settings import Fields
from fledge.cli.values import Json, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from fledge.tokens import TokenStore

app = typer.Typer(help="Check, show and import token stores.", no_args_is_help=True)

SHOWN = Fields("tokens", ("policy", "context_length", "best_fit"), defaults={"policy": "packed", "context_length": 64})
Store = Annotated[Path, typer.Argument(help="The store's folder.")]


@app.command()
def check(store: Store) -> None:
    """Verify the checksum of every block, and that every id is in the vocabulary."""
    from fledge.tokens import TokenStore

    opened = TokenStore.open(store)
    opened.verify()
    counts = " and ".join(f"{len(opened.split(name).tokens):,} {name} tokens" for name in opened.splits)
    print(f"{store} is sound: {counts}.")


@app.command()
def show(
    store: Store,
    settings: Annotated[dict[str, Any], SHOWN],
    window: Annotated[
        int | None, typer.Option(min=0, help="The window to decode; without it, a summary is printed.")
    ] = None,
    split: Annotated[Literal["train", "validation", "test"], typer.Option(help="The part of the store.")] = "train",
    mask: Annotated[
        Path | None, typer.Option(help="Draw the attention mask to this .svg or .png file.", callback=writable)
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="The tokenizer, if the store holds none.")] = None,
    as_json: Json = False,
) -> None:
    """Print a summary of a store, or with --window one window's text, documents and attention mask."""
    from rich.console import Console

    from fledge.config import TokensConfig, parse
    from fledge.errors import harmless
    from fledge.tokenizer import open_tokenizer
    from fledge.tokens import TokenStore, make_windows
    from fledge.tokens.show import draw_picture, draw_text, view_window

    opened = TokenStore.open(store)
    console = Console(highlight=False, soft_wrap=True, emoji=False)  # a text of :heart: shows these letters
    config = parse(TokensConfig, settings, where="fledge tokens show")
    if window is None and mask is None:
        windows = make_windows(opened.split(split), config, opened.roles, seed=0, shuffle=False, lanes=1)
        facts = windows.describe()
        if as_json:
            about = {"folder": opened.folder, "vocabulary_size": opened.vocabulary_size, "layout": opened.layout}
            bits = 8 * opened.dtype.itemsize
            return print_json({**about, "bits": bits, "splits": opened.manifest["splits"], split: facts})
        _summary(console, opened)
        waste = f", {facts['waste']:.1%} padding" if "waste" in facts else ""
        console.print(
            f"{facts['windows']:,} windows of {config.context_length} tokens in {split} ({config.policy}){waste}"
        )
        return
    loaded = open_tokenizer(tokenizer, "--tokenizer") if tokenizer else opened.tokenizer
    if tokenizer:
        opened.require(loaded, f"--tokenizer {tokenizer}")
    view = view_window(opened, loaded, split, config, window or 0)
    if as_json:
        if mask is not None:
            draw_picture(view, mask)
        return print_json(view)
    console.print(f"window {view.number:,} of {view.count:,} ({split}, {config.policy})", markup=False)
    for stretch in view.stretches:
        places = f"places {stretch.first}–{stretch.last}, positions {stretch.positions[0]}–{stretch.positions[1]}"
        title = "padding" if stretch.document < 0 else f"document {stretch.document}"
        console.print(f"── {title} ({places})", markup=False)
        if stretch.text:
            console.print(harmless(stretch.text, keep="\n\t"), markup=False)
    if mask is None:
        console.print("attention mask (down: place, across: what it attends to)")
        console.print(draw_text(view.mask), markup=False)
    else:
        draw_picture(view, mask)
        console.print(f"attention mask: {mask}", markup=False)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A file of raw little-endian ids, such as nanoGPT's train.bin.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer that wrote the ids.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The new store's folder.")],
    validation: Annotated[Path | None, typer.Option(help="A file of held-out ids, such as nanoGPT's val.bin.")] = None,
    width: Annotated[int | None, typer.Option(help="Bytes per id in the files: 2 or 4.")] = None,
    quiet: Quiet = False,
) -> None:
    """Import another program's token file. Its ids are checked, and end tokens mark its documents."""
    from rich.console import Console

    from fledge.errors import FledgeError
    from fledge.tokenizer import open_tokenizer
    from fledge.tokens.adopt import import_tokens

    if width not in (None, 2, 4):
        raise FledgeError(f"--width {width} is not a width of ids: 2 or 4 bytes.")
    if "://" in out:
        raise FledgeError(f"{out} is an address, and a store can only be imported to a folder. Name one with --out.")
    adopted = open_tokenizer(tokenizer, "--tokenizer")
    store = import_tokens(file, adopted, Path(out), validation, width, progress=not quiet)
    _summary(Console(highlight=False, emoji=False), store)


def _summary(console: Console, store: TokenStore) -> None:
    from rich.markup import escape
    from rich.table import Table

    from fledge.files import readable_bytes

    bits = 8 * store.dtype.itemsize
    title = f"{escape(str(store.folder))}: {store.vocabulary_size:,} ids of {bits} bits, {store.layout} documents"
    table = Table("split", "tokens", "documents", "text", "bytes a token", title=title, title_justify="left")
    for name, facts in store.manifest["splits"].items():
        ratio = f"{facts['source_bytes'] / facts['tokens']:.2f}" if facts["tokens"] else "–"
        size = readable_bytes(facts["source_bytes"])
        table.add_row(name, f"{facts['tokens']:,}", f"{facts['documents']:,}", size, ratio)
    console.print(table)
