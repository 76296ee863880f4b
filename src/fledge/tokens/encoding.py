"""Documents to ids with what bounds them: the step of writing a store that can run anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fledge.corpus import DocumentBatch, JoinedText
from fledge.corpus.native import native
from fledge.corpus.split import PARTS, Parts
from fledge.tokenizer.base import Ids, Tokenizer
from fledge.tokenizer.checks import thread_count
from fledge.tokens.scratch import Pool
from fledge.tokens.store import end_token, layout_of

POOL = Pool()
LANES = 2
Special = Literal["recognise", "text"]


class Encoded(NamedTuple):
    """The ids of some documents, where each starts among them, and the bytes of their text."""

    ids: Ids
    starts: Ids
    source_bytes: int


def encode_batches(
    batches: Iterable[DocumentBatch], tokenizer: Tokenizer, threads: int | None
) -> Iterator[tuple[DocumentBatch, dict[str, Encoded]]]:
    """Each batch with its ids, by split, in order.

    Two batches are encoded side by side, each on half of the threads: while one is at its last piece, or is being
    divided, the other keeps the cores busy.
    """
    cores = thread_count(threads)
    lanes = min(LANES, cores)
    under_way: deque[tuple[DocumentBatch, Future[dict[str, Encoded]]]] = deque()
    pool = ThreadPoolExecutor(lanes, thread_name_prefix="encoder")
    try:
        for batch in batches:
            under_way.append((batch, pool.submit(encode_batch, batch, tokenizer, batch.special, -(-cores // lanes))))
            if len(under_way) > lanes:
                first, encoded = under_way.popleft()
                yield first, encoded.result()
        for first, encoded in under_way:
            yield first, encoded.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def encode_batch(
    batch: DocumentBatch, tokenizer: Tokenizer, special: Special, threads: int | None
) -> dict[str, Encoded]:
    """The documents of each split that the batch holds any of."""
    if not len(batch.text):
        return {}
    ids, starts = _encode(batch.text, tokenizer, special, threads)
    ids = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
    sizes = batch.text.ends - batch.text.starts
    return _by_part(ids, starts, sizes, batch.parts)


def _by_part(ids: Ids, starts: Ids, sizes: npt.NDArray[np.integer[Any]], parts: Parts) -> dict[str, Encoded]:
    present = np.unique(parts)
    name = PARTS[present[0]]
    if len(present) == 1:
        return {name: Encoded(ids, starts, int(sizes.sum()))}
    held = parts != present[0]
    lengths = np.diff(starts, append=np.uint64(len(ids)))
    divided = POOL.take(len(ids), ids.dtype)  # the documents of the first part, then all others
    divide = native("divide")
    if divide is None:
        of_held = np.repeat(held, lengths.astype(np.int64))
        np.concatenate((ids[~of_held], ids[of_held]), out=divided)
    else:
        bounds = np.append(starts, np.uint64(len(ids))) * np.uint64(ids.itemsize)
        divide(ids.data, bounds, held, divided.view(np.uint8))
    first, others = (np.cumsum(lengths[wanted], dtype=np.uint64) - lengths[wanted] for wanted in (~held, held))
    cut = int(lengths[~held].sum())
    own = Encoded(divided[:cut], first, int(sizes[~held].sum()))
    return {name: own, **_by_part(divided[cut:], others, sizes[held], parts[held])}


def _encode(text: JoinedText, tokenizer: Tokenizer, special: Special, threads: int | None) -> tuple[Ids, Ids]:
    """The ids of all documents with what bounds them, and where each starts.

    Where a separator that the tokenizer knows lies between documents, it is encoded with them, as a span of its own:
    the ids come out in their final order, and nothing is copied.
    """
    end = end_token(tokenizer.roles)
    mark = next((key for key, value in tokenizer.special_tokens.items() if value == end), "").encode()
    gaps = np.append(text.starts[1:], min(len(text.buffer), int(text.ends[-1]) + len(mark)))
    if special == "text" or not mark or layout_of(tokenizer.roles) != "separated" or (gaps == text.ends).any():
        joined = text.joined()
        offsets = np.append(joined.starts, joined.ends[-1:]).astype(np.uint64)
        ids, bounds = tokenizer.encode_spans(joined.buffer, offsets, special, threads)
        return bounded(ids, bounds, tokenizer)
    offsets = np.empty(2 * len(text) + 1, np.uint64)
    offsets[0:-1:2], offsets[1::2], offsets[2::2] = text.starts, text.ends, gaps
    ids, bounds = tokenizer.encode_spans(text.buffer, offsets, special, threads)
    between = bounds[1:-1:2]
    if (np.diff(bounds)[1::2] == 1).all() and (ids[between] == end).all():
        return ids, bounds[0:-1:2]
    own = np.repeat(np.tile([True, False], len(text)), np.diff(bounds).astype(np.int64))
    lengths = np.diff(bounds)[0::2]
    return bounded(ids[own], np.concatenate(([0], np.cumsum(lengths))).astype(np.uint64), tokenizer)


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
