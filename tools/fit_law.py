"""Fits the law of `fledge.start.law` to measured runs, and says how far off it is for texts that were left out.

    python -m tools.fit_law docs/results/little-text.csv --plot docs/results/little-text.svg

Least squares on the logarithm of the bits per byte, by Levenberg and Marquardt, with a weak pull towards published
exponents: 0.34 for parameters and 0.28 for tokens (Hoffmann et al. 2022). The constants go into `law.py` by hand.
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

from fledge.start.law import Constants, Text, expected_bits

ERROR, GPU_ERROR = 0.01, 0.005
"How far off a run the law may be, as a share; closer for the few on a GPU, which decide on the size there."
BELIEFS = {  # where each constant is sought, and how far from there it may be
    "unlearned_size": (0.5, 0.3),
    "size": (0.34, 0.05),
    "tokens": (0.28, 0.05),
    "reach": (0.5, 0.5),
}
POSITIVE = {  # these by their logarithms
    "unlearned": (0.8, 1.0),
    "small": (0.03, 2.0),
    "few": (0.2, 2.0),
    "overfitting": (3e-4, 3.0),
}
POSITIVE |= {"overfitting_size": (0.5, 0.2), "overfitting_decay": (1.0, 1.5), "decay_price": (0.04, 1.0)}


class Cell(NamedTuple):
    """One measured run."""

    text: str
    counted: Text
    parameters: float
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
        parameters, decay, bits = (float(row[key]) for key in ("parameters", "decay", "bits_per_byte"))
        error = GPU_ERROR if int(row["fast"]) else ERROR
        found.append(Cell(row["text"], text, parameters, passes * unique, decay, bits, error, name))
    return found


def of_vector(values: NDArray[np.float64]) -> Constants:
    named = dict(zip(Constants._fields, values.tolist(), strict=True))
    return Constants(**{name: math.exp(value) if name in POSITIVE else value for name, value in named.items()})


def off(cells: Sequence[Cell], constants: Constants) -> NDArray[np.float64]:
    """By how much each cell's forecast is too high, as a logarithm."""
    forecasts = (expected_bits(c.counted, c.parameters, c.tokens, c.decay, constants) for c in cells)
    return np.array([math.log(bits / cell.bits) for bits, cell in zip(forecasts, cells, strict=True)])


def fit(cells: Sequence[Cell]) -> Constants:
    believed = {name: (math.log(value), width) for name, (value, width) in POSITIVE.items()} | BELIEFS
    start = np.array([believed[name][0] for name in Constants._fields])
    widths = np.array([believed[name][1] for name in Constants._fields])

    allowed = np.array([cell.error for cell in cells])

    def wrong(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([off(cells, of_vector(values)) / allowed, (values - start) / widths])

    return of_vector(least_squares(wrong, start))


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


def left_out(cells: Sequence[Cell]) -> dict[str, NDArray[np.float64]]:
    """For each kind of text, how far off the law is that was fitted without it."""
    found = {}
    for text in sorted({cell.text for cell in cells}):
        rest = [cell for cell in cells if cell.text != text]
        found[text] = off([cell for cell in cells if cell.text == text], fit(rest))
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
    found = left_out(cells)
    for text, values in found.items():
        root, worst = 100 * np.sqrt((values**2).mean()), 100 * np.abs(values).max()
        print(f"fitted without {text}: {root:.1f} % off on its {len(values)} runs, {worst:.1f} % at most")
    measured = np.concatenate([values for text, values in found.items() if not text.endswith("-gpu")])
    print(f"nine in ten of these on a CPU: {100 * np.quantile(np.abs(measured), 0.9):.1f} % off at most")
    if options.rows:
        for cell, error in zip(cells, errors, strict=True):
            print(f"  {cell.name}: {cell.bits:.3f}, expected {cell.bits * math.exp(error):.3f} ({100 * error:+.1f} %)")
    if options.plot:
        plot(cells, constants, options.plot)


if __name__ == "__main__":
    sys.exit(main())
