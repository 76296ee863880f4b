"""`samples.txt`: what the model wrote at some steps, under a line that names the step."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from fledge.files import atomic_write

HEADER = "──────── step {step} ────────"


class Samples:
    """The samples of a run up to a step, open for more."""

    def __init__(self, path: Path, until: int) -> None:
        self.path = path
        self.steps: set[int] = set()
        kept = []
        for step, part in _parts(path):
            if step <= until:
                kept.append(part)
                self.steps.add(step)
        if path.exists():
            with atomic_write(path) as file:
                file.write("".join(kept).encode())

    def add(self, step: int, texts: list[str]) -> None:
        body = "\n".join(text.strip("\n") for text in texts)
        with open(self.path, "ab", buffering=0) as file:
            file.write(f"{HEADER.format(step=step)}\n{body}\n\n".encode("utf-8", "replace"))
        self.steps.add(step)


def newest(path: Path) -> tuple[int, str] | None:
    """The last step that has a sample, and what the model wrote there."""
    step, part = next(reversed(_parts(path)), (0, ""))
    return (step, part.partition("\n")[2].strip()) if part else None


def _parts(path: Path) -> list[tuple[int, str]]:
    """Each step with its header and what follows it; what a kill or a full disk cut short is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    text = re.sub(f"(?<=\n\n)[{HEADER[0]}\ufffd][^\n]*\\Z", "", text)  # a header that was cut short
    headers = list(re.finditer(f"^{HEADER.format(step='([0-9]+)')}$", text, re.MULTILINE))
    bounds = [*(header.start() for header in headers), len(text)]
    found = [(int(header[1]), text[start:end]) for header, (start, end) in zip(headers, pairwise(bounds), strict=True)]
    return [(step, part) for step, part in found if part.endswith("\n\n")]
