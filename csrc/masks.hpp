// The classes of a window of text as bits, 64 bytes to a machine word: bit i of `letter` says that byte i is part of a
// letter. Rules about neighbours then become shifts and ands over 64 bytes at once. ASCII is classified by vector
// compares that every x86-64 has (a loop elsewhere); other characters are looked up one by one and fill all their bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(FLEDGE_X86_64)
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
    // The word whose bit i is bit i - 1 of this mask: what stands before; and bit i + 1: what comes next.
    Bits before(std::size_t i) const { return words[i] << 1 | (i > 0 ? words[i - 1] >> 63 : 0); }
    Bits next(std::size_t i) const { return words[i] >> 1 | words[i + 1] << 63; }
};

struct Masks {
    Mask letter, number, space;  // what is none of these is a symbol
    Mask newline, blank, apostrophe;
    Mask upper, lower, mark, slash;  // kept for o200k alone
    Mask later;         // bytes of a character past its first
    Mask doubtful;      // what the fast rules do not cover: the exact code decides there
};

#if defined(FLEDGE_X86_64)
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

// The characters of a window that are not ASCII, a word of bytes at a time. First bytes are found by their bits alone, so
// that no character has to wait for the length of the one before; bytes that no character claims are invalid.
class OtherCharacters {
public:
    // Of the 64 bytes at `text`: `high` are not ASCII, `later` continue a character. Four bytes past them can be read.
    void classify(const Byte* text, Bits high, Bits later) {
        for (Bits& bits : of_) bits = 0;
        of_[carried_type_] = claimed_ = carried_;
        carried_ = 0;
        for (Bits left = high & ~later; left; left &= left - 1) {
            const auto at = static_cast<unsigned>(std::countr_zero(left));
            const Byte* from = text + at;
            const std::uint32_t first = from[0], second = from[1] ^ 0x80u, third = from[2] ^ 0x80u, fourth = from[3] ^ 0x80u;
            std::uint32_t code;
            unsigned length;
            bool valid;
            if (first < 0xE0) {
                code = (first & 0x1F) << 6 | second;
                length = 2;
                valid = second < 0x40 && first >= 0xC2;
            } else if (first < 0xF0) {
                code = (first & 0x0F) << 12 | second << 6 | third;
                length = 3;
                valid = (second | third) < 0x40 && code >= 0x800 && (code & 0xF800) != 0xD800;
            } else {
                code = (first & 0x0F) << 18 | second << 12 | third << 6 | fourth;
                length = 4;
                valid = (second | third | fourth) < 0x40 && code >= 0x10000 && code < 0x110000;
            }
            if (!valid) [[unlikely]] continue;
            const Class type = class_of(code);
            const Bits run = (Bits{1} << length) - 1;
            of_[type] |= run << at;
            claimed_ |= run << at;
            if (at + length > 64) {
                carried_ = run >> (64 - at);
                carried_type_ = type;
            }
        }
        invalid_ = high & ~claimed_;
    }

    Bits of(Class type) const { return of_[type]; }
    Bits letters() const { return of_[Upper] | of_[Lower] | of_[Letter]; }
    Bits spaces() const { return of_[Space] | of_[Newline]; }
    Bits invalid() const { return invalid_; }

private:
    Bits of_[8] = {};
    Bits claimed_ = 0, invalid_ = 0, carried_ = 0;  // carried: what a last character has in the next word
    Class carried_type_ = Other;
};

// Classifies the `length` bytes at `text`; 64 bytes past them can be read, and what stands there can't continue a
// character unless it does so in the text. Past `length` all is space.
template <Pattern pattern>
inline void classify(const Byte* text, std::size_t length, Masks& masks) {
    constexpr bool by_case = pattern == Pattern::o200k;
    constexpr bool newlines = pattern != Pattern::gpt2;
    const std::size_t words = (length + 63) / 64;
    OtherCharacters others;
    bool pending = false;  // whether the word before had characters that may reach into this one
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
            masks.mark[i] = 0;
        }
        masks.later[i] = masks.doubtful[i] = 0;
        const Bits high = block.high();
        if (high || pending) {
            masks.later[i] = block.range('\x80', 0x40);
            others.classify(text + 64 * i, high, masks.later[i]);
            masks.letter[i] |= others.letters();
            masks.number[i] |= others.of(Number);
            masks.space[i] |= others.spaces();
            // The fast rules take every space as one byte, and so every digit where they are counted.
            masks.doubtful[i] = others.invalid() | others.spaces() | (newlines ? others.of(Number) : 0);
            if (by_case) {
                masks.upper[i] |= others.of(Upper);
                masks.lower[i] |= others.of(Lower);
                masks.mark[i] = others.of(Mark);
                masks.letter[i] |= others.of(Mark);  // which a mark is after a letter; elsewhere it is doubtful
            }
            pending = high != 0;
        }
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
            change(masks.mark);
        }
    };
    each_used([=](Mask& mask) { mask[words] = 0; });
    masks.space[words] = ~Bits{0};
    if (length % 64) {
        const Bits past = ~Bits{0} << (length % 64);
        each_used([=](Mask& mask) { mask[words - 1] &= ~past; });
        masks.space[words - 1] |= past;
    }
}

}  // namespace fledge
