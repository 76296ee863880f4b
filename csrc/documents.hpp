// Documents on their way into a token store: where the marks between them lie, and their ids divided by split.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

#include "memory.hpp"

namespace fledge {

// Where a mark begins, from left to right without overlap. Only the byte of the mark that is rarest at the start of the
// text is looked for, which runs at the speed of memory.
inline Buffer<std::int64_t> find_marks(std::span<const unsigned char> text, std::span<const unsigned char> mark) {
    constexpr std::size_t sample = std::size_t{1} << 14;
    Buffer<std::int64_t> places;
    if (mark.empty() || text.size() < mark.size()) return places;
    std::array<std::uint32_t, 256> counts{};
    for (const unsigned char byte : text.first(std::min(sample, text.size()))) ++counts[byte];
    const auto rarest = static_cast<std::size_t>(
        std::min_element(mark.begin(), mark.end(), [&](auto left, auto right) { return counts[left] < counts[right]; }) -
        mark.begin());
    const unsigned char* at = text.data() + rarest;
    const unsigned char* end = text.data() + text.size() - (mark.size() - 1 - rarest);
    while (at < end) {
        const void* found = std::memchr(at, mark[rarest], static_cast<std::size_t>(end - at));
        if (found == nullptr) break;
        at = static_cast<const unsigned char*>(found);
        if (std::memcmp(at - rarest, mark.data(), mark.size()) == 0) {
            places.push_back(at - rarest - text.data());
            at += mark.size();
        } else {
            ++at;
        }
    }
    return places;
}

// Documents side by side, first those that are not held out and then those that are; `bounds` counts bytes and has one
// entry more than there are documents.
inline void divide(std::span<const unsigned char> documents, std::span<const std::uint64_t> bounds,
                   std::span<const unsigned char> held_out, std::span<unsigned char> out) {
    if (bounds.back() - bounds.front() > out.size()) throw std::out_of_range("documents do not fit");
    std::size_t kept = 0;
    for (std::size_t i = 0; i < held_out.size(); ++i) {
        if (!held_out[i]) kept += bounds[i + 1] - bounds[i];
    }
    std::size_t places[2] = {0, kept};
    for (std::size_t i = 0; i < held_out.size();) {
        std::size_t last = i + 1;
        while (last < held_out.size() && !held_out[last] == !held_out[i]) ++last;
        const std::size_t size = bounds[last] - bounds[i];
        std::size_t& place = places[held_out[i] ? 1 : 0];
        std::copy_n(documents.data() + bounds[i], size, out.data() + place);
        place += size;
        i = last;
    }
}

}  // namespace fledge
