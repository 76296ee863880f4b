// A pre-token of up to 15 bytes as two machine words: its bytes, zeros, and its length in the last byte. Comparing and
// hashing such a key takes a few instructions and no memory beside it; nearly all pre-tokens of real text are this short.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "unicode.hpp"

namespace fledge {

using Byte = std::uint8_t;

constexpr std::size_t short_length = 15;  // the longest pre-token that fits a key
constexpr std::size_t key_reads = 16;     // bytes that `make_key` reads, whatever the length

struct Key {
    std::uint64_t low, high;
    bool operator==(const Key&) const = default;
};

struct KeyMask {
    std::uint64_t low, high, length;
};

constexpr std::array<KeyMask, 16> make_key_masks() {
    std::array<KeyMask, 16> masks{};
    for (std::uint64_t length = 0; length < 16; ++length) {
        masks[length].low = length >= 8 ? ~0ull : (1ull << 8 * length) - 1;
        masks[length].high = length <= 8 ? 0 : (1ull << 8 * (length - 8)) - 1;
        masks[length].length = length << 56;
    }
    return masks;
}
inline constexpr std::array<KeyMask, 16> key_masks = make_key_masks();

// Reads 16 bytes at `text`: the caller knows that they may be read. The layout is that of the machine, which is the
// same on both sides of every comparison.
inline Key make_key(const Byte* text, std::size_t length) {
    std::uint64_t low, high;
    std::memcpy(&low, text, 8);
    std::memcpy(&high, text + 8, 8);
    const KeyMask& mask = key_masks[length];
    return {low & mask.low, (high & mask.high) | mask.length};
}

inline Key make_key_at_end(const Byte* text, std::size_t length) {
    Byte padded[key_reads] = {};
    std::memcpy(padded, text, length);
    return make_key(padded, length);
}

// The halves of a 128-bit product, folded: every bit of both factors reaches every bit of the result.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t hash_key(Key key) {
    return mix(key.low ^ 0x9E3779B97F4A7C15ull, key.high ^ 0xD1B54A32D192ED03ull);
}

// For pre-tokens that do not fit a key.
inline std::uint64_t hash_bytes(const Byte* text, std::size_t length) {
    std::uint64_t state = length * 0xA0761D6478BD642Full;
    while (length >= 16) {
        std::uint64_t low, high;
        std::memcpy(&low, text, 8);
        std::memcpy(&high, text + 8, 8);
        state = mix(state ^ low, high ^ 0xE7037ED1A0B428DBull);
        text += 16;
        length -= 16;
    }
    const Key tail = length == 0 ? Key{0, 0} : make_key_at_end(text, length);
    return mix(state ^ tail.low, tail.high ^ 0x8EBC6AF09C88C6E3ull);
}

}  // namespace fledge
