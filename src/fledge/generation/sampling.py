"""From scores to the next token: penalty, temperature, top-k, top-p and min-p, then one draw per row.

A draw is the inverse of the cumulative distribution at a uniform number that belongs to (seed, sample, position), so a
row's text depends on neither the batch it stands in nor the device's generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.config import SamplingConfig

SHORTLIST = 256  # candidates tried first for top-p: they nearly always hold the share, and save sorting the vocabulary
COLDEST = 1e-30  # below, scores divided by the temperature would leave a float's range; at it, the likeliest is certain


class Candidates(NamedTuple):
    """What may be drawn: scores after all filters (−inf where dropped), and their ids (None for all, in order)."""

    scores: Tensor
    ids: Tensor | None


def uniforms(seed: int, samples: int, start: int, count: int) -> Tensor:
    """Numbers in [0, 1) for `count` positions from `start` on, one row per sample: a pure function of its arguments.

    >>> bool((uniforms(7, 2, 3, 4) == uniforms(7, 2, 0, 7)[:, 3:]).all())
    True
    """
    rows = []
    for sample in range(samples):
        stream = np.random.Philox(key=np.array([seed & (2**64 - 1), sample], np.uint64))
        stream.advance(start // 4)  # Philox counts in blocks of four
        values = np.random.Generator(stream).random(count + start % 4)
        rows.append(values[start % 4 :])
    return torch.from_numpy(np.stack(rows))


def penalise(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Scores of tokens that occurred move towards the unlikely side: divided where positive, else multiplied."""
    lowered = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return torch.where(seen_BV, lowered, logits_BV)


def candidates(logits_BV: Tensor, config: SamplingConfig) -> Candidates:
    """The tokens that survive the filters, in the order temperature, top-k, top-p, min-p. Needs temperature > 0."""
    found = Candidates(logits_BV.float() / config.temperature, None)
    for name, keep in FILTERS.items():
        if (value := getattr(config, name)) is not None:
            found = keep(found, value)
    return found


def likeliest(found: Candidates, count: int) -> Candidates:
    return found if count >= found.scores.shape[-1] else Candidates(*torch.topk(found.scores, count))


def nucleus(found: Candidates, share: float) -> Candidates:
    """The likeliest tokens up to and with the one that reaches `share`; the likeliest always stays."""
    if share >= 1:
        return found
    scores, ids = found
    probabilities = torch.softmax(scores, dim=-1)
    if ids is None:
        shortlist = min(SHORTLIST, scores.shape[-1])
        best, ids = torch.topk(scores, shortlist)
        on_device = scores.device.type == "cuda"  # looking at the sum would make the processor wait for the GPU
        if on_device or probabilities.gather(-1, ids).sum(dim=-1).min() < share:
            best, ids = torch.sort(scores, dim=-1, descending=True, stable=True)
        scores, probabilities = best, probabilities.gather(-1, ids)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = before >= share
    dropped[..., 0] = False  # a share that a float rounds to 0 is reached before the first
    return Candidates(scores.masked_fill(dropped, -torch.inf), ids)


def near_the_likeliest(found: Candidates, share: float) -> Candidates:
    """Those that are at least this share as likely as the likeliest."""
    floor = found.scores.max(dim=-1, keepdim=True).values + float(np.log(share))
    return found._replace(scores=found.scores.masked_fill(found.scores < floor, -torch.inf))


FILTERS: dict[str, Callable[[Candidates, Any], Candidates]] = {
    "top_k": likeliest,
    "top_p": nucleus,
    "min_p": near_the_likeliest,
}
"By the setting that gives each its value, in the order in which they filter. A new one is a setting and a line here."


def draw(found: Candidates, uniforms_B: Tensor) -> Tensor:
    """One id per row: the first whose cumulative probability exceeds the row's uniform number."""
    cumulative = torch.softmax(found.scores.to(uniforms_B.dtype), dim=-1).cumsum(dim=-1)
    threshold = uniforms_B.unsqueeze(-1) * cumulative[..., -1:]
    place = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=cumulative.shape[-1] - 1)
    return (place if found.ids is None else found.ids.gather(-1, place)).squeeze(-1)


def row_by_row(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The function of all rows. On a CPU one at a time: for more, torch would wake its threads, which then get in the
    way of those that decode; and no row's outcome depends on the others."""
    if tensors[0].device.type != "cpu" or len(tensors[0]) == 1:
        return function(*tensors)
    return torch.cat([function(*rows) for rows in zip(*(torch.split(tensor, 1) for tensor in tensors), strict=True)])


def choose(logits_BV: Tensor, config: SamplingConfig, uniforms_B: Tensor, seen_BV: Tensor | None = None) -> Tensor:
    """The next id of each row; temperature 0, or next to it, takes the likeliest, the lowest id among equals."""
    if seen_BV is not None:
        logits_BV = penalise(logits_BV, seen_BV, config.repetition_penalty)
    if config.temperature < COLDEST:
        return row_by_row(lambda row: row.argmax(dim=-1), logits_BV)
    return row_by_row(lambda row, number: draw(candidates(row, config), number), logits_BV, uniforms_B)
