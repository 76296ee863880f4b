"""Tokenizers written to disk: our own folder, and what other programs read. Whole or absent, also on a full disk."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

from fledge.errors import FledgeError, nearest, note
from fledge.files import atomic_folder, atomic_write, read_json, require_space, write_json
from fledge.tokenizer.base import Tokenizer
from fledge.tokenizer.checks import as_path
from fledge.tokenizer.files import CONFIGURATION, FORMAT, ROLE_NAMES, VOCABULARY, _parts, beside_ranks

FORMATS = ("huggingface", "gpt2", "tiktoken")


def save_tokenizer(tokenizer: Tokenizer, folder: str | PathLike[str]) -> None:
    """Write the two files into `folder`, which is made if it is not there."""
    folder = as_path(folder)
    if folder.exists() and not folder.is_dir():
        raise FledgeError(f"{folder} is a file, and a tokenizer is saved into a folder.")
    _write_folder(folder, _our_files(tokenizer, folder))


def save_new_tokenizer(tokenizer: Tokenizer, folder: str | PathLike[str]) -> Path:
    """Make a new folder of a tokenizer that took long to train; where it is.

    What another process put there meanwhile stays as it is: then the folder is made beside it, which is said.
    """
    folder = place = as_path(folder)
    files = _our_files(tokenizer, folder)
    for number in itertools.count(2):
        try:
            _write_new_folder(place, files)
            break
        except _TakenError:
            place = folder.with_name(f"{folder.name}-{number}")
    if place != folder:
        note(f"Another process created {folder} in the meantime, so it is not changed; the tokenizer is in {place}.")
    return place


def _our_files(tokenizer: Tokenizer, folder: Path, shared: bool = False) -> dict[str, bytes]:
    """The two files of our own folder, `shared` with other programs also where ours are simpler; `folder` is for the
    sentences that speak of it."""
    from fledge.tokenizer.sentencepiece import SentencePieceTokenizer, write_sentencepiece
    from fledge.tokenizer.spelled import write_spelled
    from fledge.tokenizer.spelling import SpellingTokenizer

    configuration: dict[str, Any] = {
        "format": FORMAT,
        "kind": tokenizer.kind,
        "roles": tokenizer.roles._asdict(),
    }
    if isinstance(tokenizer, SpellingTokenizer) and shared:
        document = write_spelled(tokenizer)
    elif isinstance(tokenizer, SpellingTokenizer):
        document = {
            "format": FORMAT,
            "kind": tokenizer.kind,
            "special_tokens": dict(tokenizer.special_tokens),
            "first_byte": len(tokenizer.special_tokens),
            "first_piece": len(tokenizer.special_tokens) + 256,
            "pieces": list(tokenizer.pieces),
        }
    elif isinstance(tokenizer, SentencePieceTokenizer):
        document, shared = write_sentencepiece(tokenizer), True
    else:
        from fledge.tokenizer.huggingface import write_document

        parts = _parts(tokenizer)
        document, shared = write_document(parts, str(folder)), True
        configuration |= {"pattern": parts.pattern}
    if shared:
        texts = {token: text for text, token in tokenizer.special_tokens.items()}
        names = {
            ROLE_NAMES[role]: texts[token]
            for role, token in tokenizer.roles._asdict().items()
            if role in ROLE_NAMES and token in texts
        }
        configuration |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **names,
        }
    configuration["fingerprint"] = tokenizer.fingerprint
    return {VOCABULARY: _json(document), CONFIGURATION: _json(configuration)}


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
        _write_folder(place, _our_files(tokenizer, place, shared=True))
        return [place / VOCABULARY, place / CONFIGURATION]
    parts = _parts(tokenizer)
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
        from fledge.tokenizer.huggingface import write_merges, write_vocabulary

        if parts.pattern != "gpt2":
            note(
                f"{place}: vocab.json and merges.txt do not say that text is cut by {parts.pattern}: other programs "
                "cut it by gpt2, and give other ids. To read it again, give the pattern."
            )
        merges = "\n".join(["#version: 0.2", *write_merges(parts), ""])
        vocabulary = write_vocabulary(parts, str(place))
        _write_folder(place, {"vocab.json": _json(vocabulary), "merges.txt": merges.encode()})
        return [place / "vocab.json", place / "merges.txt"]
    from fledge.tokenizer.huggingface import EXPRESSIONS, expression_of
    from fledge.tokenizer.ranks import write_ranks

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
    described_too = _json(described | {"special_tokens": parts.special_tokens})
    _write_together(place.parent, {place.name: ranks, beside_ranks(place).name: described_too})
    return [place, beside_ranks(place)]


def write_hub_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int) -> None:
    """The tokenizer's files, with the model's context, and with a start token before every text where `generate` puts
    one: there the tokenizer's own ids are those without special tokens."""
    settings: dict[str, Any] = {"model_max_length": context_length}
    export_tokenizer(tokenizer, folder)
    if (start := tokenizer.roles.own_start) is not None:
        from fledge.tokenizer.huggingface import start_before_texts

        name = next(text for text, token in tokenizer.special_tokens.items() if token == start)
        document = read_json(folder / VOCABULARY)
        write_json(folder / VOCABULARY, {**document, "post_processor": start_before_texts(name, start)})
        settings |= {"add_bos_token": True}
    write_json(folder / CONFIGURATION, {**read_json(folder / CONFIGURATION), **settings})


def _begins_another(name: str, names: Iterable[str]) -> bool:
    return any(other != name and other.startswith(name) for other in names)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """These files in a folder: all of them or none. A new folder appears when it is whole."""
    if folder.exists():
        _write_together(folder, files)
    else:
        _write_new_folder(folder, files)


class _TakenError(FledgeError):
    """The folder to be made is there already."""


def _write_new_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    _require_room(folder, files)
    taken = _TakenError(f"{folder} was made meanwhile by another process. Choose another name.")
    if os.path.lexists(folder):
        raise taken
    try:
        with atomic_folder(folder) as work:
            for name, content in files.items():
                (work / name).write_bytes(content)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or not os.path.lexists(folder):
            raise
        raise taken from None


def _write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """These files in a folder that may hold others: none takes its name before all are safe on disk."""
    _require_room(folder, files)
    with ExitStack() as stack:
        for name, content in files.items():
            file = stack.enter_context(atomic_write(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _require_room(folder: Path, files: Mapping[str, bytes]) -> None:
    require_space(folder, sum(map(len, files.values())), "The tokenizer")
