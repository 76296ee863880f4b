"""Shares by component, one stacked bar per model and context, as an SVG of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fledge.accounting.ledger import Account
from fledge.accounting.svg import SERIES, Drawing, text_width

BAR_WIDTH, BAR_HEIGHT, GAP = 620.0, 26.0, 10.0


def flops_shares(accounts: Mapping[str, Account], context_lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Forward FLOPs by component for every model at every context length: the rows of the comparison."""
    rows: list[dict[str, Any]] = []
    for context_length in context_lengths:
        for name, account in accounts.items():
            seen = account.at_context(context_length)
            rows.append(
                {
                    "name": name,
                    "context_length": context_length,
                    "parameters": seen.parameters.total,
                    "forward_flops": seen.forward_flops,
                    "shares": {k: v / seen.forward_flops for k, v in seen.flops_by_component.items()},
                }
            )
    return rows


def draw_shares(accounts: Mapping[str, Account], context_lengths: Sequence[int]) -> str:
    """The same as stacked bars, each 100 % wide, grouped by context length."""
    rows = flops_shares(accounts, context_lengths)
    components = list(dict.fromkeys(c for row in rows for c in row["shares"]))
    colours = {component: SERIES[number % len(SERIES)] for number, component in enumerate(components)}
    left = 40 + max(text_width(row["name"], 13, bold=True) for row in rows)
    drawing = Drawing()
    drawing.text(24, 36, "Where the FLOPs of a forward pass go", "title", "start")
    x, y = 24.0, 62.0
    for component in components:
        wide = 26 + text_width(component, 11.5)
        if x + wide > left + BAR_WIDTH:
            x, y = 24.0, y + 20
        drawing.bar(x, y - 9, 11, 11, colours[component])
        drawing.text(x + 17, y, component, "detail", "start")
        x += wide + 10
    y += 26
    shown = 0
    for row in rows:
        if row["context_length"] != shown:
            shown = row["context_length"]
            drawing.text(24, y + 12, f"context of {shown:,} tokens", "detail", "start")
            y += 24
        drawing.text(left - 14, y + 18, row["name"], "name", "end")
        x = left
        for component, share in row["shares"].items():
            wide = BAR_WIDTH * share
            drawing.bar(x, y, wide, BAR_HEIGHT, colours[component])
            if wide > 28:
                drawing.text(x + wide / 2, y + 17, f"{share:.0%}", "inside")
            x += wide
        drawing.text(x + 10, y + 18, readable_flops(row["forward_flops"]), "small", "start")
        y += BAR_HEIGHT + GAP
    return drawing.render(left + BAR_WIDTH + 110, y + 14, "Shares of the forward FLOPs by component")


def readable_flops(flops: float, digits: int = 3) -> str:
    """
    >>> readable_flops(4_513_336_524_800)
    '4.51 TFLOP'
    """
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"):
        if float(f"{flops:.{digits}g}") < 1000:
            return f"{flops:.{digits}g} {unit}"
        flops /= 1000
    return f"{flops:.{digits}g} ZFLOP"
