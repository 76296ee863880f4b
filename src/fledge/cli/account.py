"""`fledge account`: what a model costs in parameters, FLOPs, memory and time, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from fledge.accounting import Account
    from fledge.config import RunConfig


class _ShowByDefault(TyperGroup):
    """`fledge account RECIPE` is `fledge account show RECIPE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_ShowByDefault,
    no_args_is_help=True,
    help="What a model costs: parameters, FLOPs, memory, time.\n\nStart with: fledge account tinystories",
)

Set = Annotated[list[str] | None, typer.Option("--set", help="Change a setting: --set model.layers=6")]
Context = Annotated[int | None, typer.Option(min=1, help="Context length; the recipe's own unless given.")]
Vocabulary = Annotated[int | None, typer.Option(min=2, help="Vocabulary size; the recipe's own unless given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command("show")
def show(
    target: Annotated[
        str, typer.Argument(help="A recipe, a TOML file, a bundle, or a shape: small, medium, large, xl.")
    ],
    settings: Set = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Windows at once; the recipe's own unless given.")] = None,
    context: Context = None,
    vocabulary: Vocabulary = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, bf16 or fp16.")] = None,
    recompute: Annotated[bool | None, typer.Option(help="Recompute activations in the backward pass.")] = None,
    flash: Annotated[bool, typer.Option(help="Attention that keeps no T×T scores.")] = True,
    memory: Annotated[str, typer.Option(help="real: what our training holds; textbook: the notes' list.")] = "real",
    device: Annotated[str | None, typer.Option(help="A device such as h200 or a100, or auto for this one.")] = None,
    tokens: Annotated[
        float | None, typer.Option(min=1, help="Tokens to train on; the recipe's own unless given.")
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of the device's peak that is reached; a run's own, else 0.4."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price of the device per hour.")] = None,
    json: Json = False,
) -> None:
    """Parameters, FLOPs, memory and time of one model."""
    import json as json_module

    from rich.console import Console

    from fledge.accounting.ledger import DEFAULT_MFU
    from fledge.accounting.tables import account_values, show_account, show_textbook
    from fledge.errors import FledgeError

    if memory not in ("real", "textbook"):
        raise FledgeError(f"--memory {memory} is not allowed. Choose real or textbook.")
    run, vocabulary_size = open_target(target, settings or (), vocabulary)
    found = make_account(
        run,
        vocabulary_size,
        batch=batch,
        context=context,
        precision=precision,
        device=device,
        recompute=recompute,
        flash=flash,
    )
    tokens = tokens or planned_tokens(run, found)
    if mfu is None:
        mfu = measured_mfu(target, found) or DEFAULT_MFU
    if json:
        print(json_module.dumps(account_values(found, tokens, mfu, price), indent=2, ensure_ascii=False))
        return
    console = Console()
    if memory == "textbook":
        show_textbook(console, found)
    else:
        show_account(console, found, target, tokens, mfu, price)


@app.command("compare")
def compare(
    targets: Annotated[list[str], typer.Argument(help="Recipes, bundles or shapes: small medium large xl")],
    contexts: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="Context lengths to compare at.")
    ] = None,
    settings: Set = None,
    vocabulary: Vocabulary = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also draw stacked bars into this SVG.")] = None,
    json: Json = False,
) -> None:
    """Shares of the FLOPs by component, across models and context lengths."""
    import json as json_module

    from rich.console import Console

    from fledge.accounting.bars import draw_shares, shares
    from fledge.accounting.tables import show_shares
    from fledge.files import atomic_write

    accounts = {name: make_account(*open_target(name, settings or (), vocabulary)) for name in targets}
    contexts = contexts or [1_024, 16_384]
    rows = shares(accounts, contexts)
    if json:
        print(json_module.dumps(rows, indent=2))
    else:
        show_shares(Console(), rows)
    if output:
        with atomic_write(output) as file:
            file.write(draw_shares(accounts, contexts).encode())
        if not json:
            print(f"Drawn in {output}")


@app.command("devices")
def devices(json: Json = False) -> None:
    """The table of devices: peaks, memory, bandwidth, and where each is printed."""
    import json as json_module

    from rich.console import Console

    from fledge.accounting.devices import DEVICES
    from fledge.accounting.tables import device_values, show_devices

    if json:
        print(json_module.dumps([device_values(device) for device in DEVICES.values()], indent=2))
    else:
        show_devices(Console(), DEVICES.values())


def open_target(target: str, settings: Any, vocabulary: int | None) -> tuple[RunConfig, int]:
    """The settings and the vocabulary size of a recipe, a TOML file, a bundle's folder or a named shape."""
    from fledge.accounting import SHAPES
    from fledge.config import RunConfig, load_recipe, override_config, parse, recipe_names
    from fledge.errors import FledgeError

    size: int | None
    if target in SHAPES and target not in recipe_names():
        shape = SHAPES[target]
        run = RunConfig.model_validate(
            {
                "name": target,
                "model": shape.model,
                "tokens": {"context_length": shape.context_length},
                "training": {"batch_size": 1},
            }
        )
        run, size = override_config(run, settings), shape.vocabulary_size
    elif Path(target).is_dir():
        from fledge.bundle.load import find_bundle
        from fledge.bundle.manifest import read_manifest

        manifest = read_manifest(find_bundle(target))
        run = override_config(parse(RunConfig, manifest.config, where=target), settings)
        size = manifest.model.vocabulary_size
    else:
        run = load_recipe(target, settings)
        size = run.tokenizer.vocabulary_size
    if vocabulary or size:
        return run, vocabulary or size or 0
    raise FledgeError(f"{target} does not set tokenizer.vocabulary_size. Give one: --vocabulary 10000")


def planned_tokens(run: RunConfig, account: Account) -> float:
    """The tokens a recipe trains on; for one that does not say, 20 per parameter."""
    from fledge.accounting.budget import TOKENS_PER_PARAMETER

    if run.training.steps is None and run.training.tokens is None:
        return float(TOKENS_PER_PARAMETER * account.parameters.total)
    return float(run.steps * run.training.batch_size * run.tokens.context_length)


def measured_mfu(target: str, account: Account) -> float | None:
    """What the run in a folder reached of the device's peak, from the speed in its metrics."""
    if account.device is None or not Path(target, "metrics.csv").is_file():
        return None
    from statistics import median

    from fledge.training import read_metrics

    speeds = [
        float(row["tokens_per_second"]) for row in read_metrics(Path(target, "metrics.csv")) if row["tokens_per_second"]
    ]
    peak = account.device.peak(account.precision)
    return median(speeds) * account.flops_per_token / peak if speeds and peak else None


def make_account(
    run: RunConfig,
    vocabulary_size: int,
    *,
    batch: int | None = None,
    context: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    recompute: bool | None = None,
    flash: bool = True,
) -> Account:
    """The account of a run's settings, with what the command line says instead."""
    from fledge.accounting import account
    from fledge.accounting.devices import best_precision, find_device

    found = find_device(device) if device else None
    if precision is None and run.training.precision != "auto":
        precision = run.training.precision
    whole = account(
        run.model,
        vocabulary_size,
        context or run.tokens.context_length,
        batch=batch or run.training.micro_batch or run.training.batch_size,
        precision=precision or best_precision(found),
        optimizer=run.optimizer.name,
        recompute=run.training.recompute if recompute is None else recompute,
        flash=flash,
        device=found,
    )
    return whole if batch else whole.fitted()
