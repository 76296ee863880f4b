"""The real training loop against the bare step, against transformers, and against the bars; and what it learns.

    python benchmarks/training.py                      on a CPU: overhead of the loop, ratio to transformers
    python benchmarks/training.py --memory             and the growth of memory over 10,000 steps
    python benchmarks/training.py                      on a GPU: tokens/s of the real loop at the sizes people train
    python benchmarks/training.py --only bdh,lstm      these rows
    python benchmarks/training.py --nanogpt CLONE      and nanoGPT's compiled step at the same shape, in the same run
    python benchmarks/training.py --store S --quality  on a GPU: bits per byte after 40,960,000 tokens of a store
    … --check                                          an exit code of 1 where a bar is missed

Every ratio is taken in one run, the two sides by turns.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fledge.config import RunConfig, load_recipe, override_config, parse
from fledge.model import build_model
from fledge.run import Run
from fledge.tokenizer import CharacterTokenizer
from fledge.tokens import Batch
from fledge.training import Setup, TrainingResult, build_optimizer, read_metrics, train
from fledge.training.device import choose_precision, reseed
from fledge.training.objective import Objective
from fledge.training.optimizers import clip_scale, gradient_norm

ROUNDS = 7
STEPS = 40  # of each side in each round
BUSY = False
QUALITY_TOKENS = 40_960_000
EVERY_WINDOW = ["training.evaluate_windows=1000000"]
RECIPES: dict[str, tuple[str, list[str]]] = {
    "adamw": (
        "tinystories",
        ["optimizer.learning_rate=4e-3", "model.qk_norm=true", "schedule.final_fraction=0.05"],
    ),
    "muon": ("tinystories-muon", []),
}


def clock() -> float:
    """Wall time; with --busy the time of this process's threads, which other programs disturb less."""
    return time.process_time() if BUSY else time.perf_counter()


class RandomWindows:
    """Random ids, sample n following from n: what a loader does, without a corpus."""

    def __init__(self, vocabulary: int, context_length: int, size: int = 4096) -> None:
        self.context_length = context_length
        ids = np.random.default_rng(0).integers(vocabulary, size=size + context_length + 1)
        self.rows = np.lib.stride_tricks.sliding_window_view(ids, context_length + 1)

    def __len__(self) -> int:
        return len(self.rows) - 1

    def batch(self, samples: Any) -> Batch:
        rows = torch.from_numpy(np.ascontiguousarray(self.rows[np.asarray(samples) % len(self)]))
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def ahead(self, shares: Sequence[range]) -> None: ...

    def batches(self, shares: Sequence[range]) -> list[Batch]:
        return [self.batch(share) for share in shares]


def small(steps: int, **training: Any) -> RunConfig:
    """nanoGPT's README configuration for a CPU: 4 layers × 128, T=64, batch 12, 65 symbols."""
    quiet = {"evaluate_every": 0, "save_every": 0, "sample_every": 0, "evaluate_windows": 12}
    return parse(
        RunConfig,
        {
            "tokens": {"context_length": 64},
            "model": {**load_recipe("gpt2-small").model.model_dump(), "layers": 4, "width": 128, "heads": 4},
            "training": {
                "steps": steps,
                "batch_size": 12,
                "micro_batch": 12,
                "device": "cpu",
                **quiet,
                **training,
            },
            "sampling": {"max_tokens": 1},
        },
    )


def bare_step(config: RunConfig, vocabulary: int) -> Callable[[Batch], float]:
    """Forward, backward, clipping and our AdamW, and nothing else."""
    device = torch.device("cpu")
    reseed(0, "weights")
    model = build_model(config.model, vocabulary, config.tokens.context_length).train()
    objective = Objective(model, choose_precision("fp32", device), device, 0.0, 0.0)
    optimizer = build_optimizer(model, config.optimizer)

    def step(batch: Batch) -> float:
        loss, _ = objective(batch.inputs_BT, batch.targets_BT)
        loss = loss / batch.targets_BT.numel()
        loss.backward()
        scale = clip_scale(gradient_norm(optimizer.layout.gradients()), config.optimizer.clip_norm)
        optimizer.step(scale)
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def transformers_step(config: RunConfig, vocabulary: int) -> Callable[[Batch], float]:
    """The same model and step by transformers and torch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = config.model
    settings = GPT2Config(
        vocab_size=vocabulary,
        n_positions=config.tokens.context_length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(batch: Batch) -> float:
        logits = model(batch.inputs_BT).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def timed(step: Callable[[Batch], float], windows: RandomWindows, size: int, steps: int) -> float:
    """Seconds a step over batches that are ready."""
    batches = [windows.batch(range(n * size, (n + 1) * size)) for n in range(steps)]
    start = clock()
    for batch in batches:
        step(batch)
    return (clock() - start) / steps


def loop_seconds(config: RunConfig, vocabulary: int, windows: RandomWindows) -> float:
    """Seconds a step of the real loop, loading and logging included: a long run less a short one, by the difference."""
    spent = []
    for steps in (STEPS // 2, STEPS // 2 + STEPS):
        model = build_model(config.model, vocabulary, config.tokens.context_length)
        settings = override_config(config, [f"training.steps={steps}"])
        with tempfile.TemporaryDirectory() as folder:
            source: Any = windows
            start = clock()
            train(Setup(settings, model, CharacterTokenizer([]), source, None, Path(folder) / "run", quiet=True))
            spent.append(clock() - start)
    return (spent[1] - spent[0]) / STEPS


def on_cpu(memory: bool, rounds: int) -> list[tuple[str, str, bool]]:
    vocabulary, steps, size = 264, STEPS, 12
    config = small(steps)
    windows = RandomWindows(vocabulary, 64)
    bare, peer = bare_step(config, vocabulary), transformers_step(config, vocabulary)
    timed(bare, windows, size, 10), timed(peer, windows, size, 10)
    ours, theirs, loops = [], [], []
    for _ in range(rounds):
        ours.append(timed(bare, windows, size, steps))
        loops.append(loop_seconds(config, vocabulary, windows))
        theirs.append(timed(peer, windows, size, steps))
    overhead = statistics.median(loop / own for loop, own in zip(loops, ours, strict=True)) - 1
    ratio = statistics.median(other / loop for loop, other in zip(loops, theirs, strict=True))
    tokens = size * 64
    rows = [
        ("overhead of the loop over the bare step", f"{overhead:+.1%} (bar: below 3 %)", overhead < 0.03),
        (
            "tokens/s, real loop against transformers",
            f"{tokens / statistics.median(loops):,.0f} against {tokens / statistics.median(theirs):,.0f}: "
            f"{ratio:.2f}× (bar: 1)",
            ratio >= 1,
        ),
    ]
    return rows + ([memory_growth()] if memory else [])


def memory_growth() -> tuple[str, str, bool]:
    """Resident memory after 10,000 steps against that after 1,000."""
    config = small(10_000, batch_size=1, micro_batch=1)
    config = override_config(config, ["model.layers=1", "model.width=32", "model.heads=2", "tokens.context_length=16"])
    seen: list[float] = []

    class Watched(RandomWindows):
        def batch(self, samples: Any) -> Batch:
            if int(samples[0]) in (1000, 9900):
                seen.append(_resident())
            return super().batch(samples)

    model = build_model(config.model, 264, 16)
    source: Any = Watched(264, 16)
    with tempfile.TemporaryDirectory() as folder:
        train(Setup(config, model, CharacterTokenizer([]), source, None, Path(folder) / "run", quiet=True))
    growth = seen[-1] - seen[0]
    return "growth of memory, steps 1,000 to 9,900", f"{growth / 1e6:+.1f} MB (bar: below 5)", growth < 5e6


def _resident() -> float:
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def run_recipe(name: str, store: str, overrides: list[str], out: Path) -> tuple[TrainingResult, float]:
    """`fledge train` of a recipe over an existing store; with the seconds from the start to the first step's end."""
    started = time.perf_counter()
    evaluation = ["training.evaluate_every=500", "training.evaluate_windows=512", "training.sample_every=0"]
    settings = [f'tokens.store="{store}"', *evaluation, *overrides]
    result = Run(name, out, overrides=settings).train()
    elapsed = time.perf_counter() - started
    rest = (result.tokens - result.tokens / result.step) / result.tokens_per_second
    return result, elapsed - rest


class Row(NamedTuple):
    """A size that people train on a GPU, and the tokens a second that are asked of it.

    Those of `akjv-demo` and the LSTM are 5 and 8, and 3 and 5 times what steps reached before they were recorded.
    """

    recipe: str
    vocabulary: int
    changes: list[str]
    bar: float
    stretch: float


LARGE = ["model.layers=10", "model.width=640", "model.heads=10", "model.hidden=none", "training.batch_size=64"]
ROWS = {
    "tinystories-16": Row("tinystories", 10_000, ["training.batch_size=16"], 1.6e6, 2.2e6),
    "tinystories-64": Row("tinystories", 10_000, ["training.batch_size=64"], 2.8e6, 3.2e6),
    "tinystories-512": Row("tinystories", 10_000, ["training.batch_size=512"], 3.7e6, 4.2e6),
    "10x640-muon": Row("tinystories-muon", 4_096, LARGE, 1.25e6, 1.5e6),
    "10x640-adamw": Row("tinystories-muon", 4_096, [*LARGE, "optimizer.name=adamw"], 1.25e6, 1.5e6),
    "akjv-demo": Row("akjv-demo", 1_024, [], 0.98e6, 1.57e6),
    "lstm": Row("lstm", 1_024, [], 0.58e6, 0.97e6),
    "bdh": Row("bdh", 257, [], 270e3, 450e3),
    "gpt2": Row("gpt2-small", 50_257, ["training.batch_size=64"], 620e3, 700e3),
}


def on_gpu(names: Sequence[str], seconds: float, clone: Path | None) -> list[tuple[str, str, bool]]:
    """The real loop on random ids: tokens a second against the bars, and against the peer where one is given."""
    found = []
    for name, row in ROWS.items():
        if name not in names:
            continue
        config = override_config(load_recipe(row.recipe), ["training.tokens=none", *row.changes])
        tokens = config.training.batch_size * config.tokens.context_length
        steps = max(100, round(seconds * row.bar / tokens / 10) * 10)
        speed = loop_speed(config, row.vocabulary, steps)
        note = f"{speed:,.0f} tokens/s"
        if clone is not None and (config.model.architecture == "transformer"):
            peer = nanogpt_speed(clone, config, row.vocabulary, seconds)
            note += f", {speed / peer:.2f} times nanoGPT's step ({peer:,.0f})"
        note += f" (bar: {row.bar:,.0f}, stretch: {row.stretch:,.0f})"
        print(name, note, flush=True)
        found.append((name, note, speed >= row.bar))
    return found


def loop_speed(config: RunConfig, vocabulary: int, steps: int) -> float:
    """Tokens a second of the real loop with its defaults: the median of ten stretches of steps, the first two left out.

    Loading and logging are in it; checkpoints, evaluations and samples are not.
    """
    length = config.tokens.context_length
    quiet = ["training.save_every=0", "training.sample_every=0", "training.evaluate_every=0"]
    settings = override_config(config, [*quiet, f"training.steps={steps}", f"training.log_every={steps // 10}"])
    reseed(0, "weights")
    model = build_model(config.model, vocabulary, length)
    with tempfile.TemporaryDirectory() as folder:
        source: Any = RandomWindows(vocabulary, length, size=1 << 20)
        setup = Setup(settings, model, CharacterTokenizer([]), source, None, Path(folder) / "run", quiet=True)
        logged = [row["tokens_per_second"] for row in read_metrics(train(setup).metrics)]
    return statistics.median(float(speed) for speed in logged[2:] if speed)


def nanogpt_speed(clone: Path, config: RunConfig, vocabulary: int, seconds: float) -> float:
    """nanoGPT's compiled step of a model of the same layers, width and heads, as its train.py takes it."""
    sys.path.insert(0, str(clone))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    shape, length, size = config.model, config.tokens.context_length, config.training.batch_size
    settings = GPTConfig(
        block_size=length,
        vocab_size=-(-vocabulary // 64) * 64,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        dropout=shape.dropout,
        bias=False,
    )
    torch._dynamo.reset()
    model = GPT(settings).to("cuda")
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.95), "cuda")
    compiled = torch.compile(model)
    batches = [RandomWindows(vocabulary, length).batch(range(n * size, (n + 1) * size)).pin() for n in range(8)]

    def take(steps: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(steps):
            batch = batches[number % len(batches)].to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, loss = compiled(batch.inputs_BT, batch.targets_BT)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    take(10)
    return size * length / take(max(10, round(seconds / take(20))))


def quality(store: str, out: Path, names: list[str], extra: list[str]) -> list[tuple[str, str, bool]]:
    """The tinystories shape on a store's training split; bits per byte over all windows of its validation split."""
    rows = []
    for name in names:
        shared = [f"training.tokens={QUALITY_TOKENS}", "training.batch_size=64", "training.save_every=0"]
        shared += ["training.log_every=25", "sampling.prompt=It was", *extra]
        recipe, changes = RECIPES[name]
        result, _ = run_recipe(recipe, store, [*shared, *changes, *EVERY_WINDOW], out / name)
        bar = 1.66 if name.startswith("adamw") else 1.62
        bits = result.bits_per_byte or float("inf")
        note = f"{bits:.4f} bits per byte (bar: {bar}), {result.tokens_per_second:,.0f} tokens/s"
        print(name, note, flush=True)
        rows.append((f"quality, {name}", note, bits <= bar))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--memory", action="store_true", help="10,000 steps, and how memory grows")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side")
    parser.add_argument("--busy", action="store_true", help="measure processor time: for a machine with other work")
    parser.add_argument("--threads", type=int, help="CPU threads; one per core where none is given")
    parser.add_argument("--store", help="the token store for --quality, of a 10,000-token vocabulary")
    parser.add_argument("--only", default=",".join(ROWS), help="rows of the GPU's table, separated by commas")
    parser.add_argument("--seconds", type=float, default=6, help="how long each row of the GPU's table is measured")
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT, to measure its step beside ours")
    parser.add_argument("--quality", action="store_true", help="train on --store and measure bits per byte")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), help="which of the quality recipes")
    parser.add_argument("--set", nargs="*", default=[], help="settings for the quality runs")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"), help="where the quality runs go")
    options = parser.parse_args()
    global BUSY
    BUSY = options.busy
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.quality:
        rows = quality(options.store, options.out, options.recipes, options.set)
    elif torch.cuda.is_available():
        rows = on_gpu(options.only.split(","), options.seconds, options.nanogpt)
    else:
        rows = on_cpu(options.memory, options.rounds)
    for name, value, good in rows:
        print(f"{'ok  ' if good else 'MISS'} {name:45} {value}")
    if options.check and not all(good for _, _, good in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
