"""Curves as SVG text, drawn with matplotlib in colours that read on light and on dark pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Curve = tuple[Sequence[float], Sequence[float]]

COLOURS = ("#3b82b8", "#d1643f", "#4f9a5b", "#9a6cc4", "#b88a2d", "#c2527f", "#5a8f99", "#7d7d7d")
GREY = "#808790"


TIMES = ((1, "s"), (60, "min"), (3600, "h"), (86_400, "d"))
MOST_MARKS = 6


def time_marks(times: Curve) -> list[tuple[float, str]]:
    """Round times with their places on the x axis, of curves whose points are at these times. Of several times at
    nearly one place, as in a long evaluation, the first stands there.

    >>> time_marks(([0, 100, 200], [0.0, 200.0, 240.0]))
    [(0.0, '0 min'), (30.0, '1 min'), (60.0, '2 min'), (90.0, '3 min'), (200.0, '4 min')]
    >>> time_marks(([0, 50, 50, 100], [0.0, 10.0, 110.0, 120.0]))
    [(0.0, '0 s'), (50.0, '30 s'), (100.0, '120 s')]
    """
    import numpy as np

    known = sorted(zip(times[1], times[0], strict=True))
    if not known or known[-1][0] <= 0:
        return []
    first, last = known[0][0], known[-1][0]
    sizes = [(count, 1, "s") for count in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)]
    sizes += [(size * count, size, unit) for size, unit in TIMES for count in (1, 2, 5, 10, 15, 30)]
    step, size, unit = next(
        (each for each in sorted(sizes) if (last - first) / each[0] <= MOST_MARKS - 1),
        (last, TIMES[-1][0], TIMES[-1][1]),
    )
    seconds = [number * step for number in range(int(-(-first // step)), int(last // step) + 1)]
    places = np.interp(seconds, [second for second, _ in known], [place for _, place in known])
    apart = (times[0][-1] - times[0][0]) / (2 * MOST_MARKS)  # closer labels overlap
    marks: list[tuple[float, str]] = []
    for place, second in zip(places, seconds, strict=True):
        if not marks or place - marks[-1][0] > apart:
            marks.append((float(place), f"{second / size:g} {unit}"))
    return marks


SCALES = {
    1e24: "septillion",
    1e21: "sextillion",
    1e18: "quintillion",
    1e15: "quadrillion",
    1e12: "trillion",
    1e9: "billion",
    1e6: "million",
}


def in_words(value: float) -> str:
    """A number as people say it.

    >>> in_words(19_920_000), in_words(500_000), in_words(2.5e13)
    ('19.9 million', '500,000', '25 trillion')
    """
    for size, word in SCALES.items():
        if abs(float(f"{value:.3g}")) >= size:
            scaled = float(f"{value / size:.3g}")
            return f"{scaled:,g} {word}"
    return f"{value:,.0f}"


def plain(value: float) -> str:
    """The label of a tick: in words from ten thousand on, and never a power of ten.

    >>> plain(0.00003), plain(0.5), plain(2.0), plain(20_000.0), plain(3e6)
    ('0.00003', '0.5', '2', '20,000', '3 million')
    """
    if abs(value) >= 10_000:
        return in_words(value)
    return f"{value:.12f}".rstrip("0").rstrip(".") if abs(value) < 1e-4 else f"{value:g}"


def label_ticks(axis: Any) -> None:
    """Plain numbers at the ticks of a logarithmic axis, and at the ticks between where the axis has few."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, value: float, position: int | None = None) -> str:
            return plain(value) if super().__call__(value, position) else ""

    axis.set_major_formatter(Plain())
    axis.set_minor_formatter(Plain(minor_thresholds=(1, 0.5)))


def curves(
    lines: Mapping[str, Curve],
    x: str,
    y: str,
    *,
    levels: Mapping[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    times: Curve | None = None,
    point: tuple[str, float, float] | None = None,
    height: float = 4,
) -> str:
    """Named curves over one pair of axes; `levels` are drawn as labelled horizontal lines, and `point` as a labelled
    dot.

    With `times`, places on the x axis and the seconds at each, the time stands above the figure.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text (searchable, small), and a fixed salt makes equal plots equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fledge", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, height), layout="constrained")
        axes = figure.subplots()
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        for index, (name, (xs, ys)) in enumerate(lines.items()):
            axes.plot(xs, ys, label=name, color=COLOURS[index % len(COLOURS)], linewidth=1.6)
        for name, level in (levels or {}).items():
            axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                name,
                (1, level),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 3),
                textcoords="offset points",
                ha="right",
                color=GREY,
                fontsize=9,
            )
        axes.set_xlabel(x, color=GREY)
        axes.set_ylabel(y, color=GREY)
        axes.set_xscale("log" if log_x else "linear")
        axes.set_yscale("log" if log_y else "linear")
        axes.tick_params(which="both", colors=GREY)
        if point is not None:
            label, *place = point
            axes.plot(*place, "o", color=COLOURS[2], markersize=7)
            axes.annotate(
                label, (place[0], place[1]), (-6, 9), textcoords="offset points", ha="right", color=COLOURS[2]
            )
        columns = [xs for xs, _ in lines.values()], [ys for _, ys in lines.values()]
        for axis, logarithmic, column in zip((axes.xaxis, axes.yaxis), (log_x, log_y), columns, strict=True):
            if logarithmic:
                label_ticks(axis)
            elif max((max(values) for values in column if len(values)), default=0) >= 10_000:
                axis.set_major_formatter(lambda value, _: in_words(value))
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(GREY)
        if times is not None and (marks := time_marks(times)):
            above = axes.twiny()
            above.set_xlim(axes.get_xlim())
            above.set_xticks([place for place, _ in marks], [text for _, text in marks])
            above.set_xlabel("time", color=GREY)
            above.tick_params(colors=GREY)
            for spine in above.spines.values():
                spine.set_visible(False)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=GREY)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
