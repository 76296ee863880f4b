"""Fits the law of `fledge.start.law` to measured runs, and says how far off it is for texts that were left out.

    python -m tools.fit_law docs/results/little-text.csv --plot docs/results/little-text.svg

Least squares on the logarithm of the bits per byte, by Levenberg and Marquardt, with a weak pull towards where each
constant is believed to be. The constants go into `law.py` by hand.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fledge.accounting import Account
from fledge.start import choose
from fledge.start.law import ROWS, Constants, Text, expected_bits

ERROR, TINY_ERROR, TINY, SHORT = 0.007, 0.02, 100_000, 800_000
"""How far off a run the law may be, as a share; the same for texts of fewer tokens, and for runs that see fewer, which
are another matter."""
TEXTS_DIFFER = 0.05
"How much harder or easier a text may be than its counts say."
BELIEFS = {  # where each constant is sought, and how far from there it may be
    "reach": (0.1, 0.5),
    "size": (0.3, 0.1),
    "tokens": (0.05, 0.1),
    "overfitting_size": (0.5, 0.2),
    "overfitting_passes": (1.0, 0.5),
}
POSITIVE = {
    "small": (0.05, 2.0),
    "overfitting": (3e-4, 3.0),
    "overfitting_decay": (1.0, 1.5),
    "decay_price": (0.04, 1.0),
}
"The same for those that are sought by their logarithms."


class Cell(NamedTuple):
    """One measured run."""

    text: str
    counted: Text
    size: float
    tokens: float
    decay: float
    bits: float
    error: float
    name: str


def read_cells(path: Path) -> list[Cell]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        unique, passes = float(row["unique"]), float(row["passes"])
        text = Text(int(unique), float(row["bigram"]), float(row["trigram"]))
        name = f"{row['text']} {int(row['bytes']):,} {row['layers']}x{row['width']} {passes:.0f} passes"
        name += f" decay {row['decay']}"
        model = choose.model_of(int(row["layers"]), int(row["width"]), row["fast"] == "1")
        size = Account(model, int(row["vocabulary"]), int(row["context"])).parameters.inside
        decay, bits = float(row["decay"]), float(row["bits_per_byte"])
        bits /= ROWS if "embedding_decay" in row["overrides"] else 1.0
        error = TINY_ERROR if unique < TINY or passes * unique < SHORT else ERROR
        found.append(Cell(row["text"], text, size, passes * unique, decay, bits, error, name))
    return found


def of_vector(values: NDArray[np.float64]) -> Constants:
    named = dict(zip(Constants._fields, values.tolist(), strict=True))
    return Constants(**{name: math.exp(value) if name in POSITIVE else value for name, value in named.items()})


def off(cells: Sequence[Cell], constants: Constants) -> NDArray[np.float64]:
    """By how much each cell's forecast is too high, as a logarithm."""
    forecasts = (expected_bits(c.counted, c.size, c.tokens, c.decay, constants) for c in cells)
    return np.array([math.log(bits / cell.bits) for bits, cell in zip(forecasts, cells, strict=True)])


def fit(cells: Sequence[Cell]) -> Constants:
    """The constants, fitted together with how much harder or easier each text is than its counts say.

    So what size, passes and decay do is learned from runs on the same text; the texts' own figures are thrown away.
    """
    believed = {name: (math.log(value), width) for name, (value, width) in POSITIVE.items()} | BELIEFS
    texts = sorted({cell.counted for cell in cells})
    start = np.array([believed[name][0] for name in Constants._fields] + [0.0] * len(texts))
    widths = np.array([believed[name][1] for name in Constants._fields] + [TEXTS_DIFFER] * len(texts))
    allowed, own = np.array([cell.error for cell in cells]), [texts.index(cell.counted) for cell in cells]

    def wrong(values: NDArray[np.float64]) -> NDArray[np.float64]:
        constants, harder = np.split(values, [len(Constants._fields)])
        return np.concatenate([(off(cells, of_vector(constants)) + harder[own]) / allowed, (values - start) / widths])

    return of_vector(least_squares(wrong, start)[: len(Constants._fields)])


def least_squares(wrong: Callable[[Any], NDArray[np.float64]], start: NDArray[np.float64]) -> NDArray[np.float64]:
    """Levenberg–Marquardt with differences for derivatives.

    >>> least_squares(lambda x: x - np.array([1.0, 2.0]), np.zeros(2)).round(6).tolist()
    [1.0, 2.0]
    """
    values, damping, step = start, 1e-2, 1e-5
    here = wrong(values)
    for _ in range(300):
        slopes = np.stack([(wrong(values + step * axis) - here) / step for axis in np.eye(len(values))], axis=1)
        towards = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(values)), -slopes.T @ here)
        there = wrong(values + towards)
        if np.isfinite(there).all() and there @ there < here @ here:
            values, here, damping = values + towards, there, max(damping / 3, 1e-9)
            if np.abs(towards).max() < 1e-7:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return values


def left_out(cells: Sequence[Cell]) -> NDArray[np.float64]:
    """For each cell, how far off the law is that was fitted without its kind of text."""
    found = np.zeros(len(cells))
    for text in {cell.text for cell in cells}:
        here = [number for number, cell in enumerate(cells) if cell.text == text]
        fitted = fit([cell for cell in cells if cell.text != text])
        found[here] = off([cells[number] for number in here], fitted)
    return found


def plot(cells: Sequence[Cell], constants: Constants, path: Path) -> None:
    """Expected against measured, one colour for each text."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fledge"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    expected = np.array([c.bits for c in cells]) * np.exp(off(cells, constants))
    for text in sorted({cell.text for cell in cells}):
        here = [number for number, cell in enumerate(cells) if cell.text == text]
        axes.scatter([cells[n].bits for n in here], expected[here], label=text, s=18)
    ends = [min(c.bits for c in cells) * 0.97, max(c.bits for c in cells) * 1.03]
    axes.plot(ends, ends, color="0.6", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="measured bits per byte", ylabel="expected by the law")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--rows", action="store_true", help="and every row with its forecast")
    options = parser.parse_args()
    cells = [cell for table in options.tables for cell in read_cells(table)]
    constants = fit(cells)
    for name, value in constants._asdict().items():
        print(f"    {name}: float = {value:.4g}")
    errors = off(cells, constants)
    print(f"{len(cells)} runs: {100 * np.sqrt((errors**2).mean()):.1f} % off (root mean square)")
    found, tiny = left_out(cells), np.array([cell.counted.tokens < TINY for cell in cells])
    texts = np.array([cell.text for cell in cells])
    gpu = np.array([text.endswith("-gpu") for text in texts])
    groups = {text: (texts == text) & ~tiny for text in sorted(set(texts[~tiny]))}
    groups |= {"their kind, all on a CPU": ~gpu & ~tiny, f"their kind, texts of fewer than {TINY:,} tokens": tiny}
    for name, chosen in groups.items():
        wrong = 100 * np.abs(found[chosen])
        root, most = np.sqrt((wrong**2).mean()), np.quantile(wrong, 0.9)
        print(f"fitted without {name}: {root:.1f} % off on its {len(wrong)} runs, nine in ten at most {most:.1f} %")
    if options.rows:
        for cell, error in zip(cells, errors, strict=True):
            print(f"  {cell.name}: {cell.bits:.3f}, expected {cell.bits * math.exp(error):.3f} ({100 * error:+.1f} %)")
    if options.plot:
        plot(cells, constants, options.plot)


if __name__ == "__main__":
    sys.exit(main())
