// Fills a batch from a token file. Stretches of the file are read at their places into a small buffer and widened straight
// into the batch: nothing is mapped, so memory does not grow with the file, and no page is faulted in one by one.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "platform.hpp"

namespace fledge {

// One stretch: `lengths` targets from token `sources` on, put at place `begins` of the flat batch. The input before
// each target is the token before it; before the very first token of the file it is `opening`.
struct Stretches {
    std::span<const std::int64_t> begins, sources, lengths, positions, documents;
};

// The batch to fill, row after row; `positions` and `documents` may be empty.
struct Rows {
    std::span<std::int64_t> inputs, targets, positions, documents;
};

inline void read_fully(int file, char* out, std::size_t size, std::int64_t offset) {
    while (size > 0) {
        const std::ptrdiff_t got = read_at(file, out, size, static_cast<std::uint64_t>(offset));
        if (got < 0) throw std::system_error(errno, std::generic_category(), "reading tokens");
        if (got == 0) throw std::runtime_error("the token file ends before a window does");
        out += got;
        size -= static_cast<std::size_t>(got);
        offset += got;
    }
}

template <typename Id>
void widen_plainly(const Id* from, std::size_t count, std::int64_t* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

#if defined(FLEDGE_X86_64)
template <typename Id>
FLEDGE_TARGET("avx2") void widen_in_fours(const Id* from, std::size_t count, std::int64_t* to) {
    for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}
#endif

template <typename Id>
void widen(const Id* from, std::size_t count, std::int64_t* to) {
#if defined(FLEDGE_X86_64)
    static const bool in_fours = has_avx2();
    if (in_fours) return widen_in_fours(from, count, to);
#endif
    widen_plainly(from, count, to);
}

template <typename Id>
void gather(int file, const Stretches& stretches, std::int64_t opening, std::int64_t padding, const Rows& rows) {
    constexpr std::int64_t ignored = -100, nothing = -1;
    static thread_local std::vector<Id> tokens;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    const bool plain = rows.positions.empty();
    std::size_t done = 0;
    const auto pad_to = [&](std::size_t end) {
        const std::size_t count = end - done;
        std::fill_n(rows.inputs.data() + done, count, padding);
        std::fill_n(rows.targets.data() + done, count, ignored);
        if (!plain) {
            std::fill_n(rows.positions.data() + done, count, 0);
            std::fill_n(rows.documents.data() + done, count, nothing);
        }
        done = end;
    };
    for (std::size_t i = 0; i < stretches.begins.size(); ++i) {
        const auto begin = static_cast<std::size_t>(stretches.begins[i]);
        const auto length = static_cast<std::size_t>(stretches.lengths[i]);
        const std::int64_t source = stretches.sources[i];
        if (begin < done || begin > rows.inputs.size() || length > rows.inputs.size() - begin) {
            throw std::out_of_range("stretches overlap or reach past the batch");
        }
        const std::int64_t beyond = most - static_cast<std::int64_t>(length) - 1;  // what is read or counted ends here
        if (source < 0 || source > beyond / static_cast<std::int64_t>(sizeof(Id))) {
            throw std::out_of_range("a stretch lies outside every file");
        }
        if (!plain && stretches.positions[i] > beyond) throw std::out_of_range("a position is beyond 63 bits");
        pad_to(begin);
        if (tokens.size() < length + 1) tokens.resize(length + 1);
        const std::size_t missing = source == 0 ? 1 : 0;  // nothing stands before the first token of the file
        read_fully(file, reinterpret_cast<char*>(tokens.data() + missing), (length + 1 - missing) * sizeof(Id),
                   (source - 1 + static_cast<std::int64_t>(missing)) * static_cast<std::int64_t>(sizeof(Id)));
        widen(tokens.data(), length, rows.inputs.data() + begin);
        widen(tokens.data() + 1, length, rows.targets.data() + begin);
        if (missing != 0 && length > 0) rows.inputs[begin] = opening;
        if (!plain) {
            std::int64_t position = stretches.positions[i];
            for (std::size_t at = begin; at < begin + length; ++at) rows.positions[at] = position++;
            std::fill_n(rows.documents.data() + begin, length, stretches.documents[i]);
        }
        done = begin + length;
    }
    pad_to(rows.inputs.size());
}

// For each value the last place of ascending `numbers` whose number is not greater. `rungs` are every `step`-th of the
// numbers, side by side: the search ends there, and looks at one stretch of the numbers themselves.
inline void find_places(std::span<const std::int64_t> numbers, std::span<const std::int64_t> rungs, std::size_t step,
                        std::span<const std::int64_t> values, std::span<std::int64_t> places) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto rung = std::upper_bound(rungs.begin(), rungs.end(), values[i]) - rungs.begin();
        const std::size_t low = rung > 0 ? static_cast<std::size_t>(rung - 1) * step : 0;
        const auto start = numbers.begin() + static_cast<std::ptrdiff_t>(std::min(low, numbers.size()));
        const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(std::min(low + step, numbers.size()));
        places[i] = std::upper_bound(start, end, values[i]) - numbers.begin() - 1;
    }
}

}  // namespace fledge
