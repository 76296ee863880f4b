// Where a text may be cut so that the parts, pre-tokenized apart, give what the whole gives: the ground on which threads
// share a text and streams are cut into blocks. Three places are safe in all patterns, whatever stands further away:
//   before a blank between two characters that are not white space (no pre-token goes on with a blank);
//   between a letter and a symbol that is neither a mark nor an apostrophe (no word goes on with one);
//   after a \n between two letters or numbers (it is a pre-token of its own, at the end of a text as elsewhere).
#pragma once

#include <vector>

#include "patterns.hpp"
#include "specials.hpp"

namespace fledge {

inline Character character_before(const Byte* text, const Byte* at) {
    const Byte* start = at - 1;
    while (start > text && at - start < 4 && is_continuation(*start)) --start;
    const Character found = character_at(start, at);
    return start + found.length == at && found.valid ? found : Character{Other, 1, false};
}

inline bool is_safe_cut(const Byte* text, const Byte* at, const Byte* end) {
    if (at <= text || at >= end) return false;
    if (*at == ' ') {
        return !in(character_before(text, at).type, any_space) && at + 1 < end &&
               !in(character_at(at + 1, end).type, any_space);
    }
    if (*at == '\'' || is_continuation(*at)) return false;
    const Character here = character_at(at, end);
    if (at[-1] == '\n') {
        constexpr unsigned any_word = any_letter | bit(Number);
        return in(here.type, any_word) && at - 1 > text && in(character_before(text, at - 1).type, any_word);
    }
    return here.type == Other && here.valid && in(character_before(text, at).type, any_letter);
}

inline const Byte* cut_from(const Byte* text, const Byte* at, const Byte* end, const Specials& specials) {
    while (at < end && !(is_safe_cut(text, at, end) && !specials.spans(text, at, end))) ++at;
    return at;
}

// The last safe cut of [text, end), or `text` where there is none. A character that `end` may have split, and the last
// bytes that a special may still need, are never looked at.
inline const Byte* last_cut(const Byte* text, const Byte* end, const Specials& specials) {
    const std::size_t reserve = std::max<std::size_t>(8, specials.longest());
    if (static_cast<std::size_t>(end - text) <= reserve) return text;
    for (const Byte* at = end - reserve; at > text; --at) {
        if (is_safe_cut(text, at, end) && !specials.spans(text, at, end)) return at;
    }
    return text;
}

// The bounds of parts of about `size` bytes: part i is [bounds[i], bounds[i + 1]).
inline std::vector<const Byte*> cut_into_parts(const Byte* text, const Byte* end, std::size_t size,
                                               const Specials& specials) {
    std::vector<const Byte*> bounds{text};
    while (static_cast<std::size_t>(end - bounds.back()) > size + size / 2) {
        bounds.push_back(cut_from(text, bounds.back() + size, end, specials));
    }
    if (bounds.back() != end || bounds.size() == 1) bounds.push_back(end);
    return bounds;
}

}  // namespace fledge
