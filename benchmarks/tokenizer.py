"""The tokenizer beside its peers: training, encoding, files, short strings; medians of interleaved runs.

    python benchmarks/tokenizer.py [--check] [--only train,encode,file,short,import] [--rounds 3]

Every measurement is a process of its own, so that "first call" means it. `--check` exits with 1 and names each bar that
is missed. On a machine that others use too, `--clock cpu` compares processor time instead of time on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

DATA = Path(os.environ.get("FLEDGE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SPECIALS = {"gpt2": 50256, "cl100k_base": 100257, "o200k_base": 199999}
PATTERNS = {"gpt2": "gpt2", "cl100k_base": "cl100k", "o200k_base": "o200k"}
END = "<|endoftext|>"
SCRIPTS = {"Russian": "\u0400-\u04ff", "Chinese": "\u3400-\u9fff", "Hindi": "\u0900-\u097f"}


# ---- one measurement, in a process of its own ------------------------------------------------------------------------


class Memory:
    """The most anonymous memory this process holds above what it held at the start, sampled while work is done."""

    def __enter__(self) -> Memory:
        self.start, self.peak, self.stop = self.now(), 0, False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()

    def watch(self) -> None:
        while not self.stop:
            self.peak = max(self.peak, self.now() - self.start)
            time.sleep(0.004)

    @staticmethod
    def now() -> int:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def timed(work, repeats: int, clock: str) -> list[float]:
    now = time.process_time if clock == "cpu" else time.perf_counter
    seconds = []
    for _ in range(repeats):
        started = now()
        work()
        seconds.append(now() - started)
    return seconds


def encoder_of(who: str, vocabulary: str):
    """(encode(bytes, threads), the tokenizer) of one contender."""
    ranks = DATA / "ranks" / f"{vocabulary}.tiktoken"
    if who == "fledge":
        from fledge.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(ranks)
        return (lambda data, threads: tokenizer.encode_array(data, threads=threads)), tokenizer
    if who == "gigatoken":
        import gigatoken

        special = {END: SPECIALS[vocabulary]}
        tokenizer = gigatoken.Tokenizer.from_tiktoken(ranks, pretokenizer=PATTERNS[vocabulary], special_tokens=special)

        def encode(data, threads):
            if threads == 1:
                return tokenizer.encode(data)
            return tokenizer.encode_batch(gigatoken.BytesSource(data, separator=END))

        return encode, tokenizer
    import base64

    import tiktoken
    import tiktoken_ext.openai_public as public

    lines = ranks.read_bytes().splitlines()
    table = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    tokenizer = tiktoken.Encoding(
        "judge",
        pat_str=public.r50k_pat_str,
        mergeable_ranks=table,
        special_tokens={END: SPECIALS[vocabulary]},
    )
    return (lambda data, threads: tokenizer.encode_to_numpy(data.decode(), allowed_special="all")), tokenizer


def trainer_of(who: str, path: str, size: int, threads: int):
    """A function that trains, everything it needs imported before."""
    if who == "fledge":
        import fledge._core  # noqa: F401
        from fledge import train_bpe

        return lambda: train_bpe(path, size, [END], threads=threads)
    if who == "gigatoken":
        import gigatoken

        return lambda: gigatoken.train_bpe(gigatoken.TextFileSource([path], separator=END), size, [END])
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=False)
    return lambda: tokenizer.train([path], trainer)


def measure(task: dict) -> dict:
    kind, who, threads, clock = task["kind"], task["who"], task.get("threads", 1), task["clock"]
    if kind == "import":
        return {"seconds": timed(lambda: __import__("fledge.tokenizer"), 1, "wall")}
    if kind == "train":
        train = trainer_of(who, task["path"], task["size"], threads)
        with Memory() as memory:
            seconds = timed(train, 1, clock)
        return {"seconds": seconds, "memory": memory.peak}
    encode, tokenizer = encoder_of(who, task["vocabulary"])
    if kind == "encode":
        data = Path(task["path"]).read_bytes()
        return {"seconds": timed(lambda: encode(data, threads), task["repeats"], clock)}
    if kind == "short":
        text = Path(task["path"]).read_text(encoding="utf-8").replace(END, "")
        texts = [text[start : start + 100] for start in range(0, 1_000_000, 100)]
        return {"seconds": timed(lambda: [tokenizer.encode(one) for one in texts], 5, clock)}
    sink = task["sink"]

    def to_file() -> None:
        if who == "fledge":
            tokenizer.encode_file(task["path"], sink, threads=threads)
            return
        import gigatoken
        import numpy as np

        source = gigatoken.TextFileSource([task["path"]], separator=END)
        ids = tokenizer.encode_files(source, parallel=threads > 1)
        np.asarray(ids.layout.content.data).astype(np.uint16).tofile(sink)

    with Memory() as memory:
        seconds = timed(to_file, 1, clock)
    Path(sink).unlink()
    return {"seconds": seconds, "memory": memory.peak}


# ---- all of them, interleaved ----------------------------------------------------------------------------------------


def run(task: dict) -> dict:
    environment = os.environ | {
        "RAYON_NUM_THREADS": str(task.get("threads", 1)),
        "TOKENIZERS_PARALLELISM": "true",
    }
    command = [sys.executable, __file__, "--measure", json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{task} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.rsplit("\n", 2)[-2])


class Bench:
    def __init__(self, rounds: int, clock: str) -> None:
        self.rounds, self.clock = rounds, clock
        self.missed: list[str] = []

    def compare(self, tasks: dict[str, dict], rounds: int | None = None) -> dict[str, list[dict]]:
        """Run each task once per round, in turn, so that a busy moment hits all of them alike."""
        results: dict[str, list[dict]] = {name: [] for name in tasks}
        for _ in range(rounds or self.rounds):
            for name, task in tasks.items():
                results[name].append(run(task | {"clock": self.clock}))
        return results

    def bar(self, what: str, value: float, least: float, unit: str = "x") -> None:
        fine = value >= least if unit == "x" else value <= least
        relation = "at least" if unit == "x" else "at most"
        print(f"    {'ok    ' if fine else 'MISSED'} {what}: {value:.2f} {unit} ({relation} {least:g})")
        if not fine:
            self.missed.append(f"{what}: {value:.2f} {unit}, {relation} {least:g} asked")


def median(results: list[dict], pick) -> float:
    return statistics.median(pick(result["seconds"]) for result in results)


def first(seconds: list[float]) -> float:
    return seconds[0]


def later(seconds: list[float]) -> float:
    return statistics.median(seconds[1:])


def bench_train(bench: Bench, work: Path, english: bytes, peers: bool) -> None:
    for megabytes, size in ((5, 10_000), (64, 32_000)):
        path = work / f"train{megabytes}.txt"
        path.write_bytes(english[: megabytes * 1_000_000] if megabytes < 64 else english)
        whos = [(who, threads) for who in ("fledge", "gigatoken") for threads in (1, 2)]
        whos += [("tokenizers", 2)] if peers and megabytes == 5 else []
        shared = {"kind": "train", "path": str(path), "size": size}
        tasks = {f"{who} {threads}": shared | {"who": who, "threads": threads} for who, threads in whos}
        # A run takes a fraction of a second, so one busy moment decides it: many runs.
        results = bench.compare(tasks, rounds=bench.rounds * 3)
        seconds = {name: median(found, first) for name, found in results.items()}
        memory = {name: max(result["memory"] for result in found) for name, found in results.items()}
        print(f"\ntraining, {megabytes} MB to {size:,} ids     seconds   memory   (threads after the name)")
        for name in tasks:
            print(f"  {name:<32}{seconds[name]:>9.3f}{memory[name] / 1e6:>7.0f} MB")
        best = min(seconds["gigatoken 1"], seconds["gigatoken 2"])
        ours = min(seconds["fledge 1"], seconds["fledge 2"])
        bench.bar(f"training {megabytes} MB, gigatoken's best / ours", best / ours, 2)
        if bench.clock == "wall":
            bench.bar(f"training {megabytes} MB, one thread / two", seconds["fledge 1"] / seconds["fledge 2"], 0.97)
        bench.bar(
            f"training {megabytes} MB, gigatoken's memory / ours",
            min(memory["gigatoken 1"], memory["gigatoken 2"]) / max(memory["fledge 1"], memory["fledge 2"]),
            1,
        )


def bench_encode(bench: Bench, work: Path, texts: dict[str, bytes], threads: tuple[int, ...]) -> None:
    for vocabulary in PATTERNS:
        for name, data in texts.items():
            path = work / f"{name}.txt"
            path.write_bytes(data)
            for count in threads if name == "English" else (1,):
                task = {"kind": "encode", "vocabulary": vocabulary, "path": str(path), "threads": count}
                # A call on a short text takes a few milliseconds: the median of 59 later ones, not of 5, and of more
                # processes, for each of which the machine may be faster or slower.
                short = len(data) < 10_000_000
                task["repeats"] = 60 if short else 6
                rounds = bench.rounds * (3 if short else 1)
                results = bench.compare({who: task | {"who": who} for who in ("fledge", "gigatoken")}, rounds)
                rate = {
                    who: (len(data) / 1e6 / median(found, first), len(data) / 1e6 / median(found, later))
                    for who, found in results.items()
                }
                ours, theirs = rate["fledge"], rate["gigatoken"]
                title = f"{PATTERNS[vocabulary]}, {name}, {count} thread{'s' * (count > 1)}"
                print(f"\nencoding {title} ({len(data) / 1e6:.1f} MB)       MB/s first / later")
                for who, (one, more) in rate.items():
                    print(f"  {who:<32}{one:>9.0f} /{more:>6.0f}")
                bench.bar(f"{title}, first call, ours / gigatoken", ours[0] / theirs[0], 1.3)
                bench.bar(f"{title}, later calls, ours / gigatoken", ours[1] / theirs[1], 1)


def bench_file(bench: Bench, work: Path, megabytes: int) -> None:
    path = work / "zipf.txt"
    write_zipf(path, megabytes)
    shared = {"kind": "file", "vocabulary": "gpt2", "path": str(path), "sink": str(work / "ids.bin")}
    tasks = {
        f"{who} {threads}": shared | {"who": who, "threads": threads}
        for threads in (1, 2)
        for who in ("fledge", "gigatoken")
    }
    results = bench.compare(tasks, rounds=1 if megabytes > 500 else None)
    print(f"\nfile to uint16, {megabytes} MB of words by Zipf's law        MB/s   anonymous memory")
    rate = {name: megabytes / median(found, first) for name, found in results.items()}
    for name, found in results.items():
        print(f"  {name:<32}{rate[name]:>12.0f}{found[0]['memory'] / 1e6:>12.0f} MB")
    for threads in (1, 2):
        bench.bar(
            f"file to ids, {threads} threads, ours / gigatoken + numpy",
            rate[f"fledge {threads}"] / rate[f"gigatoken {threads}"],
            1.5,
        )
    memory = max(result["memory"] for threads in (1, 2) for result in results[f"fledge {threads}"]) / 1e6
    bench.bar("file to ids, our anonymous memory", memory, 300, "MB")


def bench_short(bench: Bench, work: Path, english: bytes) -> None:
    path = work / "short.txt"
    path.write_bytes(english[:2_000_000].decode("utf-8", "ignore").encode())
    task = {"kind": "short", "vocabulary": "gpt2", "path": str(path)}
    results = bench.compare({who: task | {"who": who} for who in ("fledge", "tiktoken")})
    each = {who: median(found, later) / 10_000 * 1e6 for who, found in results.items()}
    print("\nshort strings, 100 characters a call       microseconds")
    for who, value in each.items():
        print(f"  {who:<32}{value:>12.2f}")
    bench.bar("short strings, tiktoken / ours", each["tiktoken"] / each["fledge"], 1)


def bench_import(bench: Bench) -> None:
    results = bench.compare({"fledge": {"kind": "import", "who": "fledge"}}, rounds=5)
    seconds = median(results["fledge"], first)
    print(f"\nimport fledge.tokenizer: {seconds * 1000:.0f} ms")
    bench.bar("import of fledge.tokenizer", seconds * 1000, 150, "ms")


# ---- texts -----------------------------------------------------------------------------------------------------------


def decompressed(path: Path) -> bytes:
    import zstandard

    with open(path, "rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


def by_script(text: str) -> dict[str, bytes]:
    """The lines of a text in many languages that are mostly in one script, repeated to half a megabyte."""
    import re

    found = {}
    for name, span in SCRIPTS.items():
        letters = re.compile(f"[{span}]")
        lines = [line for line in text.split("\n") if len(letters.findall(line)) * 2 > len(line)]
        data = "\n".join(lines).encode() + b"\n"
        found[name] = data * -(-500_000 // len(data))
    return found


def write_zipf(path: Path, megabytes: int) -> None:
    """Words whose frequencies follow Zipf's law without an end, so that new ones keep coming."""
    import numpy as np

    source = np.random.default_rng(7)
    consonants, vowels = np.array(list("bcdfghklmnprstvw")), np.array(list("aeiou"))

    def spell(rank: int) -> str:
        word = ""
        while rank:
            rank, low = divmod(rank, 80)
            word += consonants[low % 16] + vowels[low // 16]
        return word or "a"

    known: dict[int, str] = {}
    written = 0
    with open(path, "w") as file:
        while written < megabytes * 1_000_000:
            words = []
            for rank in source.zipf(1.15, 200_000).tolist():
                rank = min(rank, 10**12)
                if rank < 1_000_000:
                    word = known.get(rank) or known.setdefault(rank, spell(rank))
                else:
                    word = spell(rank)
                words.append(word)
            block = " ".join(words) + ".\n" + (END if written % 3 == 0 else "")
            written += file.write(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--only", default="train,encode,file,short,import")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--file-megabytes", type=int, default=2000)
    parser.add_argument("--peers", action="store_true", help="train with Hugging Face's tokenizers too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print("\n" + json.dumps(measure(json.loads(options.measure))))
        return
    if not DATA.is_dir():
        raise SystemExit(f"the texts are not in {DATA}: set FLEDGE_TEST_DATA to their folder.")
    chosen = options.only.split(",")
    bench = Bench(options.rounds, options.clock)
    threads = (1, 2) if options.clock == "wall" else (1,)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        english = decompressed(DATA / "gutenberg/gutenberg_64m.txt.zst")
        print_limits(english[:40_000_000])
        if "import" in chosen:
            bench_import(bench)
        if "train" in chosen:
            bench_train(bench, work, english, options.peers)
        if "encode" in chosen:
            many = decompressed(DATA / "messy/udhr_multilingual.txt.zst")
            texts = {"English": english[:40_000_000], "388 languages": many, **by_script(many.decode())}
            bench_encode(bench, work, texts, threads)
        if "short" in chosen:
            bench_short(bench, work, english)
        if "file" in chosen:
            bench_file(bench, work, options.file_megabytes)
    print(f"\n{len(bench.missed)} bars missed" + "".join(f"\n  {line}" for line in bench.missed))
    if options.check and bench.missed:
        sys.exit(1)


def print_limits(data: bytes) -> None:
    """What the machine gives at most: a copy of the text, and one look at every byte."""
    import numpy as np

    text = np.frombuffer(data, np.uint8)
    copy = len(data) / min(timed(text.copy, 5, "wall")) / 1e6
    look = len(data) / min(timed(lambda: np.count_nonzero(text == 32), 5, "wall")) / 1e6
    print(f"limits of this processor, one thread: copy {copy:,.0f} MB/s, compare and count {look:,.0f} MB/s")


if __name__ == "__main__":
    main()
