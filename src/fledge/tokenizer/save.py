"""Tokenizers written for other programs, and into a new folder after a long training."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from fledge.errors import FledgeError, nearest, note
from fledge.files import read_json, write_json
from fledge.tokenizer.base import Tokenizer
from fledge.tokenizer.checks import as_path
from fledge.tokenizer.disk import (
    CONFIGURATION,
    VOCABULARY,
    TakenError,
    write_folder,
    write_new_folder,
    write_together,
    written_json,
)
from fledge.tokenizer.huggingface import EXPRESSIONS, expression_of, start_before_texts, write_merges, write_vocabulary
from fledge.tokenizer.ranks import beside_ranks, write_ranks

FORMATS = ("huggingface", "gpt2", "tiktoken")


def save_new_tokenizer(tokenizer: Tokenizer, folder: str | PathLike[str]) -> Path:
    """Make a new folder of a tokenizer that took long to train; where it is.

    What another process put there meanwhile stays as it is: then the folder is made beside it, which is said.
    """
    folder = place = as_path(folder)
    files = tokenizer._files(folder)
    for number in itertools.count(2):
        try:
            write_new_folder(place, files)
            break
        except TakenError:
            place = folder.with_name(f"{folder.name}-{number}")
    if place != folder:
        note(f"Another process created {folder} in the meantime, so it is not changed; the tokenizer is in {place}.")
    return place


def export_tokenizer(tokenizer: Tokenizer, path: str | PathLike[str], format: str = "huggingface") -> list[Path]:
    """Write a tokenizer for another program; the files that were written.

    `huggingface` makes a folder that `transformers` reads. The others are for BPE: `gpt2` makes a folder with
    `vocab.json` and `merges.txt`; `tiktoken` a rank file, and beside it a JSON file with the pattern and the special
    tokens.
    """
    place = as_path(path)
    if format not in FORMATS:
        raise FledgeError(f"{format} is not an export format. {nearest(str(format), FORMATS)}")
    if format == "huggingface":
        write_folder(place, tokenizer._files(place, shared=True))
        return [place / VOCABULARY, place / CONFIGURATION]
    parts = tokenizer.parts()
    if parts.always:
        note(
            f"{place}: the token {min(parts.always)} is found in plain text too, which a {format} file does not say: "
            "other programs give such text other ids. tokenizer.json keeps it."
        )
    if parts.composed:
        note(
            f"{place}: text is composed to the Unicode form NFC first, which a {format} file does not say: other "
            "programs may give text in another form other ids. tokenizer.json keeps it."
        )
    if format == "gpt2":
        if parts.pattern != "gpt2":
            note(
                f"{place}: vocab.json and merges.txt do not say that text is cut by {parts.pattern}: other programs "
                "cut it by gpt2, and give other ids. To read it again, give the pattern."
            )
        merges = "\n".join(["#version: 0.2", *write_merges(parts), ""])
        vocabulary = write_vocabulary(parts, str(place))
        write_folder(place, {"vocab.json": written_json(vocabulary), "merges.txt": merges.encode()})
        return [place / "vocab.json", place / "merges.txt"]
    if place.suffix != ".tiktoken":
        raise FledgeError(f"{place} must end in .tiktoken: that is how it will be known again.")
    ranks = write_ranks(parts, str(place))
    if parts.pattern not in EXPRESSIONS and not parts.pattern.endswith(r"|[\s\S]"):
        note(
            f"{place}: tiktoken leaves out text that the pattern {parts.pattern} does not match, and fledge keeps it: "
            r"only text that is matched whole has the same ids in both. A pattern that ends in |[\s\S] matches all."
        )
    if nested := [name for name in parts.special_tokens if _begins_another(name, parts.special_tokens)]:
        note(
            f"{place}: the special token {nested[0]} begins another one, and tiktoken may find it where fledge finds "
            "the longer: only text without such tokens is sure to have the same ids in both."
        )
    described = {"pattern": parts.pattern, "pat_str": expression_of(parts.pattern)}
    described_too = written_json(described | {"special_tokens": parts.special_tokens})
    write_together(place.parent, {place.name: ranks, beside_ranks(place).name: described_too})
    return [place, beside_ranks(place)]


def write_hub_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int) -> None:
    """The tokenizer's files, with the model's context, and with a start token before every text where `generate` puts
    one: there the tokenizer's own ids are those without special tokens."""
    settings: dict[str, Any] = {"model_max_length": context_length}
    export_tokenizer(tokenizer, folder)
    if (start := tokenizer.roles.own_start) is not None:
        name = next(text for text, token in tokenizer.special_tokens.items() if token == start)
        document = read_json(folder / VOCABULARY)
        write_json(folder / VOCABULARY, {**document, "post_processor": start_before_texts(name, start)})
        settings |= {"add_bos_token": True}
    write_json(folder / CONFIGURATION, {**read_json(folder / CONFIGURATION), **settings})


def _begins_another(name: str, names: Iterable[str]) -> bool:
    return any(other != name and other.startswith(name) for other in names)
