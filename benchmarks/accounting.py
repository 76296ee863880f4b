"""Memory as the account predicts it, held against the peak that a GPU's allocator measures.

    python benchmarks/accounting.py                                        on a CUDA GPU: measure and show
    python benchmarks/accounting.py --output docs/results/accounting.json  the same, and keep the measurement
    python benchmarks/accounting.py --check                                fail where it is off by over 10 %
    python benchmarks/accounting.py --only bdh                             some rows
    python benchmarks/accounting.py --kept --page docs/accounting.md       put the kept table into the page

A row is a real training step of a recipe on random tokens: our compiled objective, our optimizer, clipping.
Without a GPU the kept measurement is shown beside today's prediction.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fledge.accounting import Account, account, peak_flops
from fledge.accounting.devices import find_device
from fledge.config import load_recipe

KEPT = Path(__file__).parents[1] / "docs" / "results" / "accounting.json"
TOLERANCE = 0.10
MARK, END = "<!-- measured -->", "<!-- end -->"
ROWS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("tinystories", 512, ()),
    ("gpt2-small", 64, ()),
    ("bdh", 32, ()),
    ("lstm", 2048, ()),
    ("gru", 2048, ()),
    ("akjv-demo", 2048, ()),
    ("llama-small", 32, ()),
    ("gpt2-small", 64, ("training.recompute=true",)),
)


def predict(row: dict[str, Any]) -> Account:
    """Today's account of a measured row."""
    run = load_recipe(row["recipe"], row["settings"])
    return account(
        run.model,
        row["vocabulary_size"],
        run.tokens.context_length,
        batch=row["batch"],
        precision=row["precision"],
        optimizer=run.optimizer.name,
        recompute=run.training.recompute,
        device=replace(find_device(row["device"]), memory=row["memory"]),
    )


def measure(recipe: str, batch: int, settings: tuple[str, ...]) -> dict[str, Any]:
    """Some steps of a recipe; the allocator's peaks are those of the last one."""
    import torch

    from fledge.model import build_model
    from fledge.training.device import choose_precision, prepare
    from fledge.training.objective import Objective
    from fledge.training.optimizers import build_optimizer, clip_scale, gradient_norm

    run = load_recipe(recipe, settings)
    device = torch.device("cuda", torch.cuda.current_device())
    precision = choose_precision(run.training.precision, device)
    prepare(device, precision, None)
    vocabulary_size, length = run.tokenizer.vocabulary_size or 10_000, run.tokens.context_length
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
        optimizer.zero()
        peak("update")

    for _ in range(4):
        step()
    start, steps = time.perf_counter(), 8
    for _ in range(steps):
        step()
    seconds = (time.perf_counter() - start) / steps
    return {
        "recipe": recipe,
        "settings": list(settings),
        "batch": batch,
        "vocabulary_size": vocabulary_size,
        "precision": precision.name,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak": max(peaks.values()),
        "peaks": peaks,
        "memory": torch.cuda.get_device_properties(0).total_memory,
        "reserved": torch.cuda.memory_reserved(),
        "tokens_per_second": batch * length / seconds,
    }


def measure_all(only: list[str], output: Path | None) -> list[dict[str, Any]]:
    """Every row, kept as soon as it is measured."""
    import torch

    found = []
    for recipe, batch, settings in ROWS:
        if only and recipe not in only:
            continue
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            row = measure(recipe, batch, settings)
        except Exception as error:  # one row that fails must not cost the others
            print(f"{recipe}, batch {batch}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found.append(row)
        if output:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(found, indent=2) + "\n")
        moments = {moment.name: round(moment.at(batch) / 1e6) for moment in predict(row).memory.moments}
        measured = {name: round(value / 1e6) for name, value in row["peaks"].items()}
        print(
            f"{recipe}, batch {batch}: measured {measured}, predicted {moments} (MB)",
            file=sys.stderr,
            flush=True,
        )
    return found


def table(rows: list[dict[str, Any]]) -> tuple[str, float]:
    """The comparison as a Markdown table, and the largest error."""
    lines = [
        "| recipe | batch × context | predicted | measured peak | off by | tokens/s | MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    worst = 0.0
    for row in rows:
        found = predict(row)
        error = found.memory.total / row["peak"] - 1
        worst = max(worst, abs(error))
        changed = ", ".join(row["settings"])
        limit = peak_flops(row["device"], row["precision"])
        mfu = f"{row['tokens_per_second'] * found.flops_per_token / limit:.0%}" if limit else "–"
        name = row["recipe"] + (f" ({changed})" if changed else "")
        lines.append(
            f"| {name} | {row['batch']:,} × {found.context_length:,} | {found.memory.total / 1e9:.2f} GB "
            f"| {row['peak'] / 1e9:.2f} GB | {error:+.1%} | {row['tokens_per_second']:,.0f} | {mfu} |"
        )
    return "\n".join(lines), worst


def measured_text(rows: list[dict[str, Any]]) -> str:
    """What stands in the page between the marks."""
    return f"{rows[0]['device']}, torch {rows[0]['torch']}:\n\n{table(rows)[0]}\n"


def put_into(page: Path, rows: list[dict[str, Any]]) -> None:
    before, _, rest = page.read_text().partition(MARK)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{MARK}\n{measured_text(rows)}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="keep the measurement in this file")
    parser.add_argument("--check", action="store_true", help="fail where the prediction is off by more than 10 %%")
    parser.add_argument("--only", nargs="*", default=[], help="recipes to measure")
    parser.add_argument("--kept", action="store_true", help="show the kept measurement, also where there is a GPU")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if not arguments.kept:
        import torch

        if torch.cuda.is_available():
            rows = measure_all(arguments.only, arguments.output)
    if not rows and KEPT.is_file():
        rows = json.loads(KEPT.read_text())
    if not rows:
        print("There is no CUDA GPU here, and no measurement is kept in docs/results/accounting.json.")
        return
    print(measured_text(rows))
    if arguments.page:
        put_into(arguments.page, rows)
    worst = table(rows)[1]
    if arguments.check and worst > TOLERANCE:
        sys.exit(f"The memory prediction is off by {worst:.1%}; {TOLERANCE:.0%} is allowed.")


if __name__ == "__main__":
    main()
