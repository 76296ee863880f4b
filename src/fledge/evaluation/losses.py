"""The loss of every token, and how much context it had: strided windows over a stream, or over each document alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fledge.bundle.fit import NOT_FINITE
from fledge.errors import FledgeError
from fledge.progress import progress_bar

if TYPE_CHECKING:
    from fledge.model import Model

LARGEST_LOGITS = 1 << 24  # scores held at once


class Window(NamedTuple):
    """Tokens `start`..`end` are read, and those from `scored` on are predicted: every token by exactly one window."""

    start: int
    end: int
    scored: int


class TokenLosses(NamedTuple):
    """For each predicted token its loss in nats, the number of tokens it was predicted from, and where it stands."""

    nats: NDArray[np.float32]
    contexts: NDArray[np.int32]
    places: NDArray[np.int64]


def windows_over(starts: Sequence[int], ends: Sequence[int], context: int, stride: int) -> Iterator[Window]:
    """Windows of at most `context` inputs over each stretch `start`..`end`, moved by `stride`.

    The first token of a stretch has nothing before it and is not predicted.

    >>> list(windows_over([0], [8], context=4, stride=2))[1]
    Window(start=2, end=7, scored=5)
    """
    for start, end in zip(starts, ends, strict=True):
        scored = start + 1
        begin = start
        while scored < end:
            stop = min(begin + context + 1, end)
            yield Window(begin, stop, scored)
            scored = stop
            begin = max(begin, stop + stride - context - 1)


@torch.inference_mode()
def token_losses(
    model: Model,
    tokens: NDArray[np.integer],
    windows: Sequence[Window],
    batch_tokens: int = 16_384,
    progress: bool = False,
) -> TokenLosses:
    """Every window's predicted tokens, through batches of windows of like length."""
    count = sum(window.end - window.scored for window in windows)
    if not count:
        raise FledgeError("There is no token to predict, because the text has fewer than two tokens.")
    nats = np.empty(count, dtype=np.float32)
    contexts = np.empty(count, dtype=np.int32)
    places = np.empty(count, dtype=np.int64)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    done = 0
    try:
        with progress_bar("Evaluating", count, unit="tokens", scale=1, shown=progress) as bar:
            for batch in _batches(windows, batch_tokens):
                longest = max(window.end - window.start for window in batch) - 1
                ids_BT = np.zeros((len(batch), longest + 1), dtype=np.int64)
                scored_BT = np.zeros((len(batch), longest), dtype=bool)
                for row, window in enumerate(batch):
                    ids_BT[row, : window.end - window.start] = tokens[window.start : window.end]
                    scored_BT[row, window.scored - window.start - 1 : window.end - window.start - 1] = True
                ids, scored = torch.from_numpy(ids_BT), torch.from_numpy(scored_BT)
                model.check_ids(ids)
                hidden_BTD, _ = model.hidden(ids[:, :-1].to(device))
                found = _losses(model, hidden_BTD[scored.to(device)], ids[:, 1:][scored].to(device))
                if not np.isfinite(found).all():
                    raise FledgeError(NOT_FINITE)
                rows, columns = np.nonzero(scored_BT)
                piece = slice(done, done + len(rows))
                nats[piece] = found
                contexts[piece] = columns + 1
                places[piece] = np.array([window.start for window in batch])[rows] + columns + 1
                done = piece.stop
                bar.advance(len(rows))
    finally:
        model.train(was_training)
    return TokenLosses(nats, contexts, places)


def _losses(model: Model, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> NDArray[np.float32]:
    rows = max(1, LARGEST_LOGITS // model.vocabulary_size)
    found = [
        functional.cross_entropy(model.head(hidden).float(), targets, reduction="none")
        for hidden, targets in zip(torch.split(hidden_ND, rows), torch.split(targets_N, rows), strict=True)
    ]
    losses: NDArray[np.float32] = torch.cat(found).cpu().numpy()
    return losses


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Windows sorted by length, longest first, so that little is padded and memory runs out at once if ever."""
    ordered = sorted(windows, key=lambda window: window.start - window.end)
    begin = 0
    while begin < len(ordered):
        length = ordered[begin].end - ordered[begin].start
        size = max(1, batch_tokens // length)
        yield ordered[begin : begin + size]
        begin += size
