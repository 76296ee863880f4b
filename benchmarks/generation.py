"""Decoding speed beside transformers, the memory's own speed, and the time to load a bundle.

    python benchmarks/generation.py                 all that this machine can run
    python benchmarks/generation.py --check         the same, and fail where a bar is missed
    python benchmarks/generation.py --only flat     some rows: tinystories, gpt2-small, flat, load, gpu, sampled

Both sides have the same weights and write the same number of tokens greedily from the same prompt, in turns; a claim is
the ratio of their medians. At one token a step, all weights pass through the processor once a token: the share of the
memory's bandwidth says how near that floor a figure is. On a GPU the steps are recorded and replayed as CUDA graphs.
`sampled` is `run.generate` of a loaded bundle, prompts, random draws and texts included, beside transformers' generate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fledge
from fledge.bundle import load_bundle, save_bundle
from fledge.config import ModelConfig, RunConfig, SamplingConfig, TokensConfig
from fledge.generation import generate
from fledge.generation.prepare import prepare
from fledge.generation.step import NativeStep
from fledge.model import Model, State, build_model
from fledge.model.exchange import export_weights
from fledge.model.hub import hub_settings
from fledge.tokenizer import BPETokenizer, Tokenizer

GPT2 = {
    "norm": "layer",
    "bias": True,
    "position": "learned",
    "feed_forward": "gelu_tanh",
    "tied": True,
    "initialisation": "gpt2",
}
SHAPES: dict[str, tuple[ModelConfig, int, int]] = {
    "tinystories": (ModelConfig(layers=4, width=512, heads=16, hidden=1344), 10_000, 256),
    "gpt2-small": (ModelConfig(layers=12, width=768, heads=12, **GPT2), 50_257, 1024),
    "gpt2-xl": (ModelConfig(layers=48, width=1600, heads=25, **GPT2), 50_257, 1024),
}
PARTS = ["tinystories", "gpt2-small", "flat", "load", "gpu", "sampled"]
PROMPT = "\x01\x02\x03\x04\x05\x06\x07\x08"


class Row(NamedTuple):
    name: str
    measured: str
    bar: str
    holds: bool | None


def any_tokenizer(size: int) -> Tokenizer:
    """A tokenizer with so many ids: the bytes, and then pieces of three."""
    vocabulary = {token: bytes([token]) for token in range(256)}
    vocabulary |= {token: token.to_bytes(3, "big") for token in range(256, size)}
    return BPETokenizer(vocabulary, [])


def make(name: str, device: str = "cpu") -> Model:
    config, vocabulary, context = SHAPES[name]
    torch.manual_seed(0)
    with torch.device(device):
        return build_model(config, vocabulary, context).eval()


def theirs(model: Model) -> Any:
    """The same model with the same weights in transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = dict(hub_settings(model.config, model.vocabulary_size, model.context_length))
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    peer = AutoModelForCausalLM.from_config(config).eval()
    peer.load_state_dict(export_weights(model.config, model.state_dict()), strict=False)
    return peer


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    first(), second()
    times = [(seconds(first), seconds(second)) for _ in range(rounds)]
    return statistics.median(a for a, _ in times), statistics.median(b for _, b in times)


def read_bandwidth() -> float:
    """Bytes a second that summing a large array reads."""
    block = torch.ones(1 << 27)
    return max(block.numel() * 4 / seconds(block.sum) for _ in range(5))


def weight_bytes(model: Model) -> int:
    """What one token reads: every weight but the embeddings that only a few rows are taken from."""
    unread = 0 if model.config.tied else model.token_embeddings.weight.numel()
    if model.config.position == "learned":
        unread += model.position_embeddings.weight.numel()
    weights = list(model.parameters())
    return (sum(weight.numel() for weight in weights) - unread) * weights[0].element_size()


def beside_transformers(name: str, batch: int, tokens: int, rounds: int, bar: float | None) -> Row:
    model = make(name)
    peer = theirs(model)
    tokenizer = any_tokenizer(model.vocabulary_size)
    sampling = SamplingConfig(temperature=0, max_tokens=tokens, stop_at_end=False)
    ids = torch.tensor([tokenizer.encode(PROMPT)] * batch)
    same = generate(model, tokenizer, [PROMPT], sampling)[0].ids
    prepare(model)
    written = peer.generate(ids[:1], max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
    agreeing = sum(a == b for a, b in zip(same, written[0, ids.shape[1] :].tolist(), strict=True))
    ours, other = in_turns(
        lambda: generate(model, tokenizer, [PROMPT] * batch, sampling),
        lambda: peer.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0),
        rounds,
    )
    rate, share = tokens * batch / ours, weight_bytes(model) * tokens / ours / read_bandwidth()
    measured = (
        f"{other / ours:.2f}× transformers: {rate:,.0f} to {tokens * batch / other:,.0f} tokens/s, "
        f"{share:.0%} of the memory bandwidth; {agreeing} of {tokens} tokens equal"
    )
    return Row(f"{name}, batch {batch}", measured, f"≥ {bar}×" if bar else "–", other / ours >= bar if bar else None)


def flat(name: str, config: ModelConfig, vocabulary: int, context: int) -> Row:
    """The last tokens of a context against those around the 16th, a step of each in turns: over the seconds that lie
    between them in one text, a shared machine's memory changes its speed by more than the bar allows."""
    torch.manual_seed(0)
    model = prepare(build_model(config, vocabulary, context).eval())
    native = NativeStep.make(model)

    def step(state: State, token: Tensor) -> tuple[State, Tensor]:
        if native is not None:
            return state, native(state, token).argmax(-1)
        hidden, after = model.hidden(token[:, None], state=state)
        assert after is not None
        return after, model.head(hidden[:, -1]).argmax(-1)

    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(3):
            texts = []
            for length in (7, context - 17):
                _, state = model.hidden(torch.randint(vocabulary, (1, length)), state=model.init_state(1))
                texts.append(step(state, torch.zeros(1, dtype=torch.long)))
            for _ in range(16):
                for place, (state, token) in enumerate(texts):
                    start = time.perf_counter()
                    texts[place] = step(state, token)
                    times[place].append(time.perf_counter() - start)
    early, late = map(statistics.median, times)
    return Row(
        f"flat: {name}",
        f"{late / early:.2f}× the 16th token at the {context}th ({late * 1e3:.2f} ms)",
        "≤ 1.2×",
        late / early <= 1.2,
    )


def flat_rows() -> Iterator[Row]:
    yield flat("tinystories", *SHAPES["tinystories"])
    yield flat("bdh", ModelConfig(architecture="bdh", layers=6, width=256, heads=4), 256, 64)
    for architecture in ("rnn", "gru", "lstm"):
        yield flat(architecture, ModelConfig(architecture=architecture, layers=2, width=512), 10_000, 256)
    yield flat("gpt2-small", *SHAPES["gpt2-small"])


def load_row() -> Row:
    model = make("gpt2-small")
    config = RunConfig(model=model.config, tokens=TokensConfig(context_length=1024))
    with tempfile.TemporaryDirectory() as folder:
        place = save_bundle(Path(folder) / "bundle", config, any_tokenizer(1000), model)
        size = (place / "model.safetensors").stat().st_size
        took = statistics.median(seconds(lambda: load_bundle(place)) for _ in range(3))
    return Row(f"load {size / 1e6:.0f} MB", f"{took:.2f} s, every checksum verified", "< 1 s", took < 1)


def gpu_rows() -> list[Row]:
    """Batch 1 in bfloat16: the second text of a session, so that nothing is compiled while it is timed."""
    block = torch.ones(1 << 30, dtype=torch.bfloat16, device="cuda")
    bandwidth = 0.0
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        block.sum()
        torch.cuda.synchronize()
        bandwidth = max(bandwidth, block.numel() * 2 / (time.perf_counter() - start))
    del block
    rows = []
    for name in ("gpt2-small", "gpt2-xl"):
        model = prepare(make(name, "cuda").to(torch.bfloat16))
        tokenizer = any_tokenizer(model.vocabulary_size)
        sampling = SamplingConfig(temperature=0, max_tokens=769, stop_at_end=False)
        start = time.perf_counter()
        generate(model, tokenizer, [PROMPT], sampling)
        first = time.perf_counter() - start
        took = decode_seconds(model, tokenizer, sampling)
        floor = weight_bytes(model) / bandwidth
        rate, times = 1 / took, took / floor
        measured = (
            f"{rate:,.0f} tokens/s, {times:.2f}× the time to read the weights once "
            f"({weight_bytes(model) / took / 1e12:.2f} of {bandwidth / 1e12:.2f} TB/s; first text {first:.0f} s)"
        )
        holds = rate >= 4000 if name == "gpt2-small" else times <= 1.6
        rows.append(Row(f"{name}, H200, batch 1", measured, "≥ 4,000/s" if name == "gpt2-small" else "≤ 1.6×", holds))
        del model
        torch.cuda.empty_cache()
    return rows


@torch.inference_mode()
def decode_seconds(model: Model, tokenizer: Tokenizer, sampling: SamplingConfig) -> float:
    """Seconds a token once the prompt is read and the graphs recorded."""
    from fledge.generation.burst import Bursts
    from fledge.generation.sampling import uniforms

    state = model.init_state(1)
    hidden, state = model.hidden(torch.tensor([tokenizer.encode(PROMPT)], device="cuda"), state=state)
    numbers = uniforms(0, 1, 0, sampling.max_tokens).to("cuda")
    bursts = Bursts(model, state, sampling, numbers, tokenizer.vocab_size)
    bursts.start(model.head(hidden[:, -1]).argmax(-1), 1)
    bursts.burst(256)
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        start = time.perf_counter()
        bursts.burst(128)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 128)
    return statistics.median(times)


def sampled_rows(tokens: int = 256, rounds: int = 2) -> Iterator[Row]:
    """GPT-2 small in bfloat16: `tokens` sampled tokens after each prompt, of 1 and of 64 prompts of 32 tokens."""
    tokenizer, device = any_tokenizer(50_257), "cuda" if torch.cuda.is_available() else "cpu"
    model = make("gpt2-small").to(torch.bfloat16)
    config = RunConfig(model=model.config, tokens=TokensConfig(context_length=1024))
    with tempfile.TemporaryDirectory() as folder:
        run = fledge.load(save_bundle(Path(folder) / "bundle", config, tokenizer, model), device)
    peer = theirs(model).to(device, torch.bfloat16)
    for texts in (1, 64):
        prompts = [bytes((7 * text + place) % 128 for place in range(32)) for text in range(texts)]
        ids = torch.tensor([tokenizer.encode(prompt) for prompt in prompts], device=device)
        start = time.perf_counter()
        found = run.generate(prompts, temperature=0.8, max_tokens=tokens, stop_at_end=False)
        first = time.perf_counter() - start
        assert sum(len(one.ids) for one in found) == tokens * texts
        ours, other = in_turns(
            partial(run.generate, prompts, temperature=0.8, max_tokens=tokens, stop_at_end=False),
            partial(
                peer.generate, ids, do_sample=True, temperature=0.8, top_k=0, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=0,
            ),
            rounds,
        )  # fmt: skip
        measured = (
            f"{tokens * texts / ours:,.0f} tokens/s, {other / ours:.1f}× transformers "
            f"({tokens * texts / other:,.0f}); first call {first:.1f} s"
        )
        yield Row(f"gpt2-small, {device}, sampled, {texts} prompts", measured, "≥ 1.2×", other / ours >= 1.2)


def cpu_rows(name: str, quick: bool) -> list[Row]:
    bar = 2.0 if name == "tinystories" else 1.2
    tokens = 240 if name == "tinystories" else 64
    rounds = 3 if quick else 5
    if quick:
        return [beside_transformers(name, 1, tokens // 4, rounds, bar)]
    return [beside_transformers(name, 1, tokens, rounds, bar), beside_transformers(name, 8, tokens // 4, rounds, None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a bar is missed")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tokens, and batch 1 only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    wanted = arguments.only or PARTS
    rows: list[Row] = []
    for part in wanted:
        found: Iterable[Row]
        if part in ("tinystories", "gpt2-small"):
            found = cpu_rows(part, arguments.quick)
        elif part == "flat":
            found = flat_rows()
        elif part == "load":
            found = [load_row()]
        elif torch.cuda.is_available():
            found = gpu_rows() if part == "gpu" else sampled_rows()
        else:
            print(f"{part}: there is no CUDA device here")
            continue
        for row in found:
            verdict = "" if row.holds is None else ("holds" if row.holds else "MISSED")
            print(f"| {row.name} | {row.measured} | {row.bar} | {verdict} |", flush=True)
            rows.append(row)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if arguments.check and any(row.holds is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
