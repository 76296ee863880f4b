// A pre-token of up to 15 bytes as two machine words: its bytes, zeros, and its length in the last byte. Comparing and
// hashing such a key takes a few instructions; nearly all pre-tokens of real text are this short. Every process hashes
// with a secret of its own: otherwise anybody could write words that all fall on one place of a table, and a table
// searched from one end to the other takes minutes for a megabyte. No result depends on the secret.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <random>
#include <string_view>

#include "platform.hpp"
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
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return fold_product(a, b); }

struct Secret {
    std::uint64_t low, high, third;
};

inline Secret make_secret() {
    std::uint64_t words[3];
    try {
        std::random_device device;
        for (std::uint64_t& word : words) word = std::uint64_t{device()} << 32 | device();
    } catch (const std::exception&) {  // no source of randomness: the clock, and where the system put this program
        auto state = static_cast<std::uint64_t>(std::chrono::high_resolution_clock::now().time_since_epoch().count());
        state ^= reinterpret_cast<std::uintptr_t>(&words);
        for (std::uint64_t& word : words) word = mix(state += 0x9E3779B97F4A7C15ull, 0xD1B54A32D192ED03ull);
    }
    return {words[0], words[1], words[2] | 1};  // a factor of zero would give every pair one place
}
inline const Secret secret = make_secret();

// A loop over many keys takes a copy of the secret: then it stays in registers.
inline std::uint64_t hash_key(Key key, const Secret& with = secret) {
    return mix(key.low ^ with.low, key.high ^ with.high);
}

// For pre-tokens that do not fit a key. Both factors of every product hold a part of the secret: nobody can make one of
// them zero, which would forget all that came before.
inline std::uint64_t hash_bytes(const Byte* text, std::size_t length) {
    std::uint64_t state = (length + secret.low) * 0xA0761D6478BD642Full;
    while (length >= 16) {
        std::uint64_t low, high;
        std::memcpy(&low, text, 8);
        std::memcpy(&high, text + 8, 8);
        state = mix(state ^ low, high ^ secret.high);
        text += 16;
        length -= 16;
    }
    const Key tail = length == 0 ? Key{0, 0} : make_key_at_end(text, length);
    return mix(state ^ tail.low, tail.high ^ secret.third);
}

inline std::uint64_t hash_pair(std::uint32_t left, std::uint32_t right) {
    return mix(std::uint64_t{left} << 32 | right, secret.third);
}

// For tables of the standard library, whose own hashes have no secret.
struct Hash {
    std::size_t operator()(std::string_view text) const {
        return hash_bytes(reinterpret_cast<const Byte*>(text.data()), text.size());
    }
    std::size_t operator()(std::uint32_t number) const { return hash_pair(number, 1); }
};

}  // namespace fledge
