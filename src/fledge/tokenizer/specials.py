"""The special tokens of byte-pair encoding: what may be one, which ids they have, and what their names say they do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fledge.errors import FledgeError
from fledge.files import to_bytes
from fledge.tokenizer.base import Roles
from fledge.tokenizer.checks import MOST_IDS, brief, check_utf8, check_whole

END_OF_TEXT = "<|endoftext|>"


def checked_specials(given: Any) -> list[str]:
    """The special tokens that a person gave, if they can be such."""
    if isinstance(given, str):
        raise FledgeError(f"special_tokens = {brief(given)} is one text; give a list of texts.")
    if not isinstance(given, Iterable):
        raise FledgeError(f"special_tokens = {brief(given)} is no list of texts.")
    specials = list(given)
    for text in specials:
        if not isinstance(text, str):
            raise FledgeError(f"the special token {brief(text)} is a {type(text).__name__}; special tokens are texts.")
        if not text:
            raise FledgeError("a special token is empty: it would be found everywhere.")
        check_utf8("the special token", text)
    return specials


def number_specials(vocab: dict[int, bytes], given: Mapping[str, int] | Iterable[str] | None) -> dict[str, int]:
    """Ids for the special tokens; those that the vocabulary lacks are entered into it."""
    if given is None:
        return {}
    texts = checked_specials(given)
    if isinstance(given, Mapping):
        numbered = dict(given)
    else:
        known = {data: token for token, data in sorted(vocab.items(), reverse=True)}
        free = max(vocab, default=-1) + 1
        numbered = {}
        for text in texts:
            if text not in numbered:
                numbered[text] = known.get(to_bytes(text), free)
                free += numbered[text] == free
    for text, token in numbered.items():
        check_whole(f"the id of {text}", token, 0, MOST_IDS - 1)
        if vocab.setdefault(token, to_bytes(text)) != to_bytes(text):
            raise FledgeError(f"the special token {text} has the id {token}, which {vocab[token]!r} has already.")
    if len(set(numbered.values())) < len(numbered):
        raise FledgeError("two special tokens have the same id.")
    return numbered


def roles_by_name(specials: Mapping[str, int]) -> Roles:
    """`<|endoftext|>` starts, ends and separates; other names are those that are in wide use."""

    def first(*names: str) -> int | None:
        return next((specials[name] for name in names if name in specials), None)

    end_of_text = first(END_OF_TEXT)
    end = first("<|end|>", "</s>", "<end>", "<eos>", "[EOS]")
    end = end_of_text if end is None else end
    start = first("<|start|>", "<s>", "<start>", "<bos>", "[BOS]", "<|startoftext|>", "<|begin_of_text|>")
    only = next(iter(specials.values())) if len(specials) == 1 else None
    return Roles(
        unknown=first("<unk>", "<|unk|>", "<unknown>", "[UNK]"),
        start=start if start is not None else end_of_text,
        end=end if end is not None else only,
        pad=first("<pad>", "<|pad|>", "[PAD]"),
        separator=end_of_text if end_of_text is not None else (end if end is not None else only),
    )
