// The merges of a tokenizer, and how one pre-token becomes ids: again and again the adjacent pair of lowest rank is
// replaced, the leftmost first. Short pre-tokens take a scan for the minimum over a few numbers; long ones a heap, so
// that a megabyte without a space costs n log n.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "key.hpp"
#include "platform.hpp"

namespace fledge {

struct Merge {
    std::uint32_t left, right, result;  // the rank is the place in the list
};

class Merges {
public:
    static constexpr std::uint32_t none = 0xFFFFFFFF;

    Merges(const std::array<std::uint32_t, 256>& byte_ids, const std::vector<Merge>& merges)
        : ids_(byte_ids.begin(), byte_ids.end()), all_bytes_(std::ranges::count(byte_ids, none) == 0) {
        if (merges.size() >= no_rank) throw std::length_error("there are more than 16 million merges");
        slots_.resize(std::bit_ceil(merges.size() * 2 + 2));
        shift_ = 64 - std::countr_zero(slots_.size());
        filter_.resize(std::bit_ceil(merges.size() / 8 + 1));
        filter_shift_ = 64 - 6 - std::countr_zero(filter_.size());
        std::unordered_map<std::uint32_t, std::uint32_t, Hash> symbol_of;
        for (std::uint32_t byte = 0; byte < 256; ++byte) {
            if (byte_ids[byte] != none) symbol_of.emplace(byte_ids[byte], byte);
        }
        for (const Merge& merge : merges) {
            const auto symbol = static_cast<std::uint32_t>(ids_.size());
            created_.push_back(symbol_of.emplace(merge.result, symbol).first->second);
            distinct_ &= created_.back() == symbol;
            ids_.push_back(merge.result);
        }
        for (std::uint32_t rank = 0; rank < merges.size(); ++rank) {
            const auto left = symbol_of.find(merges[rank].left), right = symbol_of.find(merges[rank].right);
            if (left != symbol_of.end() && right != symbol_of.end()) insert(left->second, right->second, rank);
        }
        byte_pairs_.resize(65536);
        for (std::uint32_t pair = 0; pair < byte_pairs_.size(); ++pair) byte_pairs_[pair] = find(pair >> 8, pair & 255);
    }

    bool knows_bytes_of(const Byte* word, std::size_t length) const {
        return std::none_of(word, word + length, [this](Byte byte) { return ids_[byte] == none; });
    }

    // The ids of a word into `ids`, which has room for as many as the word has bytes; how many there are. Throws where
    // the vocabulary lacks a byte that is needed.
    std::size_t apply(const Byte* word, std::size_t length, std::uint32_t* ids) const {
        if (!all_bytes_) check_bytes(word, length);
        if (length <= walk_length) return apply_walking(word, length, ids);
        return length <= scan_length ? apply_scanning(word, length, ids) : apply_with_heap(word, length, ids);
    }

private:
    static constexpr std::size_t walk_length = 16, scan_length = 128;
    static constexpr std::uint32_t no_rank = 0xFFFFFF;

    struct Slot {
        std::uint32_t left = none, right = none, rank = no_rank;
    };

    // The first of equal pairs counts: it has the lower rank.
    void insert(std::uint32_t left, std::uint32_t right, std::uint32_t rank) {
        const std::uint64_t hash = hash_pair(left, right);
        filter_[hash >> filter_shift_ >> 6] |= 1ull << (hash >> filter_shift_ & 63);
        std::size_t at = hash >> shift_;
        while (slots_[at].left != none) {
            if (slots_[at].left == left && slots_[at].right == right) return;
            at = (at + 1) & (slots_.size() - 1);
        }
        slots_[at] = {left, right, rank};
    }

    // What the merge of a rank creates. Reading it from a table would be a wait in the chain from one merge to the next.
    std::uint32_t created(std::uint32_t rank) const { return distinct_ ? 256 + rank : created_[rank]; }

    // Where the rank of a pair is, if it has one. Asked of both pairs before either is looked up: the waits overlap.
    struct Place {
        std::size_t at;
        bool may_merge;
    };
    Place ask(std::uint32_t left, std::uint32_t right) const {
        const std::uint64_t hash = hash_pair(left, right), bit = hash >> filter_shift_;
        prefetch(&slots_[hash >> shift_]);
        return {hash >> shift_, (filter_[bit >> 6] >> (bit & 63) & 1) != 0};
    }

    // The rank of a pair, or no_rank. Most pairs merge to nothing, and a few bits in the near cache tell most of these.
    std::uint32_t find(Place place, std::uint32_t left, std::uint32_t right) const {
        if (!place.may_merge) return no_rank;
        std::size_t at = place.at;
        while (slots_[at].left != none && (slots_[at].left != left || slots_[at].right != right)) {
            at = (at + 1) & (slots_.size() - 1);
        }
        return slots_[at].rank;
    }
    std::uint32_t find(std::uint32_t left, std::uint32_t right) const { return find(ask(left, right), left, right); }

    // Up to 16 bytes, as most new words have. Each symbol keeps the rank of the pair it starts, and its own place in the
    // low byte: the minimum is the next merge, the leftmost of equals. Symbols have the places 1 to `length`, with nothing
    // before and behind; a bit says of each whether it is left, so that neighbours are found by counting zeros. The ranks
    // are walked one by one: a wide load right after a narrow store would have to wait for it.
    std::size_t apply_walking(const Byte* word, std::size_t length, std::uint32_t* ids) const {
        std::uint32_t order[walk_length + 1], symbols[walk_length + 2];
        symbols[0] = symbols[length + 1] = order[0] = order[length] = none;
        for (std::size_t i = 0; i < length; ++i) symbols[i + 1] = word[i];
        for (std::uint32_t i = 1; i < length; ++i) order[i] = byte_pairs_[word[i - 1] << 8 | word[i]] << 8 | i;
        const std::uint32_t front = 1, back = 2u << length;
        std::uint32_t left = back - 2;
        while (true) {
            std::uint32_t best = none;
            for (std::uint32_t rest = left; rest; rest &= rest - 1) best = std::min(best, order[std::countr_zero(rest)]);
            if (best >= no_rank << 8) break;
            const std::uint32_t at = best & 255, behind = (left | back) & (~1u << at);
            left &= ~(behind & -behind);
            const int next = std::countr_zero(behind & (behind - 1));
            const int previous = 31 - std::countl_zero((left | front) & ((1u << at) - 1));
            const std::uint32_t symbol = symbols[at] = created(best >> 8);
            const Place with_next = ask(symbol, symbols[next]), with_previous = ask(symbols[previous], symbol);
            order[at] = find(with_next, symbol, symbols[next]) << 8 | at;
            order[previous] = find(with_previous, symbols[previous], symbol) << 8 | static_cast<std::uint32_t>(previous);
        }
        std::size_t count = 0;
        for (; left; left &= left - 1) ids[count++] = ids_[symbols[std::countr_zero(left)]];
        return count;
    }

    // `count` is a multiple of eight.
    static std::uint32_t lowest(const std::uint32_t* values, std::size_t count) {
        std::uint32_t found[8];
        for (int lane = 0; lane < 8; ++lane) found[lane] = values[lane];
        for (std::size_t i = 8; i < count; i += 8) {
            for (std::size_t lane = 0; lane < 8; ++lane) found[lane] = std::min(found[lane], values[i + lane]);
        }
        for (int lane = 0; lane < 4; ++lane) found[lane] = std::min(found[lane], found[lane + 4]);
        return std::min(std::min(found[0], found[1]), std::min(found[2], found[3]));
    }

    void check_bytes(const Byte* word, std::size_t length) const {
        const Byte* missing = std::find_if(word, word + length, [this](Byte byte) { return ids_[byte] == none; });
        if (missing == word + length) return;
        throw std::domain_error("the vocabulary has no token for byte " + std::to_string(int{*missing}));
    }

    // Up to 128 bytes, the same with vectors for the minimum. Symbols stay in place and are linked.
    FLEDGE_EACH_PROCESSOR std::size_t apply_scanning(const Byte* word, std::size_t length, std::uint32_t* ids) const {
        std::uint32_t order[scan_length], symbols[scan_length];
        Byte next[scan_length + 1], previous[scan_length + 1];
        const std::size_t padded = (length + 7) / 8 * 8;
        for (std::size_t i = 0; i < length; ++i) {
            symbols[i] = word[i];
            next[i] = static_cast<Byte>(i + 1);
            previous[i + 1] = static_cast<Byte>(i);
        }
        for (std::size_t i = 0; i + 1 < length; ++i) {
            order[i] = byte_pairs_[word[i] << 8 | word[i + 1]] << 8 | static_cast<std::uint32_t>(i);
        }
        for (std::size_t i = length - 1; i < padded; ++i) order[i] = none;
        const auto update = [&](std::size_t at) {
            const std::size_t after = next[at];
            const std::uint32_t rank = after < length ? find(symbols[at], symbols[after]) : no_rank;
            order[at] = rank << 8 | static_cast<std::uint32_t>(at);
        };
        while (true) {
            const std::uint32_t best = lowest(order, padded);
            if (best >= no_rank << 8) break;
            const std::size_t at = best & 255, gone = next[at];
            symbols[at] = created(best >> 8);
            order[gone] = none;
            next[at] = next[gone];
            previous[next[at]] = static_cast<Byte>(at);
            update(at);
            if (at > 0) update(previous[at]);
        }
        std::size_t count = 0;
        for (std::size_t at = 0; at < length; at = next[at]) ids[count++] = ids_[symbols[at]];
        return count;
    }

    std::size_t apply_with_heap(const Byte* word, std::size_t length, std::uint32_t* ids) const {
        struct Node {
            std::uint32_t symbol, rank;
            std::size_t previous, next;
        };
        constexpr std::size_t outside = ~std::size_t{0};
        using Entry = std::pair<std::uint32_t, std::size_t>;  // the rank, then the place: the leftmost first
        std::vector<Node> nodes(length);
        std::vector<Entry> entries;
        entries.reserve(length);
        for (std::size_t i = 0; i < length; ++i) {
            const std::uint32_t rank = i + 1 < length ? byte_pairs_[word[i] << 8 | word[i + 1]] : no_rank;
            nodes[i] = {word[i], rank, i - 1, i + 1 < length ? i + 1 : outside};
            if (rank != no_rank) entries.emplace_back(rank, i);
        }
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>{}, std::move(entries));
        const auto update = [&](std::size_t at) {
            Node& node = nodes[at];
            node.rank = node.next == outside ? no_rank : find(node.symbol, nodes[node.next].symbol);
            if (node.rank != no_rank) queue.emplace(node.rank, at);
        };
        while (!queue.empty()) {
            const auto [rank, at] = queue.top();
            queue.pop();
            Node& node = nodes[at];
            if (node.rank != rank) continue;
            const std::size_t gone = node.next;
            node.symbol = created(rank);
            node.next = nodes[gone].next;
            if (node.next != outside) nodes[node.next].previous = at;
            nodes[gone].rank = no_rank;
            update(at);
            if (node.previous != outside) update(node.previous);
        }
        std::size_t count = 0;
        for (std::size_t at = 0; at != outside; at = nodes[at].next) ids[count++] = ids_[nodes[at].symbol];
        return count;
    }

    // While they are merged, symbols have numbers of their own: the bytes, then what each rank creates.
    std::vector<std::uint32_t> ids_;  // of each symbol
    bool all_bytes_, distinct_ = true;
    std::vector<std::uint32_t> created_;     // by each rank; several may create the same
    std::vector<std::uint32_t> byte_pairs_;  // the rank of two bytes: the first round needs no hash
    std::vector<Slot> slots_;
    std::vector<std::uint64_t> filter_;  // a bit for the hash of every pair that merges
    int shift_, filter_shift_;
};

}  // namespace fledge
