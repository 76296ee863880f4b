"""Text to a token store, and batches out of one: against the encoder alone, and against torch's DataLoader.

    python benchmarks/data.py            the tables (needs about 3 GB of disk for a while)
    python benchmarks/data.py --check    the same, and an exit code of 1 that names each bar that is missed

Every ratio is taken in one run, of the best of several alternating rounds, for other programs disturb a round. A
round of reading lasts as long for the loader as for DataLoader: a fixed number of tokens would be over on the faster
side before its threads are spread over the cores and its memory is warm.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fledge.config import TokensConfig
from fledge.corpus import Corpus
from fledge.files import write_json
from fledge.tokenizer import BPETokenizer, train_bpe
from fledge.tokens import Loader, TokenStore, Windows, make_windows, write_store
from fledge.tokens.encoding import Encoded
from fledge.tokens.lines import LineWindows
from fledge.tokens.packing import PackedWindows
from fledge.tokens.store import new_manifest
from fledge.tokens.work import GrowingFile, SplitFiles

STORE_BYTES = 1_000_000_000
POLICIES = {"stream": 50e6, "packed": 20e6, "slide-in": 20e6, "slide-through": 20e6, "full": 20e6, "aligned": 20e6}
CONTEXTS = (256, 1024)
BATCH_TOKENS = 65_536
SECONDS = 1.0  # a round, on either side
LISTED = 200_000_000  # tokens whose windows DataLoader is given: more than it reads in a round
missed: list[str] = []


def bar(name: str, value: float, limit: float, at_least: bool = True) -> str:
    """`value` beside its limit, and a note if it misses it."""
    good = value >= limit if at_least else value <= limit
    if not good:
        missed.append(f"{name}: {value:,.2f} where {'at least' if at_least else 'at most'} {limit:,.2f} is asked")
    return "" if good else "  MISSED"


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def make_text(folder: Path, size: int) -> Path:
    """Verses with separators, each copy with its words a little different, so that caches do not know it all."""
    verses = list(Corpus.open("akjv").documents())
    path, written, turn = folder / "text.txt", 0, 0
    with open(path, "wb") as file:
        while written < size:
            order = np.random.default_rng(turn).permutation(len(verses)).tolist()
            groups = [b" ".join(verses[i] for i in order[at : at + 8]) for at in range(0, len(order), 8)]
            written += file.write(b"<|endoftext|>".join(groups) + b"<|endoftext|>")
            turn += 1
    return path


def writing(folder: Path, rounds: int) -> None:
    """Store writing against `encode_file`, in turns."""
    text = make_text(folder, 300_000_000)
    tokenizer = train_bpe(Corpus.open("akjv"), 8192, ["<|endoftext|>"])
    size = text.stat().st_size / 1e6
    encode, store = float("inf"), float("inf")

    def write() -> None:
        write_store(Corpus.open(text), tokenizer, folder / "written", progress=False)

    for _ in range(rounds):
        encode = min(encode, seconds(lambda: tokenizer.encode_file(text, folder / "encoded.bin")))
        shutil.rmtree(folder / "written", ignore_errors=True)
        store = min(store, seconds(write))
    note = bar("store writing / encode_file", store / encode, 1.15, at_least=False)
    print(f"encode_file {size / encode:8.0f} MB/s")
    print(f"write_store {size / store:8.0f} MB/s   {store / encode:.2f} of its time (at most 1.15){note}\n")
    shutil.rmtree(folder / "written", ignore_errors=True)
    (folder / "encoded.bin").unlink()
    text.unlink()


def make_store(folder: Path, size: int) -> TokenStore:
    """A store of `size` bytes with documents like short stories: about 240 tokens, some much longer."""
    folder.mkdir()
    tokenizer: BPETokenizer = train_bpe(["a small text"], 300, ["<|endoftext|>"])
    random, splits = np.random.default_rng(0), {}
    for name, total in (("train", size // 2), ("validation", size // 200)):
        split = SplitFiles(
            GrowingFile(folder / f"{name}.bin", None), GrowingFile(folder / f"{name}.documents.bin", None)
        )
        while split.tokens.size < 2 * total:
            lengths = np.maximum(20, random.gamma(4, 60, 4000)).astype(np.int64)
            lengths[:4] = 3000
            ends = np.cumsum(lengths)
            ids = random.integers(1, tokenizer.vocab_size, int(ends[-1]), dtype=np.uint16)
            ids[ends - 1] = 0
            split.append(Encoded(ids, (ends - lengths).astype(np.uint64), 4 * len(ids)))
        splits[name] = split.facts(2)
        split.close()
    write_json(folder / "store.json", new_manifest(tokenizer, splits, 0, {}, {"source": "", "tokenizer": ""}))
    return TokenStore.open(folder)


class Rows(Dataset[Any]):
    """The same windows one by one, as a person would write them for torch's DataLoader."""

    def __init__(self, windows: Windows, samples: int) -> None:
        self.windows, self.tokens, self.width = windows, windows.split.tokens, windows.context_length
        self.order = windows.ordered(np.arange(samples))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, ...]:
        start = int(self.order[sample]) * self.width
        row = self.tokens[start : start + self.width + 1].astype(np.int64)
        return torch.from_numpy(row[:-1]), torch.from_numpy(row[1:])


class LineRows(Rows):
    def __init__(self, windows: LineWindows, samples: int) -> None:
        super().__init__(windows, samples)
        self.counts, self.starts = windows._cumulative.array, windows.split.documents
        self.offset, self.padding = windows.offset, windows.padding

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, ...]:
        window = int(self.order[sample])
        line = int(np.searchsorted(self.counts, window, "right")) - 1
        start, end = int(self.starts[line]), int(self.starts[line + 1])
        offset = int(self.offset(np.array([window - self.counts[line]]), np.array([end - start]))[0])
        low, high = max(0, -offset), min(self.width, end - start - offset)
        inputs, targets = np.full(self.width, self.padding), np.full(self.width, -100)
        positions, documents = np.zeros(self.width, np.int64), np.full(self.width, -1)
        place = start + offset + low
        targets[low:high] = self.tokens[place : place + high - low]
        inputs[low + 1 : high] = targets[low : high - 1]
        inputs[low] = self.tokens[place - 1]
        positions[low:high] = np.arange(high - low)
        documents[low:high] = 0
        return tuple(map(torch.from_numpy, (inputs, targets, positions, documents)))


class PackedRows(Rows):
    def __init__(self, windows: PackedWindows, samples: int) -> None:
        super().__init__(windows, samples)
        index = windows.index(0)
        self.begins, self.pieces, self.starts = index.begins.array, index.pieces, windows.split.documents

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, ...]:
        begin = int(self.order[sample]) * self.width
        slot = int(np.searchsorted(self.begins, begin, "right")) - 1
        inputs, targets = np.empty(self.width, np.int64), np.empty(self.width, np.int64)
        positions, documents = np.empty(self.width, np.int64), np.empty(self.width, np.int64)
        column, number = 0, 0
        while column < self.width:
            low = max(int(self.begins[slot]), begin)
            length = min(int(self.begins[slot + 1]) - low, self.width - column)
            place = int(self.starts[self.pieces[slot]]) + low - int(self.begins[slot])
            targets[column : column + length] = self.tokens[place : place + length]
            inputs[column + 1 : column + length] = targets[column : column + length - 1]
            inputs[column] = self.tokens[place - 1]
            positions[column : column + length] = np.arange(length)
            documents[column : column + length] = number
            column, number, slot = column + length, number + 1, slot + 1
        return tuple(map(torch.from_numpy, (inputs, targets, positions, documents)))


def rate(batches: Iterable[Any]) -> float:
    """Tokens a second over one round, the start of threads or workers included."""
    start, tokens = time.perf_counter(), 0
    for batch in batches:
        tokens += batch[0].numel()
        if time.perf_counter() - start > SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def reading(store: TokenStore, rounds: int) -> None:
    """The loader against DataLoader, for every policy and context."""
    split = store.split("train").verify()
    print(f"{'context':>7} {'policy':14} {'loader':>10} {'bar':>6} {'DataLoader':>11} {'ratio':>6}")
    for width in CONTEXTS:
        for policy, limit in POLICIES.items():
            windows = make_windows(split, TokensConfig(context_length=width, policy=policy), store.roles, seed=1)
            size, samples = BATCH_TOKENS // width, min(LISTED // width, len(windows))
            kinds: dict[str, Any] = {"stream": Rows, "packed": PackedRows}
            rows = kinds.get(policy, LineRows)(windows, samples)
            for sample in range(0, 50, 7):  # the same windows, or the comparison means nothing
                ours = windows.batch([sample])
                assert all(
                    left is None or left[0].equal(right) for left, right in zip(ours, rows[sample], strict=False)
                )
            loader = peer = 0.0
            for _ in range(rounds):
                loader = max(loader, rate(batch for _, batch in Loader(windows, size)))
                for workers in (0, 2):
                    peer = max(peer, rate(DataLoader(rows, size, num_workers=workers)))
            name = f"{policy} at {width}"
            note = bar(f"{name}, million tokens/s", loader / 1e6, limit / 1e6)
            note += bar(f"{name}, times DataLoader", loader / peer, 5.0)
            print(
                f"{width:7} {policy:14} {loader / 1e6:8.1f} M {limit / 1e6:4.0f} M {peer / 1e6:9.1f} M "
                f"{loader / peer:6.1f}{note}"
            )
    print()


MEMORY = """
import sys
import numpy as np
import torch
from fledge.config import TokensConfig
from fledge.tokens import Loader, TokenStore, make_windows
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1000
store = TokenStore.open(sys.argv[1])
for policy in ("stream", "packed", "slide-in"):
    windows = make_windows(store.split("train"), TokensConfig(context_length=256, policy=policy), store.roles, 1)
    for _ in Loader(windows, 256, stop=100_000):
        pass
print(resident())
"""


def memory(small: Path, large: Path) -> None:
    """Resident memory of a process that reads batches all over a store."""
    found = [
        float(subprocess.run([sys.executable, "-c", MEMORY, str(path)], check=True, capture_output=True).stdout)
        for path in (small, large)
    ]
    note = bar("resident memory for ten times the store, MB more", found[1] - found[0], 100, at_least=False)
    print(f"resident memory: {found[0]:.0f} MB for a tenth of the store, {found[1]:.0f} MB for all of it{note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--only", choices=["write", "read"], help="one half")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fledge-data-") as name:
        folder = Path(name)
        if options.only != "read":
            writing(folder, options.rounds)
        if options.only != "write":
            store = make_store(folder / "large", STORE_BYTES)
            best = min(seconds(lambda: TokenStore.open(folder / "large")) for _ in range(5)) * 1000
            note = bar("opening a 1-GB store, ms", best, 50, at_least=False)
            print(f"opening a 1-GB store: {best:.1f} ms (at most 50){note}\n")
            reading(store, options.rounds)
            make_store(folder / "small", STORE_BYTES // 10)
            memory(folder / "small", folder / "large")
    if missed:
        print("\nmissed:\n  " + "\n  ".join(missed))
    if options.check:
        sys.exit(bool(missed))


if __name__ == "__main__":
    main()
