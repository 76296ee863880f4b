"""Memory as the account predicts it, held against the peak that a GPU's allocator measures: for every recipe.

    python benchmarks/accounting.py                                        on a CUDA GPU: predict, measure, show
    python benchmarks/accounting.py --out docs/results/accounting.json  the same, and keep the measurement
    python benchmarks/accounting.py --check                                fail where it is off by over 10 %
    python benchmarks/accounting.py --only bdh                             some rows
    python benchmarks/accounting.py --kept --page docs/accounting.md       put the kept table into the page

All predictions are printed before the first measurement. A row is a real training step of a recipe on random
tokens: our compiled objective, our optimizer, clipping. Without a GPU the kept measurement is shown instead.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from fledge.accounting import Account, account, peak_flops
from fledge.accounting.devices import gpu
from fledge.config import load_recipe

KEPT = Path(__file__).parents[1] / "docs" / "results" / "accounting.json"
TOLERANCE = 0.10
MARK, END = "<!-- measured -->", "<!-- end -->"
SHARE = 0.9  # of the device's memory that a row may take: a smaller GPU measures smaller batches
ROWS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("tinystories", 512, ()),
    ("tinystories-muon", 512, ()),
    ("gpt2-small", 64, ()),
    ("gpt2-medium", 32, ()),
    ("gpt2-large", 16, ()),
    ("gpt2-xl", 8, ()),
    ("llama-small", 32, ()),
    ("bdh", 32, ()),
    ("lstm", 2048, ()),
    ("gru", 2048, ()),
    ("akjv", 1024, ()),
    ("akjv-demo", 2048, ()),
    ("gpt2-small", 64, ("training.recompute=true",)),
    ("gpt2-xl", 32, ("training.recompute=true",)),
)
SHARED = "Rows without a speed were measured while other programs used the same GPU."


def plan(only: list[str]) -> list[dict[str, Any]]:
    """The rows to measure on this GPU, and what the account says of each, before anything is measured."""
    import torch

    from fledge.training.device import choose_precision

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    rows = []
    for recipe, batch, settings in ROWS:
        if only and recipe not in only:
            continue
        run = load_recipe(recipe, settings)
        row: dict[str, Any] = {
            "recipe": recipe,
            "settings": list(settings),
            "batch": batch,
            "vocabulary_size": run.tokenizer.vocabulary_size or 10_000,
            "precision": choose_precision(run.training.precision, torch.device("cuda")).name,
            "device": properties.name,
            "torch": torch.__version__,
            "memory": properties.total_memory,
        }
        row["batch"] = min(batch, predict(row).memory.largest_batch(SHARE * properties.total_memory))
        if row["batch"]:
            row["predicted"] = predict(row).memory.total
        rows.append(row)
    return rows


def show_plan(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        name = " ".join([row["recipe"], *row["settings"]])
        said = f"{row['predicted'] / 1e9:.2f} GB" if row["batch"] else "does not fit this GPU"
        print(f"predicted: {name}, batch {row['batch']:,}: {said}", flush=True)


def predict(row: dict[str, Any]) -> Account:
    """Today's account of a row."""
    run = load_recipe(row["recipe"], row["settings"])
    return account(
        run.model,
        row["vocabulary_size"],
        run.tokens.context_length,
        batch=row["batch"],
        precision=row["precision"],
        optimizer=run.optimizer.name,
        recompute=run.training.recompute,
        device=gpu(row["device"], float(row["memory"])),
    )


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Some steps of a row; the allocator's peaks are those of the last one."""
    import torch

    from fledge.model import build_model
    from fledge.training.device import choose_precision, set_up_device
    from fledge.training.objective import Objective
    from fledge.training.optimizers import build_optimizer, clip_scale, gradient_norm

    run, batch = load_recipe(row["recipe"], row["settings"]), row["batch"]
    device = torch.device("cuda", torch.cuda.current_device())
    precision = choose_precision(run.training.precision, device)
    set_up_device(device, precision, None)
    vocabulary_size, length = row["vocabulary_size"], run.tokens.context_length
    before = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    model = build_model(run.model, vocabulary_size, length).to(device)
    model.recompute = run.training.recompute
    model.train()
    optimizer = build_optimizer(model, run.optimizer)
    smoothing, z_loss = run.training.label_smoothing, run.training.z_loss
    objective: Any = Objective(model, precision, device, smoothing, z_loss)
    if run.model.architecture not in ("rnn", "gru", "lstm"):  # as training does: cuDNN's kernels need no compiler
        objective = torch.compile(objective, dynamic=False)
    ids = torch.randint(vocabulary_size, (batch, length + 1), device=device)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    peaks: dict[str, int] = {}

    def peak(name: str) -> None:
        torch.cuda.synchronize()
        peaks[name] = torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        peak("held")
        loss, _ = objective(inputs, targets, None)
        peak("forward")
        peaks["kept"] = torch.cuda.memory_allocated() - before
        (loss / targets.numel()).backward()
        peak("backward")
        norm = gradient_norm(optimizer.layout.gradients())
        optimizer.step(clip_scale(norm, run.optimizer.clip_norm))
        optimizer.zero_grad()
        peak("update")

    for _ in range(4):
        step()
    start, steps = time.perf_counter(), 8
    for _ in range(steps):
        step()
    seconds = (time.perf_counter() - start) / steps
    return {
        **row,
        "peak": max(peaks.values()),
        "peaks": peaks,
        "reserved": torch.cuda.memory_reserved(),
        "tokens_per_second": batch * length / seconds,
    }


def measure_all(rows: list[dict[str, Any]], output: Path | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Every row that fits, kept as soon as it is measured; and the names of those that failed."""
    import torch

    found, failed = [], []
    for row in rows:
        if not row["batch"]:
            continue
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            measured_row = measure(row)
        except Exception as error:  # one row that fails must not cost the others
            print(f"{row['recipe']}, batch {row['batch']}: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(row["recipe"])
            continue
        found.append(measured_row)
        if output:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(found, indent=2) + "\n")
        moments = {moment.name: round(moment.at(row["batch"]) / 1e6) for moment in predict(row).memory.moments}
        measured = {name: round(value / 1e6) for name, value in measured_row["peaks"].items()}
        print(
            f"{row['recipe']}, batch {row['batch']}: measured {measured}, predicted {moments} (MB)",
            file=sys.stderr,
            flush=True,
        )
    return found, failed


def table(rows: list[dict[str, Any]]) -> tuple[str, float]:
    """The comparison as a Markdown table, and the largest error; a prediction is the one made for the measurement."""
    lines = [
        "| recipe | batch × context | predicted | measured peak | off by | tokens/s | MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    worst = 0.0
    for row in rows:
        found = predict(row)
        error = row["predicted"] / row["peak"] - 1
        worst = max(worst, abs(error))
        limit, speed = peak_flops(row["device"], row["precision"]), row["tokens_per_second"]
        mfu = f"{speed * found.flops_per_token / limit:.0%}" if limit and speed else "–"
        lines.append(
            f"| {_name(row)} | {row['batch']:,} × {found.context_length:,} | {row['predicted'] / 1e9:.2f} GB "
            f"| {row['peak'] / 1e9:.2f} GB | {error:+.1%} | {f'{speed:,.0f}' if speed else '–'} | {mfu} |"
        )
    return "\n".join(lines), worst


def _name(row: dict[str, Any]) -> str:
    changed = ", ".join(row["settings"])
    return row["recipe"] + (f" ({changed})" if changed else "")


def measured_text(rows: list[dict[str, Any]]) -> str:
    """What stands in the page between the marks."""
    notes = [f"{rows[0]['device']}, torch {rows[0]['torch']}:", table(rows)[0]]
    if any(not row["tokens_per_second"] for row in rows):
        notes.append(SHARED)
    return "\n\n".join(notes) + "\n"


def put_into(page: Path, rows: list[dict[str, Any]]) -> None:
    before, _, rest = page.read_text().partition(MARK)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{MARK}\n{measured_text(rows)}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the measurement in this file")
    parser.add_argument("--check", action="store_true", help="fail where the prediction is off by more than 10 %%")
    parser.add_argument("--only", nargs="*", default=[], help="recipes to measure")
    parser.add_argument("--kept", action="store_true", help="show the kept measurement, also where there is a GPU")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - {recipe for recipe, _, _ in ROWS}:
        sys.exit(
            f"There is no row for {', '.join(sorted(unknown))}. Rows: {', '.join(dict.fromkeys(r[0] for r in ROWS))}."
        )
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    if not arguments.kept:
        import torch

        if torch.cuda.is_available():
            planned = plan(arguments.only)
            show_plan(planned)
            rows, failed = measure_all(planned, arguments.out)
            if not rows:
                sys.exit("No row was measured.")
    if not rows and KEPT.is_file():
        rows = json.loads(KEPT.read_text())
    if not rows:
        print("There is no CUDA GPU here, and no measurement is kept in docs/results/accounting.json.")
        return
    print(measured_text(rows))
    if arguments.page:
        put_into(arguments.page, rows)
    worst = table(rows)[1]
    if arguments.check and failed:
        sys.exit(f"Not measured: {', '.join(failed)}.")
    if arguments.check and worst > TOLERANCE:
        sys.exit(f"The memory prediction is off by {worst:.1%}; {TOLERANCE:.0%} is allowed.")


if __name__ == "__main__":
    main()
