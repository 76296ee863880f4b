// Finds stretches of text that stand elsewhere, letter by letter. Every stretch of the asked length holds an anchor: a
// place whose hash is the least of its neighbourhood, which any copy chooses too. Anchors that are alone drop out in a
// first reading, so that memory grows with what is copied; those left are put in the order of their text, where the
// longest matches lie side by side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "key.hpp"

namespace fledge {

// text[start, start + length) is text[source, source + length).
struct Stretch {
    std::uint64_t start, source, length;
};

// Stretches of at least `minimum` bytes within documents, whose bounds rise from 0 to the end of the text. Without
// `queries`, each is a copy of an earlier place; else those that start at `queries` or after it are sought before it.
// Every byte that belongs to such a stretch is in one that is given, and so is the longest that it belongs to, unless
// some hundred others begin alike.
std::vector<Stretch> find_stretches(std::span<const Byte> text, std::span<const std::uint64_t> bounds,
                                    std::size_t minimum, std::uint64_t queries, unsigned threads);

}  // namespace fledge
