// Walks a text and gives out its pre-tokens in batches. They lie one after the other without gaps, so a batch is a list
// of starts; working in batches lets the caller fetch the memory for a whole batch before it needs the first of it.
//
// A window of text is classified into bit masks. From these, a few shifts and ands give the places where pre-tokens
// start by the common rules, all at once. Where the rules are not enough (a digit group, a contraction, strange spaces)
// the masks say so, and the exact code of patterns.hpp goes over that place from the nearest certain start until it
// meets a start of the fast rules again: what follows a true start does not depend on what was before it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "masks.hpp"
#include "patterns.hpp"
#include "too_large.hpp"

namespace fledge {

struct Batch {
    const Byte* base = nullptr;
    std::size_t count = 0;
    std::size_t roomy = 0;  // of so many pre-tokens, the first ones, 16 bytes can be read from their start on
    std::uint32_t starts[window_bytes + 1];  // from `base`; pre-token i is [starts[i], starts[i + 1])
};

template <Pattern pattern>
class Scanner {
public:
    Scanner(const Byte* text, const Byte* end) : at_(text), end_(end) {}

    // Fills the batch; false when the text is done.
    bool next(Batch& batch) {
        if (at_ == end_) return false;
        const auto left = static_cast<std::size_t>(end_ - at_);
        batch.base = at_;
        const bool last = left < window_bytes + 64;
        const std::size_t length = last ? std::min(left, window_bytes) : window_bytes;
        if (last) {
            std::memcpy(copy_, at_, length);
            std::memset(copy_ + length, 0, sizeof copy_ - length);
        }
        classify<pattern>(last ? copy_ : at_, length, masks_);
        const bool to_the_end = length == left;
        find_starts((length + 63) / 64);
        if (to_the_end) doubt_last_spaces(length);
        settle_doubts(length);
        extract(batch, to_the_end ? length : certain_length(length));
        if (to_the_end) {
            batch.starts[batch.count] = static_cast<std::uint32_t>(length);
        } else if (batch.count > 1) {
            --batch.count;  // the last one may go on past the window
        } else {
            return long_pretoken(batch);
        }
        at_ = batch.base + batch.starts[batch.count];
        const std::size_t readable = left - key_reads;
        batch.roomy = left < key_reads ? 0 : batch.count;
        while (batch.roomy > 0 && batch.starts[batch.roomy - 1] > readable) --batch.roomy;
        return true;
    }

private:
    bool long_pretoken(Batch& batch) {
        at_ = next_pretoken<pattern>(at_, end_);
        if (at_ - batch.base > 0xFFFFFFFF) {
            refuse_as_too_large("a stretch of over 4 GiB of this text has no place to divide it; put white space into it.");
        }
        batch.count = 1;
        batch.roomy = 0;
        batch.starts[0] = 0;
        batch.starts[1] = static_cast<std::uint32_t>(at_ - batch.base);
        return true;
    }

    // How far the starts do not depend on what lies past the window. The rules look one character ahead, but for white
    // space, which some patterns divide by how it ends.
    std::size_t certain_length(std::size_t length) const {
        std::size_t limit = length - 8;
        if constexpr (pattern != Pattern::gpt2) {
            while (limit > 0 && masks_.space.test(limit - 1)) --limit;
        }
        return limit;
    }

    void find_starts(std::size_t words) {
        Bits symbol_before = 0, attach_before = 0;  // bit 0: what the last byte of the word before was
        for (std::size_t i = 0; i < words; ++i) {
            const Bits letter = masks_.letter[i], number = masks_.number[i], space = masks_.space[i];
            const Bits symbol = ~(letter | number | space), symbol1 = symbol << 1 | symbol_before;
            const Bits after_blank = masks_.blank.before(i);
            Bits start = ~((letter & masks_.letter.before(i)) | (number & masks_.number.before(i)) |
                           (space & masks_.space.before(i)) | (symbol & symbol1));
            if constexpr (pattern == Pattern::gpt2) {
                start &= space | ~after_blank;       // a blank belongs to what follows
                start |= space & ~masks_.space.next(i);  // and so the last of several spaces stands alone
            } else {
                const Bits newline = masks_.newline[i], newline1 = masks_.newline.before(i);
                const Bits plain_space1 = masks_.space.before(i) & ~newline1;
                start |= space & ~newline & (newline1 | ~masks_.space.next(i));
                start &= ~(letter & plain_space1) & ~(symbol & after_blank) & ~(newline & symbol1);
                // A symbol that starts a pre-token takes the letters after it along.
                Bits attach = (start & symbol) | (attach_before & masks_.later[i]);
                for (int step = 0; step < 3; ++step) attach |= attach << 1 & masks_.later[i];
                start &= ~(letter & (attach << 1 | attach_before));
                attach_before = attach >> 63;
                masks_.doubtful[i] |= newline & plain_space1;
                const Bits number1 = masks_.number.before(i);
                const Bits two = number & number1;  // a fourth digit: two in a row, and two in a row two before
                masks_.doubtful[i] |= two & (two << 2 | two_before_(i));
                const Bits quote = masks_.apostrophe[i] & masks_.letter.next(i);
                if constexpr (pattern == Pattern::cl100k) {
                    masks_.doubtful[i] |= quote;
                } else {
                    masks_.doubtful[i] |= quote & masks_.letter.before(i);
                    const Bits upper = masks_.upper[i], lower1 = masks_.lower.before(i);
                    start |= upper & lower1;
                    const Bits uncased = letter & ~upper & ~masks_.lower[i];
                    const Bits cased = upper | masks_.lower[i];
                    const Bits cased1 = masks_.upper.before(i) | lower1;
                    masks_.doubtful[i] |= masks_.mark[i] & (cased1 | ~masks_.letter.before(i));
                    masks_.doubtful[i] |= (uncased & cased1) | (cased & masks_.letter.before(i) & ~cased1);
                    masks_.doubtful[i] |= newline1 & masks_.slash[i];  // it may belong to symbols before the newline
                }
            }
            symbol_before = symbol >> 63;
            starts_[i] = start;
        }
        starts_[0] |= 1;
        starts_[words] = 0;
        if constexpr (pattern == Pattern::gpt2) split_contractions(words);
    }

    // The upper two bits of the word before, of "a number after a number".
    Bits two_before_(std::size_t i) const {
        if (i == 0) return 0;
        return (masks_.number[i - 1] & masks_.number.before(i - 1)) >> 62;
    }

    void split_contractions(std::size_t words) {
        for (std::size_t i = 0; i < words; ++i) {
            for (Bits left = masks_.apostrophe[i] & starts_[i]; left; left &= left - 1) {
                const std::size_t at = 64 * i + static_cast<std::size_t>(std::countr_zero(left));
                const int length = contraction<false>(at_ + at, end_);
                if (!length) continue;
                starts_.clear(at + 1);
                starts_.set(at + static_cast<std::size_t>(length));
            }
        }
    }

    // At the end of the text white space is not followed by a character, and that has rules of its own.
    void doubt_last_spaces(std::size_t length) {
        if constexpr (pattern == Pattern::gpt2) return;
        std::size_t at = length;
        while (at > 0 && masks_.space.test(at - 1)) --at;
        if (at < length) masks_.doubtful.set(at);
    }

    void settle_doubts(std::size_t length) {
        std::size_t done = 0;  // doubts before this are settled
        for (std::size_t i = 0; 64 * i < length; ++i) {
            for (Bits left = masks_.doubtful[i]; left; left &= left - 1) {
                const std::size_t doubt = 64 * i + static_cast<std::size_t>(std::countr_zero(left));
                if (doubt >= done) done = settle(doubt, length);
            }
        }
    }

    // Goes over a doubtful place with the exact code; returns where the fast rules are right again.
    std::size_t settle(std::size_t doubt, std::size_t length) {
        const std::size_t from = certain_start(doubt);
        std::size_t cleared = from + 1, at = from;
        while (at < length) {
            at = static_cast<std::size_t>(next_pretoken<pattern>(at_ + at, end_) - at_);
            const std::size_t stop = std::min(at, length);
            const bool met = at < length && starts_.test(at);
            while (cleared < stop) starts_.clear(cleared++);
            if (at >= length) break;
            starts_.set(at);
            cleared = at + 1;
            if (met && at > doubt) break;
        }
        return std::max(at, doubt + 1);
    }

    // The nearest start before `doubt` that holds by itself: not one inside a run of spaces, whose parts depend on its end.
    std::size_t certain_start(std::size_t doubt) const {
        std::size_t at = doubt;
        while (at > 0) {
            --at;
            std::size_t word = at >> 6;
            Bits below = starts_[word] & (~Bits{0} >> (63 - (at & 63)));
            while (!below && word > 0) below = starts_[--word];
            if (!below) return 0;
            at = 64 * word + 63 - static_cast<std::size_t>(std::countl_zero(below));
            if (!(masks_.space.test(at) && masks_.space.test(at + 1))) return at;
        }
        return 0;
    }

    // The starts before `limit`, in order.
    void extract(Batch& batch, std::size_t limit) const {
        std::uint32_t* out = batch.starts;
        for (std::size_t i = 0; 64 * i < limit; ++i) {
            Bits left = starts_[i];
            if (limit - 64 * i < 64) left &= (Bits{1} << (limit - 64 * i)) - 1;
            const auto base = static_cast<std::uint32_t>(64 * i);
            for (; left; left &= left - 1) *out++ = base + static_cast<std::uint32_t>(std::countr_zero(left));
        }
        batch.count = static_cast<std::size_t>(out - batch.starts);
    }

    const Byte* at_;
    const Byte* end_;
    Masks masks_;
    Mask starts_;
    Byte copy_[window_bytes + 64];
};

// Calls work(scanner) for the pattern that is named at run time.
template <typename Work>
void with_scanner(Pattern pattern, const Byte* text, const Byte* end, Work&& work) {
    switch (pattern) {
        case Pattern::gpt2: {
            Scanner<Pattern::gpt2> scanner(text, end);
            work(scanner);
            break;
        }
        case Pattern::cl100k: {
            Scanner<Pattern::cl100k> scanner(text, end);
            work(scanner);
            break;
        }
        case Pattern::o200k: {
            Scanner<Pattern::o200k> scanner(text, end);
            work(scanner);
            break;
        }
    }
}

}  // namespace fledge
