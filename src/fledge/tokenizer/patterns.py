"""How text is cut before it is merged: by the patterns of native code, or in Python by a regular expression of the
user's own (the `regex` package), between special tokens, and composed where that is asked for.

Text that the expression does not match is kept too, each gap as one pre-token, so that nothing is lost.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from fledge.errors import FledgeError, nearest, note
from fledge.files import to_bytes
from fledge.tokenizer.base import Ids, Tokenizer
from fledge.tokenizer.checks import check_special, check_utf8

PATTERNS = ("gpt2", "cl100k", "o200k")
"The patterns that native code knows."
PATIENCE = 2.0  # seconds for any text
SLOWEST = 50_000  # characters a second beyond that; an expression that tries few ways takes a million
PROBES = [piece * 40 + "\0" for piece in ("a", "A", "1", " ", "\n", "!", "'", "é", "漢", "a ", "a1", "aA", "a!")]


def check_pattern(pattern: str) -> None:
    """Refuse what is neither a known pattern nor a regular expression."""
    if not isinstance(pattern, str):
        raise FledgeError(f"pattern = {pattern!r:.60} must be gpt2, cl100k, o200k or a regular expression.")
    if pattern not in PATTERNS:
        check_utf8("the pattern", pattern)
        compile_pattern(pattern)


@cache
def compile_pattern(pattern: str) -> Any:
    """The compiled expression; the first time, a warning that it is the slower way."""
    _refuse_a_slip(pattern)
    try:
        import regex
    except ImportError:
        from fledge.extras import missing  # which reads what is installed

        raise missing("A pattern of your own (gpt2, cl100k and o200k do not)", "regex", "data") from None
    try:
        compiled = regex.compile(pattern)
    except (regex.error, RecursionError) as error:
        raise FledgeError(
            f"the pattern {pattern!r:.200} is not one of gpt2, cl100k, o200k, nor a regular expression: {error}."
        ) from None
    if compiled.flags & regex.REVERSE:
        raise FledgeError(f"the pattern {pattern!r:.200} searches backwards, and text is cut forwards: leave out (?r).")
    for probe in PROBES:
        try:
            for _ in compiled.finditer(probe, timeout=PATIENCE):
                pass
        except TimeoutError:
            raise _too_slow(pattern, PATIENCE, len(probe)) from None
    note(
        f"the pattern {pattern!r} is a regular expression, which the regex package cuts by: many times slower than "
        "gpt2, cl100k and o200k. Other programs read it with engines of their own, which may cut some text otherwise."
    )
    return compiled


def _refuse_a_slip(pattern: str) -> None:
    """A plain word is a regular expression too, one that finds nothing but itself; near a known name it is a slip."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", pattern):
        close = nearest(pattern.lower(), PATTERNS)
        if close.startswith("Did"):
            raise FledgeError(
                f"{pattern} is not a pattern. {close} As a regular expression it is written (?:{pattern})."
            )


def cut_pretokens(pattern: str, data: bytes) -> Iterator[bytes]:
    """The pre-tokens of a text without special tokens, gaps included: joined, they are the text.

    An expression may try ever more ways to match the more there is to match: one that takes too long is given up.
    """
    text = data.decode("utf-8", "surrogateescape")
    done = 0
    limit = PATIENCE + len(text) / SLOWEST
    try:
        for match in compile_pattern(pattern).finditer(text, timeout=limit, concurrent=True):
            start, end = match.span()
            if start > done:
                yield text[done:start].encode("utf-8", "surrogateescape")
            if end > start:
                yield text[start:end].encode("utf-8", "surrogateescape")
            done = max(done, end)
    except TimeoutError:
        raise _too_slow(pattern, limit, len(text)) from None
    if done < len(text):
        yield text[done:].encode("utf-8", "surrogateescape")


def _too_slow(pattern: str, seconds: float, characters: int) -> FledgeError:
    return FledgeError(
        f"the pattern {pattern!r:.200} needs more than {seconds:.2g} s for a text of {characters:,} characters: it "
        "tries too many ways to match. Use gpt2, cl100k or o200k, or an expression in which nothing that is repeated "
        "repeats itself."
    )


@cache
def _special_expression(specials: tuple[bytes, ...]) -> Any:
    return re.compile(b"|".join(re.escape(text) for text in sorted(specials, key=len, reverse=True)))


def between_specials(data: bytes, specials: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """(text, the special token after it), in order; the last has None. The leftmost wins, then the longest."""
    known = tuple(specials)
    done = 0
    if known:
        for match in _special_expression(known).finditer(data):
            yield data[done : match.start()], match.group()
            done = match.end()
    yield data[done:], None


def compose(data: bytes) -> bytes:
    """The text in Unicode's form NFC; the same object where it is in it."""
    if data.isascii():
        return data
    text = data.decode("utf-8", "surrogateescape")
    if unicodedata.is_normalized("NFC", text):
        return data
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogateescape")


def encode_between(
    tokenizer: Tokenizer, data: bytes, special: str, start: int, encode: Callable[[bytes, int], Ids]
) -> Ids:
    """The ids of a text: its special tokens, and between them what `encode` makes of each stretch and its place. A
    refusal names the byte, counted from `start`."""
    check_special(special)
    specials = {to_bytes(text): token for text, token in tokenizer.special_tokens.items()}
    parts: list[Ids] = []
    always = [to_bytes(text) for text in tokenizer.always]
    done = start
    for text, token in between_specials(data, always if special == "text" else specials):
        if token is not None and special == "refuse" and token not in always:
            raise refused(token, done + len(text))
        parts.append(encode(text, done))
        done += len(text) + len(token or b"")
        if token is not None:
            parts.append(np.array([specials[token]], tokenizer.token_dtype))
    return np.concatenate(parts)


def refused(token: bytes, place: int, text: str = "the text") -> FledgeError:
    """The sentence for a special token that `special="refuse"` met at byte `place`."""
    return FledgeError(
        f"{text} holds the special token {token.decode('utf-8', 'replace')} at byte {place}, and "
        "special='refuse' forbids it. special='text' takes it as plain text, special='recognise' as the token."
    )


def count_with_pattern(pattern: str, data: bytes, specials: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """How often each pre-token occurs, special tokens left out."""
    counts: Counter[bytes] = Counter()
    for text, _ in between_specials(data, specials):
        counts.update(cut_pretokens(pattern, text))
    return list(counts.items())
