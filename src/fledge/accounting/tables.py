"""Accounts as tables for a terminal and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fledge.accounting.bars import readable_flops
from fledge.accounting.budget import TOKENS_PER_PARAMETER, optimum, readable_share
from fledge.accounting.devices import PRECISIONS, Device
from fledge.accounting.ledger import DEFAULT_MFU, Account
from fledge.accounting.memory import ASSUMED_MEMORY, MOST, Formula, Memory
from fledge.accounting.textbook import textbook
from fledge.config.sizes import OPTIMIZER_SIZES
from fledge.files import readable_bytes
from fledge.progress import readable_time

NARROWEST, LONGEST_NAME = 10, 20  # letters of a column of a comparison: of its numbers, of a line of its name


@dataclass(frozen=True)
class Assumptions:
    """What a time is reckoned for: the tokens, the share of the peak and where it comes from, the price of an hour."""

    tokens: float
    mfu: float = DEFAULT_MFU
    mfu_from: str = "assumed"
    price: float | None = None


def account_values(account: Account, plan: Assumptions) -> dict[str, Any]:
    """All that an account says, as values that JSON can hold: FLOPs of one window, memory in bytes."""
    tokens = plan.tokens
    best = optimum(tokens * account.flops_per_token)
    values: dict[str, Any] = {
        "model": account.config.model_dump(mode="json"),
        **_facts(account, "vocabulary_size", "context_length", "batch"),
        "step_batch": account.windows,
        **_facts(account, "precision", "optimizer", "recompute"),
        "parameters": {"total": account.parameters.total, "by_component": account.parameters.by_component},
        "products": [
            {
                **_facts(product, "name", "component", "rows", "inner", "columns", "times", "flops", "backward_flops"),
                "share": product.flops / account.forward_flops,
            }
            for product in account.products
        ],
        **_facts(account, "forward_flops", "backward_flops", "flops_per_token", "recomputed_flops", "step_flops"),
        **_facts(account, "optimizer_flops", "optimizer_product_flops"),
        "memory": _memory_values(account.memory),
        "tokens": tokens,
        "chinchilla": {
            "tokens_for_this_size": TOKENS_PER_PARAMETER * account.parameters.total,
            "parameters_for_this_budget": best.parameters,
            "tokens_for_this_budget": best.tokens,
        },
    }
    if account.config.architecture == "transformer":
        notes = textbook(account.config, account.vocabulary_size, account.context_length)
        values["textbook_memory"] = _memory_values(notes.memory(account.batch))
    if account.device is not None:
        time, bound = account.time(tokens, plan.mfu), account.bound()
        values["device"] = device_values(account.device)
        values["largest_batch"] = account.memory.largest_batch(account.device.memory)
        values["fits"] = account.fits
        values["time"] = {
            "mfu": plan.mfu,
            "mfu_from": plan.mfu_from,
            "seconds": time.seconds,
            "days": time.days,
            "tokens_per_second": time.tokens_per_second,
            "bound": bound.name,
            "bound_at_this_mfu": time.bound,
            "cost": None if plan.price is None else time.cost(plan.price),
        }
    return values


def _memory_values(memory: Memory) -> dict[str, Any]:
    formula = memory.formula
    return {
        "total": memory.total,
        "moment": memory.fullest.name,
        "per_window": memory.slope,
        "constant": memory.intercept,
        "exact_from_batch": formula.first,
        "exact_to_batch": formula.last,
        "parts": [
            {"name": part.name, "per_window": part.per_window, "constant": part.constant} for part in memory.parts
        ],
    }


def device_values(device: Device) -> dict[str, Any]:
    return _facts(device, "name", "title", "peaks", "memory", "bandwidth", "source")


def _facts(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def show_account(console: Console, account: Account, title: str, plan: Assumptions) -> None:
    """The account as a page: parameters, products, memory, time."""
    config, tokens, optimizer = account.config, plan.tokens, OPTIMIZER_SIZES[account.optimizer].title
    console.print(
        f"\n[bold]{escape(title)}[/bold]: {escape(config.architecture)}, {config.layers:,} layers, "
        f"{config.width:,} wide, vocabulary {account.vocabulary_size:,}, context {account.context_length:,}\n"
    )
    console.print(_parameter_table(account))
    console.print(_product_table(account))
    console.print(
        f"The backward pass takes {account.backward_flops:,}. "
        f"Training costs {readable_flops(account.flops_per_token)} a token, forward and backward; "
        f"a step of {account.windows:,} × {account.context_length:,} tokens {readable_flops(account.step_flops)}"
        f" (and {optimizer}'s own arithmetic {readable_flops(account.optimizer_flops)}).\n"
    )
    if account.recomputed_flops:
        console.print(
            f"Recomputation adds {account.recomputed_flops / account.forward_flops:.0%} of a forward pass, "
            f"{readable_flops(account.recomputed_flops)} a window, which no MFU counts.\n"
        )
    title = f"Memory of a training step at its fullest, {account.memory.fullest.name}: {account.precision}"
    _show_memory(console, account.memory, title)
    if account.device is None:
        console.print(
            f"Name a device for the largest batch, time and cost: --device h200, or --device auto. Without one, "
            f"the logits are cut as on a GPU of {readable_bytes(ASSUMED_MEMORY)}.\n"
        )
    else:
        _show_time(console, account, plan)
    best = optimum(tokens * account.flops_per_token)
    console.print(
        f"Hint: by the rule of {TOKENS_PER_PARAMETER} tokens per parameter (Hoffmann et al. 2022) this size "
        f"wants {_count(TOKENS_PER_PARAMETER * account.parameters.total)} tokens; the FLOPs of "
        f"{_count(tokens)} tokens here would train {_count(best.parameters)} parameters on "
        f"{_count(best.tokens)} tokens."
    )


def show_textbook(console: Console, account: Account) -> None:
    """The notes' list with its formula, and what it says of this batch and device."""
    notes = textbook(account.config, account.vocabulary_size, account.context_length)
    memory = notes.memory(account.batch)
    title = "By hand, as in a textbook: AdamW, fp32, d_ff = 4·d"
    table = _table(title, "fp32 numbers", "formula", "each", "times", "in all")
    for heading, lines in (("parameters", notes.parameter_lines), ("activations", notes.activation_lines)):
        table.add_section()
        for line in lines:
            table.add_row(
                f"{heading}: {line.name}", line.formula, f"{line.value:,}", f"{line.times}", f"{line.total:,}"
            )
    console.print(table)
    console.print(notes.formula, highlight=False)
    limit = account.device.memory if account.device else 80e9
    console.print(
        f"\nAt batch {account.batch}: {readable_bytes(memory.total)}. "
        f"The largest batch in {readable_bytes(limit)}: {memory.largest_batch(limit)}."
    )


def show_shares(console: Console, rows: list[dict[str, Any]]) -> None:
    """Components down, models across, as many as fit; long names take several lines. One table per context length."""
    left = max(len(_short(name)) for row in rows for name in (*row["shares"], "parameters"))
    for context_length in dict.fromkeys(row["context_length"] for row in rows):
        title = f"Shares of the forward FLOPs at a context of {context_length:,} tokens"
        seen = [row for row in rows if row["context_length"] == context_length]
        for part in _side_by_side(seen, console.width - left - 2):
            table = _table(title, "", *(escape(row["name"]) for row in part))
            for column, row in zip(table.columns[1:], part, strict=True):
                column.overflow, column.width = "fold", _column_width(row)
            table.add_row("parameters", *(_count(row["parameters"]) for row in part))
            table.add_row("forward", *(readable_flops(row["forward_flops"]) for row in part))
            for name in dict.fromkeys(name for row in part for name in row["shares"]):
                shares = (f"{row['shares'][name]:.1%}" if name in row["shares"] else "–" for row in part)
                table.add_row(_short(name), *shares)
            console.print(table)


def _column_width(row: dict[str, Any]) -> int:
    """Of a model's column: its name on one line where it is short, and never less than its numbers."""
    return max(NARROWEST, min(len(row["name"]), LONGEST_NAME))


def _side_by_side(rows: list[dict[str, Any]], room: int) -> list[list[dict[str, Any]]]:
    """Rows that fit beside each other, at least one, in their order."""
    found: list[list[dict[str, Any]]] = [[]]
    used = 0
    for row in rows:
        used += _column_width(row) + 2
        if used > room and found[-1]:
            found.append([])
            used = _column_width(row) + 2
        found[-1].append(row)
    return found


def print_devices(console: Console, devices: Iterable[Device]) -> None:
    """Dense peaks in TFLOP/s, and below the table where they are printed."""
    devices = list(devices)
    table = _table("Dense matrix peaks, TFLOP/s", "device", *PRECISIONS, "memory", "GB/s")
    for device in devices:
        peaks = [f"{device.peaks[p] / 1e12:,.5g}" if p in device.peaks else "–" for p in PRECISIONS]
        memory, bandwidth = f"{device.memory / 1e9:.0f} GB", f"{device.bandwidth / 1e9:,.0f}"
        table.add_row(device.name, *peaks, memory, bandwidth)
    console.print(table)
    for source in dict.fromkeys(device.source for device in devices):
        names = ", ".join(device.name for device in devices if device.source == source)
        console.print(f"{names}: {source}", highlight=False, markup=False)


def _table(title: str, *columns: str, left: int = 1) -> Table:
    """A table without a frame, numbers to the right: it fits a terminal of 80 columns."""
    table = Table(
        *columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for column in table.columns[left:]:
        column.justify = "right"
    return table


def _parameter_table(account: Account) -> Table:
    parameters = account.parameters
    table = _table(f"Parameters: {parameters.total:,}", "component", "parameters", "share")
    for name, count in parameters.by_component.items():
        table.add_row(name, f"{count:,}", f"{count / parameters.total:.1%}")
    return table


def _product_table(account: Account) -> Table:
    total = account.forward_flops
    title = f"Matrix products of one window, forward: {total:,} FLOPs"
    table = _table(title, "product", "component", "shapes", "times", "forward", "share", left=2)
    for product in account.products:
        table.add_row(
            product.name,
            _short(product.component),
            product.shape,
            f"{product.times:,}",
            readable_flops(product.flops),
            f"{product.flops / total:.1%}",
        )
    return table


def _show_memory(console: Console, memory: Memory, title: str) -> None:
    table = _table(title, "part", "per window", "at any batch", f"batch {memory.batch}")
    for part in memory.parts:
        window = readable_bytes(part.per_window) if part.per_window else ""
        constant = readable_bytes(part.constant) if part.constant else ""
        table.add_row(part.name, window, constant, readable_bytes(part.at(memory.batch)))
    table.add_section()
    table.add_row(
        "at the peak",
        readable_bytes(memory.slope),
        readable_bytes(memory.intercept),
        readable_bytes(memory.total),
        style="bold",
    )
    console.print(table)
    formula = memory.formula
    console.print(
        f"bytes = {formula.slope:,.0f}·batch + {formula.intercept:,.0f}"
        f" = {formula.slope / 1e9:.3f} GB·batch + {formula.intercept / 1e9:.3f} GB, {_range(formula)}\n",
        highlight=False,
    )


def _range(formula: Formula) -> str:
    """The batches for which a formula is exact."""
    if formula.first == formula.last:
        return f"for a batch of {formula.first:,}"
    if formula.last >= MOST // 2:
        return f"from a batch of {formula.first:,} on"
    return f"for batches of {formula.first:,} to {formula.last:,}"


def _show_time(console: Console, account: Account, plan: Assumptions) -> None:
    device = account.device
    assert device is not None
    time, bound = account.time(plan.tokens, plan.mfu), account.bound()
    console.print(
        f"[bold]{escape(device.title)}[/bold]: {readable_flops(time.peak, 4)}/s {account.precision}, "
        f"{readable_bytes(device.memory)}, {device.bandwidth / 1e9:,.0f} GB/s. Source: {escape(device.source)}."
    )
    largest = account.memory.largest_batch(device.memory)
    if not largest:
        console.print(
            f"It does not fit: one window needs {readable_bytes(account.memory.at(1))}, and the device has "
            f"{readable_bytes(device.memory)}. The next lines assume a device like this with enough memory."
        )
    else:
        limit = account.memory.at(largest)
        console.print(f"Largest batch in its memory: {largest:,} windows, {readable_bytes(limit)}.")
        if account.batch > largest:
            console.print(
                f"A batch of {account.batch:,} does not fit: training takes it in parts of up to {largest:,}."
            )
    console.print(
        f"A step of {account.windows:,} windows is {bound.name}-bound: its products take at least "
        f"{readable_time(bound.product_seconds)}, its memory traffic at least {readable_time(bound.traffic_seconds)}."
    )
    cost = f", {time.cost(plan.price):,.2f} at {plan.price:g} an hour" if plan.price is not None else ""
    share = f"at {readable_share(plan.mfu)} of the peak ({escape(plan.mfu_from)})"
    if time.bound == "memory":
        share = f"at the memory's bandwidth, which is slower than {readable_share(plan.mfu)} of the peak"
    elif account.recomputed_flops:
        share += ", what is recomputed included"
    console.print(
        f"{_count(plan.tokens)} tokens {share}: {readable_time(time.seconds)} "
        f"({time.tokens_per_second:,.0f} tokens/s){cost}.\n"
    )


def _short(component: str) -> str:
    """For narrow columns: attention's three kinds of products are told apart by their second word."""
    return component.removeprefix("attention ")


def _count(number: float) -> str:
    """
    >>> _count(327_680_000)
    '328 M'
    >>> _count(999_600_000), _count(999.7), _count(2.5e15)
    ('1 B', '1 k', '2,500 T')
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # three digits round it up to the next unit
            shown = number / size
            return f"{shown:,.0f} {unit}" if shown >= 999.5 else f"{shown:.3g} {unit}"
    return f"{number:.0f}"
