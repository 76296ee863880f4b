"""What the person sees while training: a live table on a terminal, a chart in a notebook's cell, plain lines elsewhere.

Table and lines go to standard error.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fledge.files import readable_bytes
from fledge.notebook import running_cell
from fledge.training.chart import LossChart

if TYPE_CHECKING:
    from fledge.training.records import Records

LINE_EVERY = 5.0  # seconds between plain lines, evaluations aside


class View:
    """Shows rows of metrics as they come. `quiet` shows warnings alone; what is not `main`, nothing."""

    def __init__(self, title: str, steps: int, quiet: bool = False, main: bool = True) -> None:
        self.title, self.steps, self.shown, self.main = title, steps, main and not quiet, main
        self.console = Console(stderr=True)
        self._live: Live | None = None
        cell = running_cell() if self.shown else None
        self._chart = None if cell is None else LossChart(title, steps, cell)
        self._last_line = 0.0
        self._line_shown = ""
        self._values: dict[str, Any] = {}

    def start(self, records: Records | None) -> None:
        """Show the live table, where there is a terminal for it; whoever starts it closes it, or the cursor is lost."""
        if self._chart is not None and records is not None:
            self._chart.rows = lambda: records.metrics.rows
        elif self.shown and self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=False)
            self._live.start()

    def note(self, text: str) -> None:
        """A line that stays."""
        if self.shown:
            self._print(text)

    def warn(self, text: str) -> None:
        """A line that must be seen: something went otherwise than it was asked for."""
        if self.main:
            self._print(text)

    def sample(self, step: int, text: str) -> None:
        """What the model wrote after a step."""
        if self._chart is not None:
            self._chart.sample = (step, text)
        else:
            self.note(f"step {step} wrote: {text}")

    def _print(self, text: str) -> None:
        if self._chart is not None:
            self._chart.note(text)
        elif self._live:
            self.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def row(self, values: dict[str, Any], left: float | None) -> None:
        """New values; `left` seconds to go."""
        if not self.shown:
            return
        self._values.update({name: value for name, value in values.items() if value is not None})
        if self._chart is not None:
            self._line_shown = self._line(values, left)
            self._chart.update(self._line_shown, left)
        elif self._live:
            self._live.update(self._table(left))
        elif "validation_loss" in values or time.monotonic() - self._last_line >= LINE_EVERY:
            self._last_line = time.monotonic()
            print(self._line(values, left), file=sys.stderr, flush=True)

    def _line(self, values: dict[str, Any], left: float | None) -> str:
        parts = [f"step {values['step']}/{self.steps}"]
        if (validation := values.get("validation_loss")) is not None:
            parts.append(f"validation loss {validation:.4f}, perplexity {values['perplexity']:.2f}")
            if values.get("bits_per_byte") is not None:
                parts.append(f"{values['bits_per_byte']:.4f} bits per byte")
            if values.get("average_loss") is not None:
                parts.append(f"plain weights {values['plain_loss']:.4f}, averaged {values['average_loss']:.4f}")
            return ", ".join(parts)
        parts.append(f"loss {values['loss']:.4f}")
        if values.get("tokens_per_second") is not None:
            parts.append(f"{values['tokens_per_second']:,.0f} tokens/s")
        if values.get("mfu") is not None:
            parts.append(f"MFU {values['mfu']:.1%}")
        if left is not None:
            parts.append(f"{clock_time(left)} left")
        return ", ".join(parts)

    def _table(self, left: float | None) -> Table:
        known = self._values
        table = Table.grid(padding=(0, 2))
        step = known.get("step", 0)
        table.add_row(Text(self.title), f"step {step:,} of {self.steps:,}")
        table.add_row("", ProgressBar(total=self.steps, completed=step, width=40))
        shown = {
            "loss": ("loss", "{:.4f}"),
            "validation loss": ("validation_loss", "{:.4f}"),
            "bits per byte": ("bits_per_byte", "{:.4f}"),
            "learning rate": ("learning_rate", "{:.3g}"),
            "gradient norm": ("gradient_norm", "{:.3f}"),
            "tokens/s": ("tokens_per_second", "{:,.0f}"),
            "MFU": ("mfu", "{:.1%}"),
        }
        for label, (name, form) in shown.items():
            if known.get(name) is not None:
                table.add_row(label, form.format(known[name]))
        if known.get("memory"):
            table.add_row("memory", readable_bytes(known["memory"]))
        if left is not None:
            table.add_row("time left", clock_time(left))
        return table

    def close(self) -> None:
        if self._chart is not None:
            self._chart.close(self._line_shown)
        if self._live:
            self._live.stop()


def clock_time(seconds: float) -> str:
    """
    >>> clock_time(3725)
    '1 h 02 min'
    """
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
    return f"{seconds // 60} min {seconds % 60:02} s" if seconds >= 60 else f"{seconds} s"
