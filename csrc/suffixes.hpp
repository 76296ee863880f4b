// Suffixes in order, by radix keys of eight bytes at a time and only as deep as asked. Text has few long repeats, so
// nearly all suffixes are apart after a key or two; what is the same to the end of the depth stays in the order of the text.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "parallel.hpp"

namespace fledge {

// Text as numbers of one width. Beyond its end stands nothing, which is less than any symbol.
template <typename Symbol>
class Symbols {
public:
    static constexpr std::size_t per_key = sizeof(Symbol) < 4 ? 7 / sizeof(Symbol) : 2;

    Symbols() = default;
    explicit Symbols(std::span<const Symbol> text) : text_(text) {}
    std::size_t size() const { return text_.size(); }
    const Symbol* data() const { return text_.data(); }

    // The next `per_key` symbols as one number that sorts as they do, the end of the text before all of them.
    std::uint64_t key(std::uint64_t place) const {
        std::uint64_t key = 0;
        if constexpr (sizeof(Symbol) == 4) {
            for (std::size_t i = 0; i < 2; ++i) key = key << 32 | (place + i < size() ? text_[place + i] + 1 : 0);
            return key;
        }
        if constexpr (sizeof(Symbol) == 1) {
            if (place + 8 <= size()) {
                std::uint64_t bytes;
                std::memcpy(&bytes, text_.data() + place, 8);
                if constexpr (std::endian::native == std::endian::little) bytes = reverse_bytes(bytes);
                return (bytes & ~std::uint64_t{255}) | per_key;
            }
        }
        const std::size_t count = place < size() ? std::min<std::size_t>(per_key, size() - place) : 0;
        for (std::size_t i = 0; i < per_key; ++i) {
            key = key << 8 * sizeof(Symbol) | (i < count ? std::uint64_t{text_[place + i]} : 0);
        }
        return key << 8 | count;
    }

    // How many symbols two places have in common, up to `most`.
    std::size_t common(std::uint64_t left, std::uint64_t right, std::size_t most) const {
        most = std::min<std::size_t>(most, size() - std::max(left, right));
        return shared(text_.data() + left, text_.data() + right, most);
    }

    static std::size_t shared(const Symbol* left, const Symbol* right, std::size_t most) {
        constexpr std::size_t step = 8 / sizeof(Symbol);
        std::size_t i = 0;
        for (; i + step <= most; i += step) {
            std::uint64_t one, other;
            std::memcpy(&one, left + i, 8);
            std::memcpy(&other, right + i, 8);
            if (one != other) {
                const std::uint64_t differing = one ^ other;
                const int bits = std::endian::native == std::endian::little ? std::countr_zero(differing) : std::countl_zero(differing);
                return i + static_cast<std::size_t>(bits) / (8 * sizeof(Symbol));
            }
        }
        while (i < most && left[i] == right[i]) ++i;
        return i;
    }

private:
    std::span<const Symbol> text_;
};

// Sorts places of a text, which begin alike for `depth` symbols, by what follows up to `limit` symbols.
template <typename Symbol, typename Place>
class SuffixSorter {
public:
    SuffixSorter(const Symbols<Symbol>& text, std::size_t limit) : text_(text), limit_(limit) {}

    void sort(std::span<Place> places, std::size_t depth) {
        pending_.clear();
        pending_.push_back({0, places.size(), depth});
        while (!pending_.empty()) {
            const auto [first, end, deep] = pending_.back();
            pending_.pop_back();
            step(places, first, end, deep);
        }
    }

private:
    struct Entry {
        std::uint64_t key;
        Place place;
        bool operator<(const Entry& other) const { return key != other.key ? key < other.key : place < other.place; }
    };
    struct Range {
        std::size_t first, end, depth;
    };
    static constexpr std::size_t few = 6;

    void step(std::span<Place> places, std::size_t first, std::size_t end, std::size_t depth) {
        const std::size_t count = end - first;
        if (count < 2) return;
        if (depth >= limit_) {
            std::sort(places.begin() + std::ptrdiff_t(first), places.begin() + std::ptrdiff_t(end));
            return;
        }
        if (count <= few) {
            const auto less = [&](Place left, Place right) {
                if (left == right) return false;
                const std::size_t common = text_.common(left, right, limit_);
                if (common >= limit_) return left < right;
                if (std::max(left, right) + common >= text_.size()) return left > right;  // the later one ends first
                return text_.data()[left + common] < text_.data()[right + common];
            };
            std::sort(places.begin() + std::ptrdiff_t(first), places.begin() + std::ptrdiff_t(end), less);
            return;
        }
        entries_.resize(count);  // of the largest range so far
        for (std::size_t i = 0; i < count; ++i) {
            if (i + 16 < count) prefetch(text_.data() + places[first + i + 16] + depth);
            entries_[i] = {text_.key(places[first + i] + depth), places[first + i]};
        }
        // What repeats one letter stays in order, round for round.
        if (!std::is_sorted(entries_.begin(), entries_.end())) std::sort(entries_.begin(), entries_.end());
        for (std::size_t i = 0, same; i < count; i = same) {
            for (same = i; same < count && entries_[same].key == entries_[i].key; ++same) places[first + same] = entries_[same].place;
            // Of a suffix that ends here no other can be equal.
            if (same - i > 1) pending_.push_back({first + i, first + same, depth + Symbols<Symbol>::per_key});
        }
    }

    const Symbols<Symbol>& text_;
    std::size_t limit_;
    std::vector<Entry> entries_;
    std::vector<Range> pending_;
};

// The first places of a text in the order of what stands there, compared up to `limit` symbols at least and up to the end
// of the text. Parallel by first symbol; `out` has a place for each, relative to `first`.
template <typename Symbol>
void sort_suffixes(std::span<const Symbol> text, std::span<std::uint32_t> out, std::size_t limit, unsigned threads) {
    const Symbols<Symbol> symbols(text);
    const std::size_t count = out.size();
    Symbol largest = 0;
    for (const Symbol symbol : text.first(count)) largest = std::max(largest, symbol);
    if (std::uint64_t{largest} >= std::uint64_t{1} << 26) throw std::invalid_argument("an id is no token's");
    std::vector<std::uint32_t> starts(std::size_t{largest} + 2, 0);
    for (const Symbol symbol : text.first(count)) ++starts[std::size_t{symbol} + 1];
    for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    {
        std::vector<std::uint32_t> next(starts.begin(), starts.end() - 1);
        for (std::size_t i = 0; i < count; ++i) out[next[text[i]]++] = static_cast<std::uint32_t>(i);
    }
    // The largest first, for they take longest.
    std::vector<std::uint32_t> buckets;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
        if (starts[i + 1] - starts[i] > 1) buckets.push_back(static_cast<std::uint32_t>(i));
    }
    std::sort(buckets.begin(), buckets.end(), [&](auto left, auto right) {
        return starts[left + 1] - starts[left] > starts[right + 1] - starts[right];
    });
    constexpr std::size_t together = 8;
    run_parallel((buckets.size() + together - 1) / together, threads, [&] {
        return [&, sorter = SuffixSorter<Symbol, std::uint32_t>(symbols, limit)](std::size_t part) mutable {
            for (std::size_t i = part * together; i < std::min(buckets.size(), (part + 1) * together); ++i) {
                const std::uint32_t bucket = buckets[i];
                sorter.sort(out.subspan(starts[bucket], starts[bucket + 1] - starts[bucket]), 1);
            }
        };
    });
}

struct Match {
    std::uint64_t place = 0;
    std::size_t length = 0;
};

// The longest beginning of `sought` that stands in the text; of several equally long ones the first in the text that the
// order shows side by side. `suffixes` as `sort_suffixes` left them, for the same text and limit.
template <typename Symbol>
Match longest_match(std::span<const Symbol> text, std::span<const std::uint32_t> suffixes, std::size_t limit,
                    std::span<const Symbol> sought) {
    Match best;
    if (sought.empty() || suffixes.empty()) return best;
    const auto shared = [&](std::uint64_t place, std::size_t most) {
        most = std::min({most, sought.size(), text.size() - place});
        return Symbols<Symbol>::shared(text.data() + place, sought.data(), most);
    };
    std::size_t low = 0, high = suffixes.size();  // the first suffix that is not less than what is sought
    std::size_t known_low = 0, known_high = 0;    // what the suffixes beside have in common with it
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        const std::uint64_t place = suffixes[middle];
        if (place >= text.size()) break;  // of another text: nothing is promised, but nothing is read beyond
        const std::size_t skip = std::min(known_low, known_high);
        std::size_t common = skip;
        const std::size_t most = std::min({limit, sought.size(), text.size() - place});
        if (skip < most) {
            common += Symbols<Symbol>::shared(text.data() + place + skip, sought.data() + skip, most - skip);
        }
        if (common > best.length) best = {place, common};
        const bool less = common < most ? text[place + common] < sought[common] : common < std::min(limit, sought.size());
        if (less) {
            low = middle + 1;
            known_low = common;
        } else {
            high = middle;
            known_high = common;
        }
    }
    // Counted again from the start: an order that was damaged may have told wrong of it.
    if (best.length > 0) best.length = shared(best.place, sought.size());
    // Beyond the limit the order says nothing: of those that are alike so far, some are looked at.
    if (best.length >= limit) {
        constexpr std::size_t tried = 64;
        for (std::size_t i = low; i < suffixes.size() && i < low + tried; ++i) {
            if (suffixes[i] >= text.size()) break;
            const std::size_t common = shared(suffixes[i], sought.size());
            if (common < limit) break;
            if (common > best.length || (common == best.length && suffixes[i] < best.place)) best = {suffixes[i], common};
        }
    }
    return best;
}

}  // namespace fledge
