"""The handbook's pictures of the page: `python -m tools.screenshots RUNS learn=learn?run=akjv experiments`.

Opens each view in Chromium, light and dark, and writes docs/screenshots/NAME-light.png and NAME-dark.png.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from tests.web.browser import browsing
from tests.web.conftest import serving

SHOTS = Path(__file__).parents[1] / "docs" / "screenshots"
SIZE = {"width": 1280, "height": 900}
SETTLED = 4000  # milliseconds for requests and drawings


def shoot(page: Any, address: str, name: str, scheme: str) -> None:
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_timeout(SETTLED)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    # A palette that keeps rare colours, such as that of one line of a chart: a third of the bytes.
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(SHOTS / f"{name}-{scheme}.png", optimize=True)


def main(folder: str, views: list[str]) -> None:
    with serving([Path(folder)]) as address:
        for scheme in ("light", "dark"):
            with browsing(viewport=SIZE, color_scheme=scheme) as page:
                for view in views:
                    name, _, query = view.partition("=")
                    shoot(page, f"{address}/#/{query or name}", name, scheme)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
