"""Facts of strings, and reasons for bytes that do not decode; Python's own decoder is the judge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.tokenizer.unicode import WINDOW, code_points, flaws, string_sizes, why_invisible

# Bytes near the borders of the rules: leads, continuations, and the second bytes that some leads forbid.
BORDERS = bytes.fromhex("00 41 7F 80 8F 90 9F A0 BF C0 C1 C2 DF E0 E1 ED EF F0 F3 F4 F5 F7 F8 FB FC FD FE FF")


@pytest.mark.parametrize(
    ("data", "fault", "reason"),
    [
        ("80", "lone continuation", "continues a character"),
        ("BF", "lone continuation", "none was begun"),
        ("C0 AF", "overlong", "two-byte form of U+002F, which has one byte: 2F"),
        ("E0 80 AF", "overlong", "three-byte form of U+002F"),
        ("E0 9F BF", "overlong", "U+07FF, which has two bytes: DF BF"),
        ("F0 8F BF BF", "overlong", "U+FFFF, which has three bytes: EF BF BF"),
        ("F0 8D A0 80", "overlong", "U+D800: half of a UTF-16 pair"),
        ("C1", "overlong", "begins a two-byte form"),
        ("ED A0 80", "surrogate", "U+D800"),
        ("ED BF BF", "surrogate", "U+DFFF"),
        ("ED A0", "surrogate", "U+D800 to U+DFFF"),
        ("E2 82", "truncated", "needs 1 byte more, and the data ends"),
        ("F0 9F", "truncated", "needs 2 bytes more, and the data ends"),
        ("C3 28", "truncated", "needs 1 byte more, and 28 does not continue it"),
        ("F4 90 80 80", "beyond Unicode", "U+110000, and Unicode ends at U+10FFFF"),
        ("F5 80 80 80", "beyond Unicode", "U+140000"),
        ("F8 88 80 80 80", "beyond Unicode", "five-byte form"),
        ("FC 84 80 80 80 80", "beyond Unicode", "six-byte form"),
        ("FE", "never used", "in no UTF-8 text"),
        ("FF", "never used", "in no UTF-8 text"),
    ],
)
def test_every_fault_has_its_name(data: str, fault: str, reason: str) -> None:
    (flaw,) = flaws(bytes.fromhex(data))
    assert flaw.fault == fault
    assert reason in flaw.reason
    assert flaw.start == 0


@settings(deadline=None)
@given(st.binary(max_size=30) | st.lists(st.sampled_from(BORDERS), max_size=12).map(bytes))
def test_what_lies_between_the_flaws_decodes(data: bytes) -> None:
    found = list(flaws(data))
    edges = [0, *(edge for flaw in found for edge in (flaw.start, flaw.stop)), len(data)]
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        data[start:stop].decode()
    assert all(data[flaw.start : flaw.stop] == flaw.data for flaw in found)
    try:
        data.decode()
        first = None
    except UnicodeDecodeError as error:
        first = error.start
    assert (found[0].start if found else None) == first


@pytest.mark.parametrize("shift", range(5))
def test_the_window_cuts_no_good_character(shift: int) -> None:
    data = b"a" * (WINDOW - shift) + "😀€".encode() + b"\xff" + b"b" * WINDOW + b"\xe2\x82"
    assert [(flaw.start, flaw.fault) for flaw in flaws(data)] == [
        (WINDOW - shift + 7, "never used"),
        (len(data) - 2, "truncated"),
    ]


def test_code_points_and_their_bytes() -> None:
    accent, face, half = code_points("é😀\ud83d")
    assert (accent.name, accent.category) == ("LATIN SMALL LETTER E WITH ACUTE", "Ll")
    assert (accent.utf8, accent.utf16, accent.utf32) == (b"\xc3\xa9", b"\x00\xe9", b"\x00\x00\x00\xe9")
    assert (face.utf8, face.utf16) == (b"\xf0\x9f\x98\x80", b"\xd8\x3d\xde\x00")
    assert (half.utf8, half.utf16, half.utf32) == (None, b"\xd8\x3d", None)


@settings(deadline=None)
@given(st.characters(exclude_categories=()))
def test_every_character_has_a_name(character: str) -> None:
    (point,) = code_points(character)
    assert point.name


@pytest.mark.parametrize("code", [0x200B, 0x200D, 0xFEFF, 0xAD, 0x202E, 0xA0, 0x3000, 0xFE0F, 0x3164, 0x0A, 0xE0041])
def test_the_invisible_is_named(code: int) -> None:
    assert why_invisible(chr(code))


@pytest.mark.parametrize("character", [*"a é中😀₿ ", "\u0301", "\u0600"])
def test_the_visible_is_left_alone(character: str) -> None:
    assert why_invisible(character) is None


def test_facts_of_a_string() -> None:
    facts = string_sizes("e\u0301\u200b😀")
    assert (facts.code_points, facts.utf8_bytes, facts.utf16_bytes, facts.utf32_bytes) == (4, 10, 10, 16)
    assert facts.invisible == 1
    assert not facts.composed
