// Pre-token to ids, for pre-tokens seen before. A slot is half a cache line: the key of up to 15 bytes, and a few ids
// inline, so that a hit reads one line and copies 16 bytes, whatever the number of ids. More ids, and longer pre-tokens,
// lie in arenas. Memory is bounded however many distinct words a text brings: a table that is full starts anew.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "key.hpp"
#include "memory.hpp"

namespace fledge {

template <typename Id>
class WordCache {
public:
    static constexpr std::uint32_t inline_ids = 12 / sizeof(Id);
    static constexpr std::size_t copied_ids = 16 / sizeof(Id);  // what `copy_ids` writes, `count` of it meant

    struct Slot {
        std::uint64_t low, high;
        Id ids[inline_ids];
        std::uint32_t count;

        bool is(Key key) const { return low == key.low && high == key.high; }
        bool empty() const { return high == 0; }
        void copy_ids(Id* to) const { std::memcpy(to, ids, 16); }
    };
    static_assert(sizeof(Slot) == 32);

    explicit WordCache(std::size_t expected) : slots_(1024) {
        while (slots_.size() < expected * 3) slots_ = Slots<Slot>(slots_.size() * 2);
    }

    const Slot& home(std::uint64_t hash) const { return slots_[hash & mask()]; }
    void prefetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask()]); }

    // For a word whose ids, or whose bytes, lie in an arena: asks for these, once its slot is at hand.
    void prefetch_arenas(std::uint64_t hash) const {
        const Slot& slot = slots_[hash & mask()];
        if (slot.high < spilled_mark) return;
        if (slot.high >> 56 == long_mark) __builtin_prefetch(word_arena_.data() + (slot.high & place_bits));
        if (slot.count > inline_ids) __builtin_prefetch(ids(slot));
    }

    // The slot of a word, or null. Short words with more ids than a slot holds have a mark in their key, so that the
    // fast comparison fails on them.
    const Slot* find(Key key, std::uint64_t hash) const {
        const std::uint64_t marked = key.high | spilled_mark;
        for (std::size_t step = 0;; ++step) {
            const Slot& slot = slots_[place(hash, step)];
            if (slot.empty()) return nullptr;
            if (slot.low == key.low && (slot.high == key.high || slot.high == marked)) return &slot;
        }
    }
    const Slot* find_long(const Byte* word, std::size_t length, std::uint64_t hash) const {
        for (std::size_t step = 0;; ++step) {
            const Slot& slot = slots_[place(hash, step)];
            if (slot.empty()) return nullptr;
            if (is_long(slot, word, length, hash)) return &slot;
        }
    }

    const Id* ids(const Slot& slot) const {
        if (slot.count <= inline_ids) return slot.ids;
        std::uint32_t place;
        std::memcpy(&place, slot.ids, sizeof place);
        return &id_arena_[place];
    }

    void insert(Key key, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        put(key.low, count > inline_ids ? key.high | spilled_mark : key.high, hash, ids, count);
    }
    void insert_long(const Byte* word, std::size_t length, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        const std::uint64_t place = word_arena_.size(), size = length;
        const auto* head = reinterpret_cast<const Byte*>(&size);
        word_arena_.insert(word_arena_.end(), head, head + sizeof size);
        word_arena_.insert(word_arena_.end(), word, word + length);
        put(hash, long_mark << 56 | place, hash, ids, count);
    }

    // To be called before an insert: doubles a table that fills up. Past the size limit it is emptied instead (true).
    bool make_room() {
        const bool arenas_full = word_arena_.size() + id_arena_.size() * sizeof(Id) > arena_limit;
        if (used_ * 2 < slots_.size() && !arenas_full) return false;
        if (arenas_full || slots_.size() >= slot_limit) {
            slots_ = Slots<Slot>(slots_.size());
            word_arena_.clear();
            id_arena_.clear();
            used_ = 0;
            return true;
        }
        Slots<Slot> old(slots_.size() * 2);
        std::swap(old, slots_);
        for (const Slot& slot : old) {
            if (slot.empty()) continue;
            const std::uint64_t high = slot.high & ~spilled_mark;
            slots_[free_place(slot.high >> 56 == long_mark ? slot.low : hash_key({slot.low, high}))] = slot;
        }
        return false;
    }

private:
    static constexpr std::uint64_t long_mark = 0xFF;
    static constexpr std::uint64_t spilled_mark = 1ull << 63;
    static constexpr std::uint64_t place_bits = (1ull << 56) - 1;
    static constexpr std::size_t slot_limit = std::size_t{1} << 20;
    static constexpr std::size_t arena_limit = std::size_t{16} << 20;

    std::size_t mask() const { return slots_.size() - 1; }

    // The places to look at, in order.
    std::size_t place(std::uint64_t hash, std::size_t step) const { return (hash + step) & mask(); }

    std::size_t free_place(std::uint64_t hash) const {
        std::size_t step = 0;
        while (!slots_[place(hash, step)].empty()) ++step;
        return place(hash, step);
    }

    bool is_long(const Slot& slot, const Byte* word, std::size_t length, std::uint64_t hash) const {
        if (slot.low != hash || slot.high >> 56 != long_mark) return false;
        const Byte* place = word_arena_.data() + (slot.high & place_bits);
        std::uint64_t size;
        std::memcpy(&size, place, sizeof size);
        return size == length && std::memcmp(place + sizeof size, word, length) == 0;
    }

    void put(std::uint64_t low, std::uint64_t high, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        Slot& slot = slots_[free_place(hash)];
        ++used_;
        slot.low = low;
        slot.high = high;
        slot.count = static_cast<std::uint32_t>(count);
        if (count <= inline_ids) {
            for (std::size_t i = 0; i < count; ++i) slot.ids[i] = static_cast<Id>(ids[i]);
        } else {
            const auto place = static_cast<std::uint32_t>(id_arena_.size());
            std::memcpy(slot.ids, &place, sizeof place);
            for (std::size_t i = 0; i < count; ++i) id_arena_.push_back(static_cast<Id>(ids[i]));
        }
    }

    Slots<Slot> slots_;
    std::size_t used_ = 0;
    std::vector<Byte> word_arena_;
    std::vector<Id> id_arena_;
};

}  // namespace fledge
