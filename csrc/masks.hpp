// The classes of a window of text as bits, 64 bytes to a machine word: bit i of `letter` says that byte i is part of a
// letter. Rules about neighbours then become shifts and ands over 64 bytes at once. ASCII is classified by vector
// compares that every x86-64 has (a table elsewhere); other characters are looked up one by one and fill all their bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "key.hpp"
#include "patterns.hpp"
#include "unicode.hpp"

namespace fledge {

using Bits = std::uint64_t;

constexpr std::size_t window_bytes = 2048;
constexpr std::size_t window_words = window_bytes / 64;

// One bit for each byte of a window, and a word more, so that a look at the next one needs no check.
struct Mask {
    std::array<Bits, window_words + 1> words;

    Bits& operator[](std::size_t i) { return words[i]; }
    Bits operator[](std::size_t i) const { return words[i]; }
    bool test(std::size_t at) const { return words[at >> 6] >> (at & 63) & 1; }
    void set(std::size_t at) { words[at >> 6] |= Bits{1} << (at & 63); }
    void clear(std::size_t at) { words[at >> 6] &= ~(Bits{1} << (at & 63)); }
    void fill(std::size_t at, unsigned length) {  // at most 64 bits
        const Bits run = (Bits{1} << length) - 1;
        words[at >> 6] |= run << (at & 63);
        if ((at & 63) + length > 64) words[(at >> 6) + 1] |= run >> (64 - (at & 63));
    }
    // The word whose bit i is bit i - 1 of this mask: what stands before; and bit i + 1: what comes next.
    Bits before(std::size_t i) const { return words[i] << 1 | (i > 0 ? words[i - 1] >> 63 : 0); }
    Bits next(std::size_t i) const { return words[i] >> 1 | words[i + 1] << 63; }
};

struct Masks {
    Mask letter, number, space;  // what is none of these is a symbol
    Mask newline, blank, apostrophe;
    Mask upper, lower, slash;  // kept for o200k alone
    Mask later;         // bytes of a character past its first
    Mask doubtful;      // what the fast rules do not cover: the exact code decides there
};

#if defined(__SSE2__)
class Block {
public:
    explicit Block(const Byte* text) {
        for (int i = 0; i < 4; ++i) parts_[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text + 16 * i));
    }
    Bits high() const {
        return gather([](__m128i part) { return part; });
    }
    Bits equal(char byte) const {
        return gather([=](__m128i part) { return _mm_cmpeq_epi8(part, _mm_set1_epi8(byte)); });
    }
    // Bytes in [first, first + count) after setting the bits of `fold`.
    Bits range(char first, char count, char fold = 0) const {
        return gather([=](__m128i part) {
            const __m128i from = _mm_sub_epi8(_mm_or_si128(part, _mm_set1_epi8(fold)), _mm_set1_epi8(first));
            return _mm_cmpeq_epi8(_mm_min_epu8(from, _mm_set1_epi8(static_cast<char>(count - 1))), from);
        });
    }

private:
    template <typename Compare>
    Bits gather(Compare compare) const {
        Bits bits = 0;
        for (int i = 0; i < 4; ++i) {
            bits |= static_cast<Bits>(static_cast<unsigned>(_mm_movemask_epi8(compare(parts_[i])))) << (16 * i);
        }
        return bits;
    }
    __m128i parts_[4];
};
#else
class Block {
public:
    explicit Block(const Byte* text) : text_(text) {}
    Bits high() const {
        return gather([](Byte byte) { return byte >= 0x80; });
    }
    Bits equal(char value) const {
        return gather([=](Byte byte) { return byte == static_cast<Byte>(value); });
    }
    Bits range(char first, char count, char fold = 0) const {
        return gather([=](Byte byte) {
            return static_cast<Byte>((byte | static_cast<Byte>(fold)) - static_cast<Byte>(first)) < static_cast<Byte>(count);
        });
    }

private:
    template <typename Compare>
    Bits gather(Compare compare) const {
        Bits bits = 0;
        for (int i = 0; i < 64; ++i) bits |= static_cast<Bits>(compare(text_[i])) << i;
        return bits;
    }
    const Byte* text_;
};
#endif

template <Pattern pattern>
inline void mark_character(Masks& masks, std::size_t at, Character found) {
    constexpr bool by_case = pattern == Pattern::o200k;
    if (found.length > 1) masks.later.fill(at + 1, found.length - 1u);
    switch (found.type) {
        case Upper:
            masks.letter.fill(at, found.length);
            if (by_case) masks.upper.fill(at, found.length);
            break;
        case Lower:
            masks.letter.fill(at, found.length);
            if (by_case) masks.lower.fill(at, found.length);
            break;
        case Letter: masks.letter.fill(at, found.length); break;
        case Number:
            masks.number.fill(at, found.length);
            if (pattern != Pattern::gpt2) masks.doubtful.set(at);  // the fast rules count digits in bytes
            break;
        case Space:
        case Newline:
            masks.space.fill(at, found.length);
            masks.doubtful.set(at);  // the fast rules take every space as one byte
            break;
        case Mark:
            if (by_case) masks.doubtful.set(at);
            break;
        case Other: break;
    }
}

// Classifies the `length` bytes at `text`, which reach 64 bytes further than a whole number of words at least. Characters
// are read up to `end`, the end of the text; past `length` all is space.
template <Pattern pattern>
inline void classify(const Byte* text, std::size_t length, const Byte* end, Masks& masks) {
    constexpr bool by_case = pattern == Pattern::o200k;
    constexpr bool newlines = pattern != Pattern::gpt2;
    const std::size_t words = (length + 63) / 64;
    Bits high[window_words];
    for (std::size_t i = 0; i < words; ++i) {
        const Block block(text + 64 * i);
        masks.letter[i] = block.range('a', 26, 0x20);
        masks.number[i] = block.range('0', 10);
        masks.blank[i] = block.equal(' ');
        masks.space[i] = block.range('\t', 5) | masks.blank[i];
        masks.apostrophe[i] = block.equal('\'');
        if (newlines) masks.newline[i] = block.equal('\n') | block.equal('\r');
        if (by_case) {
            masks.lower[i] = block.range('a', 26);
            masks.upper[i] = masks.letter[i] & ~masks.lower[i];
            masks.slash[i] = block.equal('/');
        }
        high[i] = block.high();
        masks.later[i] = masks.doubtful[i] = 0;
    }
    const auto each_used = [&](auto change) {
        for (Mask* mask : {&masks.letter, &masks.number, &masks.blank, &masks.space, &masks.apostrophe, &masks.later,
                           &masks.doubtful}) {
            change(*mask);
        }
        if (newlines) change(masks.newline);
        if (by_case) {
            change(masks.upper);
            change(masks.lower);
        }
    };
    each_used([=](Mask& mask) { mask[words] = 0; });
    std::size_t next = 0;
    for (std::size_t i = 0; i < words; ++i) {
        Bits left = high[i];
        if (next > 64 * i) left &= ~Bits{0} << (next - 64 * i);
        while (left) {
            const std::size_t at = 64 * i + static_cast<std::size_t>(std::countr_zero(left));
            if (at >= length) break;
            const Character found = character_at(text + at, end);
            mark_character<pattern>(masks, at, found);
            next = at + found.length;
            if (next >= 64 * (i + 1)) break;
            left &= ~Bits{0} << (next & 63);
        }
    }
    // What lies past the end is space, and nothing else.
    if (length % 64) {
        const Bits past = ~Bits{0} << (length % 64);
        each_used([=](Mask& mask) { mask[words - 1] &= ~past; });
        masks.space[words - 1] |= past;
    }
    masks.space[words] = ~Bits{0};
}

}  // namespace fledge
