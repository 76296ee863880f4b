"""tiktoken's rank files: one token per line in base64, and its rank. Merges are recovered from the ranks.

A pair may merge when its bytes together are a token, the lowest rank first; so the merge that makes a token
is the pair that is left when all lower ranks have merged its bytes. By the same rule, some merges can't be
written as ranks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fledge.errors import FledgeError
from fledge.files import to_bytes
from fledge.tokenizer.checks import MOST_IDS
from fledge.tokenizer.parts import Parts, checked, token_id

LONGEST = 4096  # bytes of a token: finding its merge takes the square of them


class Encoding(NamedTuple):
    """A published encoding: where its ranks lie, their checksum, and what the file itself does not say."""

    address: str
    sha256: str
    size: int
    pattern: str
    special_tokens: dict[str, int]


_HOST = "https://openaipublic.blob.core.windows.net/encodings"
ENCODINGS = {
    "gpt2": Encoding(
        f"{_HOST}/r50k_base.tiktoken",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        835_554,
        "gpt2",
        {"<|endoftext|>": 50256},
    ),
    "cl100k": Encoding(
        f"{_HOST}/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        1_681_126,
        "cl100k",
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k": Encoding(
        f"{_HOST}/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        3_613_922,
        "o200k",
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    ),
}


def beside_ranks(ranks: Path) -> Path:
    """The file with what a rank file does not say: its pattern and its special tokens."""
    return ranks.with_name(ranks.name + ".json")


def read_ranks(data: bytes, where: str) -> dict[bytes, int]:
    """Tokens and ranks out of the contents of a `.tiktoken` file."""
    return _read_regular(data) or _read_lines(data, where)


def _read_regular(data: bytes) -> dict[bytes, int] | None:
    """A file that is just what would be written, all at once; None for any other, which is looked at line by line."""
    fields = data.split()
    if max(map(len, fields[1::2]), default=20) >= 20:
        return None
    try:
        ranks = dict(zip(map(binascii.a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    except ValueError:  # binascii's errors are of this kind
        return None
    taken = set(ranks.values())
    sound = b"" not in ranks and len(taken) * 2 == len(fields) and min(taken) >= 0 and max(taken) < MOST_IDS
    return ranks if sound and _written(ranks) == data else None


def _read_lines(data: bytes, where: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    taken: dict[int, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        try:
            encoded, digits = fields
            token = base64.b64decode(encoded, validate=True)
            rank = int(digits) if len(digits) < 20 else -1
        except (ValueError, binascii.Error):
            raise FledgeError(f"{where}: line {number} is not a token in base64 and its rank.") from None
        token_id(rank, where, repr(token))
        if not token or token in ranks:
            raise FledgeError(f"{where}: line {number} holds {'no token' if not token else f'{token!r:.60} again'}.")
        if rank in taken:
            raise FledgeError(f"{where}: lines {taken[rank]} and {number} have the same rank, {rank}.")
        ranks[token] = rank
        taken[rank] = number
    if not ranks:
        raise FledgeError(f"{where} is empty: it holds no ranks.")
    return ranks


def parts_of_ranks(ranks: Mapping[bytes, int], special_tokens: Mapping[str, int], pattern: str, where: str) -> Parts:
    """Vocabulary and merges out of ranks; a token that no merge can make is refused."""
    vocab = {rank: token for token, rank in ranks.items()}
    for text, token in special_tokens.items():
        if token in vocab:
            raise FledgeError(f"{where}: the special token {text} has the id {token}, which {vocab[token]!r:.60} has.")
        vocab[token] = to_bytes(text)
    if len(set(special_tokens.values())) < len(special_tokens):
        raise FledgeError(f"{where}: two special tokens have the same id.")
    tokens = sorted(ranks, key=ranks.__getitem__)
    if (longest := max(map(len, tokens), default=0)) > LONGEST:
        raise FledgeError(f"{where}: a token of {longest:,} bytes is too long for ranks (at most {LONGEST:,}).")
    merges = []
    for data, place in zip(tokens, _last_merges(tokens, ranks), strict=True):
        if place:
            merges.append((data[:place], data[place:]))
        elif len(data) > 1:
            raise FledgeError(f"{where}: no merge of lower-ranked tokens makes {data!r:.60}, so it can't be used.")
    return checked(Parts(vocab, merges, dict(special_tokens), pattern), where)


def _last_merges(tokens: list[bytes], ranks: Mapping[bytes, int]) -> list[int]:
    """Where the last merge of each token joins its halves, or 0; in native code where it is built."""
    try:
        from fledge._core import last_merges
    except ImportError:
        halves = (merged(data, lambda left, right: ranks.get(left + right), ranks[data]) for data in tokens)
        return [len(pieces[0]) if len(pieces) == 2 else 0 for pieces in halves]
    return last_merges(tokens)


def merged(token: bytes, rank: Callable[[bytes, bytes], int | None], below: int) -> list[bytes]:
    """What is left of a token's bytes when every pair ranked lower than `below` has merged, the lowest first.

    >>> ranks = {(b"b", b"c"): 3, (b"a", b"bc"): 4}
    >>> merged(b"abc", lambda *pair: ranks.get(pair), below=4)
    [b'a', b'bc']
    """

    def rank_at(place: int) -> int:
        found = rank(pieces[place], pieces[place + 1])
        return below if found is None else found

    pieces = [token[position : position + 1] for position in range(len(token))]
    pairs = [rank_at(place) for place in range(len(pieces) - 1)]
    while pairs and (lowest := min(pairs)) < below:
        place = pairs.index(lowest)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        del pairs[place]
        if place:
            pairs[place - 1] = rank_at(place - 1)
        if place < len(pairs):
            pairs[place] = rank_at(place)
    return pieces


def write_ranks(parts: Parts, where: str) -> bytes:
    """A `.tiktoken` file whose ranks are the ids; merges that ranks can't express are refused."""
    special = set(parts.special_tokens.values())
    ranks = {data: token for token, data in sorted(parts.vocab.items()) if token not in special}
    if len(ranks) + len(special) < len(parts.vocab):
        raise FledgeError(f"{where}: two ids have the same bytes, and a rank file can hold one of them.")
    again = parts_of_ranks(ranks, {}, parts.pattern, where)
    if again.merges != parts.merges:
        raise FledgeError(
            f"{where}: the merges are not in the order of the ids, which is all that a rank file keeps. "
            "Export it as tokenizer.json instead."
        )
    return _written(ranks)


def _written(ranks: Mapping[bytes, int]) -> bytes:
    return b"".join([b"%s %d\n" % (binascii.b2a_base64(data, newline=False), rank) for data, rank in ranks.items()])


def unreachable(parts: Parts) -> list[bytes]:
    """The tokens that encoding would never produce, because the merges of their bytes end elsewhere."""
    ranks = {pair: number for number, pair in enumerate(parts.merges)}
    special = set(parts.special_tokens.values())
    ordinary = (data for token, data in parts.vocab.items() if token not in special)

    def rank(left: bytes, right: bytes) -> int | None:
        return ranks.get((left, right))

    return [data for data in ordinary if len(data) > LONGEST or len(merged(data, rank, len(ranks))) > 1]
