"""A training that runs, as one output of a notebook's cell: both losses, throughput, numbers and the newest sample."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

from fledge.notebook import FONT, SMALL, TEXT, Cell, drawing, element, table
from fledge.plot import curves
from fledge.progress import readable_time
from fledge.runs.metrics import Row, curve, learning_curves

EVERY = 1.0  # seconds between updates
SHARE = 0.03  # of the time that drawing may take from training
MOST_POINTS = 800
MOST_NOTES = 8
NUMBERS = {
    "loss": ("loss", "{:.4f}"),
    "validation_loss": ("validation loss", "{:.4f}"),
    "bits_per_byte": ("bits per byte", "{:.4f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "learning_rate": ("learning rate", "{:.3g}"),
}


class LossChart:
    """`rows` gives the rows of the metrics so far. Curves are drawn as often as `SHARE` allows, numbers each second."""

    def __init__(self, title: str, steps: int, cell: Cell) -> None:
        self.title, self.steps, self.cell = title, steps, cell
        self.rows: Callable[[], Sequence[Row]] = list
        self.sample: tuple[int, str] | None = None
        self.notes: list[str] = []
        self._drawn: list[str] = []
        self._shown = self._next_drawing = 0.0

    def note(self, text: str) -> None:
        """A line that stays below the curves; of many, the last ones."""
        self.notes = [*self.notes, text][-MOST_NOTES:]
        self._show(self.rows(), text, None)

    def update(self, line: str, left: float | None = None) -> None:
        """Show the rows there are, at most once a second; `left` seconds to go."""
        began = time.monotonic()
        if began - self._shown < EVERY:
            return
        rows = self.rows()
        if began >= self._next_drawing:
            self._drawn = draw_losses(rows)
            self._next_drawing = began + (time.monotonic() - began) / SHARE
        self._show(rows, line, left)

    def close(self, line: str) -> None:
        """The last state, with all of its curves."""
        rows = self.rows()
        self._drawn = draw_losses(rows)
        self._show(rows, line, None)

    def _show(self, rows: Sequence[Row], line: str, left: float | None) -> None:
        self.cell.show(self._html(rows, left), line)
        self._shown = time.monotonic()

    def _html(self, rows: Sequence[Row], left: float | None) -> str:
        step = max((int(row["step"]) for row in rows[-1:]), default=0)
        parts = [f"<b>{html.escape(self.title)}</b>: step {step:,} of {self.steps:,}"]
        if left is not None and step < self.steps:
            parts.append(f", {readable_time(left)} left")
        known = {name: next((row[name] for row in reversed(rows) if row[name]), "") for name in NUMBERS}
        numbers = [(label, form.format(float(known[name]))) for name, (label, form) in NUMBERS.items() if known[name]]
        body = [element("div", "".join(parts))]
        body.append(element("progress", "", "width:100%", value=str(step), max=str(max(1, self.steps))))
        if numbers:
            body.append(table([label for label, _ in numbers], [[value for _, value in numbers]]))
        body += self._drawn
        if self.sample is not None:
            body.append(element("div", f"It wrote after step {self.sample[0]:,}:", SMALL))
            body.append(element("div", html.escape(self.sample[1]), f"{TEXT};margin:0.2em 0 0.6em 1em"))
        body += [element("div", html.escape(note), SMALL) for note in self.notes]
        return element("div", "".join(body), f"{FONT};max-width:56em")


def draw_losses(rows: Sequence[Row]) -> list[str]:
    """Both losses against the steps, with the time above them, and the throughput."""
    lines, times = learning_curves(rows, most=MOST_POINTS)
    if not lines:
        return []
    losses = curves(lines, "step", "nats per token", times=times)
    found = [drawing(losses, "Training and validation loss by step")]
    speeds = curve(rows, "step", "tokens_per_second", MOST_POINTS)
    if len(speeds[0]) > 1:
        found.append(drawing(curves({"": speeds}, "", "tokens/s", height=1.6), "Tokens per second by step"))
    return found
