"""`fledge account`: what a model costs in parameters, FLOPs, memory and time, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fledge.cli.settings import Set
from fledge.cli.values import Json, json_text, print_json
from fledge.errors import note

SVG, MERMAID = (".svg",), (".mmd", ".mermaid")
TEXTBOOK_SETTINGS = (
    *("model.layers", "model.width", "model.heads", "tokens.context_length", "tokenizer.vocabulary_size"),
    *("training.batch_size", "training.micro_batch"),
)
"What the textbook's list is made of; it has no other letters."


class _ShowByDefault(TyperGroup):
    """`fledge account RECIPE` is `fledge account show RECIPE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_ShowByDefault,
    no_args_is_help=True,
    help="Count what a model costs: parameters, FLOPs, memory, time.\n\nStart with: fledge account tinystories",
)

Context = Annotated[int | None, typer.Option(min=1, help="Context length; default: the recipe's.")]
Vocabulary = Annotated[int | None, typer.Option(min=2, help="Vocabulary size; default: the recipe's.")]


@app.command("show")
def show(
    target: Annotated[
        str, typer.Argument(help="A recipe, a TOML file, a bundle, or a shape: small, medium, large, xl.")
    ],
    settings: Set = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Windows per step; default: the recipe's.")] = None,
    context: Context = None,
    vocabulary: Vocabulary = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32, tf32, bf16 or fp16.")] = None,
    recompute: Annotated[bool | None, typer.Option(help="Recompute activations in the backward pass.")] = None,
    flash: Annotated[bool, typer.Option(help="Use attention that does not store T×T scores.")] = True,
    memory: Annotated[str, typer.Option(help="real: what fledge allocates; textbook: the usual formula.")] = "real",
    device: Annotated[
        str | None, typer.Option(help="A device such as h200 or a100; auto for this machine, cpu for its CPU.")
    ] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="Tokens to train on; default: the recipe's.")] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Share of the device's peak FLOPs to assume; default: a run's own, otherwise 0.4."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Price of the device per hour, to print the cost.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the parameters, FLOPs, memory and time of one model."""
    from rich.console import Console

    from fledge.accounting.tables import account_values, show_account, show_textbook
    from fledge.accounting.textbook import textbook
    from fledge.errors import FledgeError
    from fledge.runs.target import find_target

    if memory not in ("real", "textbook"):
        raise FledgeError(f"--memory {memory} is not allowed. Choose real or textbook.")
    check_numbers(tokens=tokens, mfu=mfu, price=price)
    named = find_target(target, settings or (), vocabulary)
    found = named.account(
        batch=batch, context=context, precision=precision, device=device, recompute=recompute, flash=flash
    )
    if memory == "textbook":
        textbook(named.config.model, named.vocabulary_size, found.context_length)  # refuses what it is not for
        ignored: dict[str, Any] = {"--precision": precision, "--recompute": recompute, "--no-flash": not flash}
        ignored |= {"--tokens": tokens, "--mfu": mfu, "--price": price}
        names = [change.partition("=")[0].strip() for change in settings or ()]
        ignored |= {f"--set {name}": True for name in names if name not in TEXTBOOK_SETTINGS}
        say_ignored(ignored, "the textbook's list, which is of fp32 training with nothing fused or recomputed")
    elif found.device is None:
        say_ignored({"--mfu": mfu, "--price": price}, "an account without a device. Name one: --device h200")
    try:
        plan = named.assume(found, tokens, mfu, price)
        text = json_text(account_values(found, plan))  # all is reckoned, or refused, before a line is printed
    except FledgeError:
        raise
    except (OverflowError, ValueError):  # a number that no float holds, or that is infinite
        raise FledgeError(
            f"The numbers of {target} are too large to compute. Choose a smaller model, batch or number of tokens."
        ) from None
    if as_json:
        print(text)
    elif memory == "textbook":
        show_textbook(Console(), found)
    else:
        show_account(Console(), found, target, plan)


@app.command("compare")
def compare(
    targets: Annotated[list[str], typer.Argument(help="Recipes, bundles or shapes: small medium large xl")],
    contexts: Annotated[list[int] | None, typer.Option("--context", min=1, help="Context lengths to compare.")] = None,
    settings: Set = None,
    vocabulary: Vocabulary = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also draw stacked bars to this SVG file.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the share of FLOPs in each component across models and context lengths."""
    from rich.console import Console

    from fledge.accounting.bars import draw_shares, flops_shares
    from fledge.accounting.tables import show_shares
    from fledge.runs.target import find_target

    if out:
        check_drawing(out, SVG)
    accounts = {name: find_target(name, settings or (), vocabulary).account() for name in targets}
    contexts = list(dict.fromkeys(contexts or [1_024, 16_384]))
    rows = flops_shares(accounts, contexts)
    if out:
        save_drawing(out, draw_shares(accounts, contexts))
    if as_json:
        print_json(rows)
    else:
        show_shares(Console(), rows)
        if out:
            print(f"Drawn in {out}")


@app.command("devices")
def devices(as_json: Json = False) -> None:
    """Print the table of devices: peak FLOPs, memory, bandwidth, and the source of each number."""
    from rich.console import Console

    from fledge.accounting.devices import DEVICES
    from fledge.accounting.tables import device_values, print_devices

    if as_json:
        print_json([device_values(device) for device in DEVICES.values()])
    else:
        print_devices(Console(), DEVICES.values())


def bare_name(target: str) -> str:
    """What a drawing of it is called: a file's name without what says how it is packed."""
    path = Path(target)
    if not path.exists():
        return target
    from fledge.bundle.archive import SUFFIXES

    name = path.resolve().name
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), Path(name).stem)


def check_numbers(**values: float | None) -> None:
    """Options whose bounds a number type does not know: finite, and for a share of the peak, above 0."""
    from math import isfinite

    from fledge.errors import FledgeError

    for name, value in values.items():
        if value is not None and (not isfinite(value) or (name == "mfu" and value == 0)):
            allowed = "a share of the peak, above 0 and at most 1" if name == "mfu" else "a finite number"
            raise FledgeError(f"--{name} {value:g} is not allowed: it is {allowed}.")


def say_ignored(options: dict[str, Any], what: str) -> None:
    """Options that were given and change nothing are named, once."""
    if given := [name for name, value in options.items() if value not in (None, False)]:
        note(f"{', '.join(given)} {'have' if len(given) > 1 else 'has'} no effect on {what}.")


def check_drawing(path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse a place where no drawing can be written before anything is drawn or printed."""
    from fledge.errors import FledgeError

    if path.is_dir():
        raise FledgeError(f"{path} is a folder. Name a file in it: {path / ('model' + suffixes[0])}")
    if path.suffix.lower() not in suffixes:
        raise FledgeError(
            f"-o {path}: a drawing is written as {' or '.join(suffixes)}. Try {path.with_suffix(suffixes[0])}"
        )


def save_drawing(path: Path, text: str) -> None:
    """The file whole or not at all; what the system refuses is said of the file that was asked for."""
    from fledge.errors import FledgeError
    from fledge.files import atomic_write

    try:
        with atomic_write(path) as file:
            file.write(text.encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FledgeError(f"{path} can't be written: {reason}. Choose another place with -o.") from None
