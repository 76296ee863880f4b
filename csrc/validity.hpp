// Counts the bytes of a text that are not part of valid UTF-8; plain ASCII is passed over eight bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "key.hpp"
#include "unicode.hpp"

namespace fledge {

inline std::uint64_t count_invalid(std::span<const Byte> text) {
    const Byte *at = text.data(), *end = at + text.size();
    std::uint64_t invalid = 0;
    while (at < end) {
        if (end - at >= 8) {
            std::uint64_t word;
            std::memcpy(&word, at, 8);
            if ((word & 0x8080808080808080ull) == 0) {
                at += 8;
                continue;
            }
        }
        const Character next = character_at(at, end);
        invalid += !next.valid;
        at += next.length;
    }
    return invalid;
}

}  // namespace fledge
