"""Words made to fall on one place of the native tables: they take no longer than any others."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from fledge import train_bpe
from fledge.tokenizer import BPETokenizer

WORDS = 40_000
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
# What anybody may read in the source: numbers that a hash without a secret would mix with the bytes of a word.
LOW, HIGH, BLOCK = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0xE7037ED1A0B428DB


def folded(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The halves of the 128-bit product, as csrc/key.hpp mixes them."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = (a0 * b0 >> half) + (a0 * b1 & low) + (a1 * b0 & low)
    upper: npt.NDArray[np.uint64] = a1 * b1 + (a0 * b1 >> half) + (a1 * b0 >> half) + (middle >> half)
    return upper ^ a * b


def short_words(random: np.random.Generator, crafted: bool) -> bytes:
    """Blanks with eleven letters; the crafted ones fall on the first 32nd of any table without a secret."""
    parts, count = [], 0
    while count < WORDS:
        words = np.zeros((1 << 18, 16), np.uint8)
        words[:, 0], words[:, 15] = ord(" "), 12
        words[:, 1:12] = LETTERS[random.integers(0, 26, (len(words), 11))]
        numbers = words.view(np.uint64)
        hashes = folded(numbers[:, 0] ^ np.uint64(LOW), numbers[:, 1] ^ np.uint64(HIGH))
        kept = hashes & np.uint64((1 << 17) - 1) < (1 << 12) if crafted else np.ones(len(words), np.bool_)
        parts.append(words[kept, :12])
        count += len(parts[-1])
    return np.concatenate(parts)[:WORDS].tobytes()


def long_words(random: np.random.Generator, crafted: bool) -> bytes:
    """Runs of symbols; the middle of the crafted ones is a number whose product with anything would be nothing."""
    words = np.empty((WORDS // 4, 25), np.uint8)
    words[:, 0], words[:, 9:] = ord("\n"), ord("=")
    words[:, 1:9] = np.frombuffer(b"!#$%&*+-./:;<=>?", np.uint8)[random.integers(0, 16, (len(words), 8))]
    middle = np.frombuffer(BLOCK.to_bytes(8, "little"), np.uint8)
    words[:, 9:17] = middle if crafted else middle ^ 1
    return words.tobytes()


@pytest.mark.parametrize("words", [short_words, long_words])
def test_no_words_make_a_table_slow(words: Callable[[np.random.Generator, bool], bytes]) -> None:
    """Without a secret the crafted ones took fifty times as long to encode and to count; a megabyte took 16 s."""
    random = np.random.default_rng(7)
    plain, crafted = words(random, False), words(random, True)
    tokenizer = train_bpe(["low lower"], 258)

    def encode(text: bytes) -> float:
        fresh = BPETokenizer(tokenizer.vocab, tokenizer.merges)
        started = time.process_time()
        fresh.encode_array(text, threads=1)
        return time.process_time() - started

    def count(text: bytes) -> float:
        started = time.process_time()
        train_bpe([text], 256, threads=1)
        return time.process_time() - started

    for work in (encode, count):
        usual = min(work(plain) for _ in range(3))
        assert min(work(crafted) for _ in range(3)) < 10 * usual + 0.02, work.__name__
