// The three pre-tokenization patterns, written out as the code that a regular expression engine would run on them:
// given where a pre-token starts, where it ends. Exact and plain, one character at a time: the judge of the fast
// scanner, and its way out for what does not fit a window. Each alternative stands beside its part of the pattern.
#pragma once

#include <cstdint>

#include "key.hpp"
#include "unicode.hpp"

namespace fledge {

enum class Pattern : std::uint8_t { gpt2, cl100k, o200k };


constexpr unsigned bit(Class type) { return 1u << type; }
constexpr unsigned any_space = bit(Space) | bit(Newline);
constexpr unsigned any_letter = bit(Upper) | bit(Lower) | bit(Letter);
constexpr unsigned any_symbol = bit(Other) | bit(Mark);  // [^\s\p{L}\p{N}]
constexpr unsigned o200k_upper = bit(Upper) | bit(Letter) | bit(Mark);
constexpr unsigned o200k_lower = bit(Lower) | bit(Letter) | bit(Mark);
constexpr unsigned word_prefix = bit(Other) | bit(Space) | bit(Mark);  // [^\r\n\p{L}\p{N}]

inline bool in(Class type, unsigned set) { return (set >> type & 1u) != 0; }

// Past the characters of `set` that start at `text`, at most `limit` of them.
inline const Byte* run(const Byte* text, const Byte* end, unsigned set, int limit = -1) {
    while (text < end && limit-- != 0) {
        const Character next = character_at(text, end);
        if (!in(next.type, set)) break;
        text += next.length;
    }
    return text;
}

// The length of 's 't 'm 'd 'll 've 're at `text`, or 0. Without case, s is also the long s, U+017F.
template <bool any_case>
inline int contraction(const Byte* text, const Byte* end) {
    const auto left = end - text;
    if (left < 2 || text[0] != '\'') return 0;
    const Byte fold = any_case ? 0x20 : 0;
    const Byte one = text[1] | fold;
    if (one == 's' || one == 't' || one == 'm' || one == 'd') return 2;
    if (left < 3) return 0;
    if (any_case && text[1] == 0xC5 && text[2] == 0xBF) return 3;
    const Byte two = text[2] | fold;
    return (one == 'l' && two == 'l') || (one == 'v' && two == 'e') || (one == 'r' && two == 'e') ? 3 : 0;
}

// \s+(?!\S)|\s+ from `text` on, where the white space ends at `stop`, its last character starts at `last`.
inline const Byte* leave_last_space(const Byte* text, const Byte* last, const Byte* stop, const Byte* end) {
    return stop == end || last == text ? stop : last;
}

struct SpaceRun {
    const Byte* stop;           // past the run
    const Byte* last;           // its last character
    const Byte* after_newline;  // past the last \r or \n in it, null without one
};

inline SpaceRun space_run(const Byte* text, const Byte* end) {
    SpaceRun found{text, text, nullptr};
    while (found.stop < end) {
        const Character next = character_at(found.stop, end);
        if (!in(next.type, any_space)) break;
        found.last = found.stop;
        found.stop += next.length;
        if (next.type == Newline) found.after_newline = found.stop;
    }
    return found;
}

// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
inline const Byte* next_gpt2(const Byte* text, const Byte* end) {
    if (const int length = contraction<false>(text, end)) return text + length;
    const Byte* body = text + (*text == ' ');
    if (body < end) {
        const Character first = character_at(body, end);
        if (in(first.type, any_letter)) return run(body, end, any_letter);
        if (first.type == Number) return run(body, end, bit(Number));
        if (in(first.type, any_symbol)) return run(body, end, any_symbol);
    }
    const SpaceRun spaces = space_run(text, end);
    return leave_last_space(text, spaces.last, spaces.stop, end);
}

// '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s
inline const Byte* next_cl100k(const Byte* text, const Byte* end) {
    if (const int length = contraction<true>(text, end)) return text + length;
    const Character first = character_at(text, end);
    const Byte* body = text + (in(first.type, word_prefix) ? first.length : 0);
    const Byte* stop = run(body, end, any_letter);
    if (stop > body) return stop;
    if (first.type == Number) return run(text, end, bit(Number), 3);
    body = text + (*text == ' ');
    stop = run(body, end, any_symbol);
    if (stop > body) return run(stop, end, bit(Newline));
    const SpaceRun spaces = space_run(text, end);
    if (spaces.stop == end) return end;
    if (spaces.after_newline) return spaces.after_newline;
    return leave_last_space(text, spaces.last, spaces.stop, end);
}

// The body of o200k's words from `text` on, or `text` where there is none.
//   upper_first = false: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
//   upper_first = true:  [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
inline const Byte* o200k_word(const Byte* text, const Byte* end, bool upper_first) {
    const Byte* upper = text;
    const Byte* last_shared = text;  // past the last character that is in both sets: what the star can give back
    while (upper < end) {
        const Character next = character_at(upper, end);
        if (!in(next.type, o200k_upper)) break;
        upper += next.length;
        if (in(next.type, o200k_lower)) last_shared = upper;
    }
    if (upper_first) return upper == text ? text : run(upper, end, o200k_lower);
    const Byte* stop = run(upper, end, o200k_lower);
    return stop > upper ? stop : last_shared;
}

// [^\r\n\p{L}\p{N}]? word (?i:'s|'t|'re|'ve|'m|'ll|'d)? in its two forms
// |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
inline const Byte* next_o200k(const Byte* text, const Byte* end) {
    const Character first = character_at(text, end);
    for (const bool upper_first : {false, true}) {
        for (const int prefix : {in(first.type, word_prefix) ? int{first.length} : 0, 0}) {
            const Byte* body = text + prefix;
            if (body == end) continue;
            const Byte* stop = o200k_word(body, end, upper_first);
            if (stop > body) return stop + contraction<true>(stop, end);
        }
    }
    if (first.type == Number) return run(text, end, bit(Number), 3);
    const Byte* body = text + (*text == ' ');
    const Byte* stop = run(body, end, any_symbol);
    if (stop > body) {
        while (stop < end && (*stop == '\r' || *stop == '\n' || *stop == '/')) ++stop;
        return stop;
    }
    const SpaceRun spaces = space_run(text, end);
    if (spaces.after_newline) return spaces.after_newline;
    return leave_last_space(text, spaces.last, spaces.stop, end);
}

template <Pattern pattern>
inline const Byte* next_pretoken(const Byte* text, const Byte* end) {
    if constexpr (pattern == Pattern::gpt2) return next_gpt2(text, end);
    if constexpr (pattern == Pattern::cl100k) return next_cl100k(text, end);
    if constexpr (pattern == Pattern::o200k) return next_o200k(text, end);
}

}  // namespace fledge
