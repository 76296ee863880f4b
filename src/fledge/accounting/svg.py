"""A few shapes and a theme: enough SVG for our diagrams, readable on light and on dark pages."""

from __future__ import annotations

from html import escape

# kind: (fill, line) in the light theme, then in the dark one.
PALETTE: dict[str, tuple[str, str, str, str]] = {
    "plain": ("#f6f8fa", "#8c959f", "#21262d", "#768390"),
    "embedding": ("#d8f3e6", "#1f883d", "#12321f", "#3fb950"),
    "norm": ("#eceff3", "#8c959f", "#2b3038", "#8b949e"),
    "attention": ("#fff1d6", "#bf8700", "#3b2e0f", "#d29922"),
    "feed": ("#dcebff", "#1f6feb", "#102a4c", "#58a6ff"),
    "neuron": ("#efe2ff", "#8250df", "#2f1f4d", "#a371f7"),
    "recurrent": ("#ffe3dd", "#cf4b31", "#46201a", "#f0883e"),
    "head": ("#d8f3e6", "#1f883d", "#12321f", "#3fb950"),
    "group": ("#fbfcfd", "#afb8c1", "#161b22", "#484f58"),
}
SERIES = ("#1f6feb", "#bf8700", "#cf4b31", "#8250df", "#1f883d", "#6e7781", "#d63384")

_FIXED = """
text { font-family: -apple-system, 'Segoe UI', Helvetica, Arial, 'Liberation Sans', sans-serif; }
.title { font-size: 17px; font-weight: 600; } .name { font-size: 13px; font-weight: 600; }
.detail { font-size: 11.5px; } .small { font-size: 10.5px; }
.inside { font-size: 11.5px; font-weight: 600; fill: #fff; }
.flow, .residual, .state, .import { fill: none; }
.flow { stroke-width: 1.4; } .residual { stroke-width: 1.6; } .import { stroke-width: 1.2; }
.state { stroke-width: 1.8; stroke-dasharray: 6 4; }
"""
_LIGHT = """
.page { fill: #ffffff; } .title, .name { fill: #1f2328; }
.detail { fill: #424a53; } .small { fill: #59636e; }
.flow { stroke: #57606a; } .residual { stroke: #1a7f74; } .state { stroke: #cf222e; }
.import { stroke: #8c959f; }
.flow-tip { fill: #57606a; } .residual-tip { fill: #1a7f74; } .state-tip { fill: #cf222e; }
.import-tip { fill: #8c959f; } .state-word { fill: #cf222e; font-size: 11.5px; }
"""
_DARK = """
.page { fill: #0d1117; } .title, .name { fill: #e6edf3; }
.detail { fill: #c0c8d0; } .small { fill: #9aa4af; }
.flow { stroke: #9198a1; } .residual { stroke: #39c5bb; } .state { stroke: #ff7b72; }
.import { stroke: #6e7681; }
.flow-tip { fill: #9198a1; } .residual-tip { fill: #39c5bb; } .state-tip { fill: #ff7b72; }
.import-tip { fill: #6e7681; } .state-word { fill: #ff7b72; font-size: 11.5px; }
"""
_NARROW, _WIDE = set("iljtfrI.,:;'|!()[]·/ "), set("mwMW@%—→×")


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide a text is in a common sans-serif: to size boxes, with some room to spare."""
    units = sum(0.32 if c in _NARROW else 0.86 if c in _WIDE else 0.68 if c.isupper() else 0.57 for c in text)
    return units * size * (1.06 if bold else 1.0)


def shortened(text: str, size: float, room: float, bold: bool = False) -> str:
    """The text where it fits into `room`, else without its middle: the ends of a path tell the most.

    >>> shortened("runs/one-of-many/checkpoints/step-00000500", 13, 180)
    'runs/one-of-…tep-00000500'
    """
    cut = text
    for length in range(len(text) - 1, 1, -1):
        if text_width(cut, size, bold) <= room:
            break
        cut = f"{text[: length - length // 2]}…{text[len(text) - length // 2 :]}"
    return cut


class Drawing:
    """Shapes in the order in which they are painted; `render` wraps them into a page of the given size."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 7) -> None:
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
        self.items.append(f'<rect class="box-{kind}" {place}/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.items.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>')

    def dot(self, x: float, y: float, radius: float, kind: str) -> None:
        self.items.append(f'<circle class="{kind}-tip" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def circle(self, x: float, y: float, radius: float, kind: str) -> None:
        self.items.append(f'<circle class="box-{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def text(self, x: float, y: float, text: str, style: str = "detail", anchor: str = "middle") -> None:
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self.items.append(f'<text class="{style}" {place}>{escape(text, quote=False)}</text>')

    def path(self, d: str, style: str = "flow", tip: tuple[float, float, str] | None = None) -> None:
        """A line; with `tip`, an arrow head at (x, y) that points down, up, left or right."""
        self.items.append(f'<path class="{style}" d="{d}"/>')
        if tip:
            x, y, way = tip
            dx, dy = {"down": (0, -1), "up": (0, 1), "left": (1, 0), "right": (-1, 0)}[way]
            back_x, back_y = x + 7 * dx, y + 7 * dy
            left = f"{back_x + 3.6 * dy:g},{back_y + 3.6 * dx:g}"
            right = f"{back_x - 3.6 * dy:g},{back_y - 3.6 * dx:g}"
            self.items.append(f'<polygon class="{style}-tip" points="{x:g},{y:g} {left} {right}"/>')

    def render(self, width: float, height: float, title: str) -> str:
        light = "".join(f".box-{k} {{ fill: {f}; stroke: {s}; }} " for k, (f, s, _, _) in PALETTE.items())
        dark = "".join(f".box-{k} {{ fill: {f}; stroke: {s}; }} " for k, (_, _, f, s) in PALETTE.items())
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}" role="img">',
                f"<title>{escape(title, quote=False)}</title>",
                f"<style>{_FIXED}{_LIGHT}{light}",
                f"@media (prefers-color-scheme: dark) {{{_DARK}{dark}}}</style>",
                f'<rect class="page" width="{width:g}" height="{height:g}"/>',
                *self.items,
                "</svg>",
                "",
            )
        )
