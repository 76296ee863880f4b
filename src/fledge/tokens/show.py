"""A window as a person can read it: its text, cut where documents meet, and its attention mask as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.config import TokensConfig
from fledge.errors import FledgeError
from fledge.tokenizer.base import Tokenizer
from fledge.tokens.policies import make_windows
from fledge.tokens.store import TokenStore

Mask = npt.NDArray[np.bool_]
DRAWN = 64  # rows and columns of a mask drawn in a terminal, at most


@dataclass
class WindowPart:
    """Part of one document in a window, or a run of padding."""

    document: int
    first: int
    last: int
    positions: tuple[int, int]
    text: str


@dataclass
class WindowView:
    """One window: its stretches of documents, and who attends to whom."""

    number: int
    count: int
    stretches: list[WindowPart]
    mask: Mask


def view_window(store: TokenStore, tokenizer: Tokenizer, split: str, config: TokensConfig, number: int) -> WindowView:
    """Window `number` of a split under a policy, in the order in which windows lie."""
    windows = make_windows(store.split(split), config, store.roles, seed=0, shuffle=False, lanes=1)
    if not 0 <= number < len(windows):
        raise FledgeError(
            f"There is no window {number:,}: the {split} split has {len(windows):,} of them, numbered from 0."
        )
    batch = windows.batch([number])
    inputs = batch.inputs_BT[0].numpy()
    width = len(inputs)
    documents = np.zeros(width, int) if batch.documents_BT is None else batch.documents_BT[0].numpy()
    positions = np.arange(width) if batch.positions_BT is None else batch.positions_BT[0].numpy()
    if batch.documents_BT is None and (end := store.roles.separator) is not None:
        borders = np.cumsum(inputs == end)  # one text to the model; the reader still wants to see the borders
        shown = borders - borders[0]
    else:
        shown = documents
    edges = [0, *(np.flatnonzero(np.diff(shown)) + 1).tolist(), width]
    stretches = [
        WindowPart(
            int(shown[low]),
            low,
            high - 1,
            (int(positions[low]), int(positions[high - 1])),
            tokenizer.decode(inputs[low:high].tolist()) if shown[low] >= 0 else "",
        )
        for low, high in pairwise(edges)
    ]
    return WindowView(number, len(windows), stretches, attention_mask(documents))


def attention_mask(documents: npt.NDArray[Any]) -> Mask:
    """Row i attends to column j: earlier places of its own document; padding attends to itself alone.

    >>> attention_mask(np.array([0, 0, 1, -1])).astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    """
    places = np.arange(len(documents))
    same = documents[:, None] == documents[None, :]
    causal = places[:, None] >= places[None, :]
    padding = (documents == -1)[:, None]
    return np.asarray(np.where(padding, places[:, None] == places[None, :], same & causal))


def draw_text(mask: Mask) -> str:
    """The mask in characters, two rows a line; a large one is sampled down."""
    step = -(-len(mask) // DRAWN)
    small = mask[::step, ::step]
    if len(small) % 2:
        small = np.vstack([small, np.zeros((1, small.shape[1]), np.bool_)])
    marks = {(False, False): "·", (True, False): "▀", (False, True): "▄", (True, True): "█"}
    pairs = zip(small[::2].tolist(), small[1::2].tolist(), strict=True)
    return "\n".join("".join(marks[cell] for cell in zip(*pair, strict=True)) for pair in pairs)


def draw_picture(view: WindowView, path: Path) -> None:
    """The mask as an image file: SVG, PNG or PDF, by the end of the name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(view.mask, cmap="Greys", interpolation="nearest", vmin=0, vmax=1.4)
    axes.set_xlabel("attends to")
    axes.set_ylabel("place in the window")
    axes.set_title(f"Attention mask of window {view.number:,}")
    for stretch in view.stretches[1:]:
        axes.axhline(stretch.first - 0.5, color="tab:orange", linewidth=0.5)
        axes.axvline(stretch.first - 0.5, color="tab:orange", linewidth=0.5)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise FledgeError(f"{path} can't be drawn: {error}") from None
