"""`fledge bundle`: show, check, compare, pack, and exchange with other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fledge.cli.places import At, destination, trained
from fledge.cli.values import Json, print_json
from fledge.errors import FledgeError, command, harmless

if TYPE_CHECKING:
    from fledge.bundle import Bundle

MEASURED = 50_000
"Held-out tokens that a quantised export is measured on at most."

app = typer.Typer(
    no_args_is_help=True, help="Show, check, pack and exchange bundles.\n\nStart with: fledge bundle show runs/NAME"
)

Place = Annotated[
    Path,
    typer.Argument(
        metavar="BUNDLE", help="A bundle, a run (its best checkpoint), or a packed bundle.", callback=trained
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The same path, given as an option.")]


@app.command()
def show(bundle: Place, at: At = None, as_json: Json = False) -> None:
    """Print what a bundle contains, how it was trained and what it costs."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.bundle.archive import is_archive, packed_sizes
    from fledge.bundle.describe import describe, open_manifest, wrong_files
    from fledge.runs import find_bundle

    bundle = find_bundle(bundle, at)
    folder, manifest = open_manifest(bundle)
    wrong = wrong_files(folder, manifest)
    if as_json:
        return print_json({"path": folder, **manifest.model_dump(mode="json"), "wrong_files": wrong})
    console = Console()
    for title, rows in describe(bundle).items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*(escape(harmless(text)) for text in row))
        console.print(table)
        console.print()
    if wrong:
        files = "1 file is" if len(wrong) == 1 else f"{len(wrong)} files are"
        print(f"{files} not as the manifest says. Check the bundle: {command('bundle', 'check', bundle)}")
    elif is_archive(bundle) and packed_sizes(bundle) is None:
        print(f"A .tar.zst tells its files' sizes only when it is unpacked: {command('bundle', 'check', bundle)}")


@app.command()
def check(bundle: Place, at: At = None) -> None:
    """Verify every checksum, then load the model, the tokenizer and the training state."""
    from fledge.bundle import load_bundle
    from fledge.runs import find_bundle
    from fledge.training.continuity import check_training_state
    from fledge.training.progress import Incomplete

    loaded = load_bundle(find_bundle(bundle, at))
    state = "without training state"
    if loaded.training is not None:
        try:
            check_training_state(loaded)
            state = "with its training state"
        except Incomplete:
            state = "with a training state that lacks counters of fledge train: it can be used, but not resumed"
    for name, weight in loaded.model.state_dict().items():
        if not weight.isfinite().all():
            raise FledgeError(
                f"{loaded.source} is whole, but {name} holds numbers that are not finite, so its training "
                "diverged. Use an earlier checkpoint."
            )
    print(f"{loaded.source} is whole: {loaded.manifest.model.parameters:,} parameters, {state}.")


@app.command()
def diff(first: Place, second: Place, at: At = None, as_json: Json = False) -> None:
    """Print every setting and metric that differs between two bundles."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fledge.bundle.describe import describe_differences
    from fledge.runs import find_bundle

    found = describe_differences(find_bundle(first, at), find_bundle(second, at))
    if as_json:
        return print_json([dict(zip(("name", str(first), str(second)), row, strict=True)) for row in found])
    if not found:
        print(
            "The two bundles have the same settings, metrics and weights. The weights were compared by the checksums "
            "in the manifests; fledge bundle check holds a bundle's files against them."
        )
        return
    table = Table("", escape(str(first)), escape(str(second)), box=None, padding=(0, 2, 0, 0))
    for difference in found:
        table.add_row(*(escape(harmless(text)) for text in difference))
    Console().print(table)


@app.command()
def pack(
    bundle: Place,
    target: Annotated[
        Path | None, typer.Argument(help="The file to write: .zip, or .tar.zst for a smaller one.")
    ] = None,
    out: Out = None,
    at: At = None,
    training: Annotated[bool, typer.Option(help="Keep the training state, which resuming needs.")] = True,
) -> None:
    """Pack a bundle into one file, which can be used without unpacking."""
    from fledge.bundle.archive import pack as pack_bundle
    from fledge.files import readable_bytes
    from fledge.runs.checkpoints import find_bundle

    file = destination(target, out, "fledge bundle pack")
    pack_bundle(find_bundle(bundle, at), file, training)
    print(f"{file}: {readable_bytes(file.stat().st_size)}. Use it as it is: {command('generate', file)}")


@app.command("export")
def export_(
    bundle: Place,
    target: Annotated[Path | None, typer.Argument(help="The folder or file to write.")] = None,
    out: Out = None,
    at: At = None,
    format: Annotated[
        str | None, typer.Option(help="huggingface, gguf or onnx; default: by the file's extension.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--type",
            "--dtype",
            help="float32, bfloat16 or float16, and for GGUF q8_0, q5_1, q5_0, q4_1, q4_0, mxfp4, tq2_0 or tq1_0; as "
            "it is, unless given.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Measure the loss of quality on this text instead of the run's own held-out part."),
    ] = None,
) -> None:
    """Export a model for other programs: transformers, llama.cpp, onnxruntime and all that read their files."""
    from fledge.bundle import load_bundle
    from fledge.bundle.exchange import export_bundle
    from fledge.bundle.gguf import MODELFILE, QUANTISED
    from fledge.runs import find_bundle

    place = destination(target, out, "fledge bundle export")
    quantised = (dtype or "").lower() in QUANTISED
    if text is not None and not quantised:
        raise FledgeError("--text measures what a quantised type costs: give one with --type, such as q8_0.")
    loaded = load_bundle(find_bundle(bundle, at))
    modelfile = place.with_suffix(MODELFILE)
    of_another = modelfile.exists()
    export_bundle(loaded, place, format, dtype)
    print(f"{place} is written.")
    if modelfile.is_file() and not of_another:
        print(f"{modelfile} is for Ollama: ollama create NAME -f {modelfile}")
    if dtype is not None and quantised:
        _print_cost(loaded, bundle, dtype.lower(), text)


def _print_cost(loaded: Bundle, place: Path, kind: str, text: Path | None) -> None:
    """The loss on held-out text as the weights are, and as the file has them."""
    from fledge.bundle.gguf import rounded_as_stored
    from fledge.evaluation import Evaluation, evaluate, evaluate_texts
    from fledge.runs.folder import held_out_split

    split = None if text is not None else held_out_split(place)
    if text is None and split is None:
        print("There is no held-out text to measure the loss on. Give a text with --text FILE.")
        return

    def measured() -> Evaluation:
        if text is not None:
            return evaluate_texts(loaded.model, loaded.tokenizer, [text.read_bytes()])
        assert split is not None
        return evaluate(loaded.model, split, tokenizer=loaded.tokenizer, max_tokens=MEASURED)

    before = measured()
    loaded.model.load_state_dict(rounded_as_stored(loaded.model.state_dict(), kind))
    after = measured()
    bits = [f"{each.bits_per_byte:.4f}" if each.bits_per_byte is not None else "–" for each in (before, after)]
    where = text or "held-out text"
    print(f"On {before.tokens:,} tokens of {where}: {bits[0]} bits per byte as it was, {bits[1]} as {kind}.")


@app.command()
def push(
    bundle: Place,
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub; created if it does not exist.")
    ],
    at: At = None,
    format: Annotated[
        str, typer.Option(help="huggingface, which transformers reads; or bundle, which keeps everything.")
    ] = "huggingface",
    dtype: Annotated[
        str | None, typer.Option("--type", "--dtype", help="float32, bfloat16 or float16; default: unchanged.")
    ] = None,
    private: Annotated[bool, typer.Option(help="Make a new repository private.")] = False,
) -> None:
    """Upload a model to the Hugging Face hub, with a card, its settings and its curve. Sign in first: hf auth login"""
    from fledge.bundle import load_bundle
    from fledge.bundle.hub import CURVE, push_bundle
    from fledge.runs import find_bundle

    loaded = load_bundle(find_bundle(bundle, at))
    curve = next(
        (place / CURVE for place in (bundle, *bundle.absolute().parents[:2]) if (place / CURVE).is_file()), None
    )
    address = push_bundle(loaded, name, format, dtype, private, curve)
    print(f"It is {address} now. Use it anywhere: {command('generate', f'hf://{name}')}")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder, such as one with a Llama or GPT-2 model.")],
    target: Annotated[Path | None, typer.Argument(help="The bundle to write.")] = None,
    out: Out = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer, if the folder has none that fledge can use.")
    ] = None,
) -> None:
    """Import a model that another program saved. Pickled weights are refused."""
    from fledge.bundle.exchange import import_bundle
    from fledge.runs.folder import is_run

    if is_run(source) or (source / "bundle.json").is_file():
        raise FledgeError(
            f"{source} is a fledge bundle and needs no import. Use it as it is: {command('generate', source)}"
        )
    place = destination(target, out, "fledge bundle import")
    import_bundle(source, place, tokenizer)
    print(f"{place} is a bundle. Try it: {command('generate', place)}")
