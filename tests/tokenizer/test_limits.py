"""What the machine refuses and what a person interrupts: no thread, no more time, a name that is no text."""

from __future__ import annotations

import gzip
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fledge import FledgeError, train_bpe
from fledge._core import PretokenCounter
from fledge.tokenizer import checks
from fledge.tokenizer.train import _count_blocks

# Stacks of a gigabyte each, and address space for some of 32: the others are not given.
FEW_THREADS = """
import resource, sys
import numpy as np, torch
from fledge import FledgeError, train_bpe
from fledge._core import Product

tokenizer = train_bpe(["the cat sat"], 260)
text = b"the cat sat on the mat " * 200_000
alone = tokenizer.encode_array(text, threads=1)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 30), -1))
assert np.array_equal(tokenizer.encode_array(text, threads=32), alone)
weight, x, out = torch.rand(4096, 64), torch.rand(1, 64), torch.empty(1, 4096)
product = Product(weight.data_ptr(), 0, 4096, 64)
for _ in range(3):
    product(x.data_ptr(), 0, out.data_ptr(), 1, 32)
    assert torch.allclose(out, x @ weight.T, atol=1e-4)
print("equal")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are set as on Linux")
def test_where_threads_are_few_those_there_are_do_the_work() -> None:
    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("stacks of a gigabyte are not permitted")
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (1 << 30, -1)),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


class _StopError(Exception):
    pass


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A signal after so much work, as Ctrl-C is one, whose answer is an exception."""

    def stop(*_: Any) -> None:
        raise _StopError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        with pytest.raises(_StopError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("threads", [1, 2])
def test_counting_a_file_can_be_interrupted(threads: int, tmp_path: Path) -> None:
    """The last words of a long file are not counted any more."""
    path = tmp_path / "long.txt"
    with path.open("wb") as file:
        for part in range(100):
            file.write(b"the cat sat on the mat " * 45_000 + b"word%d " % part)
    counter = PretokenCounter("gpt2", [], threads)
    with interrupted_after(0.001):
        counter.add_file(os.fsencode(path))
    counter.finish()
    stopped = counter.distinct
    whole = PretokenCounter("gpt2", [], threads)
    whole.add_file(os.fsencode(path))
    whole.finish()
    assert stopped < whole.distinct


@pytest.mark.parametrize("how", ["became shorter", "was changed"])
def test_a_file_that_is_changed_while_it_is_counted_is_named(how: str, tmp_path: Path) -> None:
    """The change comes when native code lets signals be answered: after some megabytes. Nothing may end the process."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"the cat sat on the mat " * 1_500_000)

    def change(*_: Any) -> None:
        os.truncate(path, 1 << 20) if how == "became shorter" else os.utime(path, (1, 1))

    before = signal.signal(signal.SIGVTALRM, change)
    counter = PretokenCounter("gpt2", [], 1)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
        with pytest.raises(FledgeError, match=f"log.txt {how} while it was read"):
            counter.add_file(os.fsencode(path))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    "text", [b"the cat sat " * 400_000, b"a" * 5_000_000, b"a" * 1_600_000 + b" cat" * 900_000, b""]
)
def test_a_file_counts_as_its_text_does(text: bytes, tmp_path: Path) -> None:
    """However it is cut into parts, and where no place to cut is near."""
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    for threads in (1, 3):
        of_file, of_text = (PretokenCounter("gpt2", [b" sat the"], threads) for _ in range(2))
        of_file.add_file(os.fsencode(path))
        of_text.add_text(text)
        assert of_file.distinct == of_text.distinct
        assert of_file.source_bytes == len(text)
        assert of_file.train(20, 1, None) == of_text.train(20, 1, None)


def test_merging_can_be_interrupted() -> None:
    random = np.random.default_rng(0)
    words = [(bytes(word), 1) for word in random.integers(97, 123, (50_000, 40), np.uint8)]
    counter = PretokenCounter("gpt2", [], 1)
    counter.add_words(words, 1)
    started = time.process_time()
    counter.train(50_000, 1, None)
    whole = time.process_time() - started
    with interrupted_after(whole / 10):
        started = time.process_time()
        counter.train(50_000, 1, None)
    assert time.process_time() - started < whole / 2


def test_a_name_that_is_no_text_is_a_file_all_the_same(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))
    path.write_text("low lower lowest")
    assert train_bpe(path, 258).merges == train_bpe(["low lower lowest"], 258).merges


def test_a_missing_file_is_named_as_it_was_given() -> None:
    with pytest.raises(FileNotFoundError) as refusal:
        PretokenCounter("gpt2", [], 1).add_file(b"no/\xff.txt")
    assert refusal.value.filename == "no/\udcff.txt"


def test_a_text_without_a_place_to_cut_is_not_searched_again_for_every_block() -> None:
    class Counter:
        searches, counted = 0, b""

        def last_cut(self, text: bytes) -> int:
            self.searches += 1
            return 0

        def add_text(self, text: bytes) -> None:
            self.counted += bytes(text)

    counter: Any = Counter()
    _count_blocks(counter, [b"ab"] * 1000)
    assert counter.counted == b"ab" * 1000
    assert counter.searches < 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read as on Linux")
def test_a_long_pretoken_takes_no_memory_for_good() -> None:
    tokenizer = train_bpe(["aa"], 257)

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    text = b"a" * 32_000_000
    before = held()
    tokenizer.encode_array(text)
    assert held() - before < 64_000_000  # of four bytes for each of its bytes


def test_a_small_archive_of_one_endless_word_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes of it would unpack to two gigabytes, and all of them were gathered."""
    monkeypatch.setattr(checks, "LONGEST_STRETCH", 1 << 20)
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a" * (20 << 20))
    with pytest.raises(FledgeError, match="1,048,576 bytes without a place where words end"):
        train_bpe(path, 300)
    with pytest.raises(FledgeError, match="without a place where words end"):
        train_bpe(["the cat"], 258).encode_file(path, tmp_path / "ids.bin")
