"""Writes csrc/unicode_tables.hpp: the class of every code point, as the pre-tokenization patterns need it.

The classes are asked of tiktoken, whose ids ours must equal: other packages know other versions of Unicode.

    python tools/make_unicode_tables.py > csrc/unicode_tables.hpp
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import tiktoken

BLOCK = 256
# In the order of `enum Class` in csrc/unicode.hpp; the first class that matches wins.
CLASSES = (
    (2, r"[\r\n]"),
    (1, r"\s"),
    (3, r"\p{N}"),
    (4, r"[\p{Lu}\p{Lt}]"),
    (5, r"\p{Ll}"),
    (6, r"[\p{Lm}\p{Lo}]"),
    (7, r"\p{M}"),
)
# The last letter blocks that each Unicode version brought: the newest one known is the version of the tables.
LANDMARKS = (("17.0", 0x16EA0), ("16.0", 0x105C0), ("15.1", 0x2EBF0), ("15.0", 0x31350), ("14.0", 0x10570))
# An X joins the first byte of the character after it if one piece holds both, which shows in the first id.
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"X" + bytes([byte]): 256 + byte for byte in range(256)}


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether tiktoken's regular expressions match a character."""
    probe = tiktoken.Encoding("probe", pat_str=rf"X{pattern}|[\s\S]", mergeable_ranks=RANKS, special_tokens={})
    return lambda character: probe.encode_ordinary("X" + character)[0] >= 256


MATCHERS = tuple((number, matcher(pattern)) for number, pattern in CLASSES)


def class_of(code: int) -> int:
    if 0xD800 <= code < 0xE000:  # halves of a pair are no characters
        return 0
    character = chr(code)
    return next((number for number, matches in MATCHERS if matches(character)), 0)


def version() -> str:
    letter = matcher(r"\p{L}")
    return next(name for name, code in LANDMARKS if letter(chr(code)))


def main() -> None:
    classes = [class_of(code) for code in range(0x110000)]
    blocks: dict[tuple[int, ...], int] = {}
    index = [
        blocks.setdefault(tuple(classes[start : start + BLOCK]), len(blocks)) for start in range(0, 0x110000, BLOCK)
    ]
    print("// Written by tools/make_unicode_tables.py: the class of every code point, in blocks of 256.")
    print("#pragma once")
    print("#include <cstdint>")
    print("namespace fledge::unicode {")
    print(f'inline constexpr char version[] = "{version()}";')
    print(f"inline constexpr std::uint8_t block_of[{len(index)}] = {{")
    for start in range(0, len(index), 32):
        print(",".join(map(str, index[start : start + 32])) + ",")
    print("};")
    print(f"inline constexpr std::uint8_t class_in_block[{len(blocks)}][{BLOCK}] = {{")
    for block in blocks:
        runs = [(value, len(list(group))) for value, group in groupby(block)]
        if len(runs) == 1 and runs[0][0] == 0:
            print("{0},")
            continue
        print("{" + ",".join(map(str, block)) + "},")
    print("};")
    print("}  // namespace fledge::unicode")


if __name__ == "__main__":
    main()
