"""Several bundles on the same text, side by side: bits per byte is fair to all of them, whatever their tokenizers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.errors import FledgeError
from fledge.evaluation.evaluate import Evaluation, evaluate, evaluate_texts, require_stride
from fledge.files import atomic_write
from fledge.plot import curves

if TYPE_CHECKING:
    from fledge.bundle import Bundle
    from fledge.tokens import TokenStore


def compare_on_texts(
    bundles: Mapping[str, Bundle], texts: Sequence[str | bytes], stride: int | None = None, **options: Any
) -> dict[str, Evaluation]:
    """Every bundle on the same documents, each with its own tokenizer; `options` are those of `evaluate_texts`."""
    return _each(bundles, stride, lambda one: evaluate_texts(one.model, one.tokenizer, texts, stride=stride, **options))


def compare_on_store(
    bundles: Mapping[str, Bundle],
    store: TokenStore,
    split: str = "validation",
    stride: int | None = None,
    **options: Any,
) -> dict[str, Evaluation]:
    """Every bundle on a split of a token store, which must have been made with its tokenizer; `options` are those of
    `evaluate`."""
    for name, bundle in bundles.items():  # all of them, before the first is evaluated
        with _about(name, "Or evaluate on a text, which works across tokenizers: --text FILE"):
            store.require(bundle.tokenizer)
    part = store.split(split)
    return _each(
        bundles, stride, lambda one: evaluate(one.model, part, tokenizer=one.tokenizer, stride=stride, **options)
    )


def _each(
    bundles: Mapping[str, Bundle], stride: int | None, evaluated: Callable[[Bundle], Evaluation]
) -> dict[str, Evaluation]:
    """A refusal names the bundle; a stride that does not fit one of them is refused before the first is evaluated."""
    for name, bundle in bundles.items() if stride is not None else ():
        with _about(name):
            require_stride(stride, bundle.model.context_length)
    found = {}
    for name, bundle in bundles.items():
        with _about(name):
            found[name] = evaluated(bundle)
    return found


@contextmanager
def _about(name: str, advice: str = "") -> Iterator[None]:
    """A sentence that refuses one of several bundles says which, and what else there is to try."""
    try:
        yield
    except FledgeError as error:
        raise FledgeError(f"{name}: {error}{advice and '. '}{advice}") from None


def position_plot(evaluations: Mapping[str, Evaluation], path: Path) -> None:
    """Loss against the tokens of context a prediction had, as SVG; far positions are averaged to calm the curve."""
    lines = {}
    for name, evaluation in evaluations.items():
        edges = _edges(len(evaluation.by_position))
        means = [evaluation.by_position[a:b] for a, b in itertools.pairwise(edges)]
        middles = [math.sqrt((a + 1) * b) for a, b in itertools.pairwise(edges)]
        points = [(x, float(np.nanmean(y))) for x, y in zip(middles, means, strict=True) if np.isfinite(y).any()]
        lines[name] = ([x for x, _ in points], [y for _, y in points])
    drawing = curves(lines, "tokens of context", "loss (nats per token)", log_x=True)
    with atomic_write(path) as file:
        file.write(drawing.encode())


def _edges(length: int) -> list[int]:
    """Borders of bins that grow by a seventh: one position each at first.

    >>> _edges(12)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    """
    edges = [0]
    while edges[-1] < length:
        edges.append(min(length, edges[-1] + max(1, (edges[-1] + 6) // 7)))
    return edges
