"""Questions of cost: parameters and FLOPs of GPT-2's shapes, AdamW's memory and days, and gradient descent on a toy."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fledge.files import readable_bytes
from fledge.plot import curves
from fledge.reports.page import Page

if TYPE_CHECKING:
    from fledge.accounting import Account
    from fledge.workbook.book import Book

LONG = 16_384
TOY_RATES, TOY_STEPS = (1e1, 1e2, 1e3), 10
CARD = 80e9  # bytes of the course's GPU
COURSE_STEPS, COURSE_BATCH, COURSE_MFU = 400_000, 1_024, 0.5

Facts = dict[str, Any]


def accounts() -> dict[str, Account]:
    from fledge.accounting import SHAPES, account

    return {
        name: account(shape.model, shape.vocabulary_size, shape.context_length, precision="fp32")
        for name, shape in SHAPES.items()
    }


def ask_accounting(book: Book) -> Facts:
    from fledge.accounting.bars import flops_shares

    every = accounts()
    xl = every["xl"]
    return {
        "parameters": xl.parameters.by_component,
        "total": xl.parameters.total,
        "products": [[p.name, p.shape, p.times, p.flops] for p in xl.products],
        "forward": xl.forward_flops,
        "components": xl.flops_by_component,
        "shares": flops_shares(every, [xl.context_length]),
        "long": flops_shares({"xl": xl}, [xl.context_length, LONG]),
    }


def show_accounting(page: Page, facts: Facts, book: Book) -> None:
    from fledge.accounting.bars import draw_shares, readable_flops

    page.paragraph(
        f"(a) GPT-2 XL's shape (48 layers, width 1600, 25 heads, SwiGLU) has {facts['total']:,} parameters; in single "
        f"precision they take {readable_bytes(4 * facts['total'])}."
    )
    page.table(["component", "parameters"], list(facts["parameters"].items()))
    page.paragraph(f"(b) One forward pass over 1,024 tokens takes {facts['forward']:,} FLOPs, in these products:")
    page.table(["product", "shape", "times", "FLOPs"], facts["products"])
    ordered = sorted(facts["components"], key=lambda name: -facts["components"][name])
    largest = facts["components"][ordered[0]] / facts["forward"]
    page.paragraph(
        f"(c) The {ordered[0]} takes the most, {largest:.0%} of the FLOPs; then the {ordered[1]} with "
        f"{facts['components'][ordered[1]] / facts['forward']:.0%}."
    )
    add_shares(page, "(d) By size of the model:", facts["shares"])
    first, last = facts["shares"][0], facts["shares"][-1]
    page.paragraph(
        "From "
        + f"{first['name']} to {last['name']}: "
        + "; ".join(
            f"{name} {'rises' if last['shares'][name] > share else 'falls'} from {share:.0%} to "
            f"{last['shares'][name]:.0%}"
            for name, share in first["shares"].items()
        )
        + "."
    )
    add_shares(page, f"(e) XL with a context of {LONG:,}:", facts["long"])
    short, long = facts["long"]
    factor = long["context_length"] / short["context_length"]
    grown = {
        name: share * long["forward_flops"] / (short["shares"][name] * short["forward_flops"])
        for name, share in long["shares"].items()
    }
    faster = [name for name, times in grown.items() if times > 1.01 * factor]
    page.paragraph(
        f"A context {factor:.0f} times as long takes {long['forward_flops'] / short['forward_flops']:.1f} times the "
        f"FLOPs ({readable_flops(long['forward_flops'])}). "
        + "; ".join(f"The {name} grow {grown[name]:.0f} times" for name in faster)
        + f", and their share from {sum(short['shares'][name] for name in faster):.0%} to "
        f"{sum(long['shares'][name] for name in faster):.0%}; all else grows {factor:.0f} times."
    )
    book.figure(page, "shares", draw_shares(accounts(), [1_024, LONG]), "Shares of the forward FLOPs by component.")


def add_shares(page: Page, title: str, rows: list[Facts]) -> None:
    names = list(rows[0]["shares"])
    page.paragraph(title)
    page.table(
        ["model", "context", "FLOPs", *names],
        [(r["name"], r["context_length"], r["forward_flops"], *(f"{r['shares'][n]:.1%}" for n in names)) for r in rows],
    )


# -- the original GPT-2 XL ---------------------------------------------------------------------------------------------


def ask_tied(book: Book) -> Facts:
    """GPT-2 XL as it was published: its head is its embedding, and its feed-forward has two matrices."""
    from fledge.accounting import SHAPES, account

    shape = SHAPES["xl"]
    original = shape.model.model_copy(
        update={
            "tied": True,
            "norm": "layer",
            "position": "learned",
            "feed_forward": "gelu_tanh",
            "hidden": 4 * shape.model.width,
            "bias": True,
        }
    )
    found = account(original, shape.vocabulary_size, shape.context_length, precision="fp32")
    layers, width, length, words = original.layers, original.width, shape.context_length, shape.vocabulary_size
    return {
        "parameters": found.parameters.by_component,
        "total": found.parameters.total,
        "forward": found.forward_flops,
        "by hand": layers * (24 * length * width**2 + 4 * length**2 * width) + 2 * length * width * words,
    }


def show_tied(page: Page, facts: Facts, book: Book) -> None:
    page.table(["component", "parameters"], list(facts["parameters"].items()))
    page.paragraph(
        f"{facts['total']:,} parameters, {facts['total'] / 1e9:.2f} billion; in single precision they take "
        f"{readable_bytes(4 * facts['total'])}. One forward pass over 1,024 tokens takes {facts['forward']:,} FLOPs."
    )
    apart = facts["forward"] / facts["by hand"] - 1
    page.paragraph(
        f"On paper, L(24Td² + 4T²d) + 2TdV gives {facts['by hand']:,}, with L layers, T tokens, width d and V ids: "
        + ("the same number." if not apart else f"{abs(apart):.2%} {'less' if apart > 0 else 'more'}.")
    )


# -- AdamW -------------------------------------------------------------------------------------------------------------


def ask_adamw(book: Book) -> Facts:
    from dataclasses import replace

    from fledge.accounting.devices import find_device, this_device
    from fledge.accounting.textbook import textbook
    from fledge.errors import FledgeError

    xl = accounts()["xl"]
    written = textbook(xl.config, xl.vocabulary_size, xl.context_length)
    memory = written.memory()
    tokens = COURSE_STEPS * COURSE_BATCH * xl.context_length
    try:
        here: Any = this_device()
    except FledgeError:  # a GPU that no table knows
        here = None
    devices = {"a100": find_device("a100"), **({"this machine": here} if here is not None else {})}
    course = replace(xl, batch=1, step_batch=COURSE_BATCH)
    return {
        "formula": written.formula,
        "slope": memory.slope,
        "intercept": memory.intercept,
        "largest": memory.largest_batch(CARD),
        "update": xl.optimizer_flops,
        "parameters": xl.parameters.total,
        "per_token": xl.flops_per_token,
        "tokens": tokens,
        "days": {
            name: [device.title, device.peak("fp32"), course.time(tokens, COURSE_MFU, device).days]
            for name, device in devices.items()
        },
    }


def show_adamw(page: Page, facts: Facts, book: Book) -> None:
    from fledge.accounting.bars import readable_flops
    from fledge.progress import readable_time

    page.paragraph(
        "The memory of training GPT-2 XL with AdamW, reckoned by hand as a textbook does (fp32, nothing fused):"
    )
    page.code(facts["formula"])
    page.paragraph(
        f"So {facts['slope'] / 1e9:.2f} GB for each window of a batch and {facts['intercept'] / 1e9:.2f} GB besides: "
        f"into {CARD / 1e9:.0f} GB goes a batch of at most {facts['largest']}."
    )
    page.paragraph(
        f"One update of AdamW takes {readable_flops(facts['update'])}, {facts['update'] / facts['parameters']:.0f} for "
        f"each parameter. A training token takes {readable_flops(facts['per_token'])} forward and backward: "
        f"{facts['per_token'] / facts['parameters']:.2f} for each parameter, where the rule of thumb says 6."
    )
    page.table(
        ["device", "peak in fp32, FLOP/s", f"{COURSE_STEPS:,} steps of {COURSE_BATCH:,} windows at {COURSE_MFU:.0%}"],
        [(title, f"{peak:.3g}", readable_time(days * 86_400)) for title, peak, days in facts["days"].values()],
    )


# -- gradient descent on a toy -----------------------------------------------------------------------------------------


def ask_toy(book: Book) -> Facts:
    """The mean square of a 10×10 matrix, which gradient descent is to make small; rates fall as 1/√(t+1)."""
    import torch
    from torch import nn

    from fledge.config import OptimizerConfig
    from fledge.training import build_optimizer

    losses: dict[str, list[float]] = {}
    for rate in TOY_RATES:
        module = nn.Module()
        start = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
        module.weight = nn.Parameter(5 * start)
        settings = OptimizerConfig(name="sgd", learning_rate=rate, momentum=0.0, nesterov=False, weight_decay=0.0)
        optimizer = build_optimizer(module, settings)
        seen = losses[f"{rate:g}"] = []
        for step in range(TOY_STEPS + 1):
            loss = (module.weight**2).mean()
            seen.append(float(loss.detach()))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.factor = 1 / math.sqrt(step + 1)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def show_toy(page: Page, facts: Facts, book: Book) -> None:
    page.paragraph(
        "A 10×10 matrix of random numbers is to be made zero: the loss is its mean square, and SGD's rate falls as "
        f"1/√(t+1). After {TOY_STEPS} steps:"
    )
    page.table(
        ["learning rate", "loss before", "loss after", "what happened"],
        [(rate, losses[0], f"{losses[-1]:.3g}", toy_verdict(losses)) for rate, losses in facts.items()],
    )
    best = min(facts, key=lambda rate: facts[rate][-1])
    sentences = [f"The best of these rates is {best}."]
    for rate, losses in facts.items():
        if all(after > before for before, after in pairwise(losses)):
            sentences.append(f"At {rate} every step overshoots by more than it had to go, and the loss grows.")
        elif losses[-1] > losses[0]:
            sentences.append(f"At {rate} the loss ends above where it began.")
    page.paragraph(" ".join(sentences))
    lines = {
        f"rate {rate}": (list(range(len(losses))), [max(loss, 1e-30) for loss in losses])
        for rate, losses in facts.items()
    }
    book.figure(page, "toy", curves(lines, "step", "loss", log_y=True), "The toy's loss at each learning rate.")


def toy_verdict(losses: list[float]) -> str:
    if not math.isfinite(losses[-1]) or losses[-1] > losses[0]:
        return "diverges"
    return "reaches zero, as far as floats can tell" if losses[-1] < 1e-12 else f"falls to {losses[-1] / losses[0]:.1%}"
