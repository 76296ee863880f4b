"""`fledge evaluate`: loss, perplexity and bits per byte of one bundle or of several side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fledge.cli.places import At, device_named, refuse, trained, writable
from fledge.cli.values import Json, print_json
from fledge.errors import FledgeError

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.evaluation import Evaluation
    from fledge.evaluation.evaluate import Documents


WIDE = 400  # columns of a table in a file or a pipe: nothing is folded there


def drawing(file: Path | None) -> Path | None:
    """As it is, unless it could not be written, or its name promises another kind of picture."""
    if file is not None and file.suffix.lower() != ".svg":
        raise FledgeError(f"--plot {file} must end in .svg: that is the only kind of picture that is drawn.")
    return writable(file)


def evaluate(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Bundles, runs, or packed bundles.", callback=trained)
    ],
    at: At = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A text file, folder or corpus (akjv); can be repeated.")
    ] = None,
    tokens: Annotated[Path | None, typer.Option(help="A token store made with the bundle's tokenizer.")] = None,
    split: Annotated[
        Literal["train", "validation", "test"] | None, typer.Option(help="The part of the store; default: validation.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens between windows; a smaller stride is slower and gives each token more context."
        ),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Predict each document without the ones before it.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="With --tokens: use only this many, from the start.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Print this many documents with the highest loss.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the loss by position in the context to this SVG file.", callback=drawing)
    ] = None,
    tasks: Annotated[
        list[str] | None, typer.Option(help="Run these lm_eval tasks instead of measuring a text.")
    ] = None,
    task_folder: Annotated[Path | None, typer.Option(help="A folder that describes further lm_eval tasks.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --tasks: use only this many examples.")] = None,
    as_json: Json = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, xpu or mps; default: the fastest.")] = None,
) -> None:
    """Measure how well bundles predict a text, a token store, or their own run's held-out part."""
    from fledge.bundle import load_bundle
    from fledge.evaluation.compare import compare_on_store, compare_on_texts, position_plot
    from fledge.runs import find_bundle
    from fledge.tokens import TokenStore

    about_text = {
        "--text": text,
        "--tokens": tokens,
        "--split": split,
        "--stride": stride,
        "--alone": alone,
        "--max-tokens": max_tokens,
        "--worst": worst,
        "--plot": plot,
    }
    if tasks:
        refuse(about_text, "is not for --tasks, which bring their own texts")
    else:
        refuse({"--limit": limit, "--task-folder": task_folder}, "goes with --tasks")
    if text and tokens:
        raise FledgeError("Give --text or --tokens, not both.")
    if text:
        refuse({"--max-tokens": max_tokens, "--split": split}, "goes with --tokens: a text is evaluated whole")
    chosen = device_named(device)
    loaded = {str(path): load_bundle(find_bundle(path, at), device=chosen) for path in bundles}
    if tasks:
        from fledge.evaluation.harness import run_tasks

        write_tasks(run_tasks(loaded, tasks, task_folder, limit), as_json)
        return
    documents: Documents = "alone" if alone else "stream"
    options: dict[str, Any] = {
        "stride": stride,
        "documents": documents,
        "positions": plot is not None,
        "progress": True,
    }
    if text:
        from fledge.corpus import Corpus

        # Nothing is held out: a text that is to be measured is not cut as one that is learned from.
        texts = list(Corpus.open(*text, validation_fraction=0.0).documents())
        if not texts:
            raise FledgeError(f"--text {' '.join(text)} holds no text but white space.")
        found = compare_on_texts(loaded, texts, **options)
    else:
        store = TokenStore.open(tokens or own_tokens(bundles[0], loaded[str(bundles[0])]))
        found = compare_on_store(loaded, store, split or "validation", max_tokens=max_tokens, **options)
    if as_json:
        write_json(found, worst)
    else:
        write_table(found)
        write_worst(found, worst)
    if plot is not None:
        position_plot(found, plot)
        print(f"Loss against position: {plot}", file=sys.stderr if as_json else sys.stdout)


def own_tokens(place: Path, bundle: Bundle) -> Path:
    """The token store of a run, or of the run around a checkpoint; or where a bundle's settings name one."""
    from fledge.runs.folder import store_of

    given = bundle.config.tokens.store
    if (own := store_of(place)) is not None:
        return own
    if given is not None and Path(given).is_dir():
        return Path(given)
    lost = f" Its own token store, {given}, is not here." if given is not None else ""
    raise FledgeError(f"Say what to evaluate {place} on: --text FILE, or --tokens STORE.{lost}")


def write_tasks(found: dict[str, Any], as_json: bool) -> None:
    """The tables of lm_eval, a bundle after the other; or the figures alone as one JSON object."""
    from lm_eval.utils import make_table

    if as_json:
        return print_json({name: one["results"] for name, one in found.items()})
    for name, one in found.items():
        print(name)
        print(make_table(one))


def write_json(found: dict[str, Evaluation], worst: int) -> None:
    """All of it as one JSON object, the worst documents included, so that a program can read the output."""
    values: dict[str, dict[str, object]] = {name: {**one.summary()} for name, one in found.items()}
    for name, evaluation in found.items() if worst else ():
        values[name]["worst"] = [
            {"document": document, "loss": loss} for document, loss in worst_documents(evaluation, worst)
        ]
    print_json(values)


def write_table(found: dict[str, Evaluation]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    headings = ("bits per byte", "bits per character", "loss", "perplexity", "tokens", "mean context")
    rows = {
        name: (
            number(one.bits_per_byte),
            number(one.bits_per_character),
            number(one.loss),
            f"{one.perplexity:,.2f}",
            f"{one.tokens:,}",
            f"{one.mean_context:,.0f} of {one.context_length:,}",
        )
        for name, one in sorted(found.items(), key=lambda item: item[1].bits_per_byte or item[1].loss)
    }
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")  # a name is never cut: that of a checkpoint differs at its end
    for heading, values in zip(headings, zip(*rows.values(), strict=True), strict=True):
        table.add_column(heading, min_width=max(map(len, values)))
    for name, values in rows.items():
        table.add_row(escape(name), *values)
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def write_worst(found: dict[str, Evaluation], count: int) -> None:
    for name, evaluation in found.items() if count else ():
        print(f"{name}: documents with the highest loss")
        for document, loss in worst_documents(evaluation, count):
            print(f"  document {document:,}: {loss:.3f} nats per token")


def worst_documents(evaluation: Evaluation, count: int) -> list[tuple[int, float]]:
    """The documents with the highest loss and their losses; one without a predicted token has none."""
    import numpy as np

    losses = evaluation.by_document
    order = np.argsort(-np.nan_to_num(losses, nan=-1))[:count].tolist()
    return [(document, float(losses[document])) for document in order if losses[document] == losses[document]]


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
