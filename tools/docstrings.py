"""What the Python reference changes in a docstring, for mkdocstrings: the examples become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*\n).+)*", re.M)


class Examples(griffe.Extension):
    """Fences each example: in Markdown, `>>>` would be a quotation of a quotation of a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
