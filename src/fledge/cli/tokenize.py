"""`fledge tokenize`: text of any size into a token store."""

from __future__ import annotations

from typing import Annotated

import typer

from fledge.cli.corpus import CorpusFields, Sources
from fledge.cli.root import Quiet


def tokenize(
    source: Sources,
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer's folder or file, such as fledge tokenizer train writes.")
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="The store's folder; with --engine ray, any fsspec address.")],
    options: CorpusFields,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of threads; default: one per core.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray to use a Ray cluster.")] = "local",
    restart: Annotated[bool, typer.Option(help="Delete what is in the folder and start again.")] = False,
    quiet: Quiet = False,
) -> None:
    """Encode a text into a token store. After an interruption, the same command resumes."""
    from fledge.corpus import Corpus
    from fledge.errors import FledgeError, command, nearest
    from fledge.files import readable_bytes
    from fledge.tokenizer import open_tokenizer
    from fledge.tokens import write_store

    if engine not in ("local", "ray"):
        raise FledgeError(f"--engine {engine} is not known. {nearest(engine, ['local', 'ray'])}")
    loaded = open_tokenizer(tokenizer, "--tokenizer")
    corpus = Corpus.open(*source, **options)
    if engine == "ray":
        from fledge.tokens.cluster import write_store_on_ray

        manifest = write_store_on_ray(corpus, loaded, out, progress=not quiet, restart=restart)
    else:
        manifest = write_store(corpus, loaded, out, threads, progress=not quiet, restart=restart).manifest
    for name, facts in manifest["splits"].items():
        ratio = f"{facts['source_bytes'] / facts['tokens']:.2f} bytes a token" if facts["tokens"] else "empty"
        print(
            f"{name:10} {facts['tokens']:>15,} tokens {facts['documents']:>12,} documents "
            f"{readable_bytes(facts['source_bytes']):>10}  {ratio}"
        )
    if manifest["skipped"]:
        print(f"{manifest['skipped']:,} bad lines skipped")
    if not manifest["splits"]["train"]["tokens"]:
        print("All documents are held out, so nothing is left to train on. Lower --validation-fraction.")
    look = "Copy it to a folder to train on it." if "://" in out else f"Look into it: {command('tokens', 'show', out)}"
    print(f"{out} is whole. {look}")
