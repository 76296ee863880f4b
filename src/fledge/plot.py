"""Curves as SVG text, drawn with matplotlib in colours that read on light and on dark pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

Curve = tuple[Sequence[float], Sequence[float]]

COLOURS = ("#3b82b8", "#d1643f", "#4f9a5b", "#9a6cc4", "#b88a2d", "#c2527f", "#5a8f99", "#7d7d7d")
GREY = "#808790"


def curves(
    lines: Mapping[str, Curve],
    x: str,
    y: str,
    *,
    levels: Mapping[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Named curves over one pair of axes; `levels` are drawn as labelled horizontal lines."""
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text (searchable, small), and a fixed salt makes equal plots equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fledge", "font.family": "sans-serif"}):
        figure = Figure(figsize=(8, 4), layout="constrained")
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
        axes.tick_params(colors=GREY)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(GREY)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=GREY)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
