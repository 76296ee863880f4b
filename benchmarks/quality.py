"""How good the model is that `fledge start` makes of a text in a time: bits per byte on a part that nothing chose by.

    python benchmarks/quality.py                        the rows that this machine is for (a GPU, or two CPU cores)
    python benchmarks/quality.py --only akjv-cpu        these rows
    python benchmarks/quality.py --check                an exit code of 1 that names each bar that is missed
    python benchmarks/quality.py --peer nanogpt=PATH    and nanoGPT's small recipe, from a clone there, in the same time
    python benchmarks/quality.py --text code=FILE …     and the forecast's error on texts of your own

Every run is the command a person would type, with `training.seed` of its own; the split and the bytes are the same for
all seeds and all peers. Finished runs are kept in `--out` and not run again, so the same command goes on after a kill.
Today's figures of rows marked so were measured with an earlier program: `--fledge` names another one to run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pickle
import re
import shlex
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(os.environ.get("FLEDGE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
BOOKS = DATA / "gutenberg" / "gutenberg_64m.txt.zst"
FORECAST = 0.03
"How far off the forecast may be, as a share of the result."
STRETCH_FORECAST = 0.02
GROWING = (1, 2, 4, 8, 16)  # minutes, of which none may give a worse model than the one before


class Row(NamedTuple):
    """One line of the table: a text, a time, a machine, and what has to be reached there."""

    text: str
    "A name of `fledge start`, or `books`, whose first bytes are taken."
    bytes: int | None
    minutes: float
    gpu: bool
    today: float | None = None
    "Bits per byte before this work; None where it was not measured, and then there is no bar."
    bar: float | None = None
    stretch: float | None = None
    "Both in bits per byte; or, with `against`, as shares of what that is."
    against: str | None = None
    "`today`, `trigram`, or the name of the row that it is held against."

    def limits(self, trigram: float | None, others: dict[str, float]) -> tuple[float | None, float | None]:
        """Bar and stretch in bits per byte; None where what they are held against is not known."""
        if self.against is None:
            return self.bar, self.stretch
        known = {"today": self.today, "trigram": trigram}.get(self.against, others.get(self.against))
        if known is None or self.bar is None or self.stretch is None:
            return None, None
        return known * self.bar, known * self.stretch


ROWS = {
    "books-10m": Row("books", 10_000_000, 4, True, 1.796, 1.50, 1.45),
    "books-10m-longer": Row("books", 10_000_000, 15, True, None, 0.985, 0.97, "books-10m"),
    "books-1m": Row("books", 1_000_000, 2, True, None, 0.92, 0.88, "today"),
    "books-64m": Row("books", 64_000_000, 10, True, None, 0.95, 0.92, "today"),
    "akjv-cpu": Row("akjv", None, 5, False, 1.252, 1.21, 1.18),
    "books-1m-cpu": Row("books", 1_000_000, 5, False, None, 0.95, 0.92, "today"),
    "books-908k-cpu": Row("books", 908_000, 2, False, 2.174, 1.0, 0.95, "trigram"),
}


class Result(NamedTuple):
    """What one run reached."""

    bits: float
    trigram: float | None
    expected: float | None
    minutes: float


def text_of(row: Row, folder: Path) -> str:
    """The text to name on the command line, cut where a row asks for its first bytes."""
    if row.text != "books" or row.bytes is None:
        return row.text
    path = folder / f"books-{row.bytes}.txt"
    if not path.is_file() or path.stat().st_size != row.bytes:
        from fledge.corpus import Corpus

        folder.mkdir(parents=True, exist_ok=True)
        with Corpus.open(BOOKS, validation_fraction=0).sources[0].open() as stream:
            path.write_bytes(stream.read(row.bytes))
    return str(path)


def run(fledge: list[str], text: str, minutes: float, seed: int, folder: Path, given: Sequence[str]) -> Result:
    """One `fledge start`, unless its result is there already."""
    kept = folder.with_suffix(".json")
    if kept.is_file():
        return Result(**json.loads(kept.read_text()))
    seconds = f"{round(60 * minutes)}s"
    options = [f"training.seed={seed}", *given]
    words = [*fledge, "start", text, "--time", seconds, "--out", str(folder)]
    began = time.monotonic()
    done = subprocess.run(
        [*words, *(word for option in options for word in ("--set", option))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    found = result_of(folder, done.stdout, (time.monotonic() - began) / 60)
    kept.write_text(json.dumps(found._asdict()))
    return found


def result_of(folder: Path, said: str, minutes: float) -> Result:
    """From the run's folder; of an earlier program, which keeps no result there, from what it said."""
    plan = json.loads((folder / "start.json").read_text())
    if result := plan.get("result"):
        expected = (plan.get("forecast") or {}).get("bits_per_byte")
        return Result(result["bits_per_byte"], result["baselines"].get("trigram"), expected, minutes)
    bits = re.search(r"([0-9.]+) bits per byte on", said)
    if bits is None:
        raise SystemExit(f"{folder} has no result, and none was printed.")
    return Result(float(bits[1]), plan.get("counts", {}).get("trigram"), None, minutes)


def line(name: str, row: Row, results: Sequence[Result], others: dict[str, float]) -> tuple[str, str | None]:
    """A row of the table, and what was missed.

    >>> row = Row("akjv", None, 5, False, 1.252, 1.21, 1.18)
    >>> line("akjv-cpu", row, [Result(1.2, 1.5, None, 5), Result(1.24, 1.5, None, 5)], {})[1]
    'akjv-cpu: 1.220 bits per byte, where at most 1.210 are asked'
    """
    bits = [result.bits for result in results]
    mean, spread = statistics.fmean(bits), max(bits) - min(bits)
    trigrams = [result.trigram for result in results if result.trigram is not None]
    bar, stretch = row.limits(statistics.fmean(trigrams) if trigrams else None, others)
    figures = [f"{mean:.3f} ± {spread / 2:.3f} ({len(bits)} seed{'s' * (len(bits) > 1)})"]
    figures += [f"today {row.today:.3f}"] if row.today else []
    figures += [f"trigram {statistics.fmean(trigrams):.3f}"] if trigrams else []
    figures += [f"at most {bar:.3f}, stretch {stretch:.3f}"] if bar and stretch else ["no bar: nothing to hold it to"]
    longest = max(result.minutes for result in results)
    figures.append(f"{longest:.1f} of {row.minutes:g} minutes")
    missed = None
    if bar is not None and mean > bar:
        missed = f"{name}: {mean:.3f} bits per byte, where at most {bar:.3f} are asked"
    elif longest > 1.05 * row.minutes + 0.1:
        missed = f"{name}: took {longest:.1f} minutes, where {row.minutes:g} are allowed"
    mark = "MISS" if missed else ("++  " if stretch is not None and mean <= stretch else "ok  ")
    return f"{mark} {name:18} {'; '.join(figures)}", missed


def forecast_line(name: str, results: Sequence[Result]) -> tuple[str, str | None] | None:
    """How far off the forecasts of a row were, the mean of the seeds.

    >>> forecast_line("x", [Result(2.0, None, 2.1, 1)])[1]
    'x: the forecast was 5.0 % off, where 3 % are asked'
    """
    off = [result.expected / result.bits - 1 for result in results if result.expected]
    if not off:
        return None
    mean = statistics.fmean(off)
    missed = f"{name}: the forecast was {100 * abs(mean):.1f} % off, where {100 * FORECAST:.0f} % are asked"
    good = abs(mean) <= FORECAST
    mark = "MISS" if not good else ("++  " if abs(mean) <= STRETCH_FORECAST else "ok  ")
    return f"{mark} {name:18} forecast {100 * mean:+.1f} % off", None if good else missed


def growing_lines(means: dict[float, list[float]]) -> tuple[list[str], list[str]]:
    """That more time is never worse, beyond the seeds' spread.

    >>> growing_lines({1: [1.7, 1.72], 2: [1.6, 1.62], 4: [1.75, 1.75]})[1]
    ['4 minutes: 1.750 bits per byte, worse than the 1.610 of 2 minutes']
    """
    lines, missed = [], []
    before: tuple[float, float] | None = None
    for minutes, bits in sorted(means.items()):
        mean, spread = statistics.fmean(bits), max(bits) - min(bits)
        worse = before is not None and mean > before[1] + spread
        lines.append(f"{'MISS' if worse else 'ok  '} {minutes:g} minutes: {mean:.3f} ± {spread / 2:.3f}")
        if worse and before is not None:
            than = f"worse than the {before[1]:.3f} of {before[0]:g} minutes"
            missed.append(f"{minutes:g} minutes: {mean:.3f} bits per byte, {than}")
        before = min(before or (minutes, mean), (minutes, mean), key=lambda pair: pair[1])
    return lines, missed


def nanogpt(clone: Path, ours: Path, minutes: float, gpu: bool, work: Path) -> float | None:
    """nanoGPT's recipe for a small text, by characters, on our training, validation and test text: bits per byte.

    Its best checkpoint is measured, with windows that overlap by half, so that a token has at least half a context;
    None where it has none in the time. As of our own runs, a result is kept and not measured again.
    """
    kept = work.with_suffix(".json")
    if kept.is_file():
        return float(json.loads(kept.read_text())["bits"])
    import numpy as np
    import torch

    from fledge.run import Run

    run = Run.open(ours, quiet=True)
    texts = {}
    for split in ("train", "validation", "test"):
        part = run.tokens.split(split)
        texts[split] = b"".join(run.tokenizer.decode_bytes(part.document(n)) for n in range(len(part.documents)))
    text = {name: part.decode("utf-8", "replace") for name, part in texts.items()}
    characters = sorted(set("".join(text.values())))
    place = {character: number for number, character in enumerate(characters)}
    data = clone / "data" / f"quality-{os.getpid()}"
    data.mkdir(parents=True, exist_ok=True)
    try:
        ids = {name: np.array([place[c] for c in part], dtype=np.uint16) for name, part in text.items()}
        ids["train"].tofile(data / "train.bin")
        ids["validation"].tofile(data / "val.bin")
        with (data / "meta.pkl").open("wb") as file:
            pickle.dump({"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": place}, file)
        work.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "train.py", "config/train_shakespeare_char.py", f"--dataset={data.name}"]
        words += [f"--out_dir={work.absolute()}", *([] if gpu else CPU_WORDS)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # its own end is a number of steps
            subprocess.run(words, cwd=clone, check=True, timeout=60 * minutes, stdout=subprocess.DEVNULL)
    finally:
        for path in data.iterdir():
            path.unlink()
        data.rmdir()
    if not (work / "ckpt.pt").is_file():
        return None
    sys.path.insert(0, str(clone))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    best = torch.load(work / "ckpt.pt", map_location="cuda" if gpu else "cpu", weights_only=False)
    model = GPT(GPTConfig(**best["model_args"]))
    model.load_state_dict({name.removeprefix("_orig_mod."): part for name, part in best["model"].items()})
    model = model.to("cuda" if gpu else "cpu").eval()
    size = best["model_args"]["block_size"]
    bits = torch_nats(model, torch.from_numpy(ids["test"].astype(np.int64)), size) / math.log(2) / len(texts["test"])
    kept.write_text(json.dumps({"bits": bits}))
    return bits


CPU_WORDS = [
    *("--device=cpu", "--compile=False", "--eval_iters=20", "--block_size=64", "--batch_size=12", "--n_layer=4"),
    *("--n_head=4", "--n_embd=128", "--max_iters=2000", "--lr_decay_iters=2000", "--dropout=0.0"),
]
"What nanoGPT's README gives for a machine without a GPU."


def torch_nats(model: Any, ids: Any, size: int) -> float:
    """The summed loss of all but the first id, each predicted from at least half a context."""
    import torch
    from torch.nn import functional

    total, half = 0.0, size // 2
    device = next(model.parameters()).device
    with torch.no_grad():
        for start in range(0, max(1, len(ids) - 1 - half), half):
            window = ids[start : start + size + 1].to(device)
            logits, _ = model(window[None, :-1], window[None, 1:])
            losses = functional.cross_entropy(logits[0].float(), window[1:], reduction="none")
            total += float(losses[0 if start == 0 else half :].sum())
    return total


def peers(given: Sequence[str]) -> dict[str, Path]:
    """By name, those that can be run here; a sentence for each that cannot."""
    found: dict[str, Path] = {}
    for peer in given:
        name, _, path = peer.partition("=")
        if name == "nanogpt" and (Path(path) / "train.py").is_file():
            found[name] = Path(path)
        elif name == "nanogpt":
            print(f"skip nanogpt: there is no train.py in {path}. Name a clone of karpathy/nanoGPT.")
        else:
            print(f"skip {name}: only nanogpt can be run from here. slowrun's tiny recipe compiles CUDA kernels for")
            print("GPT-2's vocabulary alone, and can't be scaled to a small text without being rewritten.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--only", nargs="+", choices=[*ROWS, "growing"], help="these rows")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--peer", nargs="+", default=[], metavar="NAME=PATH", help="fetched code to run beside it")
    parser.add_argument("--text", nargs="+", default=[], metavar="NAME=PATH", help="texts to try the forecast on")
    parser.add_argument("--minutes", type=float, default=2.0, help="for --text")
    parser.add_argument("--fledge", help="the program to run; this Python's, where none is given")
    parser.add_argument("--set", nargs="+", default=[], metavar="A.B=C", dest="given", help="settings for all runs")
    parser.add_argument("--out", type=Path, default=Path("runs/quality"), help="where runs and results are kept")
    options = parser.parse_args()
    import torch

    gpu = torch.cuda.is_available()
    fledge = shlex.split(options.fledge) if options.fledge else [f"{sysconfig.get_path('scripts')}/fledge"]
    names = options.only or [*(name for name, row in ROWS.items() if row.gpu == gpu), *(["growing"] if gpu else [])]
    if options.text and not options.only:
        names = []
    others, missed, rivals = {}, [], peers(options.peer)

    def report(found: tuple[str, str | None] | None) -> None:
        if found is not None:
            print(found[0], flush=True)
            missed.extend([found[1]] if found[1] else [])

    for name in names:
        if name == "growing":
            text = text_of(ROWS["books-10m"], options.out)
            bits = {
                minutes: [
                    run(fledge, text, minutes, seed, options.out / f"growing-{minutes}-{seed}", options.given).bits
                    for seed in options.seeds
                ]
                for minutes in GROWING
            }
            lines, worse = growing_lines(dict(bits))
            print("\n".join(lines), flush=True)
            missed += worse
            continue
        row = ROWS[name]
        if row.gpu != gpu:
            print(f"skip {name}: its bar is for {'a GPU' if row.gpu else 'a machine without one'}.")
            continue
        text = text_of(row, options.out)
        results = [
            run(fledge, text, row.minutes, seed, options.out / f"{name}-{seed}", options.given)
            for seed in options.seeds
        ]
        others[name] = statistics.fmean(result.bits for result in results)
        report(line(name, row, results, others))
        report(forecast_line(name, results))
        for peer, clone in rivals.items():
            ours = options.out / f"{name}-{options.seeds[0]}"
            bits_there = nanogpt(clone, ours, row.minutes, gpu, options.out / f"{name}-{peer}")
            if bits_there is None:
                print(f"skip {peer}: it kept no checkpoint in {row.minutes:g} minutes, before its first evaluation.")
                continue
            behind = None if others[name] < bits_there else f"{name}: {peer} reaches {bits_there:.3f} in the same time"
            report((f"{'MISS' if behind else 'ok  '} {name:18} {peer} reaches {bits_there:.3f}", behind))
    for given in options.text:
        name, _, path = given.partition("=")
        results = [
            run(fledge, path, options.minutes, seed, options.out / f"text-{name}-{seed}", options.given)
            for seed in options.seeds
        ]
        report(forecast_line(name, results))
    if missed:
        print("\nMissed:\n  " + "\n  ".join(missed))
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
