"""`fledge generate`: text from a bundle, for prompts that are given, in a file, on standard input, or typed."""

from __future__ import annotations

import codecs
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fledge.cli.places import At, device_named, refuse, trained
from fledge.cli.settings import Fields
from fledge.errors import FledgeError, note

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.config import SamplingConfig
    from fledge.generation import Generation
    from fledge.tokens.index import CopiedPassage, PassageIndex


def generate(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A bundle, a run, or a packed bundle.", callback=trained)
    ],
    at: At = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A text to continue; can be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file whose text is the prompt; - for standard input.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With --file: treat each line as a separate prompt.")] = False,
    interactive: Annotated[bool, typer.Option("--interactive", "-i", help="Ask for prompts interactively.")] = False,
    *,
    given: Annotated[dict[str, Any], Fields("sampling", without=("prompt",), defaults=None)],
    alternatives: Annotated[
        int, typer.Option(min=0, help="Print each token with its probability and this many alternatives.")
    ] = 0,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line: text, ids, log-probabilities.")
    ] = False,
    sources: Annotated[
        bool,
        typer.Option("--sources", help="Print which parts also occur word for word in the training text, and where."),
    ] = False,
    store: Annotated[
        Path | None, typer.Option(help="For --sources: the training tokens, if the run's own are missing.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, xpu or mps; default: the fastest.")] = None,
) -> None:
    """Generate text with a model. Options that are not given come from the bundle's sampling settings."""
    from fledge.bundle import load_bundle
    from fledge.config import RunConfig, SamplingConfig, parse, say_useless
    from fledge.generation import widen
    from fledge.runs import find_bundle

    parse(SamplingConfig, given)  # a wrong option is refused before anything is loaded
    if prompt and file:
        raise FledgeError("Give the prompt with --prompt or with --file, not with both.")
    if lines and file is None:
        raise FledgeError("--lines goes with --file: each line of that file is then a prompt of its own.")
    for_prompts = {
        "--prompt": prompt,
        "--file": file,
        "--samples": given.get("samples", 1) > 1,
        "--alternatives": alternatives,
        "--json": json_,
        "--sources": sources,
    }
    if store is not None and not sources:
        raise FledgeError("--store goes with --sources: it names the tokens in which they are looked for.")
    if interactive:
        refuse(
            for_prompts, "is not for --interactive, which asks for one prompt after the other and shows one text each"
        )
    loaded = load_bundle(find_bundle(bundle, at), device=device_named(device))
    index = passage_index(loaded, store) if sources else None  # refused before anything is written
    widen(loaded.model)
    settings = parse(SamplingConfig, {**loaded.config.sampling.model_dump(), **given})
    say_useless((f"sampling.{name}" for name in given), RunConfig(sampling=settings))
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive or (at_terminal and not any(for_prompts.values())):
        from fledge.generation.interactive import converse

        converse(loaded.model, loaded.tokenizer, settings)
        return
    write(loaded, read_prompts(prompt, file, lines, settings), settings, alternatives, json_, index)


def passage_index(loaded: Bundle, store: Path | None) -> PassageIndex:
    from fledge.evaluation.memorised import training_store
    from fledge.runs.folder import store_of
    from fledge.tokens import TokenStore
    from fledge.tokens.index import PassageIndex

    store = store or store_of(loaded.path)
    opened = TokenStore.open(store) if store is not None else training_store(loaded.path, loaded.config)
    opened.require(loaded.tokenizer)
    return PassageIndex.of(opened, progress=True)


def read_prompts(
    prompts: list[str] | None, file: Path | None, lines: bool, settings: SamplingConfig
) -> list[str | bytes]:
    """The prompts as they were given; bytes of a file that are no UTF-8 stay as they are."""
    if file is None:
        if not prompts and input_waits():
            note("standard input is not read: add --file - to go on from it.")
        return [text_or_bytes(os.fsencode(prompt)) for prompt in prompts] if prompts else [settings.prompt]
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    if not lines:
        return [text_or_bytes(data)]
    if not data:
        raise FledgeError(f"{'Standard input' if str(file) == '-' else file} is empty: it has no line to go on from.")
    return [text_or_bytes(line.removesuffix(b"\r")) for line in data.removesuffix(b"\n").split(b"\n")]


def text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def input_waits() -> bool:
    """Whether standard input is a pipe or a file with something in it. Nothing is read, and nothing waited for."""
    import stat

    from fledge.system import waiting_bytes

    try:
        descriptor = sys.stdin.fileno()
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) < found.st_size
        if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            return waiting_bytes(descriptor) > 0
    except (OSError, ValueError):  # closed, or no file of the system's
        pass
    return False


def write(
    loaded: Bundle,
    prompts: list[str | bytes],
    settings: SamplingConfig,
    alternatives: int,
    as_json: bool,
    index: PassageIndex | None,
) -> None:
    from fledge.generation import Decoding
    from fledge.generation.results import as_text
    from fledge.progress import streaming

    decoding = Decoding(loaded.model, loaded.tokenizer, prompts, settings, alternatives)
    if len(prompts) * settings.samples == 1 and not as_json and not alternatives and index is None:
        with streaming() as show:
            show(as_text(prompts[0]))
            for piece in decoding.pieces():
                show(piece.text)
        print()
        return
    written = 0
    for _ in itertools.chain(decoding.pieces(), [None]):  # once more after the last piece
        for result in decoding.results[written : decoding.finished]:
            write_result(loaded, result, alternatives, as_json, written == 0, index)
            written += 1


def write_result(
    loaded: Bundle, result: Generation, alternatives: int, as_json: bool, first: bool, index: PassageIndex | None
) -> None:
    sources = None if index is None else index.sources(result.ids, loaded.tokenizer)
    if as_json:
        write_json_line(result, sources)
        return
    if not first:
        print("-" * 20)
    print(result.prompt + result.text)
    if alternatives:
        write_alternatives(loaded, result)
    if sources is not None:
        write_sources(sources, len(result.ids))


def write_sources(sources: list[CopiedPassage], size: int) -> None:
    """A line for each stretch that stands in the training text, with its place there."""
    from fledge.errors import harmless

    if not sources:
        print(f"Nothing of 20 tokens or more stands word for word in the training text ({size:,} tokens).")
    for source in sources:
        where = f"document {source.document:,}, from token {source.place:,} ({source.opening!r} …)"
        print(
            harmless(f"  {source.length:,} tokens stand in the training text: {where}\n    {source.text!r}", keep="\n")
        )


def write_json_line(result: Generation, sources: list[CopiedPassage] | None) -> None:
    import dataclasses
    import json

    values: dict[str, Any] = dataclasses.asdict(result)
    if sources is not None:
        values["sources"] = [dataclasses.asdict(source) for source in sources]
    values["prompt"] = result.prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # JSON is UTF-8
    utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
    print(json.dumps(values, ensure_ascii=not utf8))


def write_alternatives(loaded: Bundle, result: Generation) -> None:
    """A line a token: its text and probability, then what else was likely."""
    from math import exp

    def shown(token: int, logprob: float) -> str:
        return f"{loaded.tokenizer.decode([token])!r} {exp(logprob):.1%}"

    for token, logprob, others in zip(result.ids, result.logprobs, result.alternatives, strict=True):
        print(f"  {shown(token, logprob):<24}", "  ".join(shown(*other) for other in others))
