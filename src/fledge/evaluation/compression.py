"""What xz and bz2 need for a text after another one: yardsticks that people know, beside the n-gram baselines."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from typing import NamedTuple

TRAINING, HELD_OUT = 4 << 20, 512 << 10
"Bytes of training and held-out text that are compressed at most: some seconds and 100 MB of memory."
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "bz2": bz2.compress}


class Compression(NamedTuple):
    """Bits per byte of held-out text by compressor, and how many bytes of each text were used."""

    bits: dict[str, float]
    training: int
    held_out: int


def compression(training: bytes, held_out: bytes) -> Compression | None:
    """Compress the end of the training text with and without the start of the held-out text behind it.

    The difference in size is what the held-out text costs. None where there is no held-out text.

    >>> found = compression(b"the same line\\n" * 500, b"the same line\\n" * 50)
    >>> found.held_out, found.bits["xz"] < 1
    (700, True)
    """
    training, held_out = training[-TRAINING:], held_out[:HELD_OUT]
    if not held_out:
        return None
    bits = {
        name: 8 * (len(compress(training + held_out)) - len(compress(training))) / len(held_out)
        for name, compress in COMPRESSORS.items()
    }
    return Compression(bits, len(training), len(held_out))
