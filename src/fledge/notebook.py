"""What a notebook's cell shows: HTML that is replaced in place, and pictures inside it.

Everything is plain HTML with inline styles and pictures as data: it needs no network and no script, and stays when a
notebook that is not trusted is opened. Colours are midtones and shades, which read on light and on dark pages.
"""

from __future__ import annotations

import base64
import html
import struct
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SHADE = "226,131,60"  # of what surprised a model
SEEN = "47,156,140"  # of what a head looks at, and of every picture
SURPRISE = 5.0  # nats at which a token has its full shade
FONT = "font-family:system-ui,sans-serif"
TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.8"
SMALL = "font-size:0.86em;opacity:0.75"


class Cell:
    """One output of the running cell. Showing again replaces it, so that the notebook's file holds the last one."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, body: str, text: str) -> None:
        """`text` stands where there is no HTML."""
        from IPython.display import display

        data = {"text/html": body, "text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


class Html:
    """A value that a notebook shows as HTML, and everything else as text."""

    def __init__(self, body: str, text: str) -> None:
        self.body, self.text = body, text

    def _repr_html_(self) -> str:
        return self.body

    def __repr__(self) -> str:
        return self.text


def running_cell() -> Cell | None:
    """The output of the cell that runs now: in Jupyter, Kaggle, Colab and their like; None in any other program."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kernel = getattr(ask(), "kernel", None) if ask is not None else None
    return None if kernel is None else Cell()


def element(tag: str, body: str, style: str = "", **attributes: str) -> str:
    """An element around HTML.

    >>> element("b", "egg", title='"an" egg')
    '<b title="&quot;an&quot; egg">egg</b>'
    """
    given = {"style": style, **attributes} if style else attributes
    marks = "".join(f' {name}="{html.escape(value)}"' for name, value in given.items())
    return f"<{tag}{marks}>{body}</{tag}>"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are HTML already."""
    cell = "text-align:left;vertical-align:top;padding:0.2em 0.8em 0.2em 0"
    head = "".join(element("th", html.escape(name), f"{cell};opacity:0.75") for name in header)
    body = "".join(element("tr", "".join(element("td", each, cell) for each in row)) for row in rows)
    return element(
        "table", (f"<tr>{head}</tr>" if header else "") + body, "border-collapse:collapse;margin:0.4em 0;color:inherit"
    )


def shaded(text: str, share: float, colour: str = SHADE, title: str = "") -> str:
    """A piece of text on a ground that is the deeper, the nearer `share` is to 1."""
    ground = f"background-color:rgba({colour},{0.7 * min(1.0, max(0.0, share)):.2f});border-radius:3px"
    return element("span", html.escape(text), ground, **({"title": title} if title else {}))


def drawing(svg: str, label: str, width: str = "100%") -> str:
    """An SVG drawing as a picture of its own; inline, one that is not trusted would be taken out."""
    data = base64.b64encode(svg[svg.index("<svg") :].encode()).decode()
    return f'<img alt="{html.escape(label)}" src="data:image/svg+xml;base64,{data}" style="width:{width};height:auto">'


def picture(values: NDArray[np.uint8], label: str, size: int) -> str:
    """Bytes, row by row, as shades of one colour, about `size` pixels wide; no shade is no colour at all."""
    import numpy as np

    scale = max(1, size // max(1, values.shape[1]))
    rows = np.kron(values, np.ones((scale, scale), np.uint8))
    data = base64.b64encode(png(rows, tuple(int(part) for part in SEEN.split(",")))).decode()
    ground = "background-color:rgba(128,128,128,0.13);vertical-align:top"
    return (
        f'<img alt="{html.escape(label)}" title="{html.escape(label)}" width="{rows.shape[1]}" '
        f'height="{rows.shape[0]}" src="data:image/png;base64,{data}" style="{ground}">'
    )


def png(values: NDArray[np.uint8], colour: tuple[int, ...]) -> bytes:
    """A PNG of one colour, as opaque as each byte says.

    >>> import numpy as np
    >>> png(np.zeros((2, 3), np.uint8), (0, 0, 0))[:4]
    b'\\x89PNG'
    """
    import numpy as np

    height, width = values.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), values.astype(np.uint8)], axis=1).tobytes()
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": bytes(colour) * 256,
        b"tRNS": bytes(range(256)),
        b"IDAT": zlib.compress(lines, 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
