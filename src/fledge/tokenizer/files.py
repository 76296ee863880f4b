"""Tokenizers read from disk: our own folder, which other programs read too, and the files that they write.

Our folder holds `tokenizer.json` (for BPE a valid Hugging Face file; for words and characters their pieces)
and `tokenizer_config.json` (kind, roles, pattern, fingerprint). `vocab.json` with `merges.txt`, and
`.tiktoken`, are read too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from fledge.corpus.hub import is_hub
from fledge.errors import FledgeError
from fledge.files import did_you_mean
from fledge.tokenizer.base import Roles, Tokenizer
from fledge.tokenizer.bpe import BPETokenizer
from fledge.tokenizer.character import CharacterTokenizer
from fledge.tokenizer.checks import as_path
from fledge.tokenizer.disk import CONFIGURATION, FORMAT, ROLE_NAMES, VOCABULARY, bytes_of, json_of
from fledge.tokenizer.huggingface import OLDER_CL100K, read_document, read_gpt2
from fledge.tokenizer.parts import Parts, token_id
from fledge.tokenizer.ranks import ENCODINGS, beside_ranks, parts_of_ranks, read_ranks
from fledge.tokenizer.sentencepiece import SentencePieces, SentencePieceTokenizer
from fledge.tokenizer.spelling import SPECIAL_TOKENS, read_spelled
from fledge.tokenizer.word import WordTokenizer

AnyTokenizer = TypeVar("AnyTokenizer", bound=Tokenizer)


def load_tokenizer(
    path: str | PathLike[str], *, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None
) -> Tokenizer:
    """The tokenizer in a folder or file, ours or another program's; or one fetched before, by its name.

    `pattern` and `special_tokens` are for files that do not say: `vocab.json` and `merges.txt`, `.tiktoken`.

    >>> import tempfile
    >>> from fledge.tokenizer import WordTokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     WordTokenizer.train(["in the beginning"]).save(folder)
    ...     load_tokenizer(folder).encode("the beginning")
    [261, 36, 262]
    """
    place = as_path(path)
    if is_hub(place):
        from fledge.tokenizer.fetch import from_hub

        place = from_hub(str(place))
    if not place.exists():
        from fledge.tokenizer.fetch import cached

        found = cached(str(place))
        if found is None:
            meant = did_you_mean(place) or " Train one with: fledge tokenizer train"
            raise FledgeError(f"there is no tokenizer at {place}.{meant}")
        place = found
    source = _locate(place) if place.is_dir() else place
    if source.suffix == ".tiktoken":
        return _load_ranks(source, pattern, special_tokens)
    pair = _vocabulary_and_merges(source)
    if pair:
        given = None if special_tokens is None else _read_special_tokens(special_tokens, str(pair[0]))
        return BPETokenizer(**read_gpt2(*pair, given, pattern)._asdict())
    document = json_of(source)
    beside = source.with_name(CONFIGURATION)
    configuration = _read_configuration(beside) if beside.is_file() else {}
    if isinstance(document, dict) and document.get("kind") in ("word", "character"):
        return _verified(_load_spelling(document, str(source)), configuration, source)
    if configuration.get("kind") in ("word", "character") and isinstance(document, dict):
        spelled = WordTokenizer if configuration["kind"] == "word" else CharacterTokenizer
        return _verified(read_spelled(document, spelled, str(source)), configuration, source)
    if pattern is not None or special_tokens is not None:
        raise FledgeError(f"{source} says itself what its pattern and special tokens are; leave them out.")
    start = configuration.get(ROLE_NAMES["start"])
    parts = read_document(document, str(source), None if start == configuration.get(ROLE_NAMES["end"]) else start)
    if isinstance(parts, SentencePieces):
        pieces = SentencePieceTokenizer(parts, _read_roles(configuration, beside, parts))
        return _verified(pieces, configuration, source)
    if parts.pattern in OLDER_CL100K and configuration.get("pattern") == "cl100k":
        parts = parts._replace(pattern="cl100k")  # which our own folders were always read as; their fingerprint tells
    bpe = BPETokenizer(**parts._asdict(), roles=_read_roles(configuration, beside, parts))
    return _verified(bpe, configuration, source)


def _locate(folder: Path) -> Path:
    """The one file in a folder to start from."""
    for name in (VOCABULARY, "vocab.json"):
        if (folder / name).is_file():
            return folder / name
    ranks = sorted(folder.glob("*.tiktoken"))
    if len(ranks) == 1:
        return ranks[0]
    raise FledgeError(
        f"{folder} holds no tokenizer: no {VOCABULARY}, no vocab.json with merges.txt, no single .tiktoken."
    )


def _vocabulary_and_merges(source: Path) -> tuple[Path, Path] | None:
    """GPT-2's two files, if `source` is one of them: `vocab.json` and `merges.txt`, or both with a prefix."""
    name = source.name
    for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        for mine, other in ((vocabulary, merges), (merges, vocabulary)):
            if name.endswith(mine):
                beside = source.with_name(name.removesuffix(mine) + other)
                if not beside.is_file():
                    raise FledgeError(
                        f"{source} needs {beside.name} beside it: one holds the ids, the other the merges."
                    )
                return (source, beside) if mine == vocabulary else (beside, source)
    return None


def _load_ranks(path: Path, pattern: str | None, special_tokens: Mapping[str, int] | None) -> Tokenizer:
    """Ranks say nothing of pattern and special tokens: they are given, lie beside them, or are known."""
    data = bytes_of(path)
    ranks = read_ranks(data, str(path))
    beside = beside_ranks(path)
    if beside.is_file():
        described = json_of(beside)
        if not isinstance(described, dict):
            raise FledgeError(f"{beside} must hold a pattern and special tokens.")
        pattern = described.get("pattern") if pattern is None else pattern
        special_tokens = described.get("special_tokens") if special_tokens is None else special_tokens
    checksum = hashlib.sha256(data).hexdigest()
    for encoding in ENCODINGS.values():
        if encoding.sha256 == checksum:
            pattern = encoding.pattern if pattern is None else pattern
            special_tokens = encoding.special_tokens if special_tokens is None else special_tokens
    if not isinstance(pattern, str):
        raise FledgeError(f"{path} does not say how text is cut before merging. Give a pattern: gpt2, cl100k or o200k.")
    specials = _read_special_tokens(special_tokens, str(path))
    return BPETokenizer(**parts_of_ranks(ranks, specials, pattern, str(path))._asdict())


def _load_spelling(document: dict[str, Any], where: str) -> Tokenizer:
    if document.get("format") != FORMAT:
        raise FledgeError(f"{where} has format {document.get('format')!r:.40}; this version of fledge reads {FORMAT}.")
    if document.get("special_tokens") != SPECIAL_TOKENS or not isinstance(document.get("pieces"), list):
        raise FledgeError(f"{where} lacks its pieces, or its special tokens are not those of a {document['kind']} one.")
    kind = WordTokenizer if document["kind"] == "word" else CharacterTokenizer
    try:
        return kind(document["pieces"])
    except FledgeError as error:
        raise FledgeError(f"{where}: {error}") from None


def _read_special_tokens(given: Any, where: str) -> dict[str, int]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise FledgeError(f"{where}: special_tokens must be texts and their ids.")
    return {str(text): token_id(token, where, str(text)) for text, token in given.items()}


def _read_configuration(path: Path) -> dict[str, Any]:
    configuration = json_of(path)
    if not isinstance(configuration, dict):
        raise FledgeError(f"{path} must hold names and values.")
    return configuration


def _verified(tokenizer: AnyTokenizer, configuration: Mapping[str, Any], source: Path) -> AnyTokenizer:
    """The tokenizer, if it is the one that was saved here; a configuration that is not ours has no fingerprint."""
    if "fingerprint" in configuration and configuration["fingerprint"] != tokenizer.fingerprint:
        raise FledgeError(
            f"{source} has another fingerprint than {CONFIGURATION} beside it says: one of the two was changed. "
            "Bring both from the same place, or take the fingerprint out of it if the change is meant."
        )
    return tokenizer


def _read_roles(configuration: Mapping[str, Any], path: Path, parts: Parts | SentencePieces) -> Roles | None:
    """Roles out of our `tokenizer_config.json`, or out of Hugging Face's names for them."""
    given = configuration.get("roles")
    if given is None:
        texts = {role: configuration.get(name) for role, name in ROLE_NAMES.items()}
        found = {
            role: parts.special_tokens.get(str(text.get("content") if isinstance(text, dict) else text))
            for role, text in texts.items()
        }
        return Roles(**found, separator=found["end"]) if any(value is not None for value in found.values()) else None
    if not isinstance(given, dict) or set(given) != set(Roles._fields):
        raise FledgeError(f"{path}: roles must name {', '.join(Roles._fields)}.")
    for role, token in given.items():
        if token is not None and token not in parts.special_tokens.values():
            raise FledgeError(f"{path}: the role {role} has the id {token!r:.40}, which is no special token.")
    return Roles(**given)


def open_tokenizer(path: Path | str, named: str) -> Tokenizer:
    """The tokenizer that a setting or an option names; a file that is none is refused under that name."""
    place = as_path(path)
    try:
        return load_tokenizer(place)
    except FledgeError as error:
        if not place.exists() and not is_hub(place):
            raise
        raise FledgeError(
            f"{named} {path}: a tokenizer was expected there, such as a folder that fledge tokenizer train made, a "
            f"tokenizer.json or a .tiktoken file ({str(error).rstrip('.')})."
        ) from None
