"""What a string is made of: code points, their bytes in UTF-8, UTF-16 and UTF-32, and what is not seen.

For bytes that are not UTF-8, where each faulty sequence lies and the exact rule that it breaks.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Literal, NamedTuple

Fault = Literal["lone continuation", "overlong", "surrogate", "truncated", "beyond Unicode", "never used"]

CATEGORIES = {
    "Lu": "upper-case letter",
    "Ll": "lower-case letter",
    "Lt": "title-case letter",
    "Lm": "modifier letter",
    "Lo": "other letter",
    "Mn": "combining mark",
    "Mc": "spacing mark",
    "Me": "enclosing mark",
    "Nd": "digit",
    "Nl": "letter number",
    "No": "other number",
    "Pc": "connector",
    "Pd": "dash",
    "Ps": "opening bracket",
    "Pe": "closing bracket",
    "Pi": "opening quote",
    "Pf": "closing quote",
    "Po": "other punctuation",
    "Sm": "mathematical symbol",
    "Sc": "currency sign",
    "Sk": "modifier symbol",
    "So": "other symbol",
    "Zs": "space",
    "Zl": "line separator",
    "Zp": "paragraph separator",
    "Cc": "control",
    "Cf": "format",
    "Cs": "surrogate",
    "Co": "private use",
    "Cn": "not assigned",
}

# Unicode names no control; these are the ones that people meet.
CONTROLS = {
    0x00: "NULL",
    0x07: "BELL",
    0x08: "BACKSPACE",
    0x09: "TAB",
    0x0A: "LINE FEED (\\n)",
    0x0B: "VERTICAL TAB",
    0x0C: "FORM FEED",
    0x0D: "CARRIAGE RETURN (\\r)",
    0x1B: "ESCAPE",
    0x7F: "DELETE",
    0x85: "NEXT LINE",
}

# Letters, marks and symbols that are drawn as nothing although their category does not say so.
BLANK = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
DIRECTION = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}


WINDOW = 1 << 16  # bytes decoded at once: a file full of flaws must not be copied once for each


class CodePoint(NamedTuple):
    """One character: what it is called, what it is, and how each encoding writes it."""

    character: str
    code: int
    name: str
    category: str
    utf8: bytes | None
    "None for a surrogate, which UTF-8 and UTF-32 may not hold."
    utf16: bytes
    utf32: bytes | None
    invisible: str | None
    "Why the eye does not see it, or takes it for something else; None for what is plainly visible."


class StringSizes(NamedTuple):
    """The sizes of a string, and whether it is in the composed normal form."""

    code_points: int
    utf8_bytes: int
    utf16_bytes: int
    utf32_bytes: int
    invisible: int
    composed: bool
    "Whether the text is in NFC: `é` as one code point, not as `e` and an accent."


class Flaw(NamedTuple):
    """A sequence of bytes that is not UTF-8, and why."""

    start: int
    stop: int
    data: bytes
    fault: Fault
    reason: str


def code_points(text: str) -> Iterator[CodePoint]:
    """Each character of `text`.

    >>> [f"U+{point.code:04X} {point.name}" for point in code_points("é!")]
    ['U+00E9 LATIN SMALL LETTER E WITH ACUTE', 'U+0021 EXCLAMATION MARK']
    """
    for character in text:
        code = ord(character)
        surrogate = 0xD800 <= code <= 0xDFFF
        yield CodePoint(
            character,
            code,
            code_point_name(character),
            unicodedata.category(character),
            None if surrogate else character.encode(),
            character.encode("utf-16-be", "surrogatepass"),
            None if surrogate else character.encode("utf-32-be"),
            why_invisible(character),
        )


def code_point_name(character: str) -> str:
    code = ord(character)
    known = unicodedata.name(character, "") or CONTROLS.get(code, "")
    if known:
        return known
    kind = CATEGORIES[unicodedata.category(character)]
    return f"{kind} {code:04X}".upper()


def why_invisible(character: str) -> str | None:
    """
    >>> why_invisible("\\u200b")
    'takes no room'
    >>> why_invisible("a") is None
    True
    """
    code = ord(character)
    match unicodedata.category(character):
        case "Cc":
            return "moves the cursor" if character in "\t\n\v\f\r\x85" else "a control without a shape"
        case "Cf" if code in DIRECTION:
            return "turns the direction of the text"
        case "Cf" if code == 0xAD:
            return "shown only at a line's end"
        case "Cf" if not 0x600 <= code <= 0x8E2 and not 0x110BD <= code <= 0x110CD:  # Arabic and Kaithi signs are drawn
            return "takes no room"
        case "Zl" | "Zp":
            return "moves the cursor"
        case "Zs" if code != 0x20:
            return "looks like a space"
        case "Cs":
            return "half of a UTF-16 pair, no character"
    if code in BLANK:
        return "drawn as nothing"
    if 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or 0x180B <= code <= 0x180F:
        return "chooses a variant of the character before it"
    return None


def string_sizes(text: str) -> StringSizes:
    """
    >>> string_sizes("e\\u0301").composed
    False
    """
    utf16 = len(text.encode("utf-16-be", "surrogatepass"))
    return StringSizes(
        len(text),
        len(text.encode("utf-8", "surrogatepass")),
        utf16,
        4 * len(text),
        sum(why_invisible(character) is not None for character in text),
        unicodedata.is_normalized("NFC", text),
    )


def flaws(data: bytes) -> Iterator[Flaw]:
    """Each faulty sequence in `data`, from left to right; none if and only if `data` is UTF-8.

    A lead byte and the continuation bytes that belong to it are one flaw, though a decoder may print several
    replacement characters for it.

    >>> [flaw.reason for flaw in flaws(b"ok \\xc0\\xaf")]
    ['C0 AF is a two-byte form of U+002F, which has one byte: 2F']
    """
    view, position = memoryview(data), 0
    while position < len(data):
        window = view[position : position + WINDOW]
        try:
            str(window, "utf-8")
            position += len(window)
            continue
        except UnicodeDecodeError as error:
            start = position + error.start
            if error.start and error.end == len(window) and position + len(window) < len(data):
                position = start  # the window's edge may have cut a good character: look again from its start
                continue
        flaw = examine(data, start)
        yield flaw
        position = flaw.stop


def examine(data: bytes, start: int) -> Flaw:
    """The flaw at `start`, where a decoder stopped."""
    lead = data[start]
    needed = sequence_length(lead)
    stop = start + 1
    while stop < min(len(data), start + needed) and 0x80 <= data[stop] <= 0xBF:
        stop += 1
    found = data[start:stop]
    written = found.hex(" ").upper()
    whole = len(found) == needed
    value = code_of(found, needed) if whole else None

    def flaw(fault: Fault, reason: str) -> Flaw:
        return Flaw(start, stop, found, fault, reason)

    if 0x80 <= lead <= 0xBF:
        return flaw("lone continuation", f"{written} continues a character, and none was begun before it")
    if lead >= 0xFE:
        return flaw("never used", f"{written} is in no UTF-8 text")
    if lead >= 0xF8:
        forms = {5: "five", 6: "six"}
        return flaw("beyond Unicode", f"{written} begins a {forms[needed]}-byte form, given up in 2003")
    second = found[1] if len(found) > 1 else None
    if lead >= 0xF5 or (lead == 0xF4 and second is not None and second > 0x8F):
        code = f"U+{value:X}" if value is not None else "a code point"
        return flaw("beyond Unicode", f"{written} stands for {code}, and Unicode ends at U+10FFFF")
    if lead == 0xED and second is not None and second > 0x9F:
        code = f"U+{value:04X}" if value is not None else "a code point from U+D800 to U+DFFF"
        return flaw("surrogate", f"{written} stands for {code}: half of a UTF-16 pair, no character")
    if lead in (0xC0, 0xC1) or (second is not None and (lead, second) < SHORTEST.get(lead, (0, 0))):
        return flaw("overlong", overlong(written, needed, value))
    missing = needed - len(found)
    count = f"{missing} byte{'s' * (missing > 1)}"
    if stop == len(data):
        return flaw("truncated", f"{written} needs {count} more, and the data ends")
    return flaw("truncated", f"{written} needs {count} more, and {data[stop]:02X} does not continue it")


# The least second byte after these lead bytes; a lesser one spells a code point that has a shorter form.
SHORTEST = {0xE0: (0xE0, 0xA0), 0xF0: (0xF0, 0x90)}


def overlong(written: str, needed: int, value: int | None) -> str:
    form = {2: "two", 3: "three", 4: "four"}[needed]
    if value is None:
        return f"{written} begins a {form}-byte form of a code point that has a shorter one"
    if 0xD800 <= value <= 0xDFFF:
        return f"{written} is a {form}-byte form of U+{value:04X}: half of a UTF-16 pair, no character"
    shorter = chr(value).encode()
    count = {1: "one byte", 2: "two bytes", 3: "three bytes"}[len(shorter)]
    return f"{written} is a {form}-byte form of U+{value:04X}, which has {count}: {shorter.hex(' ').upper()}"


def sequence_length(lead: int) -> int:
    """How many bytes a lead byte announces, in the form of before 2003, which went up to six."""
    if lead < 0xC0 or lead >= 0xFE:
        return 1
    return 2 + (lead >= 0xE0) + (lead >= 0xF0) + (lead >= 0xF8) + (lead >= 0xFC)


def code_of(sequence: bytes, length: int) -> int:
    """The number that a whole sequence spells, whether UTF-8 allows it or not."""
    code = sequence[0] & (0x7F >> length) if length > 1 else sequence[0]
    for byte in sequence[1:]:
        code = code << 6 | byte & 0x3F
    return code
