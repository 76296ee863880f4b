"""Documents to ids with what bounds them: the step of writing a store that can run anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from fledge.corpus import Batch
from fledge.tokenizer.base import Ids, Tokenizer
from fledge.tokens.store import end_token, layout_of

Special = Literal["recognise", "text"]


class Encoded(NamedTuple):
    """The ids of some documents, where each starts among them, and the bytes of their text."""

    ids: Ids
    starts: Ids
    source_bytes: int


def encode_batches(
    batches: Iterable[Batch], tokenizer: Tokenizer, special: Special, threads: int | None
) -> Iterator[tuple[Batch, dict[str, Encoded]]]:
    """Each batch with its ids, by split."""
    for batch in batches:
        yield batch, encode_batch(batch, tokenizer, special, threads)


def encode_batch(
    batch: Batch, tokenizer: Tokenizer, special: Special, threads: int | None
) -> dict[str, Encoded]:
    """The documents of each split that the batch holds any of."""
    held = batch.validation.tolist()
    parts = {
        "train": [text for text, out in zip(batch.documents, held, strict=True) if not out],
        "validation": [text for text, out in zip(batch.documents, held, strict=True) if out],
    }
    return {name: _encode(texts, tokenizer, special, threads) for name, texts in parts.items() if texts}


def _encode(documents: list[bytes], tokenizer: Tokenizer, special: Special, threads: int | None) -> Encoded:
    offsets = np.zeros(len(documents) + 1, np.uint64)
    np.cumsum(np.fromiter(map(len, documents), np.uint64, len(documents)), out=offsets[1:])
    ids, bounds = tokenizer.encode_spans(b"".join(documents), offsets, special, threads)
    ids, starts = bounded(ids, bounds, tokenizer)
    return Encoded(ids.astype(ids.dtype.newbyteorder("<"), copy=False), starts, int(offsets[-1]))


def bounded(ids: Ids, bounds: Ids, tokenizer: Tokenizer) -> tuple[Ids, Ids]:
    """Put the tokens that bound documents between them; the result, and where each document starts in it."""
    roles = tokenizer.roles
    layout, end = layout_of(roles), end_token(roles)
    if layout == "bare":
        return ids, bounds[:-1]
    extra = 2 if layout == "bounded" else 1
    count = len(bounds) - 1
    ends = bounds[1:] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(extra) - np.uint64(1)
    starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1] + np.uint64(1)))
    result = np.empty(len(ids) + count * extra, ids.dtype)
    plain = np.ones(len(result), np.bool_)
    plain[ends] = False
    if layout == "bounded":
        plain[starts] = False
        result[starts] = roles.start
    result[plain] = ids
    result[ends] = roles.end if layout == "bounded" else end
    return result, starts
