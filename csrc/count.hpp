// Counts the pre-tokens of texts and files on several threads, each with a table of its own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "counter.hpp"
#include "patterns.hpp"
#include "specials.hpp"

namespace fledge {

class PretokenCounter {
public:
    PretokenCounter(Pattern pattern, const std::vector<std::string>& specials, unsigned threads);
    PretokenCounter(const PretokenCounter&) = delete;
    PretokenCounter& operator=(const PretokenCounter&) = delete;

    void add_text(std::span<const Byte> text);
    // Every span is a text of its own: nothing is counted across their borders.
    void add_spans(std::span<const Byte> buffer, std::span<const std::uint64_t> bounds);
    // `look_up` is called now and then, on this thread; what it throws ends the counting.
    void add_file(const std::string& path, const std::function<void()>& look_up = {});
    void add_word(std::span<const Byte> word, std::uint64_t count) { tables_[0].add(word.data(), word.size(), count); }

    void add_source_bytes(std::uint64_t bytes) { source_bytes_ += bytes; }
    // How many bytes of a text that goes on can be counted now; 0 where no place is safe.
    std::size_t last_cut(std::span<const Byte> text) const;

    // The sum of all tables; the counter keeps it.
    const WordTable& total();
    std::uint64_t source_bytes() const { return source_bytes_; }

private:
    unsigned useful_threads() const;
    void count_part(const Byte* text, const Byte* end, WordTable& table) const;

    Pattern pattern_;
    Specials specials_;
    unsigned threads_;
    std::vector<WordTable> tables_;  // one per thread
    std::uint64_t source_bytes_ = 0;
};

}  // namespace fledge
