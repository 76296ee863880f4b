// The merges of a tokenizer, and how one pre-token becomes ids: again and again the adjacent pair of lowest rank is
// replaced, the leftmost first. Short pre-tokens take a scan for the minimum over a few numbers in registers' reach;
// long ones a heap, so that a megabyte without a space costs n log n.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "key.hpp"

namespace fledge {

struct Merge {
    std::uint32_t left, right, result, rank;
};

class Merges {
public:
    static constexpr std::uint32_t none = 0xFFFFFFFF;

    Merges(const std::array<std::uint32_t, 256>& byte_ids, const std::vector<Merge>& merges) : byte_ids_(byte_ids) {
        slots_.resize(std::bit_ceil(merges.size() * 2 + 2));
        shift_ = 64 - std::countr_zero(slots_.size());
        for (const Merge& merge : merges) insert(merge);
        byte_pairs_.resize(65536);
        for (std::size_t left = 0; left < 256; ++left) {
            for (std::size_t right = 0; right < 256; ++right) {
                byte_pairs_[left << 8 | right] = find(byte_ids[left], byte_ids[right]).rank;
            }
        }
    }

    bool knows_bytes_of(const Byte* word, std::size_t length) const {
        return std::none_of(word, word + length, [this](Byte byte) { return byte_ids_[byte] == none; });
    }

    // Appends the ids of a word to `ids`. Throws where the vocabulary lacks a byte that is needed.
    void apply(const Byte* word, std::size_t length, std::vector<std::uint32_t>& ids) const {
        if (length <= scan_length) {
            apply_scanning(word, length, ids);
        } else {
            apply_with_heap(word, length, ids);
        }
    }

private:
    static constexpr std::size_t scan_length = 128;

    struct Slot {
        std::uint32_t left = none, right = none, result = none, rank = none;
    };

    std::size_t place(std::uint32_t left, std::uint32_t right) const {
        return ((std::uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15ull) >> shift_;
    }

    // The first of equal pairs counts: it has the lower rank.
    void insert(const Merge& merge) {
        std::size_t at = place(merge.left, merge.right);
        while (slots_[at].left != none) {
            if (slots_[at].left == merge.left && slots_[at].right == merge.right) return;
            at = (at + 1) & (slots_.size() - 1);
        }
        slots_[at] = {merge.left, merge.right, merge.result, merge.rank};
    }

    const Slot& find(std::uint32_t left, std::uint32_t right) const {
        std::size_t at = place(left, right);
        while (slots_[at].left != none && (slots_[at].left != left || slots_[at].right != right)) {
            at = (at + 1) & (slots_.size() - 1);
        }
        return slots_[at];
    }

    std::uint32_t byte_id(Byte byte) const {
        const std::uint32_t id = byte_ids_[byte];
        if (id == none) throw std::domain_error("the vocabulary has no token for byte " + std::to_string(int{byte}));
        return id;
    }

    void apply_scanning(const Byte* word, std::size_t length, std::vector<std::uint32_t>& ids) const {
        std::uint32_t symbols[scan_length];
        std::uint32_t ranks[scan_length];  // of the pair that starts at each symbol
        for (std::size_t i = 0; i < length; ++i) symbols[i] = byte_id(word[i]);
        for (std::size_t i = 0; i + 1 < length; ++i) ranks[i] = byte_pairs_[word[i] << 8 | word[i + 1]];
        while (length > 1) {
            std::uint32_t lowest = ranks[0];
            for (std::size_t i = 1; i + 1 < length; ++i) lowest = std::min(lowest, ranks[i]);
            if (lowest == none) break;
            std::size_t at = 0;
            while (ranks[at] != lowest) ++at;
            symbols[at] = find(symbols[at], symbols[at + 1]).result;
            --length;
            for (std::size_t i = at + 1; i < length; ++i) symbols[i] = symbols[i + 1];
            for (std::size_t i = at + 1; i + 1 < length; ++i) ranks[i] = ranks[i + 1];
            if (at > 0) ranks[at - 1] = find(symbols[at - 1], symbols[at]).rank;
            if (at + 1 < length) ranks[at] = find(symbols[at], symbols[at + 1]).rank;
        }
        ids.insert(ids.end(), symbols, symbols + length);
    }

    void apply_with_heap(const Byte* word, std::size_t length, std::vector<std::uint32_t>& ids) const {
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
            const std::uint32_t rank = i + 1 < length ? byte_pairs_[word[i] << 8 | word[i + 1]] : none;
            nodes[i] = {byte_id(word[i]), rank, i - 1, i + 1 < length ? i + 1 : outside};
            if (rank != none) entries.emplace_back(rank, i);
        }
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>{}, std::move(entries));
        const auto update = [&](std::size_t at) {
            Node& node = nodes[at];
            node.rank = node.next == outside ? none : find(node.symbol, nodes[node.next].symbol).rank;
            if (node.rank != none) queue.emplace(node.rank, at);
        };
        while (!queue.empty()) {
            const auto [rank, at] = queue.top();
            queue.pop();
            Node& node = nodes[at];
            if (node.rank != rank) continue;
            const std::size_t gone = node.next;
            node.symbol = find(node.symbol, nodes[gone].symbol).result;
            node.next = nodes[gone].next;
            if (node.next != outside) nodes[node.next].previous = at;
            nodes[gone].rank = none;
            update(at);
            if (node.previous != outside) update(node.previous);
        }
        for (std::size_t at = 0; at != outside; at = nodes[at].next) ids.push_back(nodes[at].symbol);
    }

    std::array<std::uint32_t, 256> byte_ids_;
    std::vector<std::uint32_t> byte_pairs_;  // the rank of two bytes: the first round needs no hash
    std::vector<Slot> slots_;
    int shift_;
};

}  // namespace fledge
