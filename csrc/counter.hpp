// Counts pre-tokens. One open-addressing table per thread, keyed by up to 15 bytes inline plus the length, so that nine
// lookups in ten touch one cache line and no string is copied; longer words live in an arena. Tables are added up at
// the end; a sum does not depend on the order, nor on which thread saw which part.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "key.hpp"
#include "memory.hpp"

namespace fledge {

class WordTable {
public:
    WordTable() : slots_(1u << 12), mask_(slots_.size() - 1) {}

    void add(const Byte* word, std::size_t length, std::uint64_t count) {
        if (length <= short_length) {
            add_short(make_key_at_end(word, length), count);
        } else {
            add_long(word, length, count);
        }
    }

    void prefetch(std::uint64_t hash) const { fledge::prefetch_to_write(&slots_[hash & mask_]); }

    void add_short(Key key, std::uint64_t count) { add_short(key, hash_key(key), count); }
    void add_short(Key key, std::uint64_t hash, std::uint64_t count) {
        std::size_t at = hash & mask_;
        while (slots_[at].high != 0) {
            if (slots_[at].low == key.low && slots_[at].high == key.high) {
                slots_[at].count += count;
                return;
            }
            at = (at + 1) & mask_;
        }
        insert(at, {key.low, key.high, count});
    }

    void add_all(const WordTable& other) {
        other.each([this](const Byte* word, std::size_t length, std::uint64_t count) { add(word, length, count); });
    }

    std::size_t size() const { return size_; }

    void clear() { *this = WordTable(); }

    // visit(word, length, count); the word lives only as long as the call.
    template <typename Visit>
    void each(Visit visit) const {
        for (const Slot& slot : slots_) {
            if (slot.high == 0) continue;
            if (slot.high >> 56 == long_mark) {
                const std::string_view word = long_word(slot);
                visit(reinterpret_cast<const Byte*>(word.data()), word.size(), slot.count);
            } else {
                visit(reinterpret_cast<const Byte*>(&slot.low), static_cast<std::size_t>(slot.high >> 56), slot.count);
            }
        }
    }

private:
    // A short word is its key. A long one is its hash, and the mark with the place of its length and bytes in the arena.
    struct Slot {
        std::uint64_t low, high, count;
    };
    static constexpr std::uint64_t long_mark = 0xFF;

    std::string_view long_word(const Slot& slot) const {
        const char* place = arena_.data() + (slot.high & 0x00FFFFFFFFFFFFFFull);
        std::uint64_t length;
        std::memcpy(&length, place, sizeof length);
        return {place + sizeof length, length};
    }

    void add_long(const Byte* word, std::size_t length, std::uint64_t count) {
        const std::uint64_t hash = hash_bytes(word, length);
        std::size_t at = hash & mask_;
        while (slots_[at].high != 0) {
            if (slots_[at].low == hash && slots_[at].high >> 56 == long_mark) {
                const std::string_view known = long_word(slots_[at]);
                if (known.size() == length && std::memcmp(known.data(), word, length) == 0) {
                    slots_[at].count += count;
                    return;
                }
            }
            at = (at + 1) & mask_;
        }
        const std::uint64_t place = arena_.size(), size = length;
        arena_.insert(arena_.end(), reinterpret_cast<const char*>(&size), reinterpret_cast<const char*>(&size) + sizeof size);
        arena_.insert(arena_.end(), reinterpret_cast<const char*>(word), reinterpret_cast<const char*>(word) + length);
        insert(at, {hash, long_mark << 56 | place, count});
    }

    void insert(std::size_t at, Slot slot) {
        slots_[at] = slot;
        if (++size_ * 4 > slots_.size() * 3) grow();
    }

    void grow() {
        Slots<Slot> old(slots_.size() * 2);
        std::swap(old, slots_);
        mask_ = slots_.size() - 1;
        for (const Slot& slot : old) {
            if (slot.high == 0) continue;
            const bool is_long = slot.high >> 56 == long_mark;
            std::size_t at = (is_long ? slot.low : hash_key({slot.low, slot.high})) & mask_;
            while (slots_[at].high != 0) at = (at + 1) & mask_;
            slots_[at] = slot;
        }
    }

    Slots<Slot> slots_;
    std::size_t mask_;
    std::size_t size_ = 0;
    std::vector<char> arena_;
};

}  // namespace fledge
