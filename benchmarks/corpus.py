"""Copies, leaks and memorised passages: how fast, how sure, in how much memory; beside datasketch and text-dedup.

    python benchmarks/corpus.py            the tables (the peers are optional: make bench installs them)
    python benchmarks/corpus.py --check    the same, and an exit code of 1 that names each bar that is missed

Every rate is the best of some rounds, in MB of text per second of wall time on all cores, with the processor's time
beside it: on a machine that does other work, the latter tells more.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fledge.corpus import Corpus
from fledge.corpus.copies import ALIKE, SHINGLE, find_copies
from fledge.corpus.passages import find_passages
from fledge.tokenizer import train_bpe
from fledge.tokens import write_store
from fledge.tokens.index import PassageIndex

DATA = Path(os.environ.get("FLEDGE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
DATA = DATA / "gutenberg" / "gutenberg_64m.txt.zst"
PLANTED = {"exact": 0.99, "1 %": 0.99, "5 %": 0.95, "10 %": 0.0, "shuffled": 0.0, "inside": 0.0}
"Kinds of planted copies, and the share of them that has to be found."
PEER_DOCUMENTS = 4000  # that the peers are given: they take minutes for more
Groups = npt.NDArray[np.int64]
missed: list[str] = []


def bar(name: str, value: float, limit: float, at_least: bool = True) -> str:
    """`value` beside its limit, and a note if it misses it."""
    good = value >= limit if at_least else value <= limit
    if not good:
        missed.append(f"{name}: {value:,.3f} where {'at least' if at_least else 'at most'} {limit:,.3f} is asked")
    return "" if good else "  MISSED"


def timed(work: Callable[[], Any], rounds: int) -> tuple[float, float, Any]:
    """The best wall time, the processor's time of that round, and what came out."""
    best = (float("inf"), 0.0)
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        found = work()
        best = min(best, (time.perf_counter() - wall, time.process_time() - processor))
    return *best, found


def planted(paragraphs: list[str], count: int) -> tuple[list[str], dict[int, tuple[int, str]]]:
    """Texts of real words, and copies of them changed in every way; of each copy the original and the kind."""
    generator = random.Random(1)
    texts = [text for text in paragraphs if len(text.split()) >= 100][: 8 * count]
    vocabulary = sorted({word for text in texts[:500] for word in text.split()})
    copies: dict[int, tuple[int, str]] = {}
    for kind in PLANTED:
        for original in range(count):
            words = texts[original].split()
            if kind.endswith("%"):
                for place in generator.sample(range(len(words)), round(int(kind.split()[0]) * len(words) / 100)):
                    words[place] = generator.choice(vocabulary)
                text = " ".join(words)
            elif kind == "shuffled":
                sentences = re.split(r"(?<=[.!?]) ", " ".join(words))
                text = " ".join(generator.sample(sentences, len(sentences)))
            elif kind == "inside":
                text = " ".join(words[10:60])
            else:
                text = texts[original]
            copies[len(texts)] = original, kind
            texts.append(text)
    return texts, copies


def sureness(paragraphs: list[str]) -> None:
    """How many planted copies are found, and how many that are found were planted or are truly alike."""
    texts, copies = planted(paragraphs, 300)
    corpus = Corpus.from_documents(texts, validation_fraction=0)
    groups = find_copies(corpus.batches()).groups
    shares = find_passages((batch.text for batch in corpus.batches()), at_least=50).shares()
    print(f"{len(texts):,} texts, {len(copies):,} of them planted copies\nkind        found")
    for kind, least in PLANTED.items():
        hits = [groups[copy] == groups[original] for copy, (original, of) in copies.items() if of == kind]
        if kind == "inside":
            hits = [shares[copy] >= 0.9 for copy, (_, of) in copies.items() if of == kind]
        print(f"{kind:10} {np.mean(hits):6.1%}{bar(f'recall of {kind}', float(np.mean(hits)), least)}")

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = re.findall("[a-z0-9]+", text.lower())
        return {tuple(words[i : i + SHINGLE]) for i in range(len(words) - SHINGLE + 1)}

    right = total = 0
    for number, first in enumerate(groups.tolist()):
        if first != number:
            total += 1
            one, other = shingles(texts[number]), shingles(texts[first])
            origins = copies.get(number, (number, ""))[0], copies.get(first, (first, ""))[0]
            right += origins[0] == origins[1] or len(one & other) >= ALIKE * len(one | other)
    print(f"precision  {right / total:6.1%}{bar('precision', right / total, 0.99)}\n")


def grouped(count: int, pairs: Iterable[tuple[int, int]]) -> Groups:
    """Of each text the first of its group, where the pairs are alike."""
    first = list(range(count))

    def root(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    for left, right in pairs:
        one, other = sorted((root(left), root(right)))
        first[other] = one
    return np.array([root(i) for i in range(count)])


def by_brute_force(texts: list[str]) -> Groups:
    """Every pair of texts compared by the exact share of their shingles, cut into words as fledge cuts them."""
    import scipy.sparse

    numbers: dict[tuple[str, ...], int] = {}
    rows, columns = [], []
    for row, text in enumerate(texts):
        words = re.findall("[a-z0-9\u00c0-\u1fff]+|[\u3000-\U0010ffff]", text.encode().lower().decode())
        found = {tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}
        rows += [row] * len(found)
        columns += [numbers.setdefault(shingle, len(numbers)) for shingle in found]
    table = scipy.sparse.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)))
    both = scipy.sparse.triu(table @ table.T, 1).tocoo()
    sizes = np.bincount(rows)
    alike = both.data >= ALIKE * (sizes[both.row] + sizes[both.col] - both.data)
    return grouped(len(texts), zip(both.row[alike].tolist(), both.col[alike].tolist(), strict=True))


def by_datasketch(texts: list[str]) -> tuple[Groups, float]:
    """With the same shingles and threshold."""
    from datasketch import MinHash, MinHashLSH

    began = time.process_time()
    index, pairs = MinHashLSH(threshold=ALIKE, num_perm=128), set()
    for number, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower())
        sketch = MinHash(num_perm=128)
        sketch.update_batch(
            [" ".join(words[i : i + SHINGLE]).encode() for i in range(max(1, len(words) - SHINGLE + 1))]
        )
        pairs |= {(other, number) for other in index.query(sketch)}
        index.insert(number, sketch)
    return grouped(len(texts), pairs), time.process_time() - began


def by_text_dedup(texts: list[str]) -> tuple[Groups, float]:
    """Its own command on a dataset, without the start of Python; the processes that it starts are counted."""
    from datasets import Dataset, disable_progress_bars
    from text_dedup import logger, minhash

    disable_progress_bars()
    logger.setLevel("ERROR")
    minhash.tqdm = lambda things, **_: things
    with tempfile.TemporaryDirectory(prefix="fledge-text-dedup-") as folder:
        Dataset.from_dict({"text": texts}).save_to_disk(f"{folder}/in")
        words = f"--path {folder}/in --local --output {folder}/out --column text --ngram {SHINGLE} --min_length 1"
        words += f" --num_perm 128 --threshold {ALIKE} --hash_func xxh3 --num_proc {os.cpu_count() or 1}"
        began = os.times()
        minhash.main(words.split(), standalone_mode=False)
        ended = os.times()
    clusters: dict[int, int] = {}
    groups = [clusters.setdefault(minhash.uf.find(number), number) for number in range(len(texts))]
    return np.array(groups), sum(ended[:4]) - sum(began[:4])


def peers(paragraphs: list[str], rounds: int) -> None:
    """The same documents by other libraries, core against core; brute force says whose groups are right."""
    texts, _ = planted(paragraphs, 300)
    texts = texts[-PEER_DOCUMENTS:]
    size = sum(len(text.encode()) for text in texts) / 1e6
    corpus = Corpus.from_documents(texts, validation_fraction=0)
    _, ours, found = timed(lambda: find_copies(corpus.batches()), rounds)
    try:
        exact = by_brute_force(texts)
    except ImportError:
        print("scipy is not installed, which datasketch and text-dedup need: make bench installs them\n")
        return
    right = float((found.groups == exact).mean())
    print(
        f"{len(texts):,} documents   MB/s of a core   groups that are those of brute force\n"
        f"fledge            {size / ours:8.2f}          {right:8.2%}{bar('groups of brute force', right, 0.995)}"
    )
    for name, work in (("datasketch", by_datasketch), ("text-dedup", by_text_dedup)):
        try:
            theirs, seconds = work(texts)
        except ImportError as error:
            print(f"{name} is not installed ({error})")
            continue
        times, apart, share = seconds / ours, theirs != found.groups, (theirs == exact).mean()
        print(
            f"{name}        {size / seconds:8.2f}          {share:8.2%}; fledge is {times:.0f} times "
            f"as fast{bar(f'times {name}', times, 20)}; of {apart.sum():,} judged otherwise, brute force says "
            f"{(found.groups == exact)[apart].sum():,} as fledge and {(theirs == exact)[apart].sum():,} as {name}"
        )
    print()


def rates(text: bytes, rounds: int) -> None:
    """Near-copies and the leak, of whole books and of paragraphs."""
    size = len(text) / 1e6
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="fledge-corpus-") as name:
        path = Path(name) / "text.txt"
        path.write_bytes(text)
        del text
        for what, options in (("books", {}), ("paragraphs", {"separator": "\n\n"})):
            corpus = Corpus.open(path, validation_fraction=0, **options)  # type: ignore[arg-type]
            wall, processor, found = timed(lambda corpus=corpus: find_copies(corpus.batches()), rounds)
            note = bar(f"near-copies of {what}, MB/s", size / wall, 100) if what == "books" else ""
            share = f"{found.near.mean():.2%} are copies of {len(found.groups):,}"
            rate = f"{size / wall:6.0f} MB/s, {cores * size / processor:6.0f} by processor time"
            print(f"near-copies, {what:10} {rate}; {share}{note}")
        batches = [batch.text for batch in Corpus.open(path, validation_fraction=0).batches()]
        cut = len(batches) * 9 // 10
        found = None
        wall, processor, found = timed(lambda: find_passages(batches[:cut], batches[cut:], 50), rounds)
        note = bar("leak check, MB/s", size / wall, 100)
        print(
            f"leak check              {size / wall:6.0f} MB/s, {cores * size / processor:6.0f} by processor time; "
            f"{found.covered(50) / found.size:.2%} of the last tenth in stretches of 50 bytes{note}"
        )
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"memory so far           {used:6.0f} MB{bar('memory, MB', used, 500, at_least=False)}\n")


def index(text: bytes, rounds: int) -> None:
    """Building the index of passages, its size, and what a lookup takes."""
    with tempfile.TemporaryDirectory(prefix="fledge-corpus-") as name:
        path = Path(name) / "text.txt"
        path.write_bytes(text)
        tokenizer = train_bpe(str(path), 8192, progress=False)
        corpus = Corpus.open(path, validation_fraction=0.1, split="document")
        store = write_store(corpus, tokenizer, Path(name) / "store", progress=False)
        train = store.split("train")
        began, processor = time.perf_counter(), time.process_time()
        found = PassageIndex.of(store)
        wall, processor = time.perf_counter() - began, time.process_time() - processor
        size = train.source_bytes / 1e6
        cores = os.cpu_count() or 1
        print(
            f"index: {size / wall:.1f} MB/s, {cores * size / processor:.1f} by processor time, "
            f"{len(train.tokens):,} tokens"
            f"{bar('index, MB/s', size / wall, 15)}"
        )
        files = sum(path.stat().st_size for path in (store.folder / "passages").iterdir())
        each = train.tokens.itemsize + files / len(train.tokens)
        print(f"on disk, with the tokens: {each:.2f} bytes a token{bar('bytes a token', each, 6.01, at_least=False)}")
        sought = store.split("validation").tokens[:20_000]
        wall, _, _ = timed(lambda: found.longest(sought), rounds)
        each = 1000 * wall / len(sought)
        print(f"lookup: {each:.4f} ms a token{bar('lookup, ms', each, 1, at_least=False)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"{DATA} is not there: nothing to measure on.")
        return
    with Corpus.open(DATA, validation_fraction=0).sources[0].open() as stream:
        text = b""
        parts = []
        while part := stream.read(1 << 24):
            parts.append(part)
        text = b"".join(parts)
    del parts
    rates(text, options.rounds)
    paragraphs = [" ".join(part.split()) for part in text.decode("utf-8", "replace").split("\n\n")]
    sureness(paragraphs)
    peers(paragraphs, options.rounds)
    del paragraphs
    index(text, options.rounds)
    if missed:
        print("\nmissed:\n  " + "\n  ".join(missed))
    if options.check:
        sys.exit(bool(missed))


if __name__ == "__main__":
    main()
