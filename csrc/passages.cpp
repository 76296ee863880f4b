#include "passages.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <utility>

#include "parallel.hpp"
#include "suffixes.hpp"

namespace fledge {
namespace {

constexpr std::uint64_t roll = 0x9E3779B97F4A7C15ull;
constexpr std::size_t part_bytes = std::size_t{1} << 15;
constexpr std::uint64_t remembered = std::uint64_t{1} << 30;  // bytes; of more text the anchors are found twice
constexpr std::size_t deepest = 512;    // bytes by which places are put in order
constexpr std::size_t longest = 4096;   // bytes that one anchor looks ahead; the next ones see further
constexpr std::size_t tried = 512;      // places in the order for one anchor, in the hope of a longer stretch

std::uint64_t mixed(std::uint64_t value) {
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93ull;
    return value ^ (value >> 32);
}

struct Part {
    std::size_t document;
    std::uint64_t first, end;  // windows that start here
};

// An anchor in a word: its hash, then how far it lies before the end of what a part may hold. Of words the least is the
// one with the least hash, and of equal hashes the last.
constexpr unsigned place_bits = 24;
constexpr std::uint64_t last_place = (std::uint64_t{1} << place_bits) - 1;

// Finds the anchors of the windows of a part, from left to right. The least of each window is the lesser of two: the
// least from its start to the end of its block, and that from the start of the next block to its own end.
class Anchors {
public:
    explicit Anchors(std::size_t minimum) : size_(std::max<std::size_t>(minimum * 5 / 8, 1)), window_(minimum - size_ + 1) {
        std::uint64_t power = 1;
        for (std::size_t i = 0; i < size_; ++i) power *= roll;
        for (std::uint64_t byte = 0; byte < 256; ++byte) leaving_[byte] = power * (byte + 1) - 1;
    }
    std::size_t window() const { return window_; }

    void find(std::span<const Byte> text, const Part& part, std::vector<std::uint64_t>& anchors) {
        const std::size_t windows = part.end - part.first, count = windows + window_ - 1;
        const Byte* at = text.data() + part.first;
        words_.resize(count);
        to_end_.resize(count);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < size_; ++i) sum = sum * roll + at[i] + 1;
        for (std::size_t i = 0;;) {
            words_[i] = (mixed(sum) & ~last_place) | (last_place - i);
            if (++i == count) break;
            sum = sum * roll + (at[i + size_ - 1] - leaving_[at[i - 1]]);
        }
        for (std::size_t block = 0; block < count; block += window_) {
            std::uint64_t least = ~0ull;
            for (std::size_t i = std::min(count, block + window_); i-- > block;) to_end_[i] = least = std::min(least, words_[i]);
        }
        anchors.clear();
        std::uint64_t told = ~0ull, least = ~0ull;
        for (std::size_t i = 0; i + 1 < window_; ++i) least = std::min(least, words_[i]);
        for (std::size_t i = 0, next = 2; i < windows; ++i) {
            const std::uint64_t word = words_[i + window_ - 1];
            if (--next == 0) {  // the window's last place begins a block
                next = window_;
                least = word;
            }
            least = std::min(least, word);
            const std::uint64_t found = std::min(to_end_[i], least);
            if (found != told) anchors.push_back(told = found);
        }
        thin(anchors);
    }

private:
    // Deep inside of what repeats one letter, or a few, two anchors of each window are enough: whatever else is there
    // begins alike. Near the ends all are kept, for there it matters how two places lie to each other.
    void thin(std::vector<std::uint64_t>& anchors) const {
        std::size_t kept = 0;
        for (std::size_t first = 0, last; first < anchors.size(); first = last + 1) {
            last = first;
            const std::uint64_t apart = first + 1 < anchors.size() ? anchors[first] - anchors[first + 1] : 0;
            if (apart < window_) {  // of one hash
                while (last + 1 < anchors.size() && anchors[last] - anchors[last + 1] == apart) ++last;
            }
            const std::uint64_t start = anchors[first], end = anchors[last];
            for (std::size_t i = first; i <= last; ++i) {
                const std::uint64_t anchor = anchors[i], inside = start - anchor;
                if (inside < deepest || anchor - end < deepest || inside % window_ < 2 * apart) anchors[kept++] = anchor;
            }
        }
        anchors.resize(kept);
    }

    std::size_t size_, window_;
    std::array<std::uint64_t, 256> leaving_;
    std::vector<std::uint64_t> words_, to_end_;
};

// Whether a hash was met before: on the one side and on the other, or once and again.
class Met {
public:
    explicit Met(std::uint64_t hashes) {
        std::size_t words = 1024;
        while (words * 2 < hashes) words *= 2;  // about 16 places for a hash, of two bits each
        mask_ = words - 1;
        bits_ = std::make_unique<std::atomic<std::uint64_t>[]>(words);
    }
    void prefetch(std::uint64_t anchor) const { prefetch_to_write(&bits_[word_of(anchor)]); }
    void meet(std::uint64_t anchor, bool other_side, bool sides) {
        auto& word = bits_[word_of(anchor)];
        const std::uint64_t one = std::uint64_t{1} << shift_of(anchor), two = one << 1;
        if (sides) {
            word.fetch_or(other_side ? two : one, std::memory_order_relaxed);
        } else if ((word.fetch_or(one, std::memory_order_relaxed) & one) != 0) {
            word.fetch_or(two, std::memory_order_relaxed);
        }
    }
    bool both(std::uint64_t anchor) const {
        return (bits_[word_of(anchor)].load(std::memory_order_relaxed) >> shift_of(anchor) & 3) == 3;
    }

private:
    // The least hashes are alike in their highest bits, so all are mixed once more.
    std::size_t word_of(std::uint64_t anchor) const { return mixed(anchor >> place_bits) * roll >> 20 & mask_; }
    static unsigned shift_of(std::uint64_t anchor) { return static_cast<unsigned>(anchor >> place_bits & 31) * 2; }

    std::size_t mask_;
    std::unique_ptr<std::atomic<std::uint64_t>[]> bits_;
};

struct Anchor {
    std::uint64_t place, hash;
    std::uint32_t back;  // bytes that a stretch whose first window chose this anchor may begin before it
    std::uint32_t document;
};

// A place that goes on like the one looked at, and how far to both sides.
struct Candidate {
    std::uint64_t source;
    std::size_t left, ahead;
};

// A place in the order, and what all from there to here have in common.
struct Neighbour {
    std::size_t place, common;
};

// For each of some places in order the nearest on either side that may be its source: one before `queries` or, where that
// is 0, one earlier in the text. `common[i]` is what place i has in common with the one before it. Where there is none,
// the place is -1 or the end.
void nearest(const std::vector<std::uint64_t>& places, const std::vector<std::size_t>& common, std::uint64_t queries,
             std::vector<Neighbour>& above, std::vector<Neighbour>& below) {
    const std::size_t count = places.size();
    above.resize(count);
    below.resize(count);
    std::vector<Neighbour> open;  // candidates from near to far, and what each has in common with those after it
    const auto sweep = [&](std::size_t i, std::size_t shared, std::size_t none) {
        while (!open.empty() && (queries > 0 ? places[open.back().place] >= queries : places[open.back().place] > places[i])) {
            shared = std::min(shared, open.back().common);
            open.pop_back();
        }
        const Neighbour found = open.empty() ? Neighbour{none, 0} : Neighbour{open.back().place, shared};
        open.push_back({i, shared});
        return found;
    };
    for (std::size_t i = 0; i < count; ++i) above[i] = sweep(i, common[i], ~std::size_t{0});
    open.clear();
    for (std::size_t i = count; i-- > 0;) below[i] = sweep(i, common[i + 1], count);
}

}  // namespace

std::vector<Stretch> find_stretches(std::span<const Byte> text, std::span<const std::uint64_t> bounds,
                                    std::size_t minimum, std::uint64_t queries, unsigned threads) {
    if (minimum < 4 || minimum > (std::size_t{1} << 20)) throw std::invalid_argument("a stretch has 4 to 1,048,576 bytes");
    if (bounds.size() > ~0u) throw std::length_error("more than four billion documents");
    if (queries > 0 && !std::binary_search(bounds.begin(), bounds.end(), queries)) {
        throw std::invalid_argument("the queries begin within a document");
    }
    const bool sides = queries > 0;
    std::vector<Part> parts;
    std::uint64_t windows = 0;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
        if (bounds[i + 1] - bounds[i] < minimum) continue;
        const std::uint64_t end = bounds[i + 1] - minimum + 1;
        windows += end - bounds[i];
        const std::uint64_t step = std::max(part_bytes, 4 * minimum);
        for (std::uint64_t first = bounds[i]; first < end; first += step) {
            parts.push_back({i, first, std::min<std::uint64_t>(end, first + step)});
        }
    }
    const std::size_t window = Anchors(minimum).window();
    Met met(2 * windows / (window + 1) + parts.size());
    constexpr std::size_t together = 16;  // short documents are not worth a turn each
    const auto for_parts = [&](const auto& work) {
        run_parallel((parts.size() + together - 1) / together, threads, [&] {
            return [&, anchors = Anchors(minimum), words = std::vector<std::uint64_t>()](std::size_t group) mutable {
                for (std::size_t i = group * together; i < std::min(parts.size(), (group + 1) * together); ++i) {
                    work(i, anchors, words);
                }
            };
        });
    };
    const bool remember = windows <= remembered;
    std::vector<std::vector<std::uint64_t>> chosen(remember ? parts.size() : 0);
    constexpr std::size_t ahead_of_use = 16;
    for_parts([&](std::size_t i, Anchors& anchors, std::vector<std::uint64_t>& words) {
        anchors.find(text, parts[i], words);
        for (std::size_t j = 0; j < words.size(); ++j) {
            if (j + ahead_of_use < words.size()) met.prefetch(words[j + ahead_of_use]);
            met.meet(words[j], parts[i].first >= queries, sides);
        }
        if (remember) chosen[i] = words;
    });
    std::vector<std::vector<Anchor>> kept(parts.size());
    for_parts([&](std::size_t i, Anchors& anchors, std::vector<std::uint64_t>& words) {
        if (remember) {
            words = std::move(chosen[i]);
        } else {
            anchors.find(text, parts[i], words);
        }
        for (std::size_t j = 0; j < words.size(); ++j) {
            if (j + ahead_of_use < words.size()) met.prefetch(words[j + ahead_of_use]);
            if (!met.both(words[j])) continue;
            const std::uint64_t place = parts[i].first + last_place - (words[j] & last_place);
            kept[i].push_back({place, words[j] >> place_bits, 0, static_cast<std::uint32_t>(parts[i].document)});
        }
    });
    chosen = {};
    std::vector<Anchor> anchors;
    for (auto& part : kept) {
        for (Anchor& anchor : part) {
            // Parts overlap by a window, so both may have chosen the anchor between them.
            const bool follows = !anchors.empty() && anchors.back().document == anchor.document;
            if (follows && anchors.back().place >= anchor.place) continue;
            anchor.back = static_cast<std::uint32_t>(std::min<std::uint64_t>(anchor.place - bounds[anchor.document], window - 1));
            anchors.push_back(anchor);
        }
        part = {};
    }

    std::vector<std::uint32_t> order(anchors.size());
    if (anchors.size() >= ~0u) throw std::length_error("too much is copied: give less text at once");
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](auto left, auto right) {
        return anchors[left].hash != anchors[right].hash ? anchors[left].hash < anchors[right].hash : left < right;
    });
    std::vector<std::pair<std::size_t, std::size_t>> groups;
    for (std::size_t i = 0, end; i < order.size(); i = end) {
        for (end = i + 1; end < order.size() && anchors[order[end]].hash == anchors[order[i]].hash;) ++end;
        if (end - i > 1) groups.emplace_back(i, end);
    }

    const Symbols<Byte> symbols(text);
    std::vector<std::vector<Stretch>> found(groups.size() / together + 1);
    run_parallel((groups.size() + together - 1) / together, threads, [&] {
        return [&, sorter = SuffixSorter<Byte, std::uint64_t>(symbols, deepest), places = std::vector<std::uint64_t>(),
                common = std::vector<std::size_t>(), above_each = std::vector<Neighbour>(), below_each = std::vector<Neighbour>(),
                best = std::vector<Candidate>()](std::size_t part) mutable {
            for (std::size_t g = part * together; g < std::min(groups.size(), (part + 1) * together); ++g) {
                const auto [first, end] = groups[g];
                const std::size_t count = end - first;
                places.resize(count);
                for (std::size_t i = 0; i < count; ++i) places[i] = anchors[order[first + i]].place;
                sorter.sort(places, 0);
                common.assign(count + 1, 0);  // of each with the one before it
                for (std::size_t i = 1; i < count; ++i) {
                    // Of text that repeats itself, places equally far apart have nearly as much in common as those before.
                    const std::uint64_t apart = places[i] - places[i - 1];
                    const bool again = i > 1 && apart == places[i - 1] - places[i - 2] && apart < common[i - 1];
                    const std::size_t known = again ? common[i - 1] - apart : 0;
                    common[i] = known + symbols.common(places[i - 1] + known, places[i] + known, longest - known);
                }
                nearest(places, common, sides ? queries : 0, above_each, below_each);
                const auto anchor_at = [&](std::uint64_t place) -> const Anchor& {
                    return *std::lower_bound(anchors.begin(), anchors.end(), place,
                                             [](const Anchor& anchor, std::uint64_t at) { return anchor.place < at; });
                };
                for (std::size_t i = 0; i < count; ++i) {
                    const std::uint64_t place = places[i];
                    if (place < queries) continue;
                    const Anchor& anchor = anchor_at(place);
                    const std::uint64_t room = bounds[anchor.document + 1] - place;
                    // Outwards in both directions; how far the text goes on alike only falls on the way. Of two that go
                    // on equally far, the one is better that began earlier.
                    best.clear();
                    const auto bettered = [&](std::size_t left, std::size_t ahead) {
                        return std::any_of(best.begin(), best.end(),
                                           [&](const auto& one) { return one.left >= left && one.ahead >= ahead; });
                    };
                    std::size_t effort = 0;
                    const auto look = [&](std::uint64_t source, std::size_t ahead, bool beside) {
                        ++effort;
                        if (sides ? source >= queries : source >= place) return;
                        const auto document = static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), source) - bounds.begin());
                        const std::uint64_t most = std::min(room, bounds[document] - source);
                        if (ahead >= deepest && !beside) {  // not in order any more
                            ahead = symbols.common(place, source, std::min<std::uint64_t>(most, longest));
                            effort += ahead / 128;
                        }
                        ahead = static_cast<std::size_t>(std::min<std::uint64_t>(ahead, most));
                        const auto back = static_cast<std::size_t>(std::min<std::uint64_t>(anchor.back, source - bounds[document - 1]));
                        std::size_t left = 0;
                        while (left < back && text[place - left - 1] == text[source - left - 1]) ++left;
                        if (left + ahead < minimum || bettered(left, ahead)) return;
                        std::erase_if(best, [&](const auto& one) { return one.left <= left && one.ahead <= ahead; });
                        best.push_back({source, left, ahead});
                    };
                    // The nearest that may be a source on either side; from there on one after the other.
                    std::size_t up = above_each[i].place + 1, down = below_each[i].place;
                    std::size_t above = above_each[i].common, below = below_each[i].common;
                    while (effort < tried) {
                        const std::size_t next_above = up > 0 ? std::min(above, common[up]) : 0;
                        const std::size_t next_below = down < count ? std::min(below, common[down]) : 0;
                        const std::size_t ahead = std::min<std::size_t>(std::max(next_above, next_below), room);
                        // None further out is long enough, or better than what was found.
                        if (ahead + anchor.back < minimum || ahead == 0 || bettered(anchor.back, ahead)) break;
                        if (next_above >= next_below) {
                            above = next_above;
                            --up;
                            look(places[up], above, up + 1 == i);
                        } else {
                            below = next_below;
                            look(places[down], below, down == i + 1);
                            ++down;
                        }
                    }
                    for (const auto& [source, left, ahead] : best) {
                        found[part].push_back({place - left, source - left, left + ahead});
                    }
                }
            }
        };
    });
    std::vector<Stretch> all;
    for (const auto& part : found) all.insert(all.end(), part.begin(), part.end());
    // What one anchor finds the next finds, too: stretches of one pair of places are put together.
    std::sort(all.begin(), all.end(), [](const Stretch& left, const Stretch& right) {
        const std::uint64_t one = left.start - left.source, other = right.start - right.source;
        return one != other ? one < other : left.start < right.start;
    });
    std::size_t count = 0;
    for (const Stretch& next : all) {
        Stretch* last = count > 0 ? &all[count - 1] : nullptr;
        if (last && last->start - last->source == next.start - next.source && next.start < last->start + last->length) {
            last->length = std::max(last->length, next.start + next.length - last->start);
        } else {
            all[count++] = next;
        }
    }
    all.resize(count);
    std::sort(all.begin(), all.end(), [](const Stretch& left, const Stretch& right) {
        if (left.start != right.start) return left.start < right.start;
        return left.length != right.length ? left.length > right.length : left.source < right.source;
    });
    return all;
}

}  // namespace fledge
