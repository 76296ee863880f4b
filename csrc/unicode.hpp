// What a pattern needs to know of a character: one of eight classes, looked up in the generated tables. A byte that
// is not part of valid UTF-8 is a character of its own, of class Other, so that any bytes can be cut and none is lost.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform.hpp"
#include "unicode_tables.hpp"

namespace fledge {

enum Class : std::uint8_t {
    Other = 0,
    Space = 1,    // White_Space but for the next
    Newline = 2,  // \r and \n
    Number = 3,
    Upper = 4,   // Lu, Lt
    Lower = 5,   // Ll
    Letter = 6,  // Lm, Lo: neither upper nor lower
    Mark = 7,
};

struct Character {
    Class type;
    std::uint8_t length;  // in bytes
    bool valid;
};

inline Class class_of(std::uint32_t code) {
    return static_cast<Class>(unicode::class_in_block[unicode::block_of[code >> 8]][code & 255]);
}

inline bool is_continuation(std::uint8_t byte) { return (byte & 0xC0) == 0x80; }

// The character at `text`, which lies before `end`. Overlong forms, surrogates and codes past U+10FFFF are invalid.
FLEDGE_INLINE Character character_at(const std::uint8_t* text, const std::uint8_t* end) {
    const std::uint8_t first = text[0];
    if (first < 0x80) return {class_of(first), 1, true};
    const std::ptrdiff_t left = end - text;
    if (first >= 0xC2 && first < 0xE0) {
        if (left >= 2 && is_continuation(text[1])) return {class_of((first & 0x1Fu) << 6 | (text[1] & 0x3Fu)), 2, true};
    } else if (first >= 0xE0 && first < 0xF0) {
        if (left >= 3 && is_continuation(text[1]) && is_continuation(text[2])) {
            const std::uint32_t code = (first & 0x0Fu) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
            if (code >= 0x800 && (code < 0xD800 || code > 0xDFFF)) return {class_of(code), 3, true};
        }
    } else if (first >= 0xF0 && first < 0xF5) {
        if (left >= 4 && is_continuation(text[1]) && is_continuation(text[2]) && is_continuation(text[3])) {
            const std::uint32_t code =
                (first & 0x07u) << 18 | (text[1] & 0x3Fu) << 12 | (text[2] & 0x3Fu) << 6 | (text[3] & 0x3Fu);
            if (code >= 0x10000 && code < 0x110000) return {class_of(code), 4, true};
        }
    }
    return {Other, 1, false};
}

}  // namespace fledge
