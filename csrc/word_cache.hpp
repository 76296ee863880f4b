// Pre-token to ids, for pre-tokens seen before. A slot is half a cache line: the key of up to 15 bytes, and 16 bytes of
// ids, so that a hit reads one line and copies 16 bytes, whatever the number of ids. More ids, and longer pre-tokens,
// lie in arenas. Memory is bounded however many distinct words a text brings: a table that is full starts anew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "key.hpp"
#include "memory.hpp"

namespace fledge {

template <typename Id>
class WordCache {
public:
    static constexpr std::size_t inline_ids = 16 / sizeof(Id);  // what `copy_ids` writes, `count` of it meant

    // The length of a key takes four bits of its last byte; three others tell the number of ids, less one. The highest
    // marks a slot that is not all: in it no length means a long word, and no number that the ids are in the arena.
    struct Slot {
        std::uint64_t low, high;
        Id ids[inline_ids];

        bool is(Key key) const { return low == key.low && (high & ~count_bits) == key.high; }
        bool empty() const { return high == 0; }
        void copy_ids(Id* to) const { std::memcpy(to, ids, 16); }
        std::size_t count() const { return (high >> count_shift & 7) + 1; }  // of a slot that is all
    };
    static_assert(sizeof(Slot) == 32);

    explicit WordCache(std::size_t expected) : slots_(1024) {
        while (slots_.size() < expected * 3) slots_ = Slots<Slot>(slots_.size() * 2);
    }

    const Slot& home(std::uint64_t hash) const { return slots_[hash & mask()]; }
    void prefetch(std::uint64_t hash) const { fledge::prefetch(&slots_[hash & mask()]); }

    // For a word whose ids, or whose bytes, lie in an arena: asks for these, once its slot is at hand.
    void prefetch_arenas(std::uint64_t hash) const {
        const Slot& slot = slots_[hash & mask()];
        if (slot.high < mark) return;
        if (holds_long(slot)) fledge::prefetch(word_arena_.data() + (slot.high & place_bits));
        if (spills(slot)) fledge::prefetch(&id_arena_[place_of(slot).start]);
    }

    // The slot of a word, or null. A short word whose ids are in the arena has the mark, so that `is` is false for it.
    const Slot* find(Key key, std::uint64_t hash) const {
        const std::uint64_t marked = key.high | mark;
        for (std::size_t step = 0;; ++step) {
            const Slot& slot = slots_[place(hash, step)];
            if (slot.empty()) return nullptr;
            if (slot.is(key) || (slot.low == key.low && slot.high == marked)) return &slot;
        }
    }
    const Slot* find_long(const Byte* word, std::size_t length, std::uint64_t hash) const {
        for (std::size_t step = 0;; ++step) {
            const Slot& slot = slots_[place(hash, step)];
            if (slot.empty()) return nullptr;
            if (is_long(slot, word, length, hash)) return &slot;
        }
    }

    std::span<const Id> ids(const Slot& slot) const {
        if (!(slot.high & mark)) return {slot.ids, slot.count()};
        if (!spills(slot)) return {slot.ids, slot.count() - 1};
        return {&id_arena_[place_of(slot).start], place_of(slot).count};
    }

    void insert(Key key, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        const std::uint64_t marks = count > inline_ids ? mark : std::uint64_t{count - 1} << count_shift;
        put({key.low, key.high | marks, {}}, hash, ids, count);
    }
    void insert_long(const Byte* word, std::size_t length, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        const std::uint64_t place = word_arena_.size(), size = length;
        const auto* head = reinterpret_cast<const Byte*>(&size);
        word_arena_.insert(word_arena_.end(), head, head + sizeof size);
        word_arena_.insert(word_arena_.end(), word, word + length);
        const std::uint64_t marks = count > inline_ids || count > 7 ? mark : mark | std::uint64_t{count} << count_shift;
        put({hash, place | marks, {}}, hash, ids, count);
    }

    // Asks for what `admits` reads, while a new word is merged.
    void prefetch_admission(std::uint64_t hash) const {
        if (!seen_.empty()) fledge::prefetch(&seen_[hash >> 32 & (seen_.size() - 1)]);
    }

    // Whether a new word should be kept. In a table that can grow no more it has to come twice: most words of endless
    // text never do, and keeping them would push out those that come again.
    bool admits(std::uint64_t hash) {
        if (slots_.size() < slot_limit) return true;
        if (seen_.empty() || ++seen_count_ > seen_bits / 4) {
            seen_.assign(seen_bits / 64, 0);
            seen_count_ = 0;
        }
        std::uint64_t& word = seen_[hash >> 32 & (seen_.size() - 1)];
        const std::uint64_t bit = 1ull << (hash >> 58), before = word;
        word |= bit;
        return before & bit;
    }

    // To be called before an insert: doubles a table that fills up. Past the size limit it is emptied instead (true).
    bool make_room() {
        const bool arenas_full = word_arena_.size() + id_arena_.size() * sizeof(Id) > arena_limit;
        if (used_ * 2 < slots_.size() && !arenas_full) return false;
        if (arenas_full || slots_.size() >= slot_limit) {
            std::fill(slots_.begin(), slots_.end(), Slot{});
            word_arena_.clear();
            id_arena_.clear();
            used_ = 0;
            return true;
        }
        Slots<Slot> old(slots_.size() * 2);
        std::swap(old, slots_);
        for (const Slot& slot : old) {
            if (slot.empty()) continue;
            const Key key{slot.low, slot.high & ~(mark | count_bits)};
            slots_[free_place(holds_long(slot) ? slot.low : hash_key(key))] = slot;
        }
        return false;
    }

private:
    static constexpr int count_shift = 60;
    static constexpr std::uint64_t count_bits = 7ull << count_shift, mark = 1ull << 63, length_bits = 15ull << 56;
    static constexpr std::uint64_t place_bits = (1ull << 56) - 1;

    struct Place {
        std::uint32_t start, count;
    };

    static bool holds_long(const Slot& slot) { return (slot.high & (mark | length_bits)) == mark; }
    static bool spills(const Slot& slot) { return (slot.high & (mark | count_bits)) == mark; }
    static Place place_of(const Slot& slot) {
        Place place;
        std::memcpy(&place, slot.ids, sizeof place);
        return place;
    }
    static constexpr std::size_t slot_limit = std::size_t{1} << 20;
    static constexpr std::size_t seen_bits = std::size_t{1} << 21;
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
        if (slot.low != hash || !holds_long(slot)) return false;
        const Byte* place = word_arena_.data() + (slot.high & place_bits);
        std::uint64_t size;
        std::memcpy(&size, place, sizeof size);
        return size == length && std::memcmp(place + sizeof size, word, length) == 0;
    }

    void put(Slot slot, std::uint64_t hash, const std::uint32_t* ids, std::size_t count) {
        if (spills(slot)) {
            const Place place{static_cast<std::uint32_t>(id_arena_.size()), static_cast<std::uint32_t>(count)};
            std::memcpy(slot.ids, &place, sizeof place);
            for (std::size_t i = 0; i < count; ++i) id_arena_.push_back(static_cast<Id>(ids[i]));
        } else {
            for (std::size_t i = 0; i < count; ++i) slot.ids[i] = static_cast<Id>(ids[i]);
        }
        slots_[free_place(hash)] = slot;
        ++used_;
    }

    Slots<Slot> slots_;
    std::size_t used_ = 0;
    std::vector<std::uint64_t> seen_;  // a bit for the hash of every word that was met lately and not kept
    std::size_t seen_count_ = 0;
    std::vector<Byte> word_arena_;
    std::vector<Id> id_arena_;
};

}  // namespace fledge
