"""Training steps per second of the models: forward, backward, clipping and AdamW, on random tokens.

    python benchmarks/models.py                 on a CUDA GPU the table of bars; on a CPU against transformers
    python benchmarks/models.py --check         the same, and an exit code of 1 where a bar is missed
    python benchmarks/models.py --only bdh      one row
    python benchmarks/models.py --documents S   packed text from this token store, instead of drawn document lengths

Each row prints its floor too: the floating-point operations a step needs at the rate of a large matrix product here,
and the bytes it has to move at the rate of a large copy, both measured at the start.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.config import ModelConfig, TokensConfig, load_recipe
from fledge.loss import head_loss
from fledge.model import Model, build_model
from fledge.tokens import TokenStore, make_windows

DATASHEET_FLOPS = 989e12  # dense bf16 of an H100 or H200: what MFU is usually given against


class Batch(NamedTuple):
    inputs_BT: Tensor
    targets_BT: Tensor
    positions_BT: Tensor | None = None
    documents_BT: Tensor | None = None


@dataclass
class Row:
    """One line of the table: a model, its shape, and the bar."""

    name: str
    config: ModelConfig
    vocabulary_size: int
    context_length: int
    batch_size: int
    bar: float
    memory_bar: float | None = None
    packed: bool = False
    documents: Path | None = None

    @property
    def tokens(self) -> int:
        return self.batch_size * self.context_length


def gpu_rows(documents: Path | None) -> list[Row]:
    gpt2, tinystories, bdh = (load_recipe(name) for name in ("gpt2-small", "tinystories", "bdh"))
    return [
        Row("gpt2", gpt2.model, 50257, 1024, 64, 620e3),
        Row("tinystories", tinystories.model, 10_000, 256, 512, 3.5e6),
        Row("bdh", bdh.model, 256, 512, 32, 220e3, memory_bar=18e9),
        Row("packed", gpt2.model, 50257, 1024, 64, 0.90, packed=True, documents=documents),
    ]


def flops_per_token(row: Row) -> float:
    """Of a training step, in the usual count: six per weight, and the whole square of the scores."""
    c, length = row.config, row.context_length
    with torch.device("meta"):
        model = build_model(c, row.vocabulary_size, length)
    if c.architecture == "bdh":
        neurons = c.multiplier * c.width
        layer = 2 * neurons * (3 * c.width + length) + 2 * length * c.width * c.heads
        return 3 * (c.layers * layer + 2 * c.width * row.vocabulary_size)
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("layers"))
    return 6 * (matrices + c.width * row.vocabulary_size) + 12 * c.layers * c.width * length


def bytes_per_step(row: Row) -> float:
    """What a step has to move: weights, gradients and moments, and each layer's input out and back once in bf16."""
    with torch.device("meta"):
        parameters = build_model(row.config, row.vocabulary_size, row.context_length).parameters_count()
    return 28 * parameters + 2 * 2 * row.tokens * row.config.width * row.config.layers


def random_batch(row: Row, device: str, seed: int) -> Batch:
    if row.documents is not None:
        return stored_batch(row, row.documents, device, seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (row.batch_size, row.context_length + 1)
    ids = torch.randint(row.vocabulary_size, shape, generator=generator)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if not row.packed:
        return Batch(inputs.to(device), targets.to(device))
    documents, positions = document_layout(row, generator)
    return Batch(inputs.to(device), targets.to(device), positions.to(device), documents.to(device))


def stored_batch(row: Row, store: Path, device: str, number: int) -> Batch:
    """The batch of that number, packed from a token store as training packs it."""
    opened = TokenStore.open(store)
    settings = TokensConfig(context_length=row.context_length, policy="packed")
    windows = make_windows(opened.split("train"), settings, opened.roles, seed=0)
    first = number * row.batch_size
    return Batch(*windows.batch(range(first, first + row.batch_size)).to(device))


def document_layout(row: Row, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Documents as long as those of a web corpus (log-normal, median 400 tokens, mean about 730), end to end."""
    documents = torch.empty(row.tokens, dtype=torch.long)
    positions = torch.empty(row.tokens, dtype=torch.long)
    start = number = 0
    while start < row.tokens:
        length = int(torch.empty(1).log_normal_(math.log(400), 1.1, generator=generator)) + 1
        stop = min(start + length, row.tokens)
        documents[start:stop] = number
        positions[start:stop] = torch.arange(stop - start)
        start, number = stop, number + 1
    shape = (row.batch_size, row.context_length)
    documents, positions = documents.view(shape), positions.view(shape)
    # A document that goes on in the next row begins anew there: a row is all that attention sees.
    return documents, positions - torch.where(documents == documents[:, :1], positions[:, :1], 0)


def build(row: Row, device: str) -> Model:
    torch.manual_seed(0)
    return build_model(row.config, row.vocabulary_size, row.context_length).to(device).train()


def training_step(model: Model, device: str, compiled: bool) -> Callable[[Batch], Tensor]:
    """A whole step as the trainer does it: plan, loss, gradients, clipping to norm 1, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    narrow = torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")

    def objective(inputs: Tensor, targets: Tensor, plan: Any) -> tuple[Tensor, Tensor]:
        with narrow:
            hidden, _ = model.hidden(inputs, plan)
            return head_loss(model, hidden, targets)

    run = torch.compile(objective, dynamic=False, fullgraph=True) if compiled else objective

    def step(batch: Batch) -> Tensor:
        loss, count = run(batch.inputs_BT, batch.targets_BT, model.plan(batch))
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def time_steps(step: Callable[[Batch], Tensor], batches: list[Batch], device: str, seconds: float) -> float:
    """Seconds a step, the median of five rounds, after the compilation."""
    for batch in batches * 2:
        step(batch)
    _wait(device)
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    _wait(device)
    once = (time.perf_counter() - start) / len(batches)
    rounds, count = [], max(1, round(seconds / 5 / once))
    for _ in range(5):
        start = time.perf_counter()
        for number in range(count):
            step(batches[number % len(batches)])
        _wait(device)
        rounds.append((time.perf_counter() - start) / count)
    return sorted(rounds)[2]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ceilings() -> tuple[float, float]:
    """This GPU's rate of a large bf16 product and of a large copy, in operations and bytes a second."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    product = _seconds(lambda: a @ b)
    copy = _seconds(lambda: target.copy_(source))
    return 2 * 8192**3 / product, 2 * (1 << 30) / copy


def _seconds(function: Callable[[], object]) -> float:
    for _ in range(3):
        function()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        function()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e4


def measure_gpu(row: Row, seconds: float) -> tuple[float, float]:
    """Tokens a second, and the peak of memory in bytes."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = build(row, "cuda")
    batches = [random_batch(row, "cuda", seed) for seed in range(4)]
    per_step = time_steps(training_step(model, "cuda", compiled=True), batches, "cuda", seconds)
    return row.tokens / per_step, torch.cuda.max_memory_allocated()


def gpu_table(rows: list[Row], seconds: float) -> Iterator[bool]:
    flops, bandwidth = ceilings()
    print(f"{torch.cuda.get_device_name()}: product {flops / 1e12:.0f} TFLOP/s, copy {bandwidth / 1e12:.2f} TB/s")
    print(f"{'model':12} {'tokens/s':>10} {'bar':>10} {'ms':>7} {'MFU':>6} {'floor ms':>9} {'of it':>6} {'GB':>6}")
    plain = 0.0
    for row in rows:
        speed, memory = measure_gpu(row, seconds)
        milliseconds = row.tokens / speed * 1e3
        work = flops_per_token(row) * row.tokens
        floor = max(work / flops, bytes_per_step(row) / bandwidth) * 1e3
        if row.name == "gpt2":
            plain = speed
        bar = row.bar * plain if row.packed else row.bar
        passed = speed >= bar and (row.memory_bar is None or memory <= row.memory_bar)
        print(
            f"{row.name:12} {speed:10,.0f} {bar:10,.0f} {milliseconds:7.1f} "
            f"{work / DATASHEET_FLOPS / milliseconds * 1e3:6.1%} {floor:9.1f} {floor / milliseconds:6.1%} "
            f"{memory / 1e9:6.1f}  {'ok' if passed else 'MISSED'}",
            flush=True,
        )
        yield passed


CPU_SHAPES = {
    "llama 4×128, T=64, batch 12": (load_recipe("akjv-demo").model, 1024, 64, 12),
    "gpt2 4×256, T=256, batch 4": (
        load_recipe("gpt2-small").model.model_copy(update={"layers": 4, "width": 256, "heads": 4}),
        4096,
        256,
        4,
    ),
}


def cpu_table(seconds: float) -> Iterator[bool]:
    """Our steps and transformers' in turn, in one run."""
    print(f"CPU, {torch.get_num_threads()} threads")
    print(f"{'model':30} {'ours':>10} {'transformers':>13} {'ratio':>6}   tokens/s")
    for name, (config, vocabulary_size, context_length, batch_size) in CPU_SHAPES.items():
        row = Row(name, config, vocabulary_size, context_length, batch_size, 1.0)
        batches = [random_batch(row, "cpu", seed) for seed in range(2)]
        own = training_step(build(row, "cpu"), "cpu", compiled=False)
        other = _peer_step(row)
        ratios = []
        for _ in range(3):  # in turn, so that a busy moment hits both
            ours = row.tokens / time_steps(own, batches, "cpu", seconds / 3)
            theirs = row.tokens / time_steps(other, batches, "cpu", seconds / 3)
            ratios.append((ours / theirs, ours, theirs))
        ratio, ours, theirs = sorted(ratios)[1]
        print(f"{name:30} {ours:10,.0f} {theirs:13,.0f} {ratio:6.2f}  {'ok' if ratio >= 1 else 'MISSED'}", flush=True)
        yield ratio >= 1


def _peer_step(row: Row) -> Callable[[Batch], Tensor]:
    import transformers

    from fledge.model.exchange import hub_settings

    settings = hub_settings(row.config, row.vocabulary_size, row.context_length)
    kind = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}[settings["model_type"]]
    model = kind(kind.config_class(**settings)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(batch: Batch) -> Tensor:
        logits = model(batch.inputs_BT, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--only", help="rows of the GPU table, by name, separated by commas")
    parser.add_argument("--seconds", type=float, default=10, help="time to measure each row for")
    parser.add_argument("--documents", type=Path, help="a token store whose documents fill the packed row")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
        wanted = arguments.only.split(",") if arguments.only else None
        rows = [row for row in gpu_rows(arguments.documents) if not wanted or row.name in wanted]
        results = list(gpu_table(rows, arguments.seconds))
    else:
        results = list(cpu_table(arguments.seconds))
    if arguments.check and not all(results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
